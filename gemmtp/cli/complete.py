"""Names for the shell to complete: manifests and catalogue files are read, nothing else."""

from __future__ import annotations


def installed_names(incomplete: str) -> list[str]:
    """The sets that are here, and the demo."""
    from gemmtp import settings
    from gemmtp_models import names
    from gemmtp_models.store import Store

    found = [names.DEMO, *Store(settings.data_dir()).names()]
    return [name for name in found if name.startswith(incomplete)]


def available_names(incomplete: str) -> list[str]:
    """The sets that are here or can be pulled."""
    from gemmtp import settings
    from gemmtp.errors import UsageError
    from gemmtp_models import catalogue

    try:
        found = list(catalogue.entries(settings.config_dir()))
    except UsageError:
        found = list(catalogue.entries())
    every = dict.fromkeys([*installed_names(""), *sorted(found)])
    return [name for name in every if name.startswith(incomplete)]


def session_names(incomplete: str) -> list[str]:
    """The sessions, the one used last first."""
    from gemmtp.chat import shelf

    return [name for name in shelf.by_use() if name.startswith(incomplete)]

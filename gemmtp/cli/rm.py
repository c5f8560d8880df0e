"""``gemmtp rm``: forget sets and free what no other set uses."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from gemmtp.cli.complete import installed_names
from gemmtp.cli.pull import size_words

if TYPE_CHECKING:
    from gemmtp_models.store import Store


def rm(
    sets: list[str] = typer.Argument(
        None, metavar="NAME...", help="Sets in the store.", autocompletion=installed_names
    ),
    unfinished: bool = typer.Option(
        False, "--unfinished", help="Remove what interrupted pulls left."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Remove sets; a file that another set names stays."""
    from gemmtp import settings
    from gemmtp.errors import UsageError
    from gemmtp_models import names
    from gemmtp_models import unfinished as leftovers
    from gemmtp_models.store import Store

    store = Store(settings.data_dir())
    chosen = [names.set_name(name) for name in dict.fromkeys(sets or [])]
    if not chosen and not unfinished:
        raise UsageError("Nothing to remove was named.", "Name a set, or give --unfinished.")
    if names.set_name(names.DEMO) in chosen and not store.exists(names.set_name(names.DEMO)):
        raise UsageError("The set demo comes with gemmtp and cannot be removed.")
    for name in chosen:
        if not store.exists(name):
            store.manifest(name)
    removed = [_remove(store, name) for name in chosen]
    left = leftovers.remove_unfinished(store.downloads) if unfinished else 0
    if as_json:
        document = {"removed": removed, "unfinished_bytes": left}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    for row in removed:
        sys.stderr.write(f"removed {row['name']}: {size_words(row['freed_bytes'])} freed\n")
        for role, users in row["kept"].items():
            sys.stderr.write(f"  the {role} stays: {', '.join(users)} has it too\n")
    if unfinished:
        sys.stderr.write(f"removed unfinished pulls: {size_words(left)} freed\n")


def _remove(store: Store, name: str) -> dict[str, Any]:
    from gemmtp.errors import BadModelFileError

    freed, kept = 0, {}
    try:
        removal = store.removal(name)
        freed, kept = removal.freed, {role: list(users) for role, users in removal.kept.items()}
    except BadModelFileError:
        # A manifest that cannot be read names no files; forgetting it is all there is to do.
        sys.stderr.write(f"note: the manifest of {name} could not be read\n")
    store.remove(name)
    return {"name": name, "freed_bytes": freed, "kept": kept}

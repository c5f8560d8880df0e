"""Where things are kept, and what the environment says.

``GEMMTP_HOME`` moves everything under one folder; without it the platform's own folders are used
(platformdirs). Nothing is created here: who writes, creates.
"""

from __future__ import annotations

import os
from pathlib import Path

APP = "gemmtp"


def _home() -> Path | None:
    value = os.environ.get("GEMMTP_HOME", "").strip()
    return Path(value).expanduser() if value else None


def data_dir() -> Path:
    """The folder of manifests and blobs."""
    home = _home()
    if home is not None:
        return home / "data"
    import platformdirs

    return Path(platformdirs.user_data_dir(APP, appauthor=False))


def cache_dir() -> Path:
    """The folder of what can be made again."""
    home = _home()
    if home is not None:
        return home / "cache"
    import platformdirs

    return Path(platformdirs.user_cache_dir(APP, appauthor=False))


def state_dir() -> Path:
    """The folder of what a chat leaves behind: its history and its sessions."""
    home = _home()
    if home is not None:
        return home / "state"
    import platformdirs

    return Path(platformdirs.user_state_dir(APP, appauthor=False))


def config_dir() -> Path:
    """The folder of what the user writes: settings and catalogue files."""
    home = _home()
    if home is not None:
        return home / "config"
    import platformdirs

    return Path(platformdirs.user_config_dir(APP, appauthor=False))


def debug() -> bool:
    """Whether errors show their traceback (``GEMMTP_DEBUG=1``)."""
    return os.environ.get("GEMMTP_DEBUG", "") not in ("", "0")

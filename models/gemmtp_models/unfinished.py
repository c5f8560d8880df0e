"""What unfinished fetches leave in their folder, found and removed without the network's code.

``sha256-<hex>.partial``, ``.journal``, ``.whole`` and ``.lock``, as :mod:`gemmtp_models.download`
says.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gemmtp_models.download_journal import ranges_in
from gemmtp_models.hub_names import RemoteFile
from gemmtp_models.positioned import disk_bytes, open_file
from gemmtp_models.workspace import try_lock

LOCK_POLL_SECONDS = 0.1


def whole_path(folder: Path, sha256: str) -> Path:
    """Where a fetched file lies until it is taken into the store."""
    return folder / f"sha256-{sha256}.whole"


def held_bytes(folder: Path, file: RemoteFile) -> int:
    """How many bytes of ``file`` an earlier fetch has left in ``folder``."""
    if file.size is None or file.sha256 is None:
        return 0
    if whole_path(folder, file.sha256).is_file():
        return file.size
    return ranges_in(folder / f"sha256-{file.sha256}.journal", file.size, file.sha256).total


@contextmanager
def alone(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file ``path``, calling ``waiting`` while another process does."""
    while True:
        handle = open_file(path)
        if try_lock(handle):
            # Whoever held the lock may have removed the file that was opened here.
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(handle)):
                    break
            os.close(handle)
            continue
        os.close(handle)
        waiting()
        time.sleep(LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        _release(path, handle)


def _release(lock: Path, handle: int) -> None:
    """Remove a lock file that is held; Windows removes only files that are closed."""
    if sys.platform == "win32":
        os.close(handle)
        lock.unlink(missing_ok=True)
    else:
        lock.unlink(missing_ok=True)
        os.close(handle)


def remove_unfinished(folder: Path) -> int:
    """Remove what unfinished fetches left, except those that are running; bytes freed."""
    freed = 0
    for stem in {path.with_suffix("") for path in folder.glob("sha256-*.*")}:
        lock = stem.with_suffix(".lock")
        handle = open_file(lock)
        if try_lock(handle):
            for suffix in (".partial", ".journal", ".whole"):
                path = stem.with_suffix(suffix)
                if path.is_file():
                    freed += disk_bytes(path)
                    path.unlink()
            _release(lock, handle)
        else:
            os.close(handle)
    return freed


def unfinished_bytes(folder: Path) -> int:
    """Bytes on the disk that unfinished fetches take."""
    suffixes = (".partial", ".whole")
    paths = [path for path in folder.glob("sha256-*.*") if path.suffix in suffixes]
    return sum(disk_bytes(path) for path in paths)

"""A folder for unfinished files that does not outlive its process.

Beside the folder lies a lock file that the process holds; the system frees it however the process
ends. Whoever opens the next workspace in the same place removes those whose lock is free.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = ".lock"


def try_lock(handle: int) -> bool:
    """Lock an open file for this process alone; false when another process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def open_workspace(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder ``parent/prefix...`` that is gone at the end, however the block ends.

    Folders of the same prefix that killed processes left behind are removed first.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent, prefix)
    folder, handle = _create(parent, prefix)
    try:
        folder.mkdir()
        yield folder
    finally:
        _remove(folder, handle)


def remove_leftovers(parent: Path, prefix: str) -> int:
    """Remove the workspaces of ended processes; return how many there were."""
    removed = 0
    for lock in sorted(parent.glob(f"{prefix}*{_LOCK}")):
        try:
            handle = os.open(lock, os.O_RDWR)
        except FileNotFoundError:
            continue
        if try_lock(handle):
            _remove(lock.with_name(lock.name.removesuffix(_LOCK)), handle)
            removed += 1
        else:
            os.close(handle)
    return removed


def _create(parent: Path, prefix: str) -> tuple[Path, int]:
    """A folder name with its lock held; the folder itself is not there yet."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}"
        lock = _lock_of(folder)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # Between creating and locking, another process may take the file for a leftover.
        if try_lock(handle) and lock.exists() and os.path.samestat(lock.stat(), os.fstat(handle)):
            return folder, handle
        os.close(handle)


def _remove(folder: Path, handle: int) -> None:
    """The folder first, then its lock: a folder never stands without one."""
    shutil.rmtree(folder, ignore_errors=True)
    if sys.platform == "win32":
        os.close(handle)
        _lock_of(folder).unlink(missing_ok=True)
    else:
        _lock_of(folder).unlink(missing_ok=True)
        os.close(handle)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)

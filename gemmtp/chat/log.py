"""A file of JSON lines that only grows, for one writer at a time.

Every record is one ``write`` behind the last one, so a process may end anywhere: what it wrote
stands, and of what it was writing at most a part is there, without its line end. Such a rest is
passed over on reading and cut off by the next writer. The lock belongs to the open file; the system
frees it however the process ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gemmtp.errors import GemmtpError
from gemmtp.prompt.conversation import Json
from gemmtp_models.workspace import try_lock


class LogInUseError(GemmtpError):
    """Another process writes this log."""


class Log:
    """An open, locked log. :attr:`trouble` says why records wait in memory, None if none do."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Open and lock ``path``; ``create`` wants it to be new.

        Raises :class:`LogInUseError`, FileExistsError, FileNotFoundError and other OSErrors.
        """
        flags = (
            os.O_RDWR
            | os.O_APPEND
            | getattr(os, "O_BINARY", 0)
            | (os.O_CREAT | os.O_EXCL if create else 0)
        )
        self.path = path
        self.trouble: str | None = None
        self._handle: int | None = _locked(path, flags)
        end = _whole(self._handle, os.fstat(self._handle).st_size)
        # Where the last record ends, and what follows it: one value, so that no signal comes
        # between the two.
        self._state = end, b""

    def append(self, record: Json, *, sync: bool = False) -> None:
        """Write ``record`` as one line; ``sync`` waits until the disk has it.

        A disk that refuses (it is full) ends no chat: records then wait in memory, :attr:`trouble`
        says so, and every further record tries again.
        """
        # A lone surrogate becomes the escape that JSON has for it.
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
        end, waiting = self._state
        self._state = end, waiting = end, waiting + line.encode("utf-8", "backslashreplace")
        if self._handle is None:
            return
        try:
            # What lies behind the end is half a record, or one whose writing was interrupted.
            if os.fstat(self._handle).st_size != end:
                os.ftruncate(self._handle, end)
            rest = memoryview(waiting)
            while rest:
                rest = rest[os.write(self._handle, rest) :]
            self._state = end + len(waiting), b""
            self.trouble = None
            if sync:
                os.fsync(self._handle)
        except OSError as error:
            self.trouble = error.strerror or str(error)

    def close(self) -> None:
        """Give the lock back; safe to call twice."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def read(path: Path, *, without: str | None = None) -> Iterator[Json]:
    """The records of a log, without a torn last one and without lines that are no object.

    Those of the type ``without`` are passed over unread. Raises OSError.
    """
    skipped = f'{{"type":"{without}"'.encode()
    for line in lines(path):
        if without is None or not line.startswith(skipped):
            record = parsed(line)
            if record is not None:
                yield record


def lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a log."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def parsed(line: bytes) -> Json | None:
    """The record in a line; None when the line was damaged."""
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    return None


def _locked(path: Path, flags: int) -> int:
    while True:
        handle = os.open(path, flags, 0o600)
        if not try_lock(handle):
            os.close(handle)
            raise LogInUseError(f"{path.name} is open in another process.")
        # Between opening and locking it may have been removed by another process.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(handle)):
                return handle
        os.close(handle)


def _whole(handle: int, size: int) -> int:
    """Where the last whole line ends, in bytes."""
    block = 1 << 16
    end = size
    while end > 0:
        start = max(0, end - block)
        os.lseek(handle, start, os.SEEK_SET)
        found = os.read(handle, end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0

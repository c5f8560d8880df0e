"""Reading and writing at a place of an open file, from several threads at once.

Where the system has no such calls (Windows), a lock and a file position stand in for them.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

_BINARY = getattr(os, "O_BINARY", 0)
_POSITIONED = hasattr(os, "preadv") and hasattr(os, "pwritev")
_seeking = threading.Lock()


def open_file(path: Path, *, write: bool = True) -> int:
    """A file's number, for reading and, by default, writing; it is created then, for us alone."""
    flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
    return os.open(path, flags | _BINARY, 0o600)


def read_into(handle: int, view: memoryview, offset: int) -> int:
    """Fill ``view`` from ``offset``; how many bytes there were."""
    if _POSITIONED:
        return os.preadv(handle, [view], offset)
    with _seeking:
        os.lseek(handle, offset, os.SEEK_SET)
        data = os.read(handle, len(view))
    view[: len(data)] = data
    return len(data)


def write_all(handle: int, chunks: list[bytes], offset: int) -> None:
    """Write all of ``chunks`` at ``offset``; a disk that runs full in the middle raises OSError."""
    rest = b""
    if _POSITIONED:
        done, total = os.pwritev(handle, chunks, offset), sum(map(len, chunks))
        if done < total:
            rest = b"".join(chunks)[done:]
            offset += done
    else:
        rest = b"".join(chunks)
    while rest:
        with _seeking:
            os.lseek(handle, offset, os.SEEK_SET)
            done = os.write(handle, rest)
        rest, offset = rest[done:], offset + done


def sync(handle: int) -> None:
    """Make what was written last."""
    getattr(os, "fdatasync", os.fsync)(handle)


def disk_bytes(path: Path) -> int:
    """What a file takes on the disk, less than its length while it has holes."""
    found = path.stat()
    blocks: int | None = getattr(found, "st_blocks", None)
    return found.st_size if blocks is None else blocks * 512

"""Which bytes of an unfinished file are on the disk, kept so that a power cut cannot lie.

The journal is a text file beside the data. Its first line names the file (size, sha256), each
later one a range or the server's ETag. A line ends with its CRC, so a torn one is noticed; a range
is written only after its bytes were synced.
"""

from __future__ import annotations

import json
import os
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gemmtp_models.positioned import open_file

VERSION = 1
MAX_JOURNAL_BYTES = 16 << 20


class Ranges:
    """A set of byte positions as sorted, disjoint ``[start, end)``."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def add(self, start: int, end: int) -> None:
        """Add ``[start, end)``; neighbours are joined."""
        first = bisect_left(self._ranges, start, key=lambda r: r[1])
        last = first
        while last < len(self._ranges) and self._ranges[last][0] <= end:
            start, end = min(start, self._ranges[last][0]), max(end, self._ranges[last][1])
            last += 1
        self._ranges[first:last] = [(start, end)]

    @property
    def total(self) -> int:
        """How many bytes there are."""
        return sum(end - start for start, end in self._ranges)

    @property
    def prefix(self) -> int:
        """How many bytes there are from the start of the file without a gap."""
        return self._ranges[0][1] if self._ranges and self._ranges[0][0] == 0 else 0

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The gaps within ``[start, end)``, from the front."""
        gaps = []
        for have, until in self._ranges:
            if until <= start:
                continue
            if have >= end:
                break
            if have > start:
                gaps.append((start, have))
            start = until
        if start < end:
            gaps.append((start, end))
        return gaps


class Journal:
    """The journal in ``path`` of a file of ``size`` bytes; ``ranges`` and ``etag`` are read.

    Only who holds the file's lock may open it; anyone may ask ``ranges_in``.
    """

    def __init__(self, path: Path, size: int, sha256: str) -> None:
        self._head = {"version": VERSION, "size": size, "sha256": sha256}
        self.ranges = Ranges()
        self.etag: str | None = None
        self._file = open_file(path)
        self.ranges, self.etag, kept = _read(self._file, self._head)
        if kept == 0:
            self.clear()
        else:
            os.ftruncate(self._file, kept)
            os.lseek(self._file, kept, os.SEEK_SET)

    def note(self, ranges: Iterable[tuple[int, int]]) -> None:
        """These ranges are synced."""
        lines = b""
        for start, end in ranges:
            self.ranges.add(start, end)
            lines += _line([start, end])
        self._write(lines)

    def note_etag(self, etag: str) -> None:
        """The server's name for the version that the bytes are of."""
        self.etag = etag
        self._write(_line({"etag": etag}))

    def clear(self) -> None:
        """Forget all ranges and the ETag."""
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        self.ranges, self.etag = Ranges(), None
        self._write(_line(self._head))

    def close(self) -> None:
        """Close the file; the journal stays."""
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]


def ranges_in(path: Path, size: int, sha256: str) -> Ranges:
    """The synced ranges that a journal tells of, none if it is of another file or not there."""
    try:
        file = open_file(path, write=False)
    except OSError:
        return Ranges()
    try:
        return _read(file, {"version": VERSION, "size": size, "sha256": sha256})[0]
    finally:
        os.close(file)


def _read(file: int, head: dict[str, Any]) -> tuple[Ranges, str | None, int]:
    """Ranges, ETag and length in bytes of the sound lines from the front."""
    ranges, etag, at = Ranges(), None, 0
    os.lseek(file, 0, os.SEEK_SET)
    for line in os.read(file, MAX_JOURNAL_BYTES).splitlines(keepends=True):
        match _value(line):
            case value if at == 0 and value == head:
                pass
            case {"etag": str(name)} if at:
                etag = name
            case [int(start), int(end)] if at and 0 <= start < end <= head["size"]:
                ranges.add(start, end)
            case _:
                break
        at += len(line)
    return ranges, etag, at


def _line(value: Any) -> bytes:
    text = json.dumps(value).encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _value(line: bytes) -> Any:
    """What a line says; None for a torn or damaged one."""
    text, _, crc = line.rstrip(b"\n").rpartition(b" ")
    if not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None

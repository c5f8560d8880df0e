"""Bounded reading of the front of a file: no length is used before it is known to fit."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

from gemmtp.errors import BadModelFileError

# One read. At most this many bytes after the header are read along with it.
CHUNK_BYTES = 16 * 1024

# No file is this long; a length that reaches here is damage and not a cut.
_NO_FILE_BYTES = 1 << 50

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def cut_short(name: str, missing: int) -> BadModelFileError:
    """The error for a file that ends before its contents do; ``missing`` in bytes."""
    if missing > _NO_FILE_BYTES:
        return BadModelFileError(
            f"{name} is damaged: it claims {missing:,} bytes more than it has.",
            "Fetch the file again or another one.",
        )
    return BadModelFileError(
        f"{name} is cut short: at least {missing:,} bytes are missing.",
        "The download or copy did not finish; fetch the file again.",
    )


class HeaderStream:
    """Little-endian values from ``file``, front to back.

    ``file`` is unbuffered and ``size`` its length in bytes. No method allocates more than
    ``CHUNK_BYTES`` plus what the caller asked for and the file holds. Raises
    ``BadModelFileError`` where the file ends too early.
    """

    def __init__(
        self, file: io.FileIO | io.BytesIO, size: int, name: str, position: int = 0
    ) -> None:
        self._file = file
        self._size = size
        self._name = name
        self._base = position
        self._buffer = b""
        self._at = 0
        file.seek(position)

    @property
    def position(self) -> int:
        """Bytes from the start of the file to the next unread one."""
        return self._base + self._at

    @property
    def remaining(self) -> int:
        """Bytes from here to the end of the file."""
        return self._size - self.position

    def u32(self) -> int:
        """The next 4 bytes as an unsigned integer."""
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        """The next 8 bytes as an unsigned integer."""
        return int(_U64.unpack(self.take(8))[0])

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        self._require(count)
        if self._at + count > len(self._buffer):
            self._fill(count)
        piece = self._buffer[self._at : self._at + count]
        self._at += count
        return piece

    def skip(self, count: int) -> None:
        """Go ``count`` bytes on without reading what lies beyond the current chunk."""
        self._require(count)
        self._at += count
        if self._at > len(self._buffer):
            self._jump()

    def skip_strings(self, count: int) -> None:
        """Go past ``count`` strings, each a u64 length and that many bytes."""
        self._require(8 * count)
        unpack = _U64.unpack_from
        buffer, at, end = self._buffer, self._at, len(self._buffer)
        for _ in range(count):
            if at + 8 > end:
                self._at = at
                self._require(8)
                self._fill(8)
                buffer, at, end = self._buffer, self._at, len(self._buffer)
            at += 8 + unpack(buffer, at)[0]
            if at > end:
                self._at = end
                self._require(at - end)
                self._at = at
                self._jump()
                buffer, at, end = b"", 0, 0
        self._at = at

    def strings(self, count: int) -> Iterator[bytes]:
        """The next ``count`` strings."""
        unpack = _U64.unpack_from
        buffer, at, end = self._buffer, self._at, len(self._buffer)
        for _ in range(count):
            start = at + 8
            stop = start + unpack(buffer, at)[0] if start <= end else end + 1
            if stop > end:
                self._at = at
                yield self.take(self.u64())
                buffer, at, end = self._buffer, self._at, len(self._buffer)
            else:
                yield buffer[start:stop]
                at = stop
        self._at = at

    def _require(self, count: int) -> None:
        if count > self.remaining:
            raise cut_short(self._name, count - self.remaining)

    def _jump(self) -> None:
        """Drop the buffer; the position stays and the file's own follows it."""
        self._base += self._at
        self._buffer, self._at = b"", 0
        self._file.seek(self._base)

    def _fill(self, count: int) -> None:
        """Have at least ``count`` unread bytes in the buffer."""
        parts = [self._buffer[self._at :]]
        have = len(parts[0])
        while have < count:
            part = self._file.read(max(CHUNK_BYTES, count - have))
            if not part:
                raise BadModelFileError(f"{self._name} became shorter while it was read.")
            parts.append(part)
            have += len(part)
        self._base += self._at
        self._buffer, self._at = b"".join(parts), 0

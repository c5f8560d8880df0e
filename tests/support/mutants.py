"""Seeded damage to a GGUF header, aimed at the numbers that a reader has to trust."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

# Numbers that sit on the edges of signed, unsigned, 32-bit and 64-bit counts.
_EDGES = (0, 1, 2, 3, 7, 8, 31, 255, 4096, 65_537, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


class Mutator:
    """Damages ``data`` within its first ``header_bytes`` bytes; the tensor data stays.

    ``fields`` are offsets of 4-byte numbers worth hitting (values of metadata keys).
    """

    def __init__(self, data: bytes, header_bytes: int, fields: tuple[int, ...], seed: int) -> None:
        self._data = data
        self.header_bytes = header_bytes
        self._fields = fields
        self._random = random.Random(seed)
        self._kinds: tuple[Callable[[bytearray], None], ...] = (
            self._flip_bit,
            self._set_byte,
            self._set_u32,
            self._set_u64,
            self._copy_range,
            self._set_field,
            self._set_field,
            self._nudge_field,
        )

    def next(self) -> bytes:
        """The next mutant: one to three injuries, and sometimes a cut."""
        data = bytearray(self._data)
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            self._random.choice(self._kinds)(data)
        if self._random.random() < 0.05:
            del data[self._random.randrange(len(data)) :]
        return bytes(data)

    def _at(self, width: int) -> int:
        return self._random.randrange(self.header_bytes - width)

    def _flip_bit(self, data: bytearray) -> None:
        data[self._at(1)] ^= 1 << self._random.randrange(8)

    def _set_byte(self, data: bytearray) -> None:
        data[self._at(1)] = self._random.randrange(256)

    def _set_u32(self, data: bytearray) -> None:
        struct.pack_into("<I", data, self._at(4), self._random.choice(_EDGES) % 2**32)

    def _set_u64(self, data: bytearray) -> None:
        struct.pack_into("<Q", data, self._at(8), self._random.choice(_EDGES))

    def _copy_range(self, data: bytearray) -> None:
        length = self._random.choice((4, 8, 16, 32))
        source, destination = self._at(length), self._at(length)
        data[destination : destination + length] = data[source : source + length]

    def _set_field(self, data: bytearray) -> None:
        number = self._random.choice((*_EDGES, self._random.randrange(2**32)))
        struct.pack_into("<I", data, self._random.choice(self._fields), number % 2**32)

    def _nudge_field(self, data: bytearray) -> None:
        at = self._random.choice(self._fields)
        number = struct.unpack_from("<I", data, at)[0] + self._random.choice((-2, -1, 1, 2))
        struct.pack_into("<I", data, at, number % 2**32)

"""The key-value part of a GGUF header, with accessors that name the key when a type is wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from gemmtp.errors import BadModelFileError
from gemmtp_models.header_stream import HeaderStream


class ValueType(IntEnum):
    """GGUF's value types by their numbers in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


@dataclass(frozen=True, slots=True)
class ArraySlice:
    """An array that was walked over and not built: where it lies, in elements and bytes."""

    path: Path
    element_type: ValueType
    count: int
    offset: int
    nbytes: int

    def sha256(self) -> str:
        """Hex digest of the array's bytes in the file (of strings: lengths and contents)."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(self.offset)
            left = self.nbytes
            while left:
                piece = file.read(min(left, 1 << 20))
                if not piece:
                    raise BadModelFileError(f"{self.path.name} became shorter while it was read.")
                digest.update(piece)
                left -= len(piece)
        return digest.hexdigest()

    def strings(self) -> Iterator[bytes]:
        """The elements of a string array, one at a time."""
        with self.path.open("rb", buffering=0) as file:
            end = self.offset + self.nbytes
            yield from HeaderStream(file, end, self.path.name, self.offset).strings(self.count)


Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...] | ArraySlice


@dataclass(frozen=True, slots=True)
class Entry:
    """One metadata value; ``element_type`` is that of an array's elements."""

    type: ValueType
    value: Value
    element_type: ValueType | None = None

    @property
    def type_name(self) -> str:
        """Such as ``uint32`` or ``array of string``."""
        if self.element_type is None:
            return self.type.name.lower()
        return f"array of {self.element_type.name.lower()}"


class Metadata(Mapping[str, Entry]):
    """Keys to entries, in the order of the file.

    The typed accessors take the exact types that llama.cpp takes for a key, return
    ``default`` (or raise when there is none) for a key that is missing, and raise
    ``BadModelFileError`` with the key's name for any other type.
    """

    def __init__(self, entries: dict[str, Entry], file_name: str) -> None:
        self._entries = entries
        self._file_name = file_name

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def uint32(self, key: str, default: int | None = None) -> int:
        """An unsigned 32-bit integer."""
        value = self._scalar(key, ValueType.UINT32, default)
        return int(value)

    def int32(self, key: str, default: int | None = None) -> int:
        """A signed 32-bit integer."""
        value = self._scalar(key, ValueType.INT32, default)
        return int(value)

    def float32(self, key: str, default: float | None = None) -> float:
        """A 32-bit float."""
        value = self._scalar(key, ValueType.FLOAT32, default)
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """A truth value."""
        return bool(self._scalar(key, ValueType.BOOL, default))

    def string(self, key: str, default: str | None = None) -> str:
        """Text; bytes that are not UTF-8 are replaced."""
        return str(self._scalar(key, ValueType.STRING, default))

    def per_layer(self, key: str, layers: int, default: int | None = None) -> tuple[int, ...]:
        """``layers`` integers: an array of that length, or one uint32 for all layers."""
        entry = self._entries.get(key)
        if entry is None or entry.type is not ValueType.ARRAY:
            return (self.uint32(key, default),) * layers
        allowed = (ValueType.UINT32, ValueType.INT32)
        return tuple(int(item) for item in self._items(key, entry, layers, allowed))

    def flags(self, key: str, layers: int) -> tuple[bool, ...]:
        """``layers`` truth values from an array of that length."""
        entry = self._entries.get(key)
        if entry is None:
            raise self.error(key, "is missing")
        allowed = (ValueType.BOOL, ValueType.UINT32, ValueType.INT32)
        return tuple(bool(item) for item in self._items(key, entry, layers, allowed))

    def array(self, key: str, *allowed: ValueType) -> ArraySlice:
        """An array that is not built, such as the token list; elements of an allowed type."""
        entry = self._entries.get(key)
        if entry is None:
            raise self.error(key, "is missing")
        if not isinstance(entry.value, ArraySlice) or entry.value.element_type not in allowed:
            names = " or ".join(kind.name.lower() for kind in allowed)
            raise self.error(key, f"is of type {entry.type_name}, expected array of {names}")
        return entry.value

    def error(self, key: str, problem: str) -> BadModelFileError:
        """The error for a key whose value cannot be used."""
        return BadModelFileError(f"{self._file_name}: the key {key} {problem}.")

    def _scalar(self, key: str, expected: ValueType, default: Scalar | None) -> Scalar:
        entry = self._entries.get(key)
        if entry is None:
            if default is None:
                raise self.error(key, "is missing")
            return default
        value = entry.value
        if entry.type is not expected or isinstance(value, tuple | ArraySlice):
            wanted = expected.name.lower()
            raise self.error(key, f"is of type {entry.type_name}, expected {wanted}")
        return value

    def _items(
        self, key: str, entry: Entry, length: int, allowed: tuple[ValueType, ...]
    ) -> tuple[Scalar, ...]:
        if not isinstance(entry.value, tuple) or entry.element_type not in allowed:
            names = " or ".join(kind.name.lower() for kind in allowed)
            raise self.error(key, f"is of type {entry.type_name}, expected array of {names}")
        if len(entry.value) != length:
            raise self.error(key, f"has {len(entry.value)} elements, expected {length}")
        return entry.value

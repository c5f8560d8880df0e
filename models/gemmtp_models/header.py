"""Safe reading of a GGUF header: metadata and tensor list, never tensor data.

llama.cpp aborts the process on some broken files, so a file is read here first. Every
count, length and offset is held against the size of the file before it is used; the long
token arrays are walked over and not built. Format: ``docs/gguf.md`` of ggml-org/ggml,
versions 2 and 3, little endian.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gemmtp.errors import BadModelFileError, ModelError, ModelNotFoundError
from gemmtp_models.ggml_types import GGML_TYPES, GgmlType
from gemmtp_models.header_stream import HeaderStream, cut_short
from gemmtp_models.metadata import ArraySlice, Entry, Metadata, Scalar, Value, ValueType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)

# Generous bounds of our own; real Gemma 4 files have about 50 keys and 800 tensors.
_MAX_KEYS = 65_536
_MAX_TENSORS = 65_536
_MAX_KEY_BYTES = 65_535
_MAX_STRING_BYTES = 1 << 20
_MAX_BUILT_BYTES = 64 << 20
_MAX_BUILT_ELEMENTS = 4_096

# ggml: GGML_MAX_DIMS, GGML_MAX_NAME, and a size_t that must hold every product.
_MAX_DIMENSIONS = 4
_MAX_NAME_BYTES = 64
_MAX_SIZE = (1 << 63) - 1

_DEFAULT_ALIGNMENT = 32
# ggml's CPU buffers assert addresses that are multiples of 32 bytes (TENSOR_ALIGNMENT).
_MIN_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20

# The smallest key (length, one byte, type, one-byte value) and tensor entry there can be.
_MIN_KEY_ENTRY = 8 + 1 + 4 + 1
_MIN_TENSOR_ENTRY = 8 + 1 + 4 + 4 + 8

# Arrays that are never built, however short: the vocabulary.
_NEVER_BUILT = frozenset(
    f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type", "merges")
)

_FORMATS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's entry: ``shape`` with the row length first, as ggml counts.

    ``offset`` is in bytes from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """What stands in front of the tensor data of one GGUF file.

    ``data_offset`` and ``file_size`` are in bytes; ``tensors`` is in the order of the file.
    """

    path: Path
    version: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]
    alignment: int
    data_offset: int
    file_size: int

    @property
    def architecture(self) -> str:
        """``general.architecture``; raises ``BadModelFileError`` when it is missing."""
        return self.metadata.string("general.architecture")

    @property
    def name(self) -> str:
        """``general.name``, or the file's name without one."""
        return self.metadata.string("general.name", self.path.stem)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source that the file carries, if any."""
        if "tokenizer.chat_template" not in self.metadata:
            return None
        return self.metadata.string("tokenizer.chat_template")

    @property
    def parameters(self) -> int:
        """Elements of all tensors together."""
        return sum(tensor.elements for tensor in self.tensors.values())

    def type_counts(self) -> dict[str, int]:
        """Tensor types to how many tensors have them, most frequent first."""
        return dict(Counter(tensor.type.name for tensor in self.tensors.values()).most_common())


def read_header(path: Path) -> Header:
    """Read the header of the GGUF file at ``path``.

    Raises ``ModelNotFoundError`` (no such file, a directory), ``BadModelFileError`` (not a
    GGUF, cut short, or outside the format's rules) and ``ModelError`` (cannot be read).
    """
    try:
        # Opening a pipe or a device could wait for ever, so the kind is asked first.
        if stat.S_ISDIR(path.stat().st_mode):
            raise ModelNotFoundError(
                f"{path} is a directory, not a GGUF file.", "Name the .gguf file inside it."
            )
        if not path.is_file():
            raise ModelNotFoundError(f"{path} is not a regular file.")
        with path.open("rb", buffering=0) as file:
            return _HeaderReader(path, file).read()
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"There is no file {path}.", "Check the path, or name a set such as gemma4:31b-mtp."
        ) from None
    except PermissionError:
        raise ModelError(
            f"{path} may not be read.", "Give your user read permission on the file."
        ) from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "A name this long is no path." if error.errno == errno.ENAMETOOLONG else None
        raise ModelError(f"{path} cannot be read: {reason}.", hint) from None
    except ValueError:
        raise ModelNotFoundError("A path cannot contain a NUL character.") from None


class _HeaderReader:
    """The state of one reading; ``read`` is called once."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self._path = path
        self._size = os.fstat(file.fileno()).st_size
        self._stream = HeaderStream(file, self._size, path.name)
        self._built_bytes = 0

    def read(self) -> Header:
        version, tensor_count, key_count = self._front()
        metadata = self._metadata(key_count)
        alignment = self._alignment(metadata)
        entries = [self._tensor() for _ in range(tensor_count)]
        data_offset = _padded(self._stream.position, alignment)
        return Header(
            path=self._path,
            version=version,
            metadata=metadata,
            tensors=self._placed(entries, data_offset, alignment),
            alignment=alignment,
            data_offset=data_offset,
            file_size=self._size,
        )

    def _bad(self, problem: str, hint: str | None = None) -> BadModelFileError:
        return BadModelFileError(f"{self._path.name} {problem}.", hint)

    def _front(self) -> tuple[int, int, int]:
        """Version, number of tensors, number of keys."""
        if self._size == 0:
            raise self._bad("is empty", "Fetch the file again.")
        if self._size < len(_MAGIC) or self._stream.take(4) != _MAGIC:
            raise self._bad(
                "is not a GGUF file",
                "Only GGUF models can be opened; a safetensors checkpoint must be converted first.",
            )
        version = self._stream.u32()
        if version not in _VERSIONS:
            if version.to_bytes(4, "little")[::-1] in (v.to_bytes(4, "little") for v in (1, 2, 3)):
                raise self._bad(
                    "is a big-endian GGUF, which this program does not read",
                    "Fetch the little-endian file.",
                )
            raise self._bad(
                f"is GGUF version {version}; versions 2 and 3 are read",
                "Fetch a file that was made with a current llama.cpp.",
            )
        tensor_count, key_count = self._stream.u64(), self._stream.u64()
        self._check_count("tensors", tensor_count, _MAX_TENSORS, _MIN_TENSOR_ENTRY)
        self._check_count("metadata keys", key_count, _MAX_KEYS, _MIN_KEY_ENTRY)
        return version, tensor_count, key_count

    def _check_count(self, what: str, count: int, limit: int, smallest: int) -> None:
        if count > limit:
            raise self._bad(f"claims {count:,} {what}; at most {limit:,} are read")
        if count * smallest > self._stream.remaining:
            raise cut_short(self._path.name, count * smallest - self._stream.remaining)

    def _metadata(self, count: int) -> Metadata:
        entries: dict[str, Entry] = {}
        for _ in range(count):
            key = self._name("a key", _MAX_KEY_BYTES)
            if key in entries:
                raise self._bad(f"has the key {key!r} twice")
            entries[key] = self._entry(key)
        return Metadata(entries, self._path.name)

    def _entry(self, key: str) -> Entry:
        kind = self._value_type(key)
        if kind is not ValueType.ARRAY:
            return Entry(kind, self._scalar(key, kind))
        element = self._value_type(key)
        if element is ValueType.ARRAY:
            raise self._bad(f"has an array of arrays at {key!r}, which llama.cpp does not read")
        return Entry(kind, self._array(key, element, self._stream.u64()), element)

    def _value_type(self, key: str) -> ValueType:
        number = self._stream.u32()
        if number > ValueType.FLOAT64:
            raise self._bad(f"has the unknown value type {number} at {key!r}")
        return ValueType(number)

    def _scalar(self, key: str, kind: ValueType) -> Scalar:
        if kind is ValueType.STRING:
            return self._string(key)
        layout = _FORMATS[kind]
        value: Scalar = layout.unpack(self._stream.take(layout.size))[0]
        return value

    def _string(self, key: str) -> str:
        length = self._stream.u64()
        if length > _MAX_STRING_BYTES:
            raise self._bad(
                f"has a text of {length:,} bytes at {key!r}; at most {_MAX_STRING_BYTES:,} are read"
            )
        self._count_built(length)
        return self._stream.take(length).decode("utf-8", errors="replace")

    def _array(self, key: str, element: ValueType, count: int) -> Value:
        stream, start = self._stream, self._stream.position
        width = 8 if element is ValueType.STRING else _FORMATS[element].size
        if count * width > stream.remaining:
            raise cut_short(self._path.name, count * width - stream.remaining)
        build = count <= _MAX_BUILT_ELEMENTS and key not in _NEVER_BUILT
        if build and element is ValueType.STRING:
            return tuple(self._string(key) for _ in range(count))
        if build:
            self._count_built(count * width)
            layout = struct.Struct(f"<{count}{_FORMATS[element].format[1:]}")
            values: tuple[Scalar, ...] = layout.unpack(stream.take(layout.size))
            return values
        if element is ValueType.STRING:
            stream.skip_strings(count)
        else:
            stream.skip(count * width)
        return ArraySlice(self._path, element, count, start, stream.position - start)

    def _count_built(self, nbytes: int) -> None:
        self._built_bytes += nbytes
        if self._built_bytes > _MAX_BUILT_BYTES:
            raise self._bad(f"has more than {_MAX_BUILT_BYTES:,} bytes of metadata values")

    def _name(self, what: str, limit: int) -> str:
        """A key or a tensor's name: 1 to ``limit`` bytes of UTF-8 without NUL."""
        length = self._stream.u64()
        if not 0 < length <= limit:
            raise self._bad(f"has {what} of {length:,} bytes; 1 to {limit:,} are allowed")
        raw = self._stream.take(length)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._bad(f"has {what} that is not UTF-8") from None
        if "\0" in name:
            raise self._bad(f"has {what} with a NUL character")
        return name

    def _alignment(self, metadata: Metadata) -> int:
        value = metadata.uint32("general.alignment", _DEFAULT_ALIGNMENT)
        if value & (value - 1) or not _MIN_ALIGNMENT <= value <= _MAX_ALIGNMENT:
            raise metadata.error(
                "general.alignment",
                f"is {value:,}, expected a power of two, {_MIN_ALIGNMENT} to {_MAX_ALIGNMENT:,}",
            )
        return value

    def _tensor(self) -> TensorInfo:
        """One entry; its offset still counts from the start of the data."""
        name = self._name("a tensor name", _MAX_NAME_BYTES - 1)
        dimensions = self._stream.u32()
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._bad(f"has {dimensions:,} dimensions in the tensor {name!r}; 1 to 4 exist")
        shape = struct.unpack(f"<{dimensions}Q", self._stream.take(8 * dimensions))
        number = self._stream.u32()
        offset = self._stream.u64()
        kind = GGML_TYPES.get(number)
        if kind is None:
            raise self._bad(
                f"has the tensor {name!r} of the unknown type {number}",
                "A newer llama.cpp or a fork made it; fetch another quantisation.",
            )
        if not all(shape) or prod(shape) > _MAX_SIZE:
            raise self._bad(f"has the impossible shape {shape} in the tensor {name!r}")
        if shape[0] % kind.block_size:
            raise self._bad(
                f"has rows of {shape[0]:,} elements in the tensor {name!r}, "
                f"which {kind.name} cannot hold (blocks of {kind.block_size})"
            )
        nbytes = prod(shape) // kind.block_size * kind.block_bytes
        return TensorInfo(name, shape, kind, offset, nbytes)

    def _placed(
        self, entries: list[TensorInfo], data_offset: int, alignment: int
    ) -> dict[str, TensorInfo]:
        """The tensors by name, offsets from the start of the file.

        llama.cpp takes tensors only in the order of the list, each right after the last.
        """
        tensors: dict[str, TensorInfo] = {}
        expected = 0
        for entry in entries:
            if entry.name in tensors:
                raise self._bad(f"has the tensor {entry.name!r} twice")
            if entry.offset % alignment:
                raise self._bad(f"has the tensor {entry.name!r} off its alignment of {alignment}")
            if entry.offset < expected:
                raise self._bad(f"has the tensor {entry.name!r} overlapping another")
            end = data_offset + entry.offset + entry.nbytes
            if entry.offset > expected:
                raise self._bad(
                    f"has a gap in front of the tensor {entry.name!r}",
                    "llama.cpp takes tensors in the order of the list, each right after the last.",
                )
            if end > self._size:
                raise self._short_data(entries, data_offset, alignment)
            expected = _padded(entry.offset + entry.nbytes, alignment)
            tensors[entry.name] = TensorInfo(
                entry.name, entry.shape, entry.type, data_offset + entry.offset, entry.nbytes
            )
        return tensors

    def _short_data(
        self, entries: list[TensorInfo], data_offset: int, alignment: int
    ) -> BadModelFileError:
        """The error with the bytes that all tensors together would need."""
        whole = sum(_padded(entry.nbytes, alignment) for entry in entries[:-1])
        return cut_short(self._path.name, data_offset + whole + entries[-1].nbytes - self._size)


def _padded(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment

"""One GGUF file of several parts, as ``llama-gguf-split --merge`` makes it.

The first part has the metadata and names how many there are (``split.count``); each part has some
of the tensors, in order. Format: ``tools/gguf-split`` of llama.cpp. The metadata is copied byte for
byte without the ``split.`` keys, the tensors follow in the order of the parts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gemmtp.errors import BadModelFileError, ModelNotFoundError, UsageError
from gemmtp_models.ggml_types import GGML_TYPES
from gemmtp_models.header import Header, TensorInfo, read_header
from gemmtp_models.header_stream import HeaderStream
from gemmtp_models.hub_header import next_value
from gemmtp_models.hub_names import split_parts

MAX_PARTS = 1000
COPY_BYTES = 8 << 20
_FRONT = struct.Struct("<4sIQQ")
_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}


def join_parts(first: Path, output: Path) -> None:
    """Write the file that the parts beside ``first`` make to ``output``.

    Raises UsageError when ``first`` is not the first part, ModelNotFoundError for a part that is
    missing, and BadModelFileError for parts that are broken or not of one file.
    """
    headers = [read_header(path) for path in _paths(first)]
    _check(headers)
    alignment = headers[0].alignment
    tensors = [(header, tensor) for header in headers for tensor in header.tensors.values()]
    metadata = list(_metadata(headers[0]))
    front = _FRONT.pack(b"GGUF", headers[0].version, len(tensors), len(metadata))
    front += b"".join(metadata) + b"".join(_entries(tensors, alignment))
    with output.open("xb") as file:
        file.write(front + _padding(len(front), alignment))
        for header, tensor in tensors:
            _copy(header.path, tensor, file)
            file.write(_padding(tensor.nbytes, alignment))


def _paths(first: Path) -> list[Path]:
    parts = split_parts(first.name)
    if parts is None or parts[1] != 1 or not 1 <= parts[2] <= MAX_PARTS:
        raise UsageError(f"{first.name} is not the first part of a file.", "Name the first part.")
    stem, _, count = parts
    paths = [first.with_name(f"{stem}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    for path in paths:
        if not path.is_file():
            raise ModelNotFoundError(f"The part {path.name} is missing.", "Fetch all parts.")
    return paths


def _check(headers: list[Header]) -> None:
    names: set[str] = set()
    for number, header in enumerate(headers):
        found = _number(header, "split.no"), _number(header, "split.count")
        if found != (number, len(headers)):
            raise BadModelFileError(
                f"{header.path.name} says it is part {found[0] + 1} of {found[1]}.",
                "Fetch the parts of one file.",
            )
        if header.alignment != headers[0].alignment or names & header.tensors.keys():
            raise BadModelFileError(f"{header.path.name} is a part of another file.")
        names |= header.tensors.keys()


def _number(header: Header, key: str) -> int:
    entry = header.metadata.get(key)
    if entry is None or type(entry.value) is not int:
        raise BadModelFileError(f"{header.path.name} does not say which part it is ({key}).")
    return entry.value


def _metadata(header: Header) -> Iterator[bytes]:
    """The bytes of each key with its value, those about the parts aside."""
    with header.path.open("rb", buffering=0) as file:
        spans = list(_spans(HeaderStream(file, header.file_size, header.path.name, 8)))
        for key, start, end in spans:
            if not key.startswith(b"split."):
                file.seek(start)
                yield _read(file, end - start, header.path)


def _spans(stream: HeaderStream) -> Iterator[tuple[bytes, int, int]]:
    """(key, first byte, end) of each metadata entry; the header was checked before."""
    stream.u64()
    for _ in range(stream.u64()):
        start = stream.position
        key = stream.take(stream.u64())
        next_value(stream)
        yield key, start, stream.position


def _entries(tensors: list[tuple[Header, TensorInfo]], alignment: int) -> Iterator[bytes]:
    offset = 0
    for _, tensor in tensors:
        name = tensor.name.encode()
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        place = struct.pack("<IQ", _NUMBERS[tensor.type.name], offset)
        yield struct.pack("<Q", len(name)) + name + shape + place
        offset += tensor.nbytes + len(_padding(tensor.nbytes, alignment))


def _copy(path: Path, tensor: TensorInfo, file: BinaryIO) -> None:
    with path.open("rb", buffering=0) as source:
        source.seek(tensor.offset)
        for at in range(0, tensor.nbytes, COPY_BYTES):
            file.write(_read(source, min(COPY_BYTES, tensor.nbytes - at), path))


def _read(file: BinaryIO, count: int, path: Path) -> bytes:
    data = b""
    while len(data) < count:
        part = file.read(count - len(data))
        if not part:
            raise BadModelFileError(f"{path.name} became shorter while it was read.")
        data += part
    return data


def _padding(length: int, alignment: int) -> bytes:
    return bytes(-length % alignment)

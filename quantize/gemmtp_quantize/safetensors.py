"""The header of a safetensors file, checked before anything is read by it.

Format: 8 bytes little-endian header length, a JSON object of tensors, then the data without
gaps (https://github.com/huggingface/safetensors#format). Read here without torch, since the
package's numpy side knows no bfloat16, and with an error that names the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gemmtp.errors import BadModelFileError, UnsupportedModelError
from gemmtp_quantize.documents import parse_object

# The limit of the reference reader.
MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8

FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
OTHER_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies: ``size`` bytes at ``offset`` of ``path``, row-major."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    size: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def require_float(self) -> None:
        """Raise UnsupportedModelError for weights other than F32, F16 and BF16."""
        if self.dtype not in FLOAT_BYTES:
            raise UnsupportedModelError(
                f"Tensor {self.name} is stored as {self.dtype}; F32, F16 and BF16 can be read.",
                hint="Take the unquantised checkpoint.",
            )


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of one safetensors file, by name.

    Raises BadModelFileError for a file that is cut short, has bytes to spare, a header beyond
    the format's limit, or entries that overlap, leave gaps or disagree with their shape.
    """
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if total < LENGTH_BYTES or length > total - LENGTH_BYTES:
                raise BadModelFileError(
                    f"{path} is cut short or no safetensors file: its header claims {length} "
                    f"bytes, the file has {total}."
                )
            if length > MAX_HEADER_BYTES:
                raise BadModelFileError(
                    f"{path} claims a header of {length} bytes; {MAX_HEADER_BYTES} are allowed."
                )
            header = parse_object(file.read(length), f"The header of {path}")
    except OSError as error:
        raise BadModelFileError(f"{path} cannot be read: {error.strerror}.") from error
    header.pop("__metadata__", None)
    start = LENGTH_BYTES + length
    tensors = [_tensor(path, name, entry, start) for name, entry in header.items()]
    _check_coverage(path, tensors, start, total)
    return {tensor.name: tensor for tensor in tensors}


def _tensor(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    broken = BadModelFileError(f"The header of {path} describes tensor {name} wrongly.")
    if not isinstance(entry, dict):
        raise broken
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise broken
    if not _counts(shape + offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise broken
    size = offsets[1] - offsets[0]
    width = FLOAT_BYTES.get(dtype) or OTHER_BYTES.get(dtype)
    if width is not None and size != width * prod(shape):
        raise BadModelFileError(
            f"Tensor {name} in {path} has {size} bytes, its shape {shape} as {dtype} needs "
            f"{width * prod(shape)}."
        )
    return StoredTensor(name, dtype, tuple(shape), path, start + offsets[0], size)


def _counts(values: list[Any]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _check_coverage(path: Path, tensors: list[StoredTensor], start: int, total: int) -> None:
    end = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size)):
        if tensor.offset != end:
            raise BadModelFileError(
                f"The tensors of {path} overlap or leave a gap at {tensor.name}."
            )
        end = tensor.offset + tensor.size
    if end > total:
        raise BadModelFileError(
            f"{path} is cut short: its tensors end at byte {end}, the file has {total}.",
            hint="Fetch the file again.",
        )
    if end < total:
        raise BadModelFileError(f"{path} has {total - end} bytes that belong to no tensor.")

"""Weights streamed from a checkpoint in blocks, with a change of float type on the way.

A tensor's row-major order is the same in safetensors and GGUF, so a tensor is a run of elements.
One block fits the second-level cache, which is what makes the check for NaN cheap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmtp.errors import BadModelFileError, UnsupportedModelError
from gemmtp_quantize.safetensors import FLOAT_BYTES, StoredTensor

BLOCK_ELEMENTS = 1 << 17
Ints = NDArray[Any]

# (bits without the sign, smallest such value that is infinite or NaN), IEEE 754 and bfloat16.
_MASKS: dict[str, tuple[Any, Any]] = {
    "F32": (np.uint32(0x7FFF_FFFF), np.uint32(0x7F80_0000)),
    "BF16": (np.uint16(0x7FFF), np.uint16(0x7F80)),
    "F16": (np.uint16(0x7FFF), np.uint16(0x7C00)),
}
_INTS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<u4"),
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<u2"),
}


def stream(tensor: StoredTensor, target: str) -> Iterator[memoryview]:
    """The bytes of ``tensor`` as type ``target`` (F32, F16, BF16), block by block.

    A block is valid until the next one is asked for. Raises BadModelFileError, naming the tensor,
    on NaN and infinity, and UnsupportedModelError on a value too large for F16.
    """
    tensor.require_float()
    convert = _Converter(tensor.dtype, target)
    width = FLOAT_BYTES[tensor.dtype]
    source = bytearray(BLOCK_ELEMENTS * width)
    with tensor.path.open("rb", buffering=0) as file:
        file.seek(tensor.offset)
        left = tensor.size
        while left:
            view = memoryview(source)[: min(left, len(source))]
            _fill(file.readinto, view, tensor)
            left -= len(view)
            block = convert(np.frombuffer(view, _INTS[tensor.dtype]))
            _check_finite(block, target, view, tensor)
            yield block.data.cast("B")


def scalar(tensor: StoredTensor) -> float:
    """The one element of ``tensor``, which may be infinite; raises BadModelFileError on NaN."""
    tensor.require_float()
    source = bytearray(tensor.size)
    with tensor.path.open("rb", buffering=0) as file:
        file.seek(tensor.offset)
        _fill(file.readinto, memoryview(source), tensor)
    convert = _Converter(tensor.dtype, "F32")
    value = float(convert(np.frombuffer(source, _INTS[tensor.dtype])).view("<f4")[0])
    if math.isnan(value):
        raise BadModelFileError(f"Tensor {tensor.name} in {tensor.path.name} holds NaN.")
    return value


def transposed(
    blocks: Iterator[memoryview], shape: tuple[int, ...], axes: tuple[int, ...]
) -> memoryview:
    """All the elements of ``blocks`` as an array of ``shape``, row-major after a transposition."""
    data = b"".join(blocks)
    item = len(data) // math.prod(shape)
    array = np.frombuffer(data, np.dtype((np.void, item))).reshape(shape)
    return np.ascontiguousarray(array.transpose(axes)).view(np.uint8).reshape(-1).data


def _fill(readinto: Callable[[memoryview], int | None], view: memoryview, t: StoredTensor) -> None:
    done = 0
    while done < len(view):
        count = readinto(view[done:])
        if not count:
            raise BadModelFileError(f"{t.path} became shorter while {t.name} was read.")
        done += count


class _Converter:
    """One change of type with its buffers, reused for every block of a tensor."""

    def __init__(self, source: str, target: str) -> None:
        self._source, self._target = source, target
        self._wide = np.zeros(BLOCK_ELEMENTS, "<u4")
        self._spare = np.zeros(BLOCK_ELEMENTS, "<u4")
        self._narrow = np.zeros(BLOCK_ELEMENTS, "<u2")

    def __call__(self, block: Ints) -> Ints:
        if self._source == self._target:
            return block
        wide = self._to_f32(block)
        if self._target == "F32":
            return wide
        narrow = self._narrow[: len(block)]
        if self._target == "F16":
            with np.errstate(over="ignore"):
                narrow.view("<f2")[...] = wide.view("<f4")
        else:
            _round_to_bf16(wide, self._spare[: len(block)], narrow)
        return narrow

    def _to_f32(self, block: Ints) -> Ints:
        if self._source == "F32":
            return block
        wide = self._wide[: len(block)]
        if self._source == "F16":
            wide.view("<f4")[...] = block.view("<f2")
        else:
            # bfloat16 is the upper half of a float32; the lower half stays zero.
            wide.view("<u2")[1::2] = block
        return wide


def _round_to_bf16(wide: Ints, spare: Ints, narrow: Ints) -> None:
    """Round to the nearest bfloat16, ties to even, as ggml does."""
    np.right_shift(wide, 16, out=spare)
    np.bitwise_and(spare, 1, out=spare)
    np.add(spare, 0x7FFF, out=spare)
    np.add(spare, wide, out=spare)
    narrow[...] = spare.view("<u2")[1::2]


def _check_finite(block: Ints, target: str, view: memoryview, tensor: StoredTensor) -> None:
    mask, limit = _MASKS[target]
    if not len(block) or (block & mask).max() < limit:
        return
    source_mask, source_limit = _MASKS[tensor.dtype]
    if (np.frombuffer(view, _INTS[tensor.dtype]) & source_mask).max() >= source_limit:
        raise BadModelFileError(
            f"Tensor {tensor.name} in {tensor.path.name} holds NaN or infinity.",
            hint="The checkpoint is damaged or was trained into the ground; fetch it again.",
        )
    raise UnsupportedModelError(
        f"Tensor {tensor.name} holds a value that is too large for {target}.",
        hint="Take bf16 or f32, with --recipe or, for a vision tower, with --vision.",
    )

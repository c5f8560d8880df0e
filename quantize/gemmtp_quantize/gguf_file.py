"""A GGUF written in one pass: the header by the ``gguf`` package, then the tensors as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np

from gemmtp_quantize.model_file import Fields
from gemmtp_quantize.recipe import TYPE_IDS, PlannedTensor
from gemmtp_quantize.weights import stream, transposed

ALIGNMENT = 32
WRITE_BYTES = 1 << 22
Advance = Callable[[int], None]
"""Takes the number of bytes that were written since the last call."""


def write_gguf(
    path: Path, fields: Fields, tensors: Sequence[PlannedTensor], advance: Advance
) -> None:
    """Write ``tensors`` in their ``written`` types; memory stays at a few MB.

    Raises what ``weights.stream`` raises, and OSError when the disk is full.
    """
    _write_header(path, fields, tensors)
    with path.open("ab", buffering=WRITE_BYTES) as file:
        file.write(bytes(-file.tell() % ALIGNMENT))
        for tensor in tensors:
            for block in _data(tensor):
                file.write(block)
                advance(len(block))
            file.write(bytes(-tensor.written_bytes % ALIGNMENT))


def sync(path: Path) -> None:
    """Wait until the file is on the disk, so that a rename after it never shows half of it."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _data(tensor: PlannedTensor) -> Iterator[memoryview]:
    spec = tensor.spec
    if spec.source is None:
        return iter([np.array(spec.values, "<f4").data.cast("B")])
    blocks = stream(spec.source, tensor.written)
    return iter([transposed(blocks, spec.stored, spec.axes)]) if spec.axes else blocks


def _write_header(path: Path, fields: Fields, tensors: Sequence[PlannedTensor]) -> None:
    architecture = str(fields["general.architecture"].value)
    writer = gguf.GGUFWriter(path, architecture)
    for key, field in fields.items():
        if key != "general.architecture":
            element = None if field.element is None else gguf.GGUFValueType(field.element)
            writer.add_key_value(key, field.value, gguf.GGUFValueType(field.type), element)
    for tensor in tensors:
        writer.add_tensor_info(
            tensor.spec.name,
            tensor.spec.shape,
            np.dtype(np.float32),
            tensor.written_bytes,
            raw_dtype=gguf.GGMLQuantizationType(TYPE_IDS[tensor.written]),
        )
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
    except OSError:
        # The writer keeps its file open when a write fails; closing it fails once more.
        for file in writer.fout or ():
            with suppress(OSError):
                file.close()
        raise

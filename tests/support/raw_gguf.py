"""GGUF bytes written by hand, so that they can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

_ALIGNMENT = 32


def text(value: str | bytes) -> bytes:
    """A string as the format has it: length, then bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, value: int) -> bytes:
    """A metadata entry of type uint32."""
    return text(name) + struct.pack("<II", 4, value)


def tensor(name: str, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """A tensor entry; ``kind`` is ggml's number, ``offset`` counts from the data's start."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def raw_gguf(
    *,
    version: int = 3,
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    key_count: int | None = None,
    tensor_count: int | None = None,
    data: bytes = b"",
) -> bytes:
    """A file of these entries; the counts are theirs unless given."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    front = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return front + bytes(-len(front) % _ALIGNMENT) + data


def write_vocabulary(path: Path, tokens: int, merges: int) -> None:
    """A header with a token list, scores, types and merges of these lengths, and no tensors."""
    lists = {"tokens": ("piece", tokens), "merges": ("left right", merges)}
    keys = [
        text(f"tokenizer.ggml.{name}")
        + struct.pack("<IIQ", 9, 8, count)
        + b"".join(text(f"{word}{index}") for index in range(count))
        for name, (word, count) in lists.items()
    ]
    keys.append(
        text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, tokens) + bytes(4 * tokens)
    )
    keys.append(
        text("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, tokens) + bytes(4 * tokens)
    )
    path.write_bytes(raw_gguf(keys=keys))

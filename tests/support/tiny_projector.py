"""A Gemma 4 vision tower of some hundred kilobytes with random weights, which mtmd really runs.

``write_projector(path)`` writes the eyes of :mod:`tests.support.tiny_pair`'s target when that was
written with :func:`seeing`, which gives its vocabulary the three markers of an image:

    target = write_target(tmp_path / "target.gguf", **seeing())
    projector = write_projector(tmp_path / "projector.gguf")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.tiny_pair import TINY_TARGET, Weights, token_types, tokens

MARKERS = ("<|image>", "<|image|>", "<image|>")
_CONTROL = 3


@dataclass(frozen=True)
class TinyProjector:
    """A file to write. ``metadata`` and ``tensors`` add or, with None, leave out."""

    kind: str = "gemma4v"
    width: int = 32
    out: int = TINY_TARGET.hidden
    blocks: int = 2
    heads: int = 2
    feed_forward: int = 48
    patch: int = 16
    positions: int = 1_024
    seed: int = 3
    metadata: Mapping[str, object] = field(default_factory=dict)
    tensors: Mapping[str, Weights | None] = field(default_factory=dict)


def seeing(size: int = TINY_TARGET.vocabulary) -> dict[str, Any]:
    """Keywords of ``write_target`` and ``write_drafter`` for a vocabulary with image markers."""
    plain = size - len(MARKERS)
    return {
        "vocabulary": size,
        "metadata": {
            "tokenizer.ggml.tokens": [*tokens(plain), *MARKERS],
            "tokenizer.ggml.token_type": [*token_types(plain), *[_CONTROL] * len(MARKERS)],
        },
    }


def write_projector(path: Path, **overrides: Any) -> Path:
    """Write a projector; returns ``path``."""
    p = replace(TinyProjector(), **overrides)
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in _metadata(p).items():
        if value is None:
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, str(value))
    weights = {**dict(_tensors(p)), **p.tensors}
    for name, data in weights.items():
        if data is not None:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(p: TinyProjector) -> dict[str, object]:
    v = "clip.vision."
    return {
        "clip.has_vision_encoder": True,
        "clip.use_gelu": True,
        v + "projector_type": p.kind,
        v + "projection_dim": p.out,
        v + "image_size": 224,
        v + "patch_size": p.patch,
        v + "embedding_length": p.width,
        v + "feed_forward_length": p.feed_forward,
        v + "block_count": p.blocks,
        v + "attention.head_count": p.heads,
        v + "attention.layer_norm_epsilon": 1e-6,
        v + "image_mean": [0.0] * 3,
        v + "image_std": [1.0] * 3,
        **p.metadata,
    }


def _tensors(p: TinyProjector) -> Iterator[tuple[str, Weights]]:
    """Names to arrays. numpy's shapes are ggml's turned round."""
    random = np.random.default_rng(p.seed)

    def matrix(*shape: int) -> Weights:
        drawn: Weights = (random.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        return drawn

    n, direct = p.width, p.kind == "gemma4uv"
    yield "mm.input_projection.weight", matrix(p.out, n)
    yield "v.position_embd.weight", matrix(2, p.positions, n)
    if direct:
        square = (3 * p.patch) ** 2 * 3
        yield "v.patch_embd.weight", matrix(n, square)
        yield "v.patch_embd.bias", np.zeros(n, np.float32)
        for i, size in ((1, square), (2, n), (3, n)):
            yield f"v.patch_norm.{i}.weight", np.ones(size, np.float32)
            yield f"v.patch_norm.{i}.bias", np.zeros(size, np.float32)
        return
    yield "v.patch_embd.weight", matrix(n, 3, p.patch, p.patch)
    for i in range(p.blocks):
        block = f"v.blk.{i}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            yield f"{block}{name}.weight", matrix(n, n)
        for name in ("ln1", "ln2", "attn_post_norm", "ffn_post_norm"):
            yield f"{block}{name}.weight", np.ones(n, np.float32)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield f"{block}{name}.weight", np.ones(n // p.heads, np.float32)
        yield block + "ffn_gate.weight", matrix(p.feed_forward, n)
        yield block + "ffn_up.weight", matrix(p.feed_forward, n)
        yield block + "ffn_down.weight", matrix(n, p.feed_forward)

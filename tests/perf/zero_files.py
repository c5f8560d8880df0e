"""Files of zeros with the true shapes and metadata of the five published sizes.

The weights are a hole in a sparse file, so that 17 GB cost some megabytes of disk: the vocabulary
of 262,144 tokens and as many merges as a published file has.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

import gguf
import numpy as np

from gemmtp_models.memory_projector import Projector
from gemmtp_models.shapes import RECIPES, Shape, drafter_shape, target_shape

MERGES = 514_906
PATCH, POSITIONS = 16, 10_240
"""Pixels of a patch's side, and places of the position tables of the vision tower."""

_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>")
_CONTROL, _NORMAL, _BYTE = 3, 1, 6


def zero_pair(folder: Path, size: str, recipe: str = "ud-q4_k_xl") -> tuple[Path, Path]:
    """Target and drafter of ``size`` in ``folder``, written when they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for role, shape_of in (("target", target_shape), ("drafter", drafter_shape)):
        path = folder / f"{size}-{recipe}-{role}.gguf"
        if not path.exists():
            partial = path.with_suffix(".partial")
            write_zeros(partial, shape_of(size, RECIPES[recipe]))
            partial.rename(path)
        paths.append(path)
    return paths[0], paths[1]


def write_zeros(path: Path, shape: Shape) -> None:
    """A GGUF of ``shape`` that llama.cpp loads, with a hole for its weights."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    _metadata(writer, shape)
    for weight in shape.weights:
        kind = gguf.GGMLQuantizationType[weight.type.name]
        row, *rows = weight.shape
        raw = [*reversed(rows), row // weight.type.block_size * weight.type.block_bytes]
        # gguf wants the shape in bytes for a type that numpy lacks.
        writer.add_tensor_info(
            weight.name,
            raw,
            np.dtype(np.uint8),
            weight.nbytes,
            raw_dtype=kind,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        end = file.seek(0, 2)
        file.truncate(-(-end // 32) * 32 + sum(-(-w.nbytes // 32) * 32 for w in shape.weights))


def _metadata(writer: gguf.GGUFWriter, s: Shape) -> None:
    a = s.architecture
    numbers = {
        "block_count": s.layers,
        "context_length": s.context_length,
        "embedding_length": s.width,
        "attention.key_length": s.head_size,
        "attention.value_length": s.head_size,
        "attention.key_length_swa": s.head_size_swa,
        "attention.value_length_swa": s.head_size_swa,
        "attention.sliding_window": s.window,
        "attention.shared_kv_layers": s.layers - s.own_kv,
        "embedding_length_per_layer_input": s.per_layer,
        "rope.dimension_count": s.head_size,
        "rope.dimension_count_swa": s.head_size_swa,
    }
    if s.is_drafter:
        numbers |= {"embedding_length_out": s.backbone, "nextn_predict_layers": s.layers}
    if s.experts:
        numbers |= {
            "expert_count": s.experts,
            "expert_used_count": s.experts_used,
            "expert_feed_forward_length": s.expert_feed_forward,
        }
    writer.add_name(s.name)
    for key, number in numbers.items():
        writer.add_uint32(f"{a}.{key}", number)
    for key, values in (
        ("feed_forward_length", s.feed_forward),
        ("attention.head_count", s.heads),
        ("attention.head_count_kv", s.kv_heads),
        ("attention.sliding_window_pattern", s.sliding),
    ):
        writer.add_array(f"{a}.{key}", list(values))
    writer.add_float32(f"{a}.rope.freq_base", 1e6)
    writer.add_float32(f"{a}.rope.freq_base_swa", 1e4)
    writer.add_float32(f"{a}.attention.layer_norm_rms_epsilon", 1e-6)
    if s.softcap:
        writer.add_float32(f"{a}.final_logit_softcapping", 30.0)
    _vocabulary(writer, s.vocabulary)


def _vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    data = [f"<0x{byte:02X}>" for byte in range(256)]
    plain = ["\n", "▁", *(chr(code) for code in range(0x21, 0x7F))]
    known = [*_SPECIAL, *data, *plain]
    tokens = known + [f"piece{i}" for i in range(size - len(known))]
    kinds = [_CONTROL] * len(_SPECIAL) + [_BYTE] * 256
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * size)
    writer.add_token_types(kinds + [_NORMAL] * (size - len(kinds)))
    writer.add_token_merges([f"pi{i} ece{i}" for i in range(MERGES)])
    for name, token in (("pad", 0), ("eos", 1), ("bos", 2), ("unk", 3)):
        getattr(writer, f"add_{name}_token_id")(token)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def zero_projector(path: Path, projector: Projector) -> Path:
    """A projector of this tower that mtmd loads, written when it is not there yet."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "clip")
    p, vision = projector, "clip.vision."
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string(vision + "projector_type", "gemma4v" if p.blocks else "gemma4uv")
    for key, number in (
        ("projection_dim", p.out),
        ("image_size", 224),
        ("patch_size", PATCH),
        ("embedding_length", p.width),
        ("feed_forward_length", p.feed_forward),
        ("block_count", p.blocks),
        ("attention.head_count", max(p.heads, 1)),
    ):
        writer.add_uint32(vision + key, number)
    writer.add_float32(vision + "attention.layer_norm_epsilon", 1e-6)
    writer.add_array(vision + "image_mean", [0.0] * 3)
    writer.add_array(vision + "image_std", [1.0] * 3)
    size = sum(_add_zeros(writer, name, shape) for name, shape in _projector_tensors(p))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-file.seek(0, 2) // 32) * 32 + size)
    return path


def _add_zeros(writer: gguf.GGUFWriter, name: str, shape: list[int]) -> int:
    """A BF16 matrix, or F32 where mtmd wants that; bytes up to the next tensor."""
    exact = len(shape) == 1 or name in ("v.patch_embd.weight", "v.position_embd.weight")
    kind = gguf.GGMLQuantizationType.F32 if exact else gguf.GGMLQuantizationType.BF16
    width = 4 if exact else 2
    *rows, row = reversed(shape)
    nbytes = prod(shape) * width
    writer.add_tensor_info(name, [*rows, row * width], np.dtype(np.uint8), nbytes, raw_dtype=kind)
    return -(-nbytes // 32) * 32


def _projector_tensors(p: Projector) -> Iterator[tuple[str, list[int]]]:
    n = p.width
    yield "mm.input_projection.weight", [n, p.out]
    yield "v.position_embd.weight", [n, POSITIONS, 2]
    if not p.blocks:
        square = (3 * PATCH) ** 2 * 3
        yield "v.patch_embd.weight", [square, n]
        yield "v.patch_embd.bias", [n]
        for i, width in ((1, square), (2, n), (3, n)):
            yield f"v.patch_norm.{i}.weight", [width]
            yield f"v.patch_norm.{i}.bias", [width]
        return
    yield "v.patch_embd.weight", [PATCH, PATCH, 3, n]
    for i in range(p.blocks):
        block = f"v.blk.{i}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            yield f"{block}{name}.weight", [n, n]
        for name in ("ln1", "ln2", "attn_post_norm", "ffn_post_norm"):
            yield f"{block}{name}.weight", [n]
        for name in ("attn_q_norm", "attn_k_norm"):
            yield f"{block}{name}.weight", [n // p.heads]
        yield block + "ffn_gate.weight", [n, p.feed_forward]
        yield block + "ffn_up.weight", [n, p.feed_forward]
        yield block + "ffn_down.weight", [p.feed_forward, n]

"""Files of zeros with the true shapes and metadata of the five published sizes.

The weights are a hole in a sparse file, so that 17 GB cost some megabytes of disk: the vocabulary
of 262,144 tokens and as many merges as a published file has.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from gemmtp_models.shapes import RECIPES, SIZES, Shape, drafter_shape, target_shape

MERGES = 514_906
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


def all_sizes() -> tuple[str, ...]:
    """The sizes in the order of the table."""
    return tuple(SIZES)

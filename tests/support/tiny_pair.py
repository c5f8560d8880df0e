"""Gemma 4 targets and drafters of a few hundred kilobytes that llama.cpp really loads.

``write_target(path)`` and ``write_drafter(path)`` write a matching pair; every keyword is a
field of ``TinyModel``. The weights are random from ``seed``, or zero with ``seed=None``.

    target = write_target(tmp_path / "target.gguf", window=32)
    drafter = write_drafter(tmp_path / "drafter.gguf", window=32)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

Weights: TypeAlias = npt.NDArray[np.generic]

# What tokenizer.ggml.token_type says (llama.h, llama_token_type).
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6

_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>")
_CHANNEL = ("<|channel>", "<channel|>")
_MERGES = ("t h", "th e", "▁ a", "i n", "a n")
_PIECES = ("th", "the", "▁a", "in", "an")


@dataclass(frozen=True)
class TinyModel:
    """A file to write; the defaults are those of a target.

    ``heads``, ``kv_heads`` and ``feed_forward`` are one number for all layers or one each.
    ``backbone`` is the drafter's ``embedding_length_out``. ``metadata`` adds keys or, with
    ``None``, leaves them out; keys may start with ``{arch}``. ``tensors`` does the same for
    tensors.
    """

    architecture: str = "gemma4"
    hidden: int = 32
    backbone: int | None = None
    sliding: tuple[bool, ...] = (True, False, True, False)
    heads: int | tuple[int, ...] = 2
    kv_heads: int | tuple[int, ...] = 1
    head_size: int = 32
    head_size_swa: int = 16
    feed_forward: int | tuple[int, ...] = 48
    window: int = 16
    context_length: int = 512
    vocabulary: int = 384
    rope_base: float = 1_000_000.0
    rope_base_swa: float = 10_000.0
    shared_kv_layers: int = 0
    per_layer_embedding: int = 0
    experts: int = 0
    seed: int | None = 1
    metadata: Mapping[str, object] = field(default_factory=dict)
    tensors: Mapping[str, Weights | None] = field(default_factory=dict)
    chat_template: str | None = None

    @property
    def layers(self) -> int:
        return len(self.sliding)

    def head_size_at(self, layer: int) -> int:
        return self.head_size_swa if self.sliding[layer] else self.head_size


TINY_TARGET = TinyModel()
TINY_DRAFTER = TinyModel(
    architecture="gemma4-assistant",
    hidden=64,
    backbone=TINY_TARGET.hidden,
    sliding=(True, True, True, False),
    shared_kv_layers=4,
    seed=2,
)


def write_target(path: Path, **overrides: Any) -> Path:
    """Write a target; returns ``path``."""
    return write_model(path, replace(TINY_TARGET, **overrides))


def write_drafter(path: Path, **overrides: Any) -> Path:
    """Write the drafter of ``write_target``'s target; returns ``path``."""
    return write_model(path, replace(TINY_DRAFTER, **overrides))


def write_model(path: Path, model: TinyModel) -> Path:
    """Write ``model`` as a GGUF file."""
    writer = gguf.GGUFWriter(path, model.architecture)
    for key, value in _metadata(model).items():
        _add(writer, key, value)
    weights = dict(_tensors(model))
    weights.update({name: data for name, data in model.tensors.items() if data is not None})
    for name, data in weights.items():
        if name not in model.tensors or model.tensors[name] is not None:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokens(size: int) -> list[str]:
    """The first ``size`` tokens: specials, 256 bytes, ASCII, a few merges, then fillers."""
    plain = ["\n", "▁", *(chr(code) for code in range(0x21, 0x7F)), *_PIECES]
    known = [*_SPECIAL, *_CHANNEL, *(f"<0x{byte:02X}>" for byte in range(256)), *plain]
    return (known + [f"<unused{index}>" for index in range(size)])[:size]


def token_types(size: int) -> list[int]:
    counts = ((_CONTROL, len(_SPECIAL)), (_USER_DEFINED, len(_CHANNEL)), (_BYTE, 256))
    kinds = [kind for kind, count in counts for _ in range(count)]
    return (kinds + [_NORMAL] * size)[:size]


def _metadata(model: TinyModel) -> dict[str, object]:
    """All keys; ``int`` is written as uint32, ``np.int32`` as such, ``float`` as float32."""
    a = model.architecture
    keys: dict[str, object] = {
        "general.name": "Tiny",
        f"{a}.block_count": model.layers,
        f"{a}.context_length": model.context_length,
        f"{a}.embedding_length": model.hidden,
        f"{a}.feed_forward_length": model.feed_forward,
        f"{a}.attention.head_count": model.heads,
        f"{a}.attention.head_count_kv": model.kv_heads,
        f"{a}.rope.freq_base": model.rope_base,
        f"{a}.rope.freq_base_swa": model.rope_base_swa,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{a}.attention.key_length": model.head_size,
        f"{a}.attention.value_length": model.head_size,
        f"{a}.attention.key_length_swa": model.head_size_swa,
        f"{a}.attention.value_length_swa": model.head_size_swa,
        f"{a}.attention.sliding_window": model.window,
        f"{a}.attention.sliding_window_pattern": list(model.sliding),
        f"{a}.attention.shared_kv_layers": model.shared_kv_layers,
        f"{a}.embedding_length_per_layer_input": model.per_layer_embedding,
        f"{a}.rope.dimension_count": model.head_size,
        f"{a}.rope.dimension_count_swa": model.head_size_swa,
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens(model.vocabulary),
        "tokenizer.ggml.scores": [-1000.0] * model.vocabulary,
        "tokenizer.ggml.token_type": token_types(model.vocabulary),
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.mask_token_id": 4,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
    }
    if model.backbone is None:
        keys[f"{a}.final_logit_softcapping"] = 30.0
    else:
        keys[f"{a}.embedding_length_out"] = model.backbone
        keys[f"{a}.nextn_predict_layers"] = model.layers
    if model.experts:
        keys[f"{a}.expert_count"] = model.experts
        keys[f"{a}.expert_used_count"] = 1
        keys[f"{a}.expert_feed_forward_length"] = 24
    if model.chat_template is not None:
        keys["tokenizer.chat_template"] = model.chat_template
    keys.update({key.format(arch=a): value for key, value in model.metadata.items()})
    return {key: value for key, value in keys.items() if value is not None}


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, list | tuple):
        writer.add_array(key, list(value))
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, np.int32):
        writer.add_int32(key, int(value))
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float | np.float32):
        writer.add_float32(key, float(value))
    else:
        writer.add_string(key, str(value))


def _each(value: int | tuple[int, ...], layer: int) -> int:
    return value if isinstance(value, int) else value[layer]


def _tensors(model: TinyModel) -> Iterator[tuple[str, Weights]]:
    """Names to arrays. numpy's shapes are ggml's turned round: (rows, row length)."""
    random = None if model.seed is None else np.random.default_rng(model.seed)
    for name, shape in _shapes(model):
        if name == "rope_freqs.weight":
            # Proportional RoPE: a quarter of the pairs turns, 1e30 holds the rest still.
            rotated = np.arange(shape[0]) < shape[0] // 4
            yield name, np.where(rotated, 1.0, 1e30).astype(np.float32)
        elif random is None:
            yield name, np.zeros(shape, np.float32)
        elif len(shape) == 1:
            yield name, np.ones(shape, np.float32)
        else:
            scale = shape[-1] ** -0.5
            yield name, (random.standard_normal(shape) * scale).astype(np.float32)


def _shapes(model: TinyModel) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, ple = model.hidden, model.per_layer_embedding
    yield "rope_freqs.weight", (model.head_size // 2,)
    yield "token_embd.weight", (model.vocabulary, d)
    yield "output_norm.weight", (d,)
    if model.backbone is not None:
        yield "nextn.pre_projection.weight", (d, 2 * model.backbone)
        yield "nextn.post_projection.weight", (model.backbone, d)
    if ple:
        yield "per_layer_token_embd.weight", (model.vocabulary, ple * model.layers)
        yield "per_layer_model_proj.weight", (ple * model.layers, d)
        yield "per_layer_proj_norm.weight", (ple,)
    for layer in range(model.layers):
        for name, shape in _layer_shapes(model, layer):
            yield f"blk.{layer}.{name}", shape


def _layer_shapes(model: TinyModel, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, head, inner = model.hidden, model.head_size_at(layer), _each(model.feed_forward, layer)
    queries, keys = head * _each(model.heads, layer), head * _each(model.kv_heads, layer)
    for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        yield f"{norm}.weight", (d,)
    yield "layer_output_scale.weight", (1,)
    yield "attn_q_norm.weight", (head,)
    yield "attn_q.weight", (queries, d)
    yield "attn_output.weight", (d, queries)
    yield "ffn_gate.weight", (inner, d)
    yield "ffn_up.weight", (inner, d)
    yield "ffn_down.weight", (d, inner)
    if model.backbone is None and layer < model.layers - model.shared_kv_layers:
        yield "attn_k_norm.weight", (head,)
        yield "attn_k.weight", (keys, d)
        # As in the large models, values are the keys on full layers.
        if model.sliding[layer]:
            yield "attn_v.weight", (keys, d)
    if ple := model.per_layer_embedding:
        yield "inp_gate.weight", (ple, d)
        yield "proj.weight", (d, ple)
        yield "post_norm.weight", (d,)
    if model.experts:
        yield "ffn_gate_inp.weight", (model.experts, d)
        yield "ffn_gate_inp.scale", (d,)
        for norm in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            yield f"{norm}.weight", (d,)
        yield "ffn_gate_up_exps.weight", (model.experts, 48, d)
        yield "ffn_down_exps.weight", (model.experts, d, 24)

"""Random Gemma 4 checkpoints in miniature, written with numpy and safetensors alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.quantize.tiny_tower import (
    BOUNDS,
    Tower,
    processor_config,
    tower_shapes,
    vision_config,
)

Form = Literal["first", "per_layer", "both", "conditional"]
DType = Literal["F32", "F16", "BF16"]

TOWER = Tower()

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|think|>",
           "<|image>", "<image|>", "<|image|>")  # fmt: skip
VISIBLE = ("<|channel>", "<channel|>", '<|"|>')
ADDED = ("<table>", "</table>")
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|turn>{{ m.content }}<turn|>{% endfor %}"


@dataclass(frozen=True)
class Shape:
    """The knobs of a tiny pair; every head size, head count and width differs from the others.

    A ``conditional`` checkpoint has the ``tower`` beside its text model.
    """

    hidden: int = 64
    inner: int = 96
    heads: int = 4
    head_dim: int = 16
    head_dim_full: int = 32
    kv_heads: int = 2
    kv_heads_full: int = 1
    layer_types: tuple[str, ...] = ("sliding", "full", "sliding", "full")
    window: int = 32
    k_eq_v: bool = True
    tied: bool = True
    softcap: float | None = 30.0
    form: Form = "first"
    dtype: DType = "F32"
    drafter_hidden: int = 32
    shards: int = 1
    tower: Tower = TOWER


def tokenizer_json() -> dict[str, Any]:
    """A byte-fallback BPE in Gemma 4's style: spaces as ▁, merges that never cross a newline."""
    vocabulary = [*SPECIAL, *VISIBLE, *ADDED, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary += [
        "▁",
        "\n",
        "\t",
        *(chr(code) for code in range(0x21, 0x7F)),
        "é",
        "ü",
        "中",
        "😀",
    ]
    merges: list[list[str]] = []
    for left, right in _merge_pairs():
        merges.append([left, right])
        if left + right not in vocabulary:
            vocabulary.append(left + right)
    ids = {token: index for index, token in enumerate(vocabulary)}
    added = [
        {"id": ids[token], "content": token, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": token not in ADDED}
        for token in (*SPECIAL, *VISIBLE, *ADDED)
    ]  # fmt: skip
    model = {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
        "ignore_merges": False, "vocab": ids, "merges": merges,
    }  # fmt: skip
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": space, "pre_tokenizer": None, "post_processor": None,
        "decoder": {
            "type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
        },
        "model": model,
    }  # fmt: skip


def _merge_pairs() -> Iterator[tuple[str, str]]:
    yield "▁", "▁"
    yield "▁▁", "▁▁"
    yield "\n", "\n"
    yield "\n\n", "\n\n"
    for word in ("the", "and", "ing", "return", "def", "import", "model", "token"):
        for end in range(1, len(word)):
            yield word[:end], word[end]
        yield "▁", word


def config_of(shape: Shape, vocabulary: int) -> dict[str, Any]:
    """A text config in the form that ``shape.form`` names."""
    types = [f"{kind}_attention" for kind in shape.layer_types]
    config: dict[str, Any] = {
        "model_type": "gemma4_text", "moe_intermediate_size": None, "num_experts": None,
        "top_k_experts": None, "use_double_wide_mlp": False,
        "attention_bias": False, "attention_k_eq_v": shape.k_eq_v, "enable_moe_block": False,
        "final_logit_softcapping": shape.softcap, "head_dim": shape.head_dim,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": shape.hidden,
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
        "intermediate_size": shape.inner, "layer_types": types,
        "max_position_embeddings": 2048, "num_attention_heads": shape.heads,
        "num_hidden_layers": len(types), "num_key_value_heads": shape.kv_heads,
        "num_kv_shared_layers": 0, "rms_norm_eps": 1e-6, "sliding_window": shape.window,
        "tie_word_embeddings": shape.tied, "vocab_size": vocabulary,
        "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "dtype": "float32",
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }  # fmt: skip
    kv_full = shape.kv_heads_full if shape.k_eq_v else shape.kv_heads
    if shape.form != "per_layer":
        config |= {"global_head_dim": shape.head_dim_full, "num_global_key_value_heads": kv_full}
    if shape.form in ("per_layer", "both"):
        override = {"head_dim": shape.head_dim_full, "num_key_value_heads": kv_full}
        config["per_layer_config"] = {
            str(i): override for i, kind in enumerate(shape.layer_types) if kind == "full"
        }
    return config


def block_shapes(shape: Shape, layer: int, owns_kv: bool) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer by their names in a checkpoint."""
    full = shape.layer_types[layer] == "full"
    head = shape.head_dim_full if full else shape.head_dim
    kv_heads = shape.kv_heads_full if full and shape.k_eq_v else shape.kv_heads
    queries, keys = head * shape.heads, head * kv_heads
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (shape.hidden,),
        "layer_scalar": (1,),
        "mlp.down_proj.weight": (shape.hidden, shape.inner),
        "mlp.gate_proj.weight": (shape.inner, shape.hidden),
        "mlp.up_proj.weight": (shape.inner, shape.hidden),
        "post_attention_layernorm.weight": (shape.hidden,),
        "post_feedforward_layernorm.weight": (shape.hidden,),
        "pre_feedforward_layernorm.weight": (shape.hidden,),
        "self_attn.o_proj.weight": (shape.hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.q_proj.weight": (queries, shape.hidden),
    }
    if owns_kv:
        shapes["self_attn.k_norm.weight"] = (head,)
        shapes["self_attn.k_proj.weight"] = (keys, shape.hidden)
        if not (full and shape.k_eq_v):
            shapes["self_attn.v_proj.weight"] = (keys, shape.hidden)
    return shapes


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[Any]]:
    """Weights of a size that keeps activations near one; norms and scalars around one."""
    random = np.random.default_rng(seed)
    tensors: dict[str, NDArray[Any]] = {}
    for name, shape in shapes.items():
        values = np.asarray(random.standard_normal(shape))
        if not shape:
            values = np.asarray(BOUNDS[name.rpartition(".")[2]])
        elif len(shape) == 1:
            values = 1 + 0.1 * values
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                # Gemma 4 scales no attention score: these two norms bring 1 / sqrt(head size).
                values *= shape[0] ** -0.25
            if name.endswith(("post_feedforward_layernorm.weight", "layer_scalar")):
                # Trained blocks add less than they are given; errors then fade on their way.
                values *= 0.5
        else:
            values /= np.sqrt(shape[-1])
        tensors[name] = values.astype(np.float32)
    return tensors


def target_tensors(shape: Shape, vocabulary: int, seed: int = 1) -> dict[str, NDArray[Any]]:
    """The target's weights, float32."""
    prefix = "model.language_model." if shape.form == "conditional" else "model."
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embed_tokens.weight": (vocabulary, shape.hidden),
        f"{prefix}norm.weight": (shape.hidden,),
    }
    for layer in range(len(shape.layer_types)):
        for name, size in block_shapes(shape, layer, owns_kv=True).items():
            shapes[f"{prefix}layers.{layer}.{name}"] = size
    if not shape.tied:
        shapes["lm_head.weight"] = (vocabulary, shape.hidden)
    if shape.form == "conditional":
        shapes |= tower_shapes(shape.tower, shape.hidden)
    return random_tensors(shapes, seed)


def drafter_shape(shape: Shape) -> Shape:
    """The drafter's own text model: three sliding blocks and a full one."""
    form: Form = "first" if shape.form == "conditional" else shape.form
    types = ("sliding", "sliding", "sliding", "full")
    return replace(
        shape, hidden=shape.drafter_hidden, inner=64, layer_types=types, tied=True, softcap=None,
        form=form,
    )  # fmt: skip


def drafter_tensors(shape: Shape, vocabulary: int, seed: int = 2) -> dict[str, NDArray[Any]]:
    """The drafter's weights, float32."""
    small = drafter_shape(shape)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, small.hidden),
        "model.norm.weight": (small.hidden,),
        "pre_projection.weight": (small.hidden, 2 * shape.hidden),
        "post_projection.weight": (shape.hidden, small.hidden),
    }
    for layer in range(4):
        for name, size in block_shapes(small, layer, owns_kv=False).items():
            shapes[f"model.layers.{layer}.{name}"] = size
    return random_tensors(shapes, seed)


def safetensors_bytes(tensors: Mapping[str, NDArray[Any]], dtype: DType) -> bytes:
    """A safetensors file; bfloat16 by cutting float32 in half."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks, offset = [], 0
    for name, values in tensors.items():
        if dtype == "BF16":
            data = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        else:
            data = values.astype("<f4" if dtype == "F32" else "<f2").tobytes()
        end = offset + len(data)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, end]}
        chunks.append(data)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(chunks)


def write_weights(folder: Path, tensors: Mapping[str, NDArray[Any]], shape: Shape) -> None:
    """One file, or ``shape.shards`` files with an index."""
    if shape.shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, shape.dtype))
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shape.shards):
        file = f"model-{shard + 1:05}-of-{shape.shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard :: shape.shards]}
        (folder / file).write_bytes(safetensors_bytes(part, shape.dtype))
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    settings = {
        "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>",
        "mask_token": "<mask>", "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def write_pair(root: Path, shape: Shape = Shape()) -> tuple[Path, Path]:
    """(target folder, drafter folder) of one random pair under ``root``."""
    vocabulary = len(tokenizer_json()["model"]["vocab"])
    target, drafter = root / "tiny", root / "tiny-assistant"
    for folder in (target, drafter):
        folder.mkdir(parents=True)
        write_tokenizer(folder)
    config = config_of(shape, vocabulary)
    if shape.form == "conditional":
        config = {
            "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
            "text_config": config | {"use_bidirectional_attention": "vision"},
            "vision_config": vision_config(shape.tower), "audio_config": None,
            "boi_token_id": SPECIAL.index("<|image>"), "eoi_token_id": SPECIAL.index("<image|>"),
            "image_token_id": SPECIAL.index("<|image|>"), "tie_word_embeddings": shape.tied,
        }  # fmt: skip
        (target / "processor_config.json").write_text(json.dumps(processor_config(shape.tower)))
    else:
        config["architectures"] = ["Gemma4ForCausalLM"]
    (target / "config.json").write_text(json.dumps(config))
    sampling = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "do_sample": True}
    (target / "generation_config.json").write_text(json.dumps(sampling))
    write_weights(target, target_tensors(shape, vocabulary), shape)
    small = drafter_shape(shape)
    assistant = {
        "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
        "backbone_hidden_size": shape.hidden, "use_ordered_embeddings": False,
        "tie_word_embeddings": True,
        "text_config": config_of(small, vocabulary) | {"num_kv_shared_layers": 4},
    }  # fmt: skip
    (drafter / "config.json").write_text(json.dumps(assistant))
    write_weights(drafter, drafter_tensors(shape, vocabulary), small)
    return target, drafter


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON object in a file."""
    document = json.loads(path.read_text())
    document.update(changes)
    path.write_text(json.dumps(document))

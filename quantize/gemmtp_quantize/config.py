"""The config of a Gemma 4 checkpoint in every form that transformers has written.

Three forms are read: ``global_head_dim`` and ``num_global_key_value_heads`` in the config (the
first transformers with Gemma 4), ``per_layer_config`` in their place (from 5.2x; empty when full
and sliding layers agree), and both at once. All of them either bare (``gemma4_text``) or as the
``text_config`` of a multimodal or assistant config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemmtp.errors import BadModelFileError, UnsupportedModelError

SLIDING, FULL = "sliding_attention", "full_attention"
# Defaults of transformers' Gemma4TextConfig, which its own files may leave out.
FULL_HEAD_DIM, SLIDING_PATTERN = 512, 6
SLIDING_THETA, FULL_THETA, FULL_ROTARY_FACTOR = 10_000.0, 1_000_000.0, 0.25
DEFAULT_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": SLIDING_THETA},
    FULL: {
        "rope_type": "proportional",
        "rope_theta": FULL_THETA,
        "partial_rotary_factor": FULL_ROTARY_FACTOR,
    },
}
MAX_LAYERS, MAX_WIDTH = 1024, 2**24
# Beyond it a float32 in the file would be infinite.
MAX_NUMBER = 3e38

TARGET_TYPES = frozenset({"gemma4", "gemma4_text"})
ASSISTANT_TYPES = frozenset({"gemma4_assistant"})
LATER_TYPES = frozenset({"gemma4_unified", "gemma4_unified_text", "gemma4_unified_assistant"})


@dataclass(frozen=True)
class TextConfig:
    """The dense Gemma 4 text model: sizes in elements, window and context in tokens."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    layer_types: tuple[str, ...]
    head_dim: int
    head_dim_full: int
    kv_heads: int
    kv_heads_full: int
    k_eq_v: bool
    sliding_window: int
    context_length: int
    norm_eps: float
    softcap: float | None
    tied: bool
    theta_sliding: float
    theta_full: float
    rotary_factor: float

    @property
    def layers(self) -> int:
        return len(self.layer_types)

    def sliding(self, layer: int) -> bool:
        return self.layer_types[layer] == SLIDING

    def head_dim_of(self, layer: int) -> int:
        return self.head_dim if self.sliding(layer) else self.head_dim_full

    def kv_heads_of(self, layer: int) -> int:
        return self.kv_heads if self.sliding(layer) else self.kv_heads_full

    def rope_factors(self) -> list[float]:
        """Frequency factors of the full layers: 1 for what rotates, 1e30 for what does not."""
        half = self.head_dim_full // 2
        rotated = int(self.rotary_factor * self.head_dim_full // 2)
        return [1.0] * rotated + [1e30] * (half - rotated)


@dataclass(frozen=True)
class AssistantConfig:
    """The drafter: a small text model plus the width of the target it was made for."""

    text: TextConfig
    backbone_size: int


def family(config: Mapping[str, Any]) -> str:
    """``target`` or ``assistant``; raises UnsupportedModelError for every other checkpoint."""
    kind = config.get("model_type")
    if kind in TARGET_TYPES:
        return "target"
    if kind in ASSISTANT_TYPES:
        return "assistant"
    if kind in LATER_TYPES:
        raise UnsupportedModelError(
            f"Checkpoints of type {kind} are not converted yet.",
            hint="The dense Gemma 4 31B and its assistant are.",
        )
    raise UnsupportedModelError(
        f"The checkpoint is of type {kind}, not Gemma 4.",
        hint="Give a Gemma 4 checkpoint and its assistant.",
    )


def read_target_config(config: Mapping[str, Any]) -> TextConfig:
    """The text model of a target; raises UnsupportedModelError for parts that are not built."""
    text = _text_part(config)
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
    shared = integer(text, "num_kv_shared_layers", 0, 0, MAX_LAYERS)
    if shared:
        raise UnsupportedModelError(
            "Checkpoints whose last layers share KV (E2B, E4B) are not converted yet."
        )
    return _read_text(text, bool(tied))


def read_assistant_config(config: Mapping[str, Any]) -> AssistantConfig:
    """The drafter's config; raises as ``read_target_config`` does."""
    text = _text_part(config)
    backbone = integer(config, "backbone_hidden_size", None, 1, MAX_WIDTH)
    parsed = _read_text(text, tied=True)
    if backbone == parsed.hidden_size:
        raise UnsupportedModelError(
            f"The assistant is as wide as its target ({backbone}), which llama.cpp cannot load."
        )
    return AssistantConfig(parsed, backbone)


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    if config.get("model_type") == "gemma4_text":
        return config
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise BadModelFileError("The checkpoint's config has no text_config.")
    return text


def _read_text(text: Mapping[str, Any], tied: bool) -> TextConfig:
    _refuse_unbuilt(text)
    types = _layer_types(text)
    head_dim = integer(text, "head_dim", 256, 2, MAX_WIDTH)
    kv_heads = integer(text, "num_key_value_heads", 4, 1, MAX_WIDTH)
    k_eq_v = text.get("attention_k_eq_v", False) is True
    head_dim_full, kv_heads_full = _full_layers(text, types, head_dim, kv_heads, k_eq_v)
    softcap = text.get("final_logit_softcapping")
    rope = text.get("rope_parameters") or DEFAULT_ROPE
    parsed = TextConfig(
        vocab_size=integer(text, "vocab_size", None, 1, MAX_WIDTH),
        hidden_size=integer(text, "hidden_size", None, 1, MAX_WIDTH),
        intermediate_size=integer(text, "intermediate_size", None, 1, MAX_WIDTH),
        heads=integer(text, "num_attention_heads", 8, 1, MAX_WIDTH),
        layer_types=types,
        head_dim=head_dim,
        head_dim_full=head_dim_full,
        kv_heads=kv_heads,
        kv_heads_full=kv_heads_full,
        k_eq_v=k_eq_v,
        sliding_window=integer(text, "sliding_window", 512, 1, MAX_WIDTH),
        context_length=integer(text, "max_position_embeddings", 131_072, 1, 2**31 - 1),
        norm_eps=number(text, "rms_norm_eps", 1e-6),
        softcap=None if softcap is None else number(text, "final_logit_softcapping", 0.0),
        tied=tied,
        theta_sliding=_rope(rope, SLIDING, SLIDING_THETA, ("default",))[0],
        theta_full=_rope(rope, FULL, FULL_THETA, ("proportional", "default"))[0],
        rotary_factor=_rope(rope, FULL, FULL_THETA, ("proportional", "default"))[1],
    )
    _check_heads(parsed)
    return parsed


def _refuse_unbuilt(text: Mapping[str, Any]) -> None:
    unbuilt = {
        "enable_moe_block": "Mixture-of-experts checkpoints (26B-A4B) are not converted yet.",
        "hidden_size_per_layer_input": (
            "Checkpoints with per-layer embeddings (E2B, E4B) are not converted yet."
        ),
        "use_double_wide_mlp": "Checkpoints with a double-wide MLP (E2B) are not converted yet.",
        "attention_bias": "Checkpoints with attention biases are not converted.",
    }
    # transformers' default for a config that does not say: 256, as on E2B.
    given = {"hidden_size_per_layer_input": 256, **text}
    for key, sentence in unbuilt.items():
        if given.get(key):
            raise UnsupportedModelError(
                sentence, hint="The dense Gemma 4 31B and its assistant are."
            )
    if text.get("use_bidirectional_attention") == "all":
        raise UnsupportedModelError(
            "Checkpoints that attend in both directions are no chat models."
        )
    activation = text.get("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UnsupportedModelError(f"The activation {activation} is not Gemma 4's.")


def _layer_types(text: Mapping[str, Any]) -> tuple[str, ...]:
    count = integer(text, "num_hidden_layers", None, 1, MAX_LAYERS)
    types = text.get("layer_types")
    if types is None:
        types = [SLIDING if (i + 1) % SLIDING_PATTERN else FULL for i in range(count)]
        types[-1] = FULL
    if not isinstance(types, list) or len(types) != count:
        raise BadModelFileError(f"The config names layer_types for other than {count} layers.")
    if any(kind not in (SLIDING, FULL) for kind in types):
        raise UnsupportedModelError("The config names layer types that Gemma 4 does not have.")
    if types[-1] != FULL or SLIDING not in types:
        raise UnsupportedModelError("The layers must be sliding and full, the last one full.")
    return tuple(types)


def _full_layers(
    text: Mapping[str, Any], types: tuple[str, ...], head_dim: int, kv_heads: int, k_eq_v: bool
) -> tuple[int, int]:
    overrides = text.get("per_layer_config")
    if overrides is None:
        full = integer(text, "global_head_dim", FULL_HEAD_DIM, 2, MAX_WIDTH)
        # The kv-head override counts on K=V models alone, in old transformers and in new.
        given = text.get("num_global_key_value_heads") if k_eq_v else None
        if given is None:
            return full, kv_heads
        return full, integer(text, "num_global_key_value_heads", None, 1, MAX_WIDTH)
    if not isinstance(overrides, dict):
        raise BadModelFileError("per_layer_config in the config is no object.")
    found = set()
    for layer, kind in enumerate(types):
        entry = overrides.get(str(layer), {})
        if not isinstance(entry, dict) or not set(entry) <= {"head_dim", "num_key_value_heads"}:
            raise UnsupportedModelError(f"per_layer_config of layer {layer} is not Gemma 4's.")
        sizes = (
            integer(entry, "head_dim", head_dim, 2, MAX_WIDTH),
            integer(entry, "num_key_value_heads", kv_heads, 1, MAX_WIDTH),
        )
        if kind == FULL:
            found.add(sizes)
        elif sizes != (head_dim, kv_heads):
            raise UnsupportedModelError(f"Sliding layer {layer} differs from the others.")
    if len(found) != 1:
        raise UnsupportedModelError("The full-attention layers have different head sizes.")
    return found.pop()


def _rope(rope: Any, kind: str, theta: float, allowed: tuple[str, ...]) -> tuple[float, float]:
    """(base, rotated part of a head) of one layer type."""
    entry = rope.get(kind) if isinstance(rope, dict) else None
    if not isinstance(entry, dict):
        raise BadModelFileError(f"The config has no rope_parameters for {kind}.")
    rope_type = entry.get("rope_type", "default")
    if rope_type not in allowed or entry.get("factor", 1.0) not in (None, 1, 1.0):
        raise UnsupportedModelError(f"RoPE of type {rope_type} on {kind} is not Gemma 4's.")
    part = number(entry, "partial_rotary_factor", 1.0) if rope_type == "proportional" else 1.0
    if not 0.0 < part <= 1.0:
        raise BadModelFileError(f"partial_rotary_factor {part} is not between 0 and 1.")
    return number(entry, "rope_theta", theta), part


def _check_heads(config: TextConfig) -> None:
    for kv_heads in (config.kv_heads, config.kv_heads_full):
        if config.heads % kv_heads:
            raise BadModelFileError(
                f"{config.heads} attention heads cannot share {kv_heads} key-value heads."
            )
    if config.head_dim % 2 or config.head_dim_full % 2:
        raise BadModelFileError("The config names an odd head size.")


def integer(config: Mapping[str, Any], key: str, default: int | None, low: int, high: int) -> int:
    value = config.get(key, default)
    if value is None:
        value = default
    if type(value) is not int or not low <= value <= high:
        raise BadModelFileError(f"{key} in the config is {value!r}, not a number from {low} up.")
    return value


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_NUMBER:
        raise BadModelFileError(f"{key} in the config is {value!r}, not a positive number.")
    return float(value)

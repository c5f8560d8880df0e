"""The vision tower of a Gemma 4 checkpoint by its config, and how its processor prepares pixels.

Some of it no GGUF can say, because llama.cpp's mtmd takes it for granted (clip.cpp, gemma4v): the
base of the rotary positions, and how pixels are resized and scaled. A checkpoint that differs there
is refused, since its images would be misread without a word; so is a shape of heads that no Gemma 4
has and that the check of a projector's file does not take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmtp.errors import BadModelFileError, UnsupportedModelError
from gemmtp_models.memory_projector import DEFAULT_IMAGE_TOKENS, IMAGE_BUDGETS, budget_words
from gemmtp_quantize.config import MAX_LAYERS, MAX_WIDTH, integer, number
from gemmtp_quantize.documents import read_optional_object

VISION_TYPE = "gemma4_vision"
ACTIVATION = "gelu_pytorch_tanh"
ROPE_THETA = 100.0
BICUBIC = 3
RESCALE = 1 / 255
IMAGE_MEAN, IMAGE_STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
CHANNELS = 3
TEXT_ALONE = "Give --vision none to convert the text model alone."


@dataclass(frozen=True)
class VisionConfig:
    """The tower: widths in elements, ``patch`` in pixels, ``pooling`` in patches a side."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    head_dim: int
    patch: int
    pooling: int
    positions: int
    norm_eps: float
    clipped: bool
    standardize: bool


def has_tower(config: Mapping[str, Any]) -> bool:
    """Whether the config names a tower that is built here: the one of E2B to 31B, not of 12B."""
    vision = config.get("vision_config")
    return isinstance(vision, dict) and vision.get("model_type", VISION_TYPE) == VISION_TYPE


def read_vision_config(config: Mapping[str, Any]) -> VisionConfig:
    """The tower of a multimodal config; raises BadModelFileError and UnsupportedModelError."""
    vision: Mapping[str, Any] = config["vision_config"]
    _refuse_unsayable(vision)
    parsed = VisionConfig(
        hidden_size=integer(vision, "hidden_size", 768, 1, MAX_WIDTH),
        intermediate_size=integer(vision, "intermediate_size", 3072, 1, MAX_WIDTH),
        layers=integer(vision, "num_hidden_layers", 16, 1, MAX_LAYERS),
        heads=integer(vision, "num_attention_heads", 12, 1, MAX_WIDTH),
        head_dim=integer(vision, "head_dim", 64, 1, MAX_WIDTH),
        patch=integer(vision, "patch_size", 16, 1, MAX_WIDTH),
        pooling=integer(vision, "pooling_kernel_size", 3, 1, MAX_WIDTH),
        positions=integer(vision, "position_embedding_size", 10_240, 1, MAX_WIDTH),
        norm_eps=number(vision, "rms_norm_eps", 1e-6),
        clipped=vision.get("use_clipped_linears", False) is True,
        standardize=vision.get("standardize", False) is True,
    )
    shared = integer(vision, "num_key_value_heads", parsed.heads, 1, MAX_WIDTH) != parsed.heads
    # Half of a head turns by the column and half by the row, each half in pairs.
    if shared or parsed.heads * parsed.head_dim != parsed.hidden_size or parsed.head_dim % 4:
        raise UnsupportedModelError(
            f"The vision tower's {parsed.heads} heads of {parsed.head_dim} in a width of "
            f"{parsed.hidden_size}{', with shared keys,' * shared} are not Gemma 4's.",
            TEXT_ALONE,
        )
    return parsed


def _refuse_unsayable(vision: Mapping[str, Any]) -> None:
    rope = vision.get("rope_parameters") or {}
    theta = rope.get("rope_theta", ROPE_THETA) if isinstance(rope, dict) else rope
    if theta != ROPE_THETA:
        raise UnsupportedModelError(
            f"The vision tower turns its positions by base {theta!r}, and llama.cpp by "
            f"{ROPE_THETA:g}.",
            TEXT_ALONE,
        )
    activation = vision.get("hidden_activation", ACTIVATION)
    if activation != ACTIVATION:
        raise UnsupportedModelError(
            f"The activation {activation} of the vision tower is not Gemma 4's.", TEXT_ALONE
        )
    if vision.get("attention_bias"):
        raise UnsupportedModelError(
            "The vision tower has attention biases, which Gemma 4 has not.", TEXT_ALONE
        )


def read_processor(directory: Path, config: VisionConfig) -> int:
    """What an image may take, one of ``IMAGE_BUDGETS``.

    Read is processor_config.json over preprocessor_config.json; a checkpoint with neither has
    Gemma 4's own processor. Raises UnsupportedModelError unless ``gemmtp.prompt.attachments``
    prepares pixels alike, and for another budget.
    """
    given = dict(read_optional_object(directory / "preprocessor_config.json"))
    nested = read_optional_object(directory / "processor_config.json").get("image_processor", {})
    if not isinstance(nested, dict):
        raise BadModelFileError("image_processor in processor_config.json is no object.")
    given |= nested
    expected: dict[str, object] = {
        "patch_size": config.patch,
        "pooling_kernel_size": config.pooling,
        "do_resize": True,
        "do_rescale": True,
        "resample": BICUBIC,
        "rescale_factor": RESCALE,
    }
    # transformers looks at these two only where it normalises, and mtmd always does.
    if given.get("do_normalize", False) is not False:
        expected |= {"image_mean": list(IMAGE_MEAN), "image_std": list(IMAGE_STD)}
    for key, value in expected.items():
        if given.get(key, value) != value:
            raise UnsupportedModelError(
                f"The image processor's {key} is {given[key]!r}; {value!r} is what can be done.",
                TEXT_ALONE,
            )
    tokens = given.get("max_soft_tokens")
    if tokens is None:
        return DEFAULT_IMAGE_TOKENS
    if type(tokens) is not int or tokens not in IMAGE_BUDGETS:
        raise UnsupportedModelError(
            f"The image processor's max_soft_tokens is {tokens!r}; {budget_words()} can be done.",
            TEXT_ALONE,
        )
    return tokens

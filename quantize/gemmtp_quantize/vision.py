"""The projector: the vision tower of a checkpoint and its projection into the text model.

Names and layouts are those that llama.cpp's mtmd reads for ``gemma4v`` (tools/mtmd/clip.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gemmtp.errors import BadModelFileError
from gemmtp_models.memory_projector import DEFAULT_IMAGE_TOKENS
from gemmtp_models.metadata import ValueType
from gemmtp_models.projector import IMAGE_TOKENS_KEY
from gemmtp_quantize.checkpoint import Checkpoint
from gemmtp_quantize.model_file import (
    Fields,
    TensorSpec,
    array,
    boolean,
    f32,
    model_card,
    size_label,
    text,
    u32,
)
from gemmtp_quantize.recipe import RoleRecipe
from gemmtp_quantize.text import Wanted, match_tensors
from gemmtp_quantize.vision_config import (
    CHANNELS,
    IMAGE_MEAN,
    IMAGE_STD,
    TEXT_ALONE,
    VisionConfig,
)
from gemmtp_quantize.weights import scalar

ARCHITECTURE, PROJECTOR_TYPE = "clip", "gemma4v"
TYPES = ("f32", "bf16", "f16", "q8_0")
TOWER, EMBEDDER = "vision_tower.", "embed_vision."
PATCHES, POSITIONS = "v.patch_embd.weight", "v.position_embd.weight"
# mtmd wants the key and never looks at the value: every image has its own size.
UNUSED_IMAGE_SIZE = 224
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def vision_recipe(kind: str) -> RoleRecipe:
    """The types of a projector whose weights are ``kind``, one of ``TYPES``.

    The kernel over the pixels is F16 or F32, which is all that ggml's convolution takes; the tables
    of positions are added, not multiplied, and stay F32 as in llama.cpp's own converter.
    """
    kind = kind.upper()
    kernel = "F16" if kind == "F16" else "F32"
    return RoleRecipe(kind, kind, kind, kind, tensors={PATCHES: kernel, POSITIONS: "F32"})


def has_weights(checkpoint: Checkpoint) -> bool:
    """Whether any tensor of a vision tower is in the checkpoint."""
    return any(name.removeprefix("model.").startswith(TOWER) for name in checkpoint.tensors)


def vision_tensors(
    checkpoint: Checkpoint, config: VisionConfig, text_width: int
) -> list[TensorSpec]:
    """Every tensor of the projector's GGUF.

    Raises BadModelFileError for a tensor that is missing, of another shape, or of no use.
    """
    if not has_weights(checkpoint):
        raise BadModelFileError(
            f"The config of {checkpoint.name} names a vision tower, which has no weights.",
            TEXT_ALONE,
        )
    prefix = "model." if any(n.startswith("model." + TOWER) for n in checkpoint.tensors) else ""
    ours = (prefix + TOWER, prefix + EMBEDDER)
    others = tuple(name for name in checkpoint.tensors if not name.startswith(ours))
    specs: list[TensorSpec] = []
    for spec in match_tensors(checkpoint, _wanted(config, prefix, text_width), others):
        if not spec.shape:
            specs += _bound(spec)
        elif spec.name == PATCHES:
            specs.append(_kernel(spec, config.patch))
        else:
            specs.append(spec)
    return specs


def _wanted(config: VisionConfig, prefix: str, text_width: int) -> Wanted:
    tower, width = prefix + TOWER, config.hidden_size
    pixels = CHANNELS * config.patch**2
    yield tower + "patch_embedder.input_proj.weight", PATCHES, (width, pixels)
    table = (2, config.positions, width)
    yield tower + "patch_embedder.position_embedding_table", POSITIONS, table
    for layer in range(config.layers):
        for source, name, shape in _block(config):
            yield f"{tower}encoder.layers.{layer}.{source}", f"v.blk.{layer}.{name}", shape
    if config.standardize:
        # Without ".weight": so mtmd looks for them.
        yield tower + "std_bias", "v.std_bias", (width,)
        yield tower + "std_scale", "v.std_scale", (width,)
    projection = prefix + EMBEDDER + "embedding_projection.weight"
    yield projection, "mm.input_projection.weight", (text_width, width)


def _block(config: VisionConfig) -> Wanted:
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    yield "input_layernorm.weight", "ln1.weight", (width,)
    yield from _linear(config, "self_attn.q_proj", "attn_q", (width, width))
    yield from _linear(config, "self_attn.k_proj", "attn_k", (width, width))
    yield from _linear(config, "self_attn.v_proj", "attn_v", (width, width))
    yield from _linear(config, "self_attn.o_proj", "attn_out", (width, width))
    yield "self_attn.q_norm.weight", "attn_q_norm.weight", (head,)
    yield "self_attn.k_norm.weight", "attn_k_norm.weight", (head,)
    yield "post_attention_layernorm.weight", "attn_post_norm.weight", (width,)
    yield "pre_feedforward_layernorm.weight", "ln2.weight", (width,)
    yield from _linear(config, "mlp.gate_proj", "ffn_gate", (inner, width))
    yield from _linear(config, "mlp.up_proj", "ffn_up", (inner, width))
    yield from _linear(config, "mlp.down_proj", "ffn_down", (width, inner))
    yield "post_feedforward_layernorm.weight", "ffn_post_norm.weight", (width,)


def _linear(config: VisionConfig, source: str, name: str, shape: tuple[int, int]) -> Wanted:
    """A matrix and, on checkpoints with clipped linears, what its input and output are held to."""
    yield f"{source}.linear.weight", f"{name}.weight", shape
    if config.clipped:
        for bound in BOUNDS:
            yield f"{source}.{bound}", f"{name}.{bound}", ()


def _bound(spec: TensorSpec) -> Iterator[TensorSpec]:
    """A finite bound as a tensor of one float32; an infinite one bounds nothing and is left out."""
    if spec.source is not None and math.isfinite(value := scalar(spec.source)):
        yield TensorSpec(spec.name, (1,), values=(value,))


def _kernel(spec: TensorSpec, patch: int) -> TensorSpec:
    """The checkpoint has a patch as rows of RGB pixels, a convolution has it colour by colour."""
    shape = (spec.shape[0], CHANNELS, patch, patch)
    return replace(spec, shape=shape, stored=(shape[0], patch, patch, CHANNELS), axes=(0, 3, 1, 2))


def vision_fields(
    checkpoint: Checkpoint,
    config: VisionConfig,
    text_width: int,
    specs: list[TensorSpec],
    image_tokens: int,
) -> Fields:
    """All metadata of the projector's GGUF except its file type and fingerprint.

    A file that says nothing of ``image_tokens`` means the usual budget, as every file of
    llama.cpp's own converter does.
    """
    budget = {} if image_tokens == DEFAULT_IMAGE_TOKENS else {IMAGE_TOKENS_KEY: u32(image_tokens)}
    values: Fields = {
        "projector_type": text(PROJECTOR_TYPE),
        "projection_dim": u32(text_width),
        "image_size": u32(UNUSED_IMAGE_SIZE),
        "patch_size": u32(config.patch),
        "projector.scale_factor": u32(config.pooling),
        "embedding_length": u32(config.hidden_size),
        "feed_forward_length": u32(config.intermediate_size),
        "block_count": u32(config.layers),
        "attention.head_count": u32(config.heads),
        "attention.layer_norm_epsilon": f32(config.norm_eps),
        "image_mean": array(ValueType.FLOAT32, IMAGE_MEAN),
        "image_std": array(ValueType.FLOAT32, IMAGE_STD),
    }
    return {
        "general.architecture": text(ARCHITECTURE),
        "general.type": text("mmproj"),
        "general.name": text(checkpoint.name),
        "general.size_label": text(size_label(sum(spec.elements for spec in specs))),
        **model_card(checkpoint.directory),
        "clip.has_vision_encoder": boolean(True),
        # Without it mtmd takes another GELU than Gemma 4's, which is the tanh form.
        "clip.use_gelu": boolean(True),
        **{f"clip.vision.{key}": value for key, value in values.items()},
        **budget,
    }

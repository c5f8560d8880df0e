"""The drafter: four blocks without keys and values, and the two projections around them."""

from __future__ import annotations

from gemmtp_models.geometry import DRAFTER_ARCHITECTURE
from gemmtp_quantize.checkpoint import Checkpoint
from gemmtp_quantize.config import AssistantConfig
from gemmtp_quantize.model_file import (
    Fields,
    TensorSpec,
    architecture_fields,
    general_fields,
    tokenizer_fields,
    u32,
)
from gemmtp_quantize.text import (
    HEAD,
    NOT_WEIGHTS,
    Wanted,
    body_tensors,
    match_tensors,
    rope_factors,
    text_prefix,
)
from gemmtp_quantize.tokenizer import Tokenizer

# The centroid head of E2B and E4B picks rows of the dense head; llama.cpp runs the dense head.
CENTROIDS = "masked_embedding."
# Left-overs in a block that reads the target's keys and values; transformers skips them, too.
UNUSED = tuple(f".self_attn.{part}.weight" for part in ("k_proj", "v_proj", "k_norm", "v_norm"))


def assistant_tensors(checkpoint: Checkpoint, config: AssistantConfig) -> list[TensorSpec]:
    """Every tensor of the drafter's GGUF, in the order of llama.cpp's converter."""
    prefix = text_prefix(checkpoint.tensors)
    ignored = tuple(
        name
        for name in checkpoint.tensors
        if name.startswith(CENTROIDS)
        or name.endswith((*UNUSED, *NOT_WEIGHTS))
        or name.endswith(HEAD)
    )
    found = match_tensors(checkpoint, _wanted(config, prefix), ignored)
    return [rope_factors(config.text), *found]


def _wanted(config: AssistantConfig, prefix: str) -> Wanted:
    width, backbone = config.text.hidden_size, config.backbone_size
    yield from body_tensors(config.text, prefix, owns_kv=False)
    yield "post_projection.weight", "nextn.post_projection.weight", (backbone, width)
    # Takes the target's embedding of a token and its hidden row, side by side.
    yield "pre_projection.weight", "nextn.pre_projection.weight", (width, 2 * backbone)


def assistant_fields(
    checkpoint: Checkpoint, config: AssistantConfig, tokenizer: Tokenizer, specs: list[TensorSpec]
) -> Fields:
    """All metadata of the drafter's GGUF except its file type and fingerprint."""
    name, layers = DRAFTER_ARCHITECTURE, config.text.layers
    return {
        **general_fields(name, checkpoint, specs),
        **architecture_fields(name, config.text, shared_layers=layers),
        f"{name}.embedding_length_out": u32(config.backbone_size),
        f"{name}.nextn_predict_layers": u32(layers),
        **tokenizer_fields(tokenizer),
    }

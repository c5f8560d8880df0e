"""The target: tensors of the dense Gemma 4 text model, their names and shapes in a GGUF."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemmtp.errors import BadModelFileError
from gemmtp_models.geometry import TARGET_ARCHITECTURE
from gemmtp_quantize.checkpoint import Checkpoint
from gemmtp_quantize.config import TextConfig
from gemmtp_quantize.model_file import (
    Fields,
    TensorSpec,
    architecture_fields,
    f32,
    general_fields,
    tokenizer_fields,
)
from gemmtp_quantize.safetensors import StoredTensor
from gemmtp_quantize.tokenizer import Tokenizer

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
# Parts of a multimodal checkpoint that other files hold, or that no file needs.
OTHER_PARTS = (
    "vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.", "multi_modal_projector.",
)  # fmt: skip
NOT_WEIGHTS = (".rotary_emb.inv_freq",)

Wanted = Iterator[tuple[str, str, tuple[int, ...]]]


def block_tensors(config: TextConfig, layer: int, owns_kv: bool) -> Wanted:
    """(name in the checkpoint, name in the GGUF, row-major shape) of a layer, without prefixes."""
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim_of(layer)
    queries, keys = head * config.heads, head * config.kv_heads_of(layer)
    yield "input_layernorm.weight", "attn_norm.weight", (width,)
    yield "layer_scalar", "layer_output_scale.weight", (1,)
    yield "mlp.down_proj.weight", "ffn_down.weight", (width, inner)
    yield "mlp.gate_proj.weight", "ffn_gate.weight", (inner, width)
    yield "mlp.up_proj.weight", "ffn_up.weight", (inner, width)
    yield "post_attention_layernorm.weight", "post_attention_norm.weight", (width,)
    yield "post_feedforward_layernorm.weight", "post_ffw_norm.weight", (width,)
    yield "pre_feedforward_layernorm.weight", "ffn_norm.weight", (width,)
    if owns_kv:
        yield "self_attn.k_norm.weight", "attn_k_norm.weight", (head,)
        yield "self_attn.k_proj.weight", "attn_k.weight", (keys, width)
    yield "self_attn.o_proj.weight", "attn_output.weight", (width, queries)
    yield "self_attn.q_norm.weight", "attn_q_norm.weight", (head,)
    yield "self_attn.q_proj.weight", "attn_q.weight", (queries, width)
    # On K=V models the values of a full layer are its keys: llama.cpp takes a missing attn_v so.
    if owns_kv and (config.sliding(layer) or not config.k_eq_v):
        yield "self_attn.v_proj.weight", "attn_v.weight", (keys, width)


def text_prefix(tensors: Mapping[str, StoredTensor]) -> str:
    """What stands in front of the text model's names: ``model.`` or ``model.language_model.``."""
    found = [name for name in tensors if name.endswith("." + EMBEDDING)]
    if len(found) != 1:
        raise BadModelFileError("The checkpoint has no tensor embed_tokens.weight.")
    return found[0].removesuffix(EMBEDDING)


def body_tensors(config: TextConfig, prefix: str, owns_kv: bool) -> Wanted:
    """Embedding, layers and final norm, with full names."""
    yield prefix + EMBEDDING, "token_embd.weight", (config.vocab_size, config.hidden_size)
    for layer in range(config.layers):
        for source, name, shape in block_tensors(config, layer, owns_kv):
            yield f"{prefix}layers.{layer}.{source}", f"blk.{layer}.{name}", shape
    yield prefix + "norm.weight", "output_norm.weight", (config.hidden_size,)


def rope_factors(config: TextConfig) -> TensorSpec:
    """``rope_freqs``, which the full layers divide their frequencies by (proportional RoPE)."""
    values = tuple(config.rope_factors())
    return TensorSpec("rope_freqs.weight", (len(values),), values=values)


def match_tensors(
    checkpoint: Checkpoint, wanted: Wanted, ignored: Iterator[str] | tuple[str, ...]
) -> list[TensorSpec]:
    """The wanted tensors, found in the checkpoint.

    Raises BadModelFileError for a tensor that is missing, of another shape, or of no use.
    """
    specs, left = [], set(checkpoint.tensors) - set(ignored)
    for source, name, shape in wanted:
        tensor = checkpoint.tensors.get(source)
        if tensor is None:
            raise BadModelFileError(f"The checkpoint {checkpoint.name} lacks the tensor {source}.")
        if tensor.shape != shape:
            raise BadModelFileError(
                f"Tensor {source} has the shape {list(tensor.shape)}; by the config of "
                f"{checkpoint.name} it is {list(shape)}."
            )
        tensor.require_float()
        left.discard(source)
        specs.append(TensorSpec(name, shape, tensor))
    if left:
        raise BadModelFileError(
            f"The checkpoint {checkpoint.name} has the tensor {min(left)}, which its config does "
            "not explain."
        )
    return specs


def target_tensors(checkpoint: Checkpoint, config: TextConfig) -> list[TensorSpec]:
    """Every tensor of the target's GGUF, in the order of llama.cpp's converter."""
    prefix = text_prefix(checkpoint.tensors)
    # A tied head is sometimes saved beside the embedding that it equals.
    ignored = tuple(
        name
        for name in checkpoint.tensors
        if name.removeprefix("model.").startswith(OTHER_PARTS)
        or name.endswith(NOT_WEIGHTS)
        or (config.tied and name.endswith(HEAD))
    )
    return [rope_factors(config), *match_tensors(checkpoint, _wanted(config, prefix), ignored)]


def _wanted(config: TextConfig, prefix: str) -> Wanted:
    yield from body_tensors(config, prefix, owns_kv=True)
    if not config.tied:
        yield HEAD, "output.weight", (config.vocab_size, config.hidden_size)


def target_fields(
    checkpoint: Checkpoint, config: TextConfig, tokenizer: Tokenizer, specs: list[TensorSpec]
) -> Fields:
    """All metadata of the target's GGUF except its file type and fingerprint."""
    # Without the key llama.cpp caps at 30; zero switches the cap off.
    softcap = f32(config.softcap or 0.0)
    return {
        **general_fields(TARGET_ARCHITECTURE, checkpoint, specs),
        **architecture_fields(TARGET_ARCHITECTURE, config, shared_layers=0),
        f"{TARGET_ARCHITECTURE}.final_logit_softcapping": softcap,
        **tokenizer_fields(tokenizer),
    }

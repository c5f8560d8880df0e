"""Which tensors a Gemma 4 target and its drafter must have, and in which shapes.

From ``load_arch_tensors`` in ``src/models/gemma4.cpp`` and ``gemma4-assistant.cpp`` of
llama.cpp. Shapes have the row length first.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmtp.errors import BadModelFileError, UnsupportedModelError
from gemmtp_models.geometry import DRAFTER_ARCHITECTURE, Geometry
from gemmtp_models.header import Header, TensorInfo

Shape = tuple[int, ...]
Wanted = Iterator[tuple[str, Shape]]


def check_tensors(header: Header, geometry: Geometry) -> None:
    """Hold the tensor list of ``header`` against what its geometry needs.

    Raises ``BadModelFileError`` for a tensor that is missing or of another shape, and
    ``UnsupportedModelError`` for a type that llama.cpp cannot compute with.
    """
    wanted = _drafter if geometry.architecture == DRAFTER_ARCHITECTURE else _target
    for name, shape in wanted(header, geometry):
        _check_shape(header, name, shape)
    for tensor in header.tensors.values():
        _check_type(header, tensor)


def _check_shape(header: Header, name: str, shape: Shape) -> None:
    tensor = header.tensors.get(name)
    if tensor is None:
        raise BadModelFileError(
            f"{header.path.name} lacks the tensor {name}.",
            "The file is incomplete or of another layout; fetch it again or another one.",
        )
    # Trailing dimensions of 1 may be written or left out.
    padded = tensor.shape + (1,) * (len(shape) - len(tensor.shape))
    if padded[: len(shape)] != shape or any(size != 1 for size in padded[len(shape) :]):
        raise BadModelFileError(
            f"{header.path.name} has {name} in the shape {_text(tensor.shape)}, "
            f"expected {_text(shape)}."
        )


def _check_type(header: Header, tensor: TensorInfo) -> None:
    """ggml asserts on integer weights, and on norms and scales that are not F32."""
    one_row = tensor.elements == max(tensor.shape)
    if one_row and tensor.type.name != "F32":
        problem = f"in {tensor.type.name}, expected F32"
    elif not tensor.type.is_weight:
        problem = f"in {tensor.type.name}, which no weight can be"
    else:
        return
    raise UnsupportedModelError(
        f"{header.path.name} has {tensor.name} {problem}.", "Fetch another quantisation."
    )


def _text(shape: Shape) -> str:
    return " x ".join(f"{size:,}" for size in shape)


def _target(header: Header, g: Geometry) -> Wanted:
    width, size, count = g.embedding_length, g.vocabulary.size, g.block_count
    yield "token_embd.weight", (width, size)
    yield "output_norm.weight", (width,)
    if "output.weight" in header.tensors:
        yield "output.weight", (width, size)
    if g.per_layer_embedding:
        rows = g.per_layer_embedding * count
        yield "per_layer_token_embd.weight", (rows, size)
        yield "per_layer_model_proj.weight", (width, rows)
        yield "per_layer_proj_norm.weight", (g.per_layer_embedding,)
    yield "rope_freqs.weight", (g.key_length // 2,)
    for layer in range(count):
        yield from _target_attention(header, g, layer)
        yield from _feed_forward(g, layer)
        yield from _experts(header, g, layer)
        if g.per_layer_embedding:
            yield f"blk.{layer}.inp_gate.weight", (width, g.per_layer_embedding)
            yield f"blk.{layer}.proj.weight", (g.per_layer_embedding, width)
            yield f"blk.{layer}.post_norm.weight", (width,)
        if f"blk.{layer}.layer_output_scale.weight" in header.tensors:
            yield f"blk.{layer}.layer_output_scale.weight", (1,)


def _target_attention(header: Header, g: Geometry, layer: int) -> Wanted:
    width, head = g.embedding_length, g.head_size(layer)
    queries, keys = head * g.heads[layer], head * g.kv_heads[layer]
    block = f"blk.{layer}."
    yield from _attention(g, layer)
    if block + "attn_qkv.weight" in header.tensors:
        yield block + "attn_qkv.weight", (width, queries + 2 * keys)
    else:
        yield block + "attn_q.weight", (width, queries)
        if g.owns_kv(layer):
            yield block + "attn_k.weight", (width, keys)
        # No attn_v means that values are the keys (attention_k_eq_v).
        if block + "attn_v.weight" in header.tensors:
            yield block + "attn_v.weight", (width, keys)
    if g.owns_kv(layer):
        yield block + "attn_k_norm.weight", (head,)


def _attention(g: Geometry, layer: int) -> Wanted:
    """What target and drafter have in common."""
    width, head = g.embedding_length, g.head_size(layer)
    yield f"blk.{layer}.attn_norm.weight", (width,)
    yield f"blk.{layer}.attn_q_norm.weight", (head,)
    yield f"blk.{layer}.attn_output.weight", (head * g.heads[layer], width)
    yield f"blk.{layer}.post_attention_norm.weight", (width,)


def _feed_forward(g: Geometry, layer: int) -> Wanted:
    width, inner = g.embedding_length, g.feed_forward[layer]
    yield f"blk.{layer}.ffn_norm.weight", (width,)
    yield f"blk.{layer}.ffn_gate.weight", (width, inner)
    yield f"blk.{layer}.ffn_up.weight", (width, inner)
    yield f"blk.{layer}.ffn_down.weight", (inner, width)
    yield f"blk.{layer}.post_ffw_norm.weight", (width,)


def _experts(header: Header, g: Geometry, layer: int) -> Wanted:
    """26B-A4B: a layer with a router has experts beside its dense branch."""
    block = f"blk.{layer}."
    if block + "ffn_gate_inp.weight" not in header.tensors:
        return
    width, inner, count = g.embedding_length, g.expert_feed_forward, g.expert_count
    yield block + "ffn_gate_inp.weight", (width, count)
    yield block + "ffn_gate_inp.scale", (width,)
    for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
        yield f"{block}{name}.weight", (width,)
    if block + "ffn_gate_up_exps.weight" in header.tensors:
        yield block + "ffn_gate_up_exps.weight", (width, 2 * inner, count)
    else:
        yield block + "ffn_gate_exps.weight", (width, inner, count)
        yield block + "ffn_up_exps.weight", (width, inner, count)
    yield block + "ffn_down_exps.weight", (inner, width, count)


def _drafter(header: Header, g: Geometry) -> Wanted:
    width, backbone = g.embedding_length, g.embedding_length_out
    yield "token_embd.weight", (width, g.vocabulary.size)
    yield "output_norm.weight", (width,)
    yield "rope_freqs.weight", (g.key_length // 2,)
    yield "nextn.pre_projection.weight", (2 * backbone, width)
    yield "nextn.post_projection.weight", (width, backbone)
    for layer in range(g.block_count):
        yield from _attention(g, layer)
        yield f"blk.{layer}.attn_q.weight", (width, g.head_size(layer) * g.heads[layer])
        yield f"blk.{layer}.layer_output_scale.weight", (1,)
        yield from _feed_forward(g, layer)

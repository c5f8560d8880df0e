"""The five published sizes of Gemma 4 by their numbers: what a plan needs before a file is here.

Dimensions as in the checkpoints' ``config.json`` and in the headers of published GGUF files. The
tensor list with the types of a recipe gives the published files' sizes to the byte, their headers
aside (15.8 MB for the vocabulary of 262,144 tokens; see docs/memory.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from gemmtp_models.geometry import DRAFTER_ARCHITECTURE, TARGET_ARCHITECTURE, Geometry
from gemmtp_models.ggml_types import GGML_TYPES, GgmlType
from gemmtp_models.header import Header

VOCABULARY = 262_144
HEAD_SIZE, HEAD_SIZE_SWA = 512, 256
HEADER_BYTES = 15_824_000
"""What stands before the weights of a published file: mostly tokens and merges."""

Tensors = Iterator[tuple[str, tuple[int, ...]]]
"""Names and shapes, the row length first."""

_BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}
_F32 = _BY_NAME["F32"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a model file; ``shape`` has the row length first."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) // self.type.block_size * self.type.block_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What memory arithmetic needs to know of a target or a drafter.

    Two shapes are equal when they are the same object, which makes them cheap keys of a cache.
    Tuples have one value a layer. The first ``own_kv`` layers of a target have keys and values
    of their own, later ones reuse them. ``backbone`` is a drafter's ``embedding_length_out``,
    ``per_layer`` the width of E2B's and E4B's per-layer embeddings, 0 without.
    """

    name: str
    architecture: str
    width: int
    backbone: int
    sliding: tuple[bool, ...]
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    feed_forward: tuple[int, ...]
    head_size: int
    head_size_swa: int
    window: int
    own_kv: int
    vocabulary: int
    context_length: int
    per_layer: int = 0
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward: int = 0
    softcap: bool = True
    fused_experts: bool = True
    keys_are_values: bool = False
    weights: tuple[Weight, ...] = ()

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return len(self.sliding)

    @property
    def is_drafter(self) -> bool:
        """Whether this is a drafter, which has no cache of its own."""
        return self.architecture == DRAFTER_ARCHITECTURE

    @property
    def images_see_all(self) -> bool:
        """Whether image tokens attend to each other both ways."""
        return images_see_all(self.width)

    def head(self, layer: int) -> int:
        """Length of one head of ``layer``."""
        return self.head_size_swa if self.sliding[layer] else self.head_size

    @property
    def nbytes(self) -> int:
        """All weights in bytes."""
        return sum(weight.nbytes for weight in self.weights)


def images_see_all(width: int) -> bool:
    """Whether image tokens of a target attend to each other both ways; E2B and E4B are causal.

    llama.cpp tells them by their width (``llama-model.cpp``, ``mtmd.cpp``).
    """
    return width not in (1536, 2560)


def shape_of(header: Header, geometry: Geometry) -> Shape:
    """The shape of a file whose header was checked (:mod:`gemmtp_models.pairing`)."""
    g, prefix = geometry, geometry.architecture
    used = header.metadata.per_layer(f"{prefix}.expert_used_count", g.block_count, 0)
    full = [layer for layer in range(g.block_count) if not g.sliding[layer]]
    return Shape(
        name=header.name,
        architecture=prefix,
        width=g.embedding_length,
        backbone=g.embedding_length_out,
        sliding=g.sliding,
        heads=g.heads,
        kv_heads=g.kv_heads,
        feed_forward=g.feed_forward,
        head_size=g.key_length,
        head_size_swa=g.key_length_swa,
        window=g.sliding_window,
        own_kv=g.block_count - g.shared_kv_layers,
        vocabulary=g.vocabulary.size,
        context_length=g.context_length,
        per_layer=g.per_layer_embedding,
        experts=g.expert_count,
        experts_used=max(used),
        expert_feed_forward=g.expert_feed_forward,
        softcap=g.softcap > 0,
        fused_experts="blk.0.ffn_gate_up_exps.weight" in header.tensors,
        keys_are_values=f"blk.{full[0]}.attn_v.weight" not in header.tensors,
        weights=tuple(Weight(t.name, t.shape, t.type) for t in header.tensors.values()),
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """Tensor types of a published quantisation.

    ``embedding`` is that of the token tables, ``projection`` of E2B's and E4B's
    ``per_layer_model_proj``; all other matrices are of ``bulk``, routers and vectors of F32.
    """

    bulk: str
    embedding: str
    projection: str

    def type(self, name: str, shape: tuple[int, ...]) -> GgmlType:
        """The type of the tensor called ``name``."""
        if len(shape) == 1 or name.endswith("ffn_gate_inp.weight"):
            return _F32
        if name in ("token_embd.weight", "per_layer_token_embd.weight"):
            return _BY_NAME[self.embedding]
        if name == "per_layer_model_proj.weight":
            return _BY_NAME[self.projection]
        return _BY_NAME[self.bulk]


RECIPES = {
    "google-q4_0": Recipe("Q4_0", "Q6_K", "BF16"),
    "ud-q4_k_xl": Recipe("Q4_0", "Q4_0", "Q4_0"),
    "q8_0": Recipe("Q8_0", "Q8_0", "Q8_0"),
    "q2_k": Recipe("Q2_K", "Q2_K", "Q4_0"),
    "bf16": Recipe("BF16", "BF16", "BF16"),
}
"""Google's QAT files, Unsloth's of the QAT repositories, and plain types to start from."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Size:
    """One row of the table; ``every`` says that each n-th layer attends to everything."""

    layers: int
    every: int
    width: int
    feed_forward: int
    heads: int
    kv_sliding: int
    kv_full: int
    window: int
    context: int
    keys_are_values: bool
    drafter: tuple[int, int, int]
    """Width, feed-forward length and heads of the drafter."""

    projector: int
    """Bytes of the BF16 projector."""

    per_layer: int = 0
    shared_kv: int = 0
    double_wide: bool = False
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward: int = 0


SIZES: dict[str, _Size] = {
    "e2b": _Size(
        35, 5, 1536, 6144, 8, 1, 1, 512, 131072, False, (256, 2048, 4), 986_833_728,
        per_layer=256, shared_kv=20, double_wide=True,
    ),
    "e4b": _Size(
        42, 6, 2560, 10240, 8, 2, 2, 512, 131072, False, (256, 2048, 4), 991_552_320,
        per_layer=256, shared_kv=18,
    ),
    "12b": _Size(48, 6, 3840, 15360, 16, 8, 1, 1024, 262144, True, (1024, 8192, 16), 175_115_840),
    "26b": _Size(
        30, 6, 2816, 2112, 16, 8, 2, 1024, 262144, True, (1024, 8192, 16), 1_194_828_256,
        experts=128, experts_used=8, expert_feed_forward=704,
    ),
    "31b": _Size(
        60, 6, 5376, 21504, 32, 16, 4, 1024, 262144, True, (1024, 8192, 32), 1_200_726_496,
    ),
}  # fmt: skip


def target_shape(size: str, recipe: Recipe = RECIPES["ud-q4_k_xl"]) -> Shape:
    """The target of ``size`` (a key of :data:`SIZES`) in the types of ``recipe``."""
    s = SIZES[size]
    sliding = tuple((layer + 1) % s.every != 0 for layer in range(s.layers))
    own = s.layers - s.shared_kv
    wide = tuple(s.double_wide and layer >= own for layer in range(s.layers))
    shape = Shape(
        name=f"Gemma 4 {size.upper()}",
        architecture=TARGET_ARCHITECTURE,
        width=s.width,
        backbone=s.width,
        sliding=sliding,
        heads=(s.heads,) * s.layers,
        kv_heads=tuple(s.kv_sliding if swa else s.kv_full for swa in sliding),
        feed_forward=tuple(s.feed_forward * (2 if double else 1) for double in wide),
        head_size=HEAD_SIZE,
        head_size_swa=HEAD_SIZE_SWA,
        window=s.window,
        own_kv=own,
        vocabulary=VOCABULARY,
        context_length=s.context,
        per_layer=s.per_layer,
        experts=s.experts,
        experts_used=s.experts_used,
        expert_feed_forward=s.expert_feed_forward,
        keys_are_values=s.keys_are_values,
    )
    return _with_weights(shape, _target_tensors(shape), recipe)


def drafter_shape(size: str, recipe: Recipe = RECIPES["ud-q4_k_xl"]) -> Shape:
    """The drafter of ``size`` in the types of ``recipe``."""
    s = SIZES[size]
    width, feed_forward, heads = s.drafter
    sliding = (True, True, True, False)
    shape = Shape(
        name=f"Gemma 4 {size.upper()} assistant",
        architecture=DRAFTER_ARCHITECTURE,
        width=width,
        backbone=s.width,
        sliding=sliding,
        heads=(heads,) * 4,
        kv_heads=tuple(s.kv_sliding if swa else s.kv_full for swa in sliding),
        feed_forward=(feed_forward,) * 4,
        head_size=HEAD_SIZE,
        head_size_swa=HEAD_SIZE_SWA,
        window=s.window,
        own_kv=0,
        vocabulary=VOCABULARY,
        context_length=s.context,
        softcap=False,
    )
    return _with_weights(shape, _drafter_tensors(shape), recipe)


def _with_weights(shape: Shape, tensors: Tensors, recipe: Recipe) -> Shape:
    weights = (Weight(name, size, recipe.type(name, size)) for name, size in tensors)
    return replace(shape, weights=tuple(weights))


def _target_tensors(s: Shape) -> Tensors:
    """As ``load_arch_tensors`` of llama.cpp's ``src/models/gemma4.cpp`` wants them."""
    yield "token_embd.weight", (s.width, s.vocabulary)
    yield "output_norm.weight", (s.width,)
    yield "rope_freqs.weight", (s.head_size // 2,)
    if s.per_layer:
        rows = s.per_layer * s.layers
        yield "per_layer_token_embd.weight", (rows, s.vocabulary)
        yield "per_layer_model_proj.weight", (s.width, rows)
        yield "per_layer_proj_norm.weight", (s.per_layer,)
    for layer in range(s.layers):
        block = f"blk.{layer}."
        yield from _block(s, layer)
        keys = s.head(layer) * s.kv_heads[layer]
        if layer < s.own_kv:
            yield block + "attn_k_norm.weight", (s.head(layer),)
            yield block + "attn_k.weight", (s.width, keys)
            if s.sliding[layer] or not s.keys_are_values:
                yield block + "attn_v.weight", (s.width, keys)
        if s.experts:
            yield from _experts(s, block)
        if s.per_layer:
            yield block + "inp_gate.weight", (s.width, s.per_layer)
            yield block + "proj.weight", (s.per_layer, s.width)
            yield block + "post_norm.weight", (s.width,)


def _block(s: Shape, layer: int) -> Tensors:
    """What the blocks of target and drafter have in common."""
    block, width, inner = f"blk.{layer}.", s.width, s.feed_forward[layer]
    queries = s.head(layer) * s.heads[layer]
    yield block + "attn_q.weight", (width, queries)
    yield block + "attn_output.weight", (queries, width)
    yield block + "attn_q_norm.weight", (s.head(layer),)
    for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        yield f"{block}{norm}.weight", (width,)
    yield block + "ffn_gate.weight", (width, inner)
    yield block + "ffn_up.weight", (width, inner)
    yield block + "ffn_down.weight", (inner, width)
    yield block + "layer_output_scale.weight", (1,)


def _experts(s: Shape, block: str) -> Tensors:
    inner, count = s.expert_feed_forward, s.experts
    yield block + "ffn_gate_inp.weight", (s.width, count)
    yield block + "ffn_gate_inp.scale", (s.width,)
    for norm in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
        yield f"{block}{norm}.weight", (s.width,)
    yield block + "ffn_gate_up_exps.weight", (s.width, 2 * inner, count)
    yield block + "ffn_down_exps.weight", (inner, s.width, count)
    yield block + "ffn_down_exps.scale", (count,)


def _drafter_tensors(s: Shape) -> Tensors:
    """As ``src/models/gemma4-assistant.cpp`` wants them: queries only."""
    yield "token_embd.weight", (s.width, s.vocabulary)
    yield "output_norm.weight", (s.width,)
    yield "rope_freqs.weight", (s.head_size // 2,)
    yield "nextn.pre_projection.weight", (2 * s.backbone, s.width)
    yield "nextn.post_projection.weight", (s.width, s.backbone)
    for layer in range(s.layers):
        yield from _block(s, layer)

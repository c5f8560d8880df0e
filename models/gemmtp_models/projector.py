"""Whether a file can serve as the projector of a target: its metadata, its tensors, its width.

llama.cpp asserts on what is missing here, or computes nonsense without a word, so a projector's
header is held against what ``clip.cpp``, ``gemma4v.cpp`` and ``gemma4uv.cpp`` of llama.cpp do with
it. Only Gemma 4's vision towers pass: ``gemma4v``, and ``gemma4uv``, which projects squares of
pixels directly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gemmtp.errors import BadModelFileError, PairMismatchError, UnsupportedModelError
from gemmtp_models.header import Header, TensorInfo
from gemmtp_models.memory_projector import DEFAULT_IMAGE_TOKENS, IMAGE_BUDGETS, budget_words
from gemmtp_models.metadata import ValueType

PROJECTOR_ARCHITECTURE = "clip"
TOWER, DIRECT = "gemma4v", "gemma4uv"
IMAGE_TOKENS_KEY = "gemmtp.image_tokens"
"""Ours: what an image may take, where that is not ``DEFAULT_IMAGE_TOKENS``; llama.cpp reads it
not."""

_VISION = "clip.vision."
_COLOURS = 3
_POOLING = 3
"""Patches along one side of a token where the file does not say (``clip.cpp``)."""

_MAX_PATCH, _MAX_POOLING, _MAX_BLOCKS = 256, 16, 1024
_MAX_WIDTH = 1 << 20
_MAX_IMAGE_SIZE = 8192
_FETCH = "Take the mmproj file that was made for this size of Gemma 4, or none."

_OPTIONAL: dict[str, ValueType] = {
    "general.name": ValueType.STRING,
    "general.description": ValueType.STRING,
    "clip.has_audio_encoder": ValueType.BOOL,
    "clip.has_gen_audio_encoder": ValueType.BOOL,
    "clip.use_gelu": ValueType.BOOL,
    "clip.use_silu": ValueType.BOOL,
    "clip.projector_type": ValueType.STRING,
    "clip.minicpmv_version": ValueType.INT32,
    "clip.minicpmv_query_num": ValueType.UINT32,
    "clip.vision.mm_patch_merge_type": ValueType.STRING,
    "clip.audio.projector_type": ValueType.STRING,
    "clip.audio.embedding_length": ValueType.UINT32,
    "clip.audio.feed_forward_length": ValueType.UINT32,
    "clip.audio.block_count": ValueType.UINT32,
    "clip.audio.projection_dim": ValueType.UINT32,
    "clip.audio.attention.head_count": ValueType.UINT32,
    "clip.audio.attention.head_count_kv": ValueType.UINT32,
    "clip.audio.attention.head_dim": ValueType.UINT32,
    "clip.audio.attention.layer_norm_epsilon": ValueType.FLOAT32,
    "clip.audio.num_mel_bins": ValueType.UINT32,
}
"""Keys that llama.cpp reads when they are there, and asserts to be of this type."""

_NEVER = ("clip.vision.image_grid_pinpoints", "clip.vision.feature_layer")
"""Keys of other models that would change what is computed."""

Shape = tuple[int, ...]
Wanted = Iterator[tuple[str, Shape]]


@dataclass(frozen=True, slots=True)
class ProjectorGeometry:
    """What of a projector decides which images it takes and what it gives.

    A token stands for a square of ``side`` x ``side`` pixels; an image has at most ``longest``
    tokens along one side. ``out`` is the width of a row, the target's ``embedding_length``.
    ``audio`` says that the file holds an audio encoder as well, ``image_tokens`` what an image may
    take unless somebody asks for another budget.
    """

    kind: str
    patch: int
    pooling: int
    positions: int
    width: int
    blocks: int
    heads: int
    head_size: int
    feed_forward: int
    out: int
    audio: bool
    image_tokens: int

    @property
    def side(self) -> int:
        """Pixels along one side of a token."""
        return self.patch * self.pooling

    @property
    def longest(self) -> int:
        """Tokens along one side of an image for which there are positions."""
        return self.positions // self.pooling if self.kind == TOWER else self.positions


def check_projector(header: Header, width: int | None = None) -> ProjectorGeometry:
    """The geometry of a file that llama.cpp can load and run as Gemma 4's eyes.

    ``width`` is the target's ``embedding_length``. Raises ``UnsupportedModelError`` for any other
    kind of file, ``BadModelFileError`` for a broken one, ``PairMismatchError`` for the projector
    of another target.
    """
    geometry = _geometry(header)
    if not geometry.longest:
        raise BadModelFileError(f"{header.path.name} has positions for less than one token.")
    _check_tensors(header, geometry)
    if width is not None and geometry.out != width:
        raise PairMismatchError(
            f"{header.path.name} does not match: its rows have {geometry.out:,} values, "
            f"the target takes {width:,}.",
            _FETCH,
        )
    return geometry


def _geometry(header: Header) -> ProjectorGeometry:
    m = header.metadata
    kind = _kind(header)
    for key, expected in _OPTIONAL.items():
        if key in m and m[key].type is not expected:
            raise m.error(key, f"is of type {m[key].type_name}, expected {expected.name.lower()}")
    for key in _NEVER:
        if key in m:
            raise UnsupportedModelError(f"{header.path.name} has the key {key}.", _FETCH)
    if m.boolean("clip.use_gelu", False) and m.boolean("clip.use_silu", False):
        raise m.error("clip.use_silu", "names a second activation")
    _size(header, "image_size", 0, _MAX_IMAGE_SIZE)
    m.float32(_VISION + "attention.layer_norm_epsilon")
    _check_normalisation(header)
    tower = kind == TOWER
    blocks = _size(header, "block_count", int(tower), _MAX_BLOCKS if tower else 0)
    width = _size(header, "embedding_length", 1, _MAX_WIDTH)
    heads = _size(header, "attention.head_count", int(tower), width)
    return ProjectorGeometry(
        kind=kind,
        patch=_size(header, "patch_size", 1, _MAX_PATCH),
        pooling=_size(header, "projector.scale_factor", 1, _MAX_POOLING, _POOLING),
        positions=_positions(header),
        width=width,
        blocks=blocks,
        heads=heads,
        head_size=_head_size(header, width, heads) if tower else 0,
        feed_forward=_size(header, "feed_forward_length", int(tower), _MAX_WIDTH),
        out=_size(header, "projection_dim", 1, _MAX_WIDTH),
        audio=m.boolean("clip.has_audio_encoder", False),
        image_tokens=image_tokens(header),
    )


def image_tokens(header: Header) -> int:
    """What an image may take by a projector's file, one of ``IMAGE_BUDGETS``.

    Raises ``BadModelFileError`` for a file that names anything else.
    """
    tokens = header.metadata.uint32(IMAGE_TOKENS_KEY, DEFAULT_IMAGE_TOKENS)
    if tokens not in IMAGE_BUDGETS:
        raise header.metadata.error(IMAGE_TOKENS_KEY, f"is {tokens:,}, expected {budget_words()}")
    return tokens


def _kind(header: Header) -> str:
    m, name = header.metadata, header.path.name
    if header.architecture != PROJECTOR_ARCHITECTURE:
        raise UnsupportedModelError(
            f"{name} has the architecture {header.architecture[:40]!r}, "
            f"expected {PROJECTOR_ARCHITECTURE} of a projector.",
            _FETCH,
        )
    if m.boolean("clip.has_gen_audio_encoder", False):
        raise UnsupportedModelError(f"{name} is for making sound, not for images.", _FETCH)
    if not m.boolean("clip.has_vision_encoder", False):
        sound = m.boolean("clip.has_audio_encoder", False)
        what = "is for sound alone, which is not supported yet" if sound else "has no vision tower"
        raise UnsupportedModelError(f"{name} {what}.", _FETCH)
    kind = m.string("clip.projector_type", "") or m.string(_VISION + "projector_type", "")
    if kind not in (TOWER, DIRECT):
        raise UnsupportedModelError(
            f"{name} is a projector of the kind {kind[:40]!r}, expected {TOWER} or {DIRECT}.",
            _FETCH,
        )
    return kind


def _size(header: Header, key: str, least: int, most: int, default: int | None = None) -> int:
    value = header.metadata.uint32(_VISION + key, default)
    if not least <= value <= most:
        raise header.metadata.error(_VISION + key, f"is {value:,}, expected {least:,} to {most:,}")
    return value


def _head_size(header: Header, width: int, heads: int) -> int:
    """Values of one head; the position's rotation takes them by four."""
    m = header.metadata
    if width % heads:
        raise m.error(_VISION + "attention.head_count", f"is {heads}, no divisor of {width:,}")
    size = width // heads
    for key, expected in (("head_dim", size), ("head_count_kv", heads)):
        if m.uint32(f"{_VISION}attention.{key}", expected) != expected:
            raise m.error(f"{_VISION}attention.{key}", f"is not {expected}")
    if size % 4:
        raise m.error(_VISION + "attention.head_count", f"leaves heads of {size}, no multiple of 4")
    return size


def _positions(header: Header) -> int:
    tensor = header.tensors.get("v.position_embd.weight")
    if tensor is None:
        raise _lacks(header, "v.position_embd.weight")
    return tensor.shape[1] if len(tensor.shape) > 1 else 1


def _check_normalisation(header: Header) -> None:
    """llama.cpp reads three numbers of each and divides by the second three."""
    m = header.metadata
    for key in (_VISION + "image_mean", _VISION + "image_std"):
        if key not in m:
            raise m.error(key, "is missing")
        entry = m[key]
        values = entry.value
        if not isinstance(values, tuple) or entry.element_type is not ValueType.FLOAT32:
            raise m.error(key, f"is of type {entry.type_name}, expected array of float32")
        wanted = 0.0 if key.endswith("mean") else 1.0
        if values != (wanted,) * _COLOURS:
            raise m.error(key, f"is not {wanted:g} for each colour, as Gemma 4 was trained")


def _check_tensors(header: Header, g: ProjectorGeometry) -> None:
    """Every tensor has its shape and type, and no tensor of the vision part is unknown."""
    wanted = dict(_tower(header, g) if g.kind == TOWER else _direct(g))
    for name, shape in wanted.items():
        tensor = header.tensors.get(name)
        if tensor is None:
            raise _lacks(header, name)
        if _trimmed(tensor.shape) != _trimmed(shape):
            raise BadModelFileError(
                f"{header.path.name} has {name} in the shape {_text(tensor.shape)}, "
                f"expected {_text(shape)}."
            )
        _check_type(header, tensor, g)
    for name, tensor in header.tensors.items():
        if name in wanted or not name.startswith(("v.", "mm.")) or name.startswith("mm.a."):
            continue
        if g.kind == TOWER and _is_clamp(name, tensor):
            continue
        raise UnsupportedModelError(
            f"{header.path.name} has the tensor {name}, which Gemma 4's projector has not.", _FETCH
        )


_CLAMP = re.compile(r"\.(?:input|output)_(?:min|max)$")


def _is_clamp(name: str, tensor: TensorInfo) -> bool:
    """A bound of what goes into or comes out of a matrix, one F32 number."""
    return bool(_CLAMP.search(name)) and tensor.elements == 1 and tensor.type.name == "F32"


def _check_type(header: Header, tensor: TensorInfo, g: ProjectorGeometry) -> None:
    """ggml asserts on vectors that are not F32, and on a quantised kernel of a convolution."""
    vector = tensor.elements == max(tensor.shape)
    kernel = tensor.name == "v.patch_embd.weight" and g.kind == TOWER
    if vector:
        right = tensor.type.name == "F32"
    elif kernel:
        right = tensor.type.name in ("F32", "F16", "BF16")
    else:
        right = tensor.type.is_weight
    if not right:
        raise UnsupportedModelError(
            f"{header.path.name} has {tensor.name} in {tensor.type.name}, "
            "with which llama.cpp cannot compute it.",
            "Fetch another quantisation.",
        )


def _tower(header: Header, g: ProjectorGeometry) -> Wanted:
    """What ``clip_graph_gemma4v`` reads; standardisation and layer scales may be left out."""
    n = g.width
    yield "v.patch_embd.weight", (g.patch, g.patch, _COLOURS, n)
    yield "v.position_embd.weight", (n, g.positions, 2)
    yield "mm.input_projection.weight", (n, g.out)
    if "v.std_bias" in header.tensors or "v.std_scale" in header.tensors:
        yield "v.std_bias", (n,)
        yield "v.std_scale", (n,)
    for i in range(g.blocks):
        block = f"v.blk.{i}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            yield f"{block}{name}.weight", (n, n)
        for name in ("ln1", "ln2", "attn_post_norm", "ffn_post_norm"):
            yield f"{block}{name}.weight", (n,)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield f"{block}{name}.weight", (g.head_size,)
        yield block + "ffn_gate.weight", (n, g.feed_forward)
        yield block + "ffn_up.weight", (n, g.feed_forward)
        yield block + "ffn_down.weight", (g.feed_forward, n)
        if block + "out_scale.weight" in header.tensors:
            yield block + "out_scale.weight", (1,)


def _direct(g: ProjectorGeometry) -> Wanted:
    """What ``clip_graph_gemma4uv`` reads: one matrix over a token's pixels, and norms."""
    n, square = g.width, g.side * g.side * _COLOURS
    yield "v.patch_embd.weight", (square, n)
    yield "v.patch_embd.bias", (n,)
    yield "v.position_embd.weight", (n, g.positions, 2)
    yield "mm.input_projection.weight", (n, g.out)
    for i, size in ((1, square), (2, n), (3, n)):
        yield f"v.patch_norm.{i}.weight", (size,)
        yield f"v.patch_norm.{i}.bias", (size,)


def _trimmed(shape: Shape) -> Shape:
    """Without trailing dimensions of 1, which may be written or left out."""
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _text(shape: Shape) -> str:
    return " x ".join(f"{size:,}" for size in shape)


def _lacks(header: Header, name: str) -> BadModelFileError:
    return BadModelFileError(
        f"{header.path.name} lacks the tensor {name}.",
        "The file is incomplete or of another layout; fetch it again or another one.",
    )

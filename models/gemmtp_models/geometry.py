"""What shape a Gemma 4 target or drafter has, read from the header and held against reason.

Keys as llama.cpp reads them (``src/llama-model.cpp`` ``load_hparams``,
``src/models/gemma4.cpp``, ``src/models/gemma4-assistant.cpp``, ``src/llama-vocab.cpp``).
Each check here stands for a place where llama.cpp would abort, divide by zero or read the
wrong cells; what it refuses with an error of its own is left to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from gemmtp.errors import UnsupportedModelError
from gemmtp_models.header import Header
from gemmtp_models.metadata import ArraySlice, Metadata, ValueType

TARGET_ARCHITECTURE = "gemma4"
DRAFTER_ARCHITECTURE = "gemma4-assistant"

# llama.cpp: LLAMA_MAX_LAYERS, LLAMA_MAX_EXPERTS, LLAMA_ROPE_SCALING_TYPES.
_MAX_LAYERS = 512
_MAX_EXPERTS = 1024
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")

# Far above any real value, low enough that 32-bit products in llama.cpp do not wrap.
_MAX_WIDTH = 1 << 20
_MAX_POSITIONS = 1 << 24

_SPECIAL_TOKENS = ("bos", "eos", "unknown", "padding", "mask", "eot", "eom")
_TOKENIZER = "tokenizer.ggml."


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token list by size and place; ``special`` maps ``bos``, ``eos`` and so on to ids."""

    size: int
    tokens: ArraySlice
    special: dict[str, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The dimensions of one target or drafter.

    Tuples have one value a layer. ``key_length`` and ``value_length`` are head sizes of full
    layers, ``*_swa`` those of sliding ones; ``rope_base`` and ``rope_dimensions`` likewise.
    ``embedding_length_out`` is the width of the hidden row that is handed over; a drafter's
    is the target's ``embedding_length``. ``softcap`` 0 means none.
    """

    architecture: str
    block_count: int
    context_length: int
    embedding_length: int
    embedding_length_out: int
    feed_forward: tuple[int, ...]
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_length: int
    value_length: int
    key_length_swa: int
    value_length_swa: int
    sliding_window: int
    sliding: tuple[bool, ...]
    rope_base: float
    rope_base_swa: float
    rope_dimensions: int
    rope_dimensions_swa: int
    shared_kv_layers: int
    nextn_predict_layers: int
    per_layer_embedding: int
    expert_count: int
    expert_feed_forward: int
    softcap: float
    vocabulary: Vocabulary

    def head_size(self, layer: int) -> int:
        """Length of one query, key or value head of ``layer``."""
        return self.key_length_swa if self.sliding[layer] else self.key_length

    def owns_kv(self, layer: int) -> bool:
        """Whether ``layer`` of a target writes its own keys and values."""
        return layer < self.block_count - self.shared_kv_layers


def read_geometry(header: Header) -> Geometry:
    """The geometry of a file whose architecture is known to be right.

    Raises ``BadModelFileError`` for a key that is missing, of the wrong type or senseless,
    ``UnsupportedModelError`` for a kind of model that this program does not run.
    """
    return _GeometryReader(header).read()


class _GeometryReader:
    """One reading; the methods stand in the order of the checks."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._metadata: Metadata = header.metadata
        self._prefix = header.architecture

    def read(self) -> Geometry:
        self._refuse_other_kinds()
        layers = self._count("block_count", _MAX_LAYERS)
        width = self._count("embedding_length", _MAX_WIDTH)
        heads = self._per_layer("attention.head_count", layers)
        default_size = width // heads[0]
        key_length = self._head_size("attention.key_length", default_size)
        value_length = self._same("attention.value_length", key_length, default_size)
        key_length_swa = self._head_size("attention.key_length_swa", None)
        value_length_swa = self._same("attention.value_length_swa", key_length_swa, None)
        rope_dimensions = self._rope("rope.dimension_count", key_length, key_length)
        experts = self._experts(layers)
        self._finite("attention.layer_norm_rms_epsilon", None, above=0.0)
        self._rope_scaling()
        return Geometry(
            architecture=self._prefix,
            block_count=layers,
            context_length=self._count("context_length", _MAX_POSITIONS),
            embedding_length=width,
            embedding_length_out=self._count("embedding_length_out", _MAX_WIDTH, width),
            feed_forward=self._per_layer("feed_forward_length", layers),
            heads=heads,
            kv_heads=self._kv_heads(heads),
            key_length=key_length,
            value_length=value_length,
            key_length_swa=key_length_swa,
            value_length_swa=value_length_swa,
            sliding_window=self._count("attention.sliding_window", _MAX_POSITIONS),
            sliding=self._pattern(layers),
            rope_base=self._finite("rope.freq_base", 10_000.0, above=0.0),
            # llama.cpp keeps 10000 when the sliding base is missing (llama-hparams.h).
            rope_base_swa=self._finite("rope.freq_base_swa", 10_000.0, above=0.0),
            rope_dimensions=rope_dimensions,
            rope_dimensions_swa=self._rope(
                "rope.dimension_count_swa", rope_dimensions, key_length_swa
            ),
            shared_kv_layers=self._metadata.uint32(self._key("attention.shared_kv_layers"), 0),
            nextn_predict_layers=self._at_most("nextn_predict_layers", layers),
            per_layer_embedding=self._per_layer_embedding(),
            expert_count=experts,
            expert_feed_forward=self._expert_feed_forward(layers, experts),
            softcap=self._finite("final_logit_softcapping", 0.0, above=-1e-30),
            vocabulary=self._vocabulary(),
        )

    def _key(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def _refuse_other_kinds(self) -> None:
        """Kinds of files that llama.cpp would open in another way than as a causal decoder."""
        name = self._header.path.name
        split = self._metadata.get("split.count")
        if split is not None and split.value not in (0, 1):
            raise UnsupportedModelError(
                f"{name} is one part of a split model.",
                "Merge the parts with `llama-gguf-split --merge` and open the result.",
            )
        if not self._metadata.boolean(self._key("attention.causal"), True):
            raise UnsupportedModelError(f"{name} is not a causal decoder.")
        if self._metadata.uint32(self._key("pooling_type"), 0) != 0:
            raise UnsupportedModelError(f"{name} is an embedding model.")

    def _count(self, name: str, limit: int, default: int | None = None) -> int:
        value = self._metadata.uint32(self._key(name), default)
        if not 1 <= value <= limit:
            raise self._metadata.error(self._key(name), f"is {value:,}, expected 1 to {limit:,}")
        return value

    def _at_most(self, name: str, limit: int) -> int:
        value = self._metadata.uint32(self._key(name), 0)
        if value > limit:
            raise self._metadata.error(self._key(name), f"is {value:,}, expected at most {limit:,}")
        return value

    def _per_layer(
        self, name: str, layers: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        key = self._key(name)
        if default is not None and key not in self._metadata:
            return default
        values = self._metadata.per_layer(key, layers)
        for value in values:
            if not 1 <= value <= _MAX_WIDTH:
                raise self._metadata.error(key, f"has {value:,}, expected 1 to {_MAX_WIDTH:,}")
        return values

    def _kv_heads(self, heads: tuple[int, ...]) -> tuple[int, ...]:
        """Attention repeats each KV head over a whole number of query heads, or ggml asserts."""
        kv_heads = self._per_layer("attention.head_count_kv", len(heads), heads)
        for layer, (queries, keys) in enumerate(zip(heads, kv_heads, strict=True)):
            if queries % keys:
                raise self._metadata.error(
                    self._key("attention.head_count_kv"),
                    f"has {keys} for the {queries} heads of layer {layer}, which is no divisor",
                )
        return kv_heads

    def _head_size(self, name: str, default: int | None) -> int:
        size = self._count(name, _MAX_WIDTH, default)
        if size % 2:
            raise self._metadata.error(self._key(name), f"is {size}, expected an even number")
        return size

    def _same(self, name: str, expected: int, default: int | None) -> int:
        value = self._metadata.uint32(self._key(name), default)
        if value != expected:
            raise self._metadata.error(
                self._key(name), f"is {value:,}, expected the key length {expected:,}"
            )
        return value

    def _rope(self, name: str, default: int, head_size: int) -> int:
        """ggml rotates pairs inside one head and asserts both."""
        value = self._metadata.uint32(self._key(name), default)
        if value % 2 or not 2 <= value <= head_size:
            raise self._metadata.error(
                self._key(name), f"is {value:,}, expected an even number from 2 to {head_size:,}"
            )
        return value

    def _rope_scaling(self) -> None:
        key = self._key("rope.scaling.type")
        kind = self._metadata.string(key, "linear")
        if kind not in _ROPE_SCALINGS:
            raise self._metadata.error(
                key, f"is {kind[:40]!r}, expected one of {', '.join(_ROPE_SCALINGS)}"
            )
        for name in ("rope.scaling.factor", "rope.scale_linear"):
            self._finite(name, 0.0, above=-1e-30)

    def _finite(self, name: str, default: float | None, above: float) -> float:
        value = self._metadata.float32(self._key(name), default)
        if not isfinite(value) or value <= above:
            raise self._metadata.error(self._key(name), f"is {value}, which makes no sense")
        return value

    def _pattern(self, layers: int) -> tuple[bool, ...]:
        """Which layers slide; both kinds must exist, each has a cache of its own."""
        key = self._key("attention.sliding_window_pattern")
        pattern = self._metadata.flags(key, layers)
        if all(pattern) or not any(pattern):
            kind = "no full layer" if all(pattern) else "no sliding layer"
            raise self._metadata.error(key, f"has {kind}, and Gemma 4 has both kinds")
        return pattern

    def _per_layer_embedding(self) -> int:
        key = self._key("embedding_length_per_layer_input")
        # The target's loader requires the key, the drafter's does not read it.
        default = None if self._prefix == TARGET_ARCHITECTURE else 0
        value = self._metadata.uint32(key, default)
        if value > _MAX_WIDTH:
            raise self._metadata.error(key, f"is {value:,}, expected at most {_MAX_WIDTH:,}")
        return value

    def _experts(self, layers: int) -> int:
        count = self._at_most("expert_count", _MAX_EXPERTS)
        key = self._key("expert_used_count")
        used = max(self._metadata.per_layer(key, layers, 0))
        if used > count or (count > 0 and used < 1):
            raise self._metadata.error(key, f"is {used:,} of {count:,} experts")
        for name in ("expert_group_count", "expert_group_used_count"):
            if self._metadata.uint32(self._key(name), 0) > 0:
                raise UnsupportedModelError(
                    f"{self._header.path.name} has expert groups, which Gemma 4 does not."
                )
        return count

    def _expert_feed_forward(self, layers: int, experts: int) -> int:
        if experts == 0:
            return 0
        return self._per_layer("expert_feed_forward_length", layers)[0]

    def _vocabulary(self) -> Vocabulary:
        model = self._metadata.string(_TOKENIZER + "model")
        if model != "gemma4":
            raise UnsupportedModelError(
                f"{self._header.path.name} has a tokenizer of type {model[:40]!r}, not gemma4.",
                "Fetch a file that was converted by a current llama.cpp.",
            )
        tokens = self._metadata.array(_TOKENIZER + "tokens", ValueType.STRING)
        self._metadata.array(_TOKENIZER + "merges", ValueType.STRING)
        self._check_aligned("scores", tokens.count, ValueType.FLOAT32, ValueType.INT32)
        self._check_aligned("token_type", tokens.count, ValueType.INT32)
        special = {}
        for name in _SPECIAL_TOKENS:
            key = f"{_TOKENIZER}{name}_token_id"
            if key in self._metadata:
                special[name] = self._metadata.uint32(key)
        # Without these, tokenizing with the file's own settings ends in an assertion.
        for name in ("bos", "eos"):
            key = f"{_TOKENIZER}{name}_token_id"
            if special.get(name, tokens.count) >= tokens.count:
                raise self._metadata.error(key, "is missing or outside the vocabulary")
        return Vocabulary(tokens.count, tokens, special)

    def _check_aligned(self, name: str, count: int, *kinds: ValueType) -> None:
        """An optional array with one value a token."""
        key = _TOKENIZER + name
        if key in self._metadata:
            length = self._metadata.array(key, *kinds).count
            if length < count:
                raise self._metadata.error(key, f"has {length:,} values for {count:,} tokens")

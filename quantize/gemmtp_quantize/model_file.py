"""What a GGUF of ours holds, before it is written: metadata and the list of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gemmtp.errors import BadModelFileError
from gemmtp_models.metadata import ValueType
from gemmtp_quantize.checkpoint import Checkpoint
from gemmtp_quantize.config import TextConfig
from gemmtp_quantize.documents import read_bytes, read_optional_object
from gemmtp_quantize.safetensors import StoredTensor
from gemmtp_quantize.tokenizer import SCORE, Tokenizer

Value = int | float | bool | str | Sequence[int] | Sequence[float] | Sequence[bool] | Sequence[str]
# Gemma 4's own, for a checkpoint whose generation_config.json does not say.
TEMPERATURE, TOP_K, TOP_P = 1.0, 64, 0.95


@dataclass(frozen=True)
class Field:
    """One metadata value; ``element`` is the type of an array's items."""

    type: ValueType
    value: Value
    element: ValueType | None = None


Fields = dict[str, Field]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the GGUF: its checkpoint tensor, or ``values`` when it is generated.

    ``shape`` is row-major, as in the checkpoint; GGUF stores it reversed. With ``axes`` the
    checkpoint's elements have the shape ``stored`` and are transposed by ``axes`` to ``shape``.
    """

    name: str
    shape: tuple[int, ...]
    source: StoredTensor | None = None
    values: tuple[float, ...] = ()
    stored: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def always_f32(self) -> bool:
        """Vectors and norms stay F32: llama.cpp's kernels take nothing else."""
        return len(self.shape) == 1 or self.name.endswith("_norm.weight")


def u32(value: int) -> Field:
    return Field(ValueType.UINT32, value)


def f32(value: float) -> Field:
    return Field(ValueType.FLOAT32, value)


def boolean(value: bool) -> Field:
    return Field(ValueType.BOOL, value)


def text(value: str) -> Field:
    return Field(ValueType.STRING, value)


def array(element: ValueType, value: Value) -> Field:
    return Field(ValueType.ARRAY, value, element)


def architecture_fields(name: str, config: TextConfig, shared_layers: int) -> Fields:
    """The hyperparameters that target and drafter have in common, under ``name``'s keys."""
    sliding = [config.sliding(layer) for layer in range(config.layers)]
    kv_heads = [config.kv_heads_of(layer) for layer in range(config.layers)]
    values: Fields = {
        "block_count": u32(config.layers),
        "context_length": u32(config.context_length),
        "embedding_length": u32(config.hidden_size),
        "feed_forward_length": u32(config.intermediate_size),
        "attention.head_count": u32(config.heads),
        "attention.head_count_kv": array(ValueType.INT32, kv_heads),
        "rope.freq_base": f32(config.theta_full),
        "rope.freq_base_swa": f32(config.theta_sliding),
        "attention.layer_norm_rms_epsilon": f32(config.norm_eps),
        "attention.key_length": u32(config.head_dim_full),
        "attention.value_length": u32(config.head_dim_full),
        "attention.sliding_window": u32(config.sliding_window),
        "attention.shared_kv_layers": u32(shared_layers),
        "embedding_length_per_layer_input": u32(0),
        "attention.sliding_window_pattern": array(ValueType.BOOL, sliding),
        "attention.key_length_swa": u32(config.head_dim),
        "attention.value_length_swa": u32(config.head_dim),
        "rope.dimension_count": u32(config.head_dim_full),
        "rope.dimension_count_swa": u32(config.head_dim),
    }
    return {f"{name}.{key}": value for key, value in values.items()}


def tokenizer_fields(tokenizer: Tokenizer) -> Fields:
    """``tokenizer.*`` as llama.cpp reads them."""
    prefix = "tokenizer.ggml."
    fields: Fields = {
        prefix + "model": text("gemma4"),
        prefix + "tokens": array(ValueType.STRING, tokenizer.tokens),
        prefix + "scores": array(ValueType.FLOAT32, [SCORE] * len(tokenizer.tokens)),
        prefix + "token_type": array(ValueType.INT32, tokenizer.types),
    }
    if tokenizer.merges:
        fields[prefix + "merges"] = array(ValueType.STRING, tokenizer.merges)
    names = {"unk": "unknown", "pad": "padding"}
    for role, index in tokenizer.special.items():
        fields[f"{prefix}{names.get(role, role)}_token_id"] = u32(index)
    fields[prefix + "add_space_prefix"] = boolean(False)
    fields[prefix + "add_bos_token"] = boolean(True)
    if tokenizer.chat_template is not None:
        fields["tokenizer.chat_template"] = text(tokenizer.chat_template)
    return fields


def sampling_defaults(directory: Path) -> dict[str, float | int]:
    """temperature, top_k and top_p of generation_config.json, or Gemma 4's own."""
    given = read_optional_object(directory / "generation_config.json")
    limits = {"temperature": (TEMPERATURE, 0.0, 10.0), "top_p": (TOP_P, 0.0, 1.0)}
    sampling: dict[str, float | int] = {}
    for key, (default, low, high) in limits.items():
        value = given.get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise BadModelFileError(f"{key} in generation_config.json is {value!r}.")
        sampling[key] = float(value)
    top_k = given.get("top_k", TOP_K)
    if type(top_k) is not int or not 0 <= top_k < 2**31:
        raise BadModelFileError(f"top_k in generation_config.json is {top_k!r}.")
    sampling["top_k"] = top_k
    return sampling


def general_fields(
    architecture: str, checkpoint: Checkpoint, specs: Sequence[TensorSpec]
) -> Fields:
    """``general.*``: what the file is, where it comes from, and how to sample from it."""
    sampling = sampling_defaults(checkpoint.directory)
    parameters = sum(spec.elements for spec in specs)
    fields: Fields = {
        "general.architecture": text(architecture),
        "general.type": text("model"),
        "general.sampling.top_k": Field(ValueType.INT32, sampling["top_k"]),
        "general.sampling.top_p": f32(sampling["top_p"]),
        "general.sampling.temp": f32(sampling["temperature"]),
        "general.name": text(checkpoint.name),
        "general.size_label": text(size_label(parameters)),
    }
    return fields | model_card(checkpoint.directory)


def size_label(parameters: int) -> str:
    """``31B``, ``5.2M``: at most two digits, as llama.cpp's file names have them."""
    scales = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
    limit, letter = next((scale for scale in scales if parameters >= scale[0]), scales[-1])
    value = parameters / limit
    return f"{value:.0f}{letter}" if value >= 10 else f"{value:.1f}{letter}"


def model_card(directory: Path) -> Fields:
    """``general.license``, its name and its link, from the front matter of README.md."""
    card = directory / "README.md"
    if not card.is_file():
        return {}
    lines = read_bytes(card).decode("utf-8", "replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    keys = {"license": "license", "license_name": "license.name", "license_link": "license.link"}
    found: Fields = {}
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, _, value = line.partition(":")
        value = value.strip().strip("'\"")
        if key in keys and value:
            found[f"general.{keys[key]}"] = text(value)
    return found

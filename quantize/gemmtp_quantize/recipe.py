"""Recipes: one TOML file says which type each tensor of target and drafter gets.

description = "..."
[target]                     # and [drafter]
file_type = "Q4_K_M"         # general.file_type; its default type goes to every weight
token_embd = "q6_k"          # the embedding, and with it the tied head
output = "q6_k"              # the head, when it is not tied
nextn = "q8_0"               # the drafter's projections
[target.more_bits]           # the layers that llama.cpp's K mixtures give more bits
attn_v = "q6_k"
[target.tensors]             # any tensor by a pattern, the first match counts
"blk.0.*" = "f16"
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from gemmtp.errors import UsageError
from gemmtp_models.ggml_types import GGML_TYPES, GgmlType
from gemmtp_quantize.model_file import TensorSpec

MAX_BYTES = 1 << 20
FLOATS = ("F32", "F16", "BF16")
TYPE_IDS = {kind.name: number for number, kind in GGML_TYPES.items() if kind.is_weight}
# The types that llama.cpp makes without an importance matrix.
WRITABLE = (*FLOATS, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
            "IQ4_NL", "IQ4_XS")  # fmt: skip
# general.file_type (llama.h, llama_ftype) and the type that it stands for.
FILE_TYPES = {
    "F32": (0, "F32"), "F16": (1, "F16"), "BF16": (32, "BF16"),
    "Q4_0": (2, "Q4_0"), "Q4_1": (3, "Q4_1"), "Q5_0": (8, "Q5_0"), "Q5_1": (9, "Q5_1"),
    "Q8_0": (7, "Q8_0"), "Q3_K_M": (12, "Q3_K"), "Q4_K_S": (14, "Q4_K"), "Q4_K_M": (15, "Q4_K"),
    "Q5_K_S": (16, "Q5_K"), "Q5_K_M": (17, "Q5_K"), "Q6_K": (18, "Q6_K"),
    "IQ4_NL": (25, "IQ4_NL"), "IQ4_XS": (30, "IQ4_XS"),
}  # fmt: skip
# What llama.cpp takes for a row that is no multiple of the type's block (llama-quant.cpp).
FALLBACKS = {"Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
NEXTN_FLOOR = "Q8_0"
_ROLE_KEYS = {"file_type", "token_embd", "output", "nextn", "more_bits", "tensors"}


@dataclass(frozen=True)
class RoleRecipe:
    """The types of one file; names are ggml's in capitals."""

    file_type: str
    token_embd: str
    output: str
    nextn: str
    more_bits: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)

    @property
    def default(self) -> str:
        return FILE_TYPES[self.file_type][1]


@dataclass(frozen=True)
class Recipe:
    """Target and drafter together."""

    name: str
    description: str
    target: RoleRecipe
    drafter: RoleRecipe


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor with the type it is first written in and the type it ends in."""

    spec: TensorSpec
    written: str
    final: str

    @property
    def written_bytes(self) -> int:
        return type_bytes(self.written, self.spec)

    @property
    def final_bytes(self) -> int:
        return type_bytes(self.final, self.spec)


def recipe_names() -> list[str]:
    """The recipes that come with the package, from most to fewest bits."""
    return ["f32", "bf16", "f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"]


def load_recipe(name_or_path: str) -> Recipe:
    """A recipe of the package by its name, or any other by the path of its TOML file.

    Raises UsageError for a name or file that is none and for keys and types there are not.
    """
    if name_or_path in recipe_names():
        data = files("gemmtp_quantize").joinpath(f"recipes/{name_or_path}.toml").read_bytes()
        return parse_recipe(name_or_path, data)
    path = Path(name_or_path)
    if path.suffix != ".toml" or not path.is_file():
        raise UsageError(
            f"There is no recipe {name_or_path}.",
            f"Take one of {', '.join(recipe_names())}, or the path of a TOML file.",
        )
    with path.open("rb") as file:
        return parse_recipe(path.stem, file.read(MAX_BYTES))


def parse_recipe(name: str, data: bytes) -> Recipe:
    """The recipe in TOML ``data``; raises UsageError."""
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise UsageError(f"The recipe {name} is not valid TOML: {error}.") from error
    unknown = set(document) - {"description", "target", "drafter"}
    if unknown:
        raise UsageError(f"The recipe {name} has the unknown key {min(unknown)}.")
    return Recipe(
        name,
        str(document.get("description", "")),
        _role(name, "target", document.get("target")),
        _role(name, "drafter", document.get("drafter")),
    )


def _role(name: str, role: str, table: Any) -> RoleRecipe:
    if not isinstance(table, dict):
        raise UsageError(f"The recipe {name} has no table [{role}].")
    unknown = set(table) - _ROLE_KEYS
    if unknown:
        raise UsageError(f"The recipe {name} has the unknown key {role}.{min(unknown)}.")
    file_type = str(table.get("file_type", "")).upper()
    if file_type not in FILE_TYPES:
        raise UsageError(
            f"The recipe {name} gives {role} the file_type {table.get('file_type')!r}.",
            f"There are {', '.join(FILE_TYPES)}.",
        )
    default = FILE_TYPES[file_type][1]
    # Few weights that every drafted token passes through.
    nextn = default if bits(default) >= bits(NEXTN_FLOOR) else NEXTN_FLOOR
    token_embd = _type(name, table.get("token_embd", default))
    return RoleRecipe(
        file_type,
        token_embd,
        _type(name, table.get("output", token_embd)),
        _type(name, table.get("nextn", nextn)),
        _types(name, table.get("more_bits", {})),
        _types(name, table.get("tensors", {})),
    )


def _types(name: str, table: Any) -> dict[str, str]:
    if not isinstance(table, dict):
        raise UsageError(f"The recipe {name} gives a type where a table is expected.")
    return {str(key): _type(name, value) for key, value in table.items()}


def _type(name: str, value: Any) -> str:
    if not isinstance(value, str) or value.upper() not in WRITABLE:
        raise UsageError(
            f"The recipe {name} names the type {value!r}, which cannot be written.",
            f"There are {', '.join(kind.lower() for kind in WRITABLE)}.",
        )
    return value.upper()


def ggml_type(name: str) -> GgmlType:
    return GGML_TYPES[TYPE_IDS[name]]


def bits(name: str) -> float:
    """Bits a weight."""
    kind = ggml_type(name)
    return 8 * kind.block_bytes / kind.block_size


def type_bytes(name: str, spec: TensorSpec) -> int:
    kind = ggml_type(name)
    return spec.elements // kind.block_size * kind.block_bytes


def plan_types(specs: Sequence[TensorSpec], recipe: RoleRecipe) -> list[PlannedTensor]:
    """The type of every tensor: the first that is named of tensors, nextn, head, more_bits."""
    richer = _more_bits(specs, recipe)
    planned = []
    for spec in specs:
        if spec.source is None or spec.always_f32:
            planned.append(PlannedTensor(spec, "F32", "F32"))
            continue
        final = _fitting(_wanted(spec.name, recipe, richer), spec.shape[-1])
        # What llama.cpp quantises is first written as the checkpoint has it, without loss.
        planned.append(PlannedTensor(spec, final if final in FLOATS else spec.source.dtype, final))
    return planned


def _wanted(name: str, recipe: RoleRecipe, richer: Mapping[str, str]) -> str:
    for pattern, kind in recipe.tensors.items():
        if fnmatch.fnmatchcase(name, pattern):
            return kind
    if name.startswith("nextn."):
        return recipe.nextn
    if name == "token_embd.weight":
        return recipe.token_embd
    if name == "output.weight":
        return recipe.output
    return richer.get(name, recipe.default)


def _more_bits(specs: Sequence[TensorSpec], recipe: RoleRecipe) -> dict[str, str]:
    """Tensors of the first and last eighth and every third between (llama.cpp use_more_bits)."""
    richer: dict[str, str] = {}
    for part, kind in recipe.more_bits.items():
        names = [spec.name for spec in specs if spec.name.endswith(f".{part}.weight")]
        names.sort(key=lambda name: int(name.split(".")[1]))
        count = len(names)
        for i, name in enumerate(names):
            if i < count // 8 or i >= 7 * count // 8 or (i - count // 8) % 3 == 2:
                richer[name] = kind
    return richer


def _fitting(kind: str, row: int) -> str:
    """``kind``, or what takes its place for rows that are no multiple of its block."""
    for candidate in (kind, FALLBACKS.get(kind, kind), "F16"):
        if row % ggml_type(candidate).block_size == 0:
            return candidate
    return "F16"

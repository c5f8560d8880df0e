"""Recipes decide the type of every tensor of both files, and the files come out so."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import pytest

from gemmtp.errors import UsageError
from gemmtp.llama.library import api
from gemmtp_models.header import read_header
from gemmtp_quantize.model_file import TensorSpec
from gemmtp_quantize.pipeline import build_folder
from gemmtp_quantize.plan import plan_set
from gemmtp_quantize.recipe import (
    FILE_TYPES,
    TYPE_IDS,
    bits,
    load_recipe,
    parse_recipe,
    plan_types,
    recipe_names,
    type_bytes,
)
from gemmtp_quantize.report import plan_table
from gemmtp_quantize.safetensors import StoredTensor
from tests.quantize.tiny_checkpoint import Shape, write_pair

BOTH = b'[target]\nfile_type = "Q4_0"\n[drafter]\nfile_type = "Q4_0"\n'


def _spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, StoredTensor(name, "BF16", shape, Path("x"), 0, 0))


def test_our_numbers_are_gguf_s_own() -> None:
    for name, number in TYPE_IDS.items():
        if number in iter(gguf.GGMLQuantizationType):
            assert gguf.GGMLQuantizationType(number).name == name
    for name, (number, _) in FILE_TYPES.items():
        expected = "ALL_F32" if name == "F32" else f"MOSTLY_{name}"
        assert gguf.LlamaFileType(number).name == expected


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_sets_the_embedding_and_keeps_the_projections(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.description
    for role in (recipe.target, recipe.drafter):
        assert bits(role.token_embd) >= bits(role.default)
    assert bits(recipe.drafter.nextn) >= bits("Q8_0")


def test_projections_stay_at_q8_0_unless_the_recipe_says_so() -> None:
    assert parse_recipe("x", BOTH).drafter.nextn == "Q8_0"
    assert parse_recipe("x", BOTH + b'nextn = "q4_0"\n').drafter.nextn == "Q4_0"
    assert parse_recipe("x", BOTH.replace(b"Q4_0", b"F16")).drafter.nextn == "F16"


def test_patterns_go_before_everything_else() -> None:
    text = b'[drafter]\nfile_type = "F16"\n[target]\nfile_type = "Q4_0"\n[target.tensors]\n'
    recipe = parse_recipe("x", text + b'"blk.0.*" = "f16"\n"*" = "q5_0"\n').target
    specs = [_spec(f"blk.{layer}.ffn_up.weight", 64, 64) for layer in (0, 1)]
    specs += [_spec("blk.0.ffn_norm.weight", 64), _spec("token_embd.weight", 64, 64)]
    planned = plan_types(specs, recipe)
    assert [tensor.final for tensor in planned] == ["F16", "Q5_0", "F32", "Q5_0"]
    # Float types are written at once, quantised ones first as the checkpoint has them.
    assert [tensor.written for tensor in planned] == ["F16", "BF16", "F32", "BF16"]


def test_rows_that_do_not_fill_a_block_get_what_llama_cpp_takes() -> None:
    recipe = load_recipe("q4_k_m").target
    widths = {256: "Q4_K", 128: "Q5_0", 48: "F16"}
    for width, kind in widths.items():
        [tensor] = plan_types([_spec("blk.0.attn_q.weight", 8, width)], recipe)
        assert tensor.final == kind
        assert tensor.final_bytes == type_bytes(kind, tensor.spec)


BAD = {
    "no TOML": b"[target",
    "no drafter": b'[target]\nfile_type = "F16"\n',
    "unknown file type": BOTH.replace(b"Q4_0", b"Q9_9"),
    "unknown type": BOTH + b'nextn = "q9_9"\n',
    "type that needs a matrix": BOTH + b'nextn = "iq2_xxs"\n',
    "unknown key": BOTH + b"nextm = 1\n",
    "unknown table": BOTH + b"[projector]\n",
    "no table": BOTH + b"tensors = 1\n",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_a_bad_recipe_is_wrong_use(data: bytes) -> None:
    with pytest.raises(UsageError, match="recipe x"):
        parse_recipe("x", data)


def test_an_unknown_name_lists_the_recipes() -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("q3_k_xl")
    assert "q4_k_m" in str(caught.value.hint)


def test_a_recipe_can_be_a_file(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(BOTH)
    assert plan_set(*pair, load_recipe(str(path))).recipe.name == "mine"


@pytest.mark.parametrize("name", recipe_names())
def test_files_come_out_as_the_dry_run_says(
    tmp_path: Path, pair: tuple[Path, Path], name: str
) -> None:
    plan = plan_set(*pair, load_recipe(name))
    finished = build_folder(plan, tmp_path / "out", force=False, threads=2)
    table = plan_table(plan)
    for role, file in plan.files.items():
        header = read_header(finished.files[role])
        assert sum(tensor.nbytes for tensor in header.tensors.values()) == file.final_bytes
        assert header.metadata.uint32("general.file_type") == FILE_TYPES[file.recipe.file_type][0]
        for tensor in file.tensors:
            assert header.tensors[tensor.spec.name].type.name == tensor.final
            assert tensor.spec.name in table
        assert header.metadata.string("gemmtp.pairing.fingerprint") == plan.fingerprint
    assert finished.report.matches
    assert plan.fingerprint[:12] in table


@pytest.mark.parametrize("name", ["q4_k_m", "q5_k_m", "q6_k"])
def test_the_k_recipes_choose_as_llama_cpp_s_own_mixtures(tmp_path: Path, name: str) -> None:
    """Sixteen layers of rows that fill a block, so that first, last and third layers differ."""
    shape = Shape(
        hidden=256, inner=256, head_dim=64, head_dim_full=128, k_eq_v=False,
        layer_types=("sliding", "sliding", "sliding", "full") * 4,
    )  # fmt: skip
    pair = write_pair(tmp_path / "pair", shape)
    source = build_folder(
        plan_set(*pair, load_recipe("bf16")), tmp_path / "bf16", force=False, threads=2
    ).files["target"]
    plan = plan_set(*pair, load_recipe(name)).target
    parameters = api().llama_model_quantize_default_params()
    parameters.ftype = FILE_TYPES[plan.recipe.file_type][0]
    mixed = tmp_path / "mixed.gguf"
    arguments = str(source).encode(), str(mixed).encode(), ctypes.byref(parameters)
    assert api().llama_model_quantize(*arguments) == 0
    expected = {key: tensor.type.name for key, tensor in read_header(mixed).tensors.items()}
    assert {tensor.spec.name: tensor.final for tensor in plan.tensors} == expected
    assert len(set(expected.values()) - {"F32"}) == (1 if name == "q6_k" else 2)

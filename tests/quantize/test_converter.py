"""Our files hold what llama.cpp's own converter writes, up to a short list of differences."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest

from gemmtp_quantize.pipeline import build_folder
from gemmtp_quantize.plan import plan_set
from gemmtp_quantize.recipe import load_recipe
from tests.quantize.tiny_checkpoint import Shape, write_pair
from tests.quantize.tiny_tower import Tower

pytestmark = pytest.mark.train

# Where the converter differs on purpose, and why.
OURS_ALONE = {
    "tokenizer.ggml.eot_token_id",  # the end of a turn; llama.cpp finds it by its text otherwise
    "gemmtp.source.identity",
    "gemmtp.pairing.fingerprint",
}
DEFAULTS_ALONE = {
    # Gemma 4's own sampling for a checkpoint without a generation_config.json.
    "general.sampling.temp", "general.sampling.top_k", "general.sampling.top_p",
}  # fmt: skip
OTHER_VALUE = {"general.name"}  # the folder's name as it is, in place of a guess at its words
# The converter looks at the names in tokenizer_config.json alone; tokenizer.json says it itself.
TOKEN_TYPES = "tokenizer.ggml.token_type"
SOFTCAP = "gemma4.final_logit_softcapping"  # missing for none, which llama.cpp reads as 30
# What the converter leaves to mtmd to assume, rightly or, for the activation, wrongly.
PROJECTOR_ALONE = {
    "clip.use_gelu", "clip.vision.projector.scale_factor",
    "gemmtp.source.identity", "gemmtp.pairing.fingerprint",
}  # fmt: skip
SAMPLING = "general.sampling."  # the converter's, though nothing is sampled from a projector
EPSILON = "clip.vision.attention.layer_norm_epsilon"  # the config says rms_norm_eps

# transformers' AutoConfig drops the keys of the first form, which the converter then misses.
RAW_CONFIG = """
import sys
import transformers

def refuse(*args, **kwargs):
    raise ValueError("read config.json itself")

transformers.AutoConfig.from_pretrained = refuse
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
del sys.argv[1]
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""

SHAPES = {
    "k equals v": Shape(),
    "own v, untied": Shape(k_eq_v=False, tied=False),
    "no softcap": Shape(softcap=None),
    "both forms, bfloat16, shards": Shape(form="both", dtype="BF16", shards=2),
    "multimodal": Shape(form="conditional"),
}


TOWERS = {
    "plain": Tower(),
    "clipped and standardised": Tower(clipped=True, standardize=True),
    "another epsilon": Tower(norm_eps=1e-5),
    "rows that fill no block of Q8_0": Tower(hidden=80, inner=40, head_dim=20, patch=8),
}


@pytest.fixture
def converter() -> Path:
    """llama.cpp's source, as the sdist of llama-cpp-python carries it under vendor."""
    source = Path(os.environ.get("GEMMTP_LLAMA_CPP_SOURCE", "/nonexistent"))
    if not (source / "convert_hf_to_gguf.py").is_file():
        pytest.skip("set GEMMTP_LLAMA_CPP_SOURCE to a folder with convert_hf_to_gguf.py")
    return source


def _contents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = gguf.GGUFReader(path)
    fields = {
        key: ([kind.name for kind in field.types], field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    tensors = {
        tensor.name: (tensor.tensor_type.name, tensor.shape.tolist(), tensor.data.tobytes())
        for tensor in reader.tensors
    }
    return fields, tensors


def _converted(converter: Path, checkpoint: Path, output: Path, recipe: str, *options: str) -> Path:
    arguments = [str(checkpoint), "--outfile", str(output), "--outtype", recipe, *options]
    subprocess.run(
        [sys.executable, "-c", RAW_CONFIG, str(converter), *arguments],
        check=True, capture_output=True,
    )  # fmt: skip
    return output


def _compare(converter: Path, checkpoints: tuple[Path, Path], root: Path, recipe: str) -> None:
    plan = plan_set(*checkpoints, load_recipe(recipe), vision=None)
    files = build_folder(plan, root / "ours", force=False, threads=2).files
    for checkpoint, (role, file) in zip(checkpoints, files.items(), strict=True):
        theirs = _converted(converter, checkpoint, root / f"{role}-theirs.gguf", recipe)
        fields, tensors = _contents(file)
        expected_fields, expected_tensors = _contents(theirs)
        assert tensors == expected_tensors
        assert set(expected_fields) <= set(fields)
        alone = set(fields) - set(expected_fields)
        if (
            not (checkpoint / "generation_config.json").is_file()
            or "top_k" not in (checkpoint / "generation_config.json").read_text()
        ):
            alone -= DEFAULTS_ALONE
        assert alone <= OURS_ALONE | {SOFTCAP}
        differing = {key for key in expected_fields if fields[key] != expected_fields[key]}
        assert differing <= OTHER_VALUE | {TOKEN_TYPES}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_random_checkpoints_convert_as_llama_cpp_converts_them(
    tmp_path: Path, converter: Path, shape: Shape
) -> None:
    _compare(converter, write_pair(tmp_path / "c", shape), tmp_path, "f16")


@pytest.mark.parametrize("recipe", ["f32", "f16", "bf16", "q8_0"])
def test_the_trained_pair_converts_as_llama_cpp_converts_it(
    tmp_path: Path, converter: Path, interim_pair: tuple[Path, Path], recipe: str
) -> None:
    _compare(converter, interim_pair, tmp_path, recipe)


@pytest.mark.parametrize("vision", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("tower", TOWERS.values(), ids=TOWERS.keys())
def test_a_tower_converts_as_llama_cpp_converts_it(
    tmp_path: Path, converter: Path, tower: Tower, vision: str
) -> None:
    pair = write_pair(tmp_path / "c", Shape(form="conditional", tower=tower))
    plan = plan_set(*pair, load_recipe("f16"), vision=vision)
    ours = build_folder(plan, tmp_path / "ours", force=False, threads=1).files["projector"]
    theirs = _converted(converter, pair[0], tmp_path / "theirs.gguf", vision, "--mmproj")
    fields, tensors = _contents(ours)
    expected_fields, expected_tensors = _contents(theirs)
    assert tensors == expected_tensors
    missing = set(expected_fields) - set(fields)
    assert all(key.startswith(SAMPLING) for key in missing)
    assert set(fields) - set(expected_fields) == PROJECTOR_ALONE
    differing = {key for key in set(fields) & set(expected_fields)
                 if fields[key] != expected_fields[key]}  # fmt: skip
    assert differing <= OTHER_VALUE | ({EPSILON} if tower.norm_eps != 1e-6 else set())

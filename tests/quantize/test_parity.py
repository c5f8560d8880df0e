"""Our GGUFs compute what transformers computes from the same checkpoints."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from gemmtp_quantize.parity import ParityReport, compare
from gemmtp_quantize.pipeline import build_folder
from gemmtp_quantize.plan import plan_set
from gemmtp_quantize.recipe import load_recipe
from tests.quantize.tiny_checkpoint import Shape, write_pair

pytestmark = pytest.mark.train
pytest.importorskip("transformers", reason="needs the extra [train]")

SHAPES = {
    "k equals v, tied, softcap": Shape(),
    "own v": Shape(k_eq_v=False),
    "untied head": Shape(tied=False),
    "no softcap": Shape(softcap=None),
    "per-layer config": Shape(form="per_layer"),
    "own v, untied, no softcap": Shape(k_eq_v=False, tied=False, softcap=None, form="per_layer"),
    "one head size": Shape(head_dim_full=16, kv_heads_full=2, form="both"),
    "bfloat16": Shape(dtype="BF16"),
    "float16 in shards": Shape(dtype="F16", shards=3),
    "text part of a multimodal checkpoint": Shape(form="conditional"),
}


def _built(target: Path, drafter: Path, output: Path, recipe: str) -> dict[str, Path]:
    plan = plan_set(target, drafter, load_recipe(recipe))
    files = build_folder(plan, output, force=False, threads=2).files
    return {str(role): path for role, path in files.items()}


def _compare(target: Path, drafter: Path, output: Path, exact: bool) -> ParityReport:
    files = _built(target, drafter, output, "f32" if exact else "f16")
    with warnings.catch_warnings():
        # torch and transformers warn of their own future.
        warnings.simplefilter("ignore")
        return compare(
            target, drafter, files["target"], files["drafter"],
            kv="f32" if exact else "f16", flash_attention="off" if exact else "auto",
            threads=1,
        )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_random_weights_in_f32_agree_with_transformers(tmp_path: Path, shape: Shape) -> None:
    target, drafter = write_pair(tmp_path, shape)
    report = _compare(target, drafter, tmp_path / "out", exact=True)
    assert report.worst <= 1e-3, report.text()
    assert report.same_argmax >= 0.999, report.text()


def test_a_trained_pair_in_f32_agrees_with_transformers(
    tmp_path: Path, interim_pair: tuple[Path, Path]
) -> None:
    report = _compare(*interim_pair, tmp_path / "out", exact=True)
    assert report.worst <= 1e-3, report.text()
    assert report.same_argmax >= 0.999, report.text()


def test_a_trained_pair_in_f16_stays_close(tmp_path: Path, interim_pair: tuple[Path, Path]) -> None:
    report = _compare(*interim_pair, tmp_path / "out", exact=False)
    assert report.worst <= 5e-3, report.text()
    assert report.same_argmax >= 0.99, report.text()


def test_what_is_left_of_the_error_is_the_gelu_table(tmp_path: Path) -> None:
    """With the reference's GELU rounded as ggml rounds it, the first rows agree to float32.

    A value on the edge between two float16 may still fall on either side and cost its 5e-4.
    """
    target, drafter = write_pair(tmp_path)
    files = _built(target, drafter, tmp_path / "out", "f32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = compare(
            target, drafter, files["target"], files["drafter"],
            positions=6, kv="f32", flash_attention="off", half_gelu=True, threads=1,
        )  # fmt: skip
    assert min(c.median for c in report.comparisons) <= 5e-6, report.text()
    assert report.worst <= 3e-4, report.text()


def test_other_weights_are_noticed(tmp_path: Path) -> None:
    target, drafter = write_pair(tmp_path / "a")
    files = _built(target, drafter, tmp_path / "out", "f32")
    other = write_pair(tmp_path / "b", Shape(softcap=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = compare(
            *other, files["target"], files["drafter"], positions=20, kv="f32", threads=1
        )
    assert report.worst > 1e-2

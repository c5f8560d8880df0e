"""``gemmtp quantize`` as people type it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gemmtp.cli.quantize import quantize
from gemmtp.errors import GemmtpError
from gemmtp.settings import data_dir
from gemmtp_models.store import Store
from tests.quantize.tiny_checkpoint import Shape, write_pair

Pair = tuple[Path, Path]


@pytest.fixture
def run(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Runs the command on the tiny pair, with a store of its own."""
    monkeypatch.setenv("GEMMTP_HOME", str(tmp_path / "home"))
    app = typer.Typer()
    app.command()(quantize)

    def call(*arguments: str, folders: Pair = pair) -> Result:
        return CliRunner().invoke(app, [*map(str, folders), *arguments])

    return call


def _error(result: Result) -> GemmtpError:
    assert isinstance(result.exception, GemmtpError)
    return result.exception


def test_a_dry_run_shows_every_tensor_and_writes_nothing(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    before = set(tmp_path.rglob("*"))
    result = run("-r", "q8_0", "--dry-run")
    assert result.exit_code == 0
    assert "token_embd.weight" in result.stdout
    assert "nextn.pre_projection.weight" in result.stdout
    assert "bits a weight" in result.stdout
    assert set(tmp_path.rglob("*")) == before


def test_a_name_goes_into_the_store_and_a_folder_beside_it(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = run("-r", "q8_0", "-o", "tiny:q8_0")
    assert result.exit_code == 0, result.exception
    assert Store(data_dir()).names() == ["tiny:q8_0"]
    assert result.stdout == ""
    assert "target and drafter match" in result.stderr
    assert run("-r", "f16", "-o", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out" / "target.gguf").is_file()


def test_existing_output_is_found_before_the_work(run, pair: Pair, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert run("-o", "tiny:a", "-r", "f16").exit_code == 0
    (pair[0] / "model.safetensors").unlink()
    error = _error(run("-o", "tiny:a", "-r", "f16"))
    assert (error.exit_code, error.hint) == (2, "Give --force to replace it.")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "Where the set is to go"),
        (("-o", "tiny:a", "-r", "q1"), 2, "no recipe q1"),
        (("-o", "Tiny:a"), 2, "no set name"),
    ],
)
def test_wrong_use_is_said(run, arguments: tuple[str, ...], code: int, words: str) -> None:  # type: ignore[no-untyped-def]
    error = _error(run(*arguments))
    assert error.exit_code == code
    assert words in error.message


def test_swapped_checkpoints_are_the_model_s_fault(run, pair: Pair) -> None:  # type: ignore[no-untyped-def]
    error = _error(run("-o", "tiny:a", folders=(pair[1], pair[0])))
    assert error.exit_code == 3
    assert "swapped" in error.message


def test_a_checkpoint_with_eyes_shows_its_projector(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    eyes = write_pair(tmp_path / "eyes", Shape(form="conditional"))
    result = run("-r", "f16", "--dry-run", folders=eyes)
    assert "projector: tiny" in result.stdout
    assert "v.blk.1.ffn_down.weight" in result.stdout
    assert "projector" not in run("--vision", "none", "--dry-run", folders=eyes).stdout
    assert _error(run("--vision", "q4_0", "--dry-run", folders=eyes)).exit_code == 2
    built = run("-r", "f16", "--vision", "q8_0", "-o", "tiny:eyes", folders=eyes)
    assert built.exit_code == 0, built.exception
    assert "projector " in built.stderr
    assert set(Store(data_dir()).resolve("tiny:eyes").files) == {"target", "drafter", "projector"}


@pytest.mark.train
def test_verify_looks_at_an_image_too(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import warnings

    pytest.importorskip("transformers", reason="needs the extra [train]")
    eyes = write_pair(tmp_path / "eyes", Shape(form="conditional"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run("-r", "f16", "-o", "tiny:v", "--verify", "--threads", "1", folders=eyes)
    assert result.exit_code == 0, result.exception
    assert "after an image" in result.stdout


@pytest.mark.train
def test_verify_prints_the_figures(run) -> None:  # type: ignore[no-untyped-def]
    import warnings

    pytest.importorskip("transformers", reason="needs the extra [train]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run("-r", "f16", "-o", "tiny:v", "--verify", "--threads", "1")
    assert result.exit_code == 0, result.exception
    assert "drafter step 3 h_next" in result.stdout
    assert "100.00%" in result.stdout

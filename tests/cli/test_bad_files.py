"""Files that cannot be run: one sentence, a hint, exit code 3, and never an abort."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Cli
from tests.support.tiny_pair import write_drafter, write_target


def refused(cli: Cli, *args: object, code: int = 3) -> str:
    result = cli("run", *args, "--raw", "--threads", 1, "the")
    assert (result.code, result.out) == (code, "")
    assert "Traceback" not in result.err
    first, *hints = result.err.splitlines()
    assert first.startswith("gemmtp: ")
    assert all(line.startswith("hint: ") for line in hints)
    return result.err


def test_missing_directory_and_foreign_files(cli: Cli, tmp_path: Path) -> None:
    assert "There is no file" in refused(cli, tmp_path / "none.gguf")
    assert "directory" in refused(cli, tmp_path)
    text = tmp_path / "notes.gguf"
    text.write_text("not a model at all, but long enough to have a header")
    assert "not a GGUF" in refused(cli, text)
    assert "no file and no set 'nosuchset'" in refused(cli, "nosuchset")


def test_truncation_at_every_4_kib(cli: Cli, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    whole = tiny[0].read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(0, len(whole), 4096):
        cut.write_bytes(whole[:size])
        assert cut.name in refused(cli, cut)


def test_files_of_another_kind(cli: Cli, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_target(tmp_path / "llama.gguf", architecture="llama")
    assert "llama" in refused(cli, other)
    assert "drafter" in refused(cli, tiny[1])
    fork = write_drafter(tmp_path / "fork.gguf", architecture="gemma4_assistant")
    message = refused(cli, tiny[0], "--drafter", fork)
    assert "gemma4_assistant" in message
    assert "fork" in message
    assert "hint: " in message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"backbone": 48}, "hidden 48, expected 32"),
        ({"vocabulary": 400}, "vocabulary size 400, expected 384"),
        ({"head_size": 64}, "64, expected 32"),
        ({"window": 32}, "window 32, expected 16"),
    ],
)
def test_a_drafter_of_another_target(
    cli: Cli,
    tiny: tuple[Path, Path],
    tmp_path: Path,
    overrides: dict[str, int],
    message: str,
) -> None:
    drafter = write_drafter(tmp_path / "other.gguf", **overrides)
    error = refused(cli, tiny[0], "--drafter", drafter)
    assert "drafter does not match" in error
    assert message in error
    off = cli("run", tiny[0], "--drafter", drafter, "--raw", "--threads", 1, "--no-mtp", "the")
    assert off.code == 0


def test_a_drafter_with_centroids(cli: Cli, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    centroids = {"masked_embd_centroids.weight": np.zeros((8, 64), np.float32)}
    drafter = write_drafter(tmp_path / "centroids.gguf", tensors=centroids)
    assert "masked_embd_centroids" in refused(cli, tiny[0], "--drafter", drafter)

"""A saved KV cache comes back whole, for the same model and settings, or not at all."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemmtp.chat import kvstate
from gemmtp.chat.kvstate import CannotRestoreError, Made, fingerprint
from gemmtp.engine.checkpoints import Checkpoint
from gemmtp.engine.resting import Resting
from gemmtp.errors import GemmtpError
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import check_files
from gemmtp_models.header import read_header
from tests.support.tiny_pair import write_target

RANDOM = np.random.default_rng(1)
RESTING = Resting(
    [5, -123456789012345, -123456789012346, 7, 8],
    4,
    RANDOM.normal(size=33).astype(np.float32),
    RANDOM.integers(0, 256, 5001, np.uint8),
    Checkpoint(0, 2, RANDOM.integers(0, 256, 77, np.uint8)),
)


@pytest.fixture
def made(tiny: tuple[Path, Path]) -> Made:
    return Made.with_files(check_files(*tiny), ContextOptions())


def test_a_state_comes_back_as_it_was(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    before = os.umask(0)
    try:
        kvstate.write(path, RESTING, made)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path] == list(tmp_path.iterdir())
    back = kvstate.read(path, made, 4)
    assert (back.text, back.held) == (RESTING.text, 4)
    np.testing.assert_array_equal(back.hidden, RESTING.hidden)
    np.testing.assert_array_equal(back.cells, RESTING.cells)
    assert back.checkpoint is not None
    assert RESTING.checkpoint is not None
    assert back.checkpoint.position == 2
    np.testing.assert_array_equal(back.checkpoint.state, RESTING.checkpoint.state)
    kvstate.write(path, replace(RESTING, checkpoint=None), made)
    assert kvstate.read(path, made, 4).checkpoint is None


def test_what_it_was_made_with_has_to_be_the_same(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    kvstate.write(path, RESTING, made)
    for other, why in (
        (replace(made, target="x"), "made with another target"),
        (replace(made, drafter="none"), "made with another drafter"),
        (replace(made, settings={**made.settings, "--kv": "q8_0"}), "--kv f16, not q8_0"),
    ):
        with pytest.raises(CannotRestoreError, match=why):
            kvstate.read(path, other, 4)
    with pytest.raises(CannotRestoreError, match="holds 4 tokens, the context 3"):
        kvstate.read(path, made, 3)


def test_damage_anywhere_is_noticed(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    kvstate.write(path, RESTING, made)
    whole = path.read_bytes()
    damaged = [b"", whole[:50], whole[:-1], whole + b"x"]
    for at in RANDOM.integers(0, len(whole), 60):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(RANDOM.integers(8))
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CannotRestoreError, match="the file is damaged"):
            kvstate.read(path, made, 4)
    with pytest.raises(FileNotFoundError):
        kvstate.read(tmp_path / "none.kv", made, 4)


def test_a_state_that_cannot_be_written_leaves_the_old_one(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.kv"
    kvstate.write(path, RESTING, made)
    whole = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GemmtpError, match="could not be saved: No space left"):
        kvstate.write(path, replace(RESTING, held=3), made)
    assert path.read_bytes() == whole
    assert [path] == list(tmp_path.iterdir())


def test_models_with_the_same_header_and_other_weights_are_told_apart(tmp_path: Path) -> None:
    a = read_header(write_target(tmp_path / "a.gguf", seed=1))
    b = read_header(write_target(tmp_path / "b.gguf", seed=2))
    copy = read_header(write_target(tmp_path / "c.gguf", seed=1))
    assert (a.file_size, a.data_offset) == (b.file_size, b.data_offset)
    assert fingerprint(a) == fingerprint(copy) != fingerprint(b)

"""Checkpoints that these tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.quantize.tiny_checkpoint import write_pair

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """(target folder, drafter folder) of a fresh tiny pair, free to be broken."""
    return write_pair(tmp_path / "checkpoints")


@pytest.fixture
def interim_pair() -> tuple[Path, Path]:
    """A small trained pair that is not part of the repository."""
    default = REPOSITORY.parent / "shared" / "interim-pair"
    root = Path(os.environ.get("GEMMTP_INTERIM_PAIR", default))
    if not (root / "target").is_dir():
        pytest.skip("no trained pair: set GEMMTP_INTERIM_PAIR to a folder with target, assistant")
    return root / "target", root / "assistant"

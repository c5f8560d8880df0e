"""Fixtures that many tests share: a tiny random pair, and the demo set."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_pair import write_drafter, write_target


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(target, drafter) of some hundred kilobytes with random weights; llama.cpp loads them."""
    folder = tmp_path_factory.mktemp("tiny")
    return write_target(folder / "target.gguf"), write_drafter(folder / "drafter.gguf")

"""The tiny target in parts, cut by gguf-py."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from tests.support import tiny_pair


class _Splitting(gguf.GGUFWriter):  # type: ignore[misc]
    def __init__(self, path: Path, architecture: str) -> None:
        super().__init__(path, architecture, split_max_tensors=20)


def write_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three files in ``folder``, of at most twenty tensors each."""
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", _Splitting)
        tiny_pair.write_target(folder / "big.gguf")
    found = sorted(folder.glob("big-*-of-*.gguf"))
    assert len(found) == 3
    return found

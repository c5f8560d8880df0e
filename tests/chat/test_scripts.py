"""A few of the random chats that ``python -m tests.perf.repl_scripts`` runs a thousand of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chat.random_chat import run_script


@pytest.mark.parametrize("seed", range(30))
def test_a_random_chat_comes_to_what_a_plain_model_of_it_says(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMTP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run_script(seed, tmp_path)

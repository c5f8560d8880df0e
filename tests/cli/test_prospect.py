"""Before a pull: whether the set would fit into this machine's memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemmtp.cli.prospect import prospect
from gemmtp.llama import plan
from gemmtp_models.memory import Device

GIB = 2**30


@pytest.mark.parametrize(
    ("ram", "words"),
    [
        (64, r"It fits into memory: RAM 1[89]\.\d/64\.0 GiB\."),
        (8, r"It does not fit into memory here: (9|1\d)\.\d GiB are missing \(gemmtp plan"),
    ],
)
def test_a_set_of_the_catalogue_is_held_against_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ram: int, words: str
) -> None:
    monkeypatch.setenv("GEMMTP_HOME", str(tmp_path))
    device = Device("RAM", ram * GIB, ram * GIB, gpu=False)
    monkeypatch.setattr(plan, "machine", lambda: [device])
    assert re.match(words, prospect("gemma4:31b-mtp") or "")
    assert prospect("hf:owner/repo") is None
    assert prospect("nosuch:set") is None

"""Turns of a real model behind answers over which its sliding window has rolled many times."""

from __future__ import annotations

import pytest

from tests.perf.turns import Bench, Turn, opened

ANSWER = 300
"""Longer than the cache of the sliding layers at ubatch 64, which holds 256 tokens."""


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    with opened(1600) as (pair, twin):
        bench = Bench(pair, twin, ANSWER)
        bench.fill(120)
        bench.ask("first", settled=False, kept=300)
        bench.ask("settled")
        bench.dialogue.undo()
        bench.ask("undone, at once", settled=False, kept=bench.answer_tokens())
        bench.regenerate("regenerated")
        return bench.turns


def test_every_turn_reads_little_again_and_says_and_drafts_what_a_fresh_context_does(
    turns: list[Turn],
) -> None:
    assert [turn.name for turn in turns if not turn.holds] == []


def test_checkpoints_were_needed(turns: list[Turn]) -> None:
    assert "checkpoint at" in turns[-1].because
    assert turns[-1].statistics.drafted > 100

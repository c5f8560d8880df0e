"""Prompt chunks that take half a second, on machines of many speeds."""

from __future__ import annotations

import random

import pytest

from gemmtp.engine.backend import FakeTarget
from gemmtp.engine.drafting import NoDrafting
from gemmtp.engine.engine import Engine, Request
from gemmtp.engine.pace import CHUNK_SECONDS, FEWEST_ROWS, FIRST_ROWS, Pace


def settled(fixed: float, row: float, noise: float = 0.0, most: int = 512) -> tuple[int, float]:
    """The chunk and its seconds once the pace is known; every fifth chunk is a short end."""
    pace, dice = Pace(most), random.Random(1)
    for i in range(60):
        rows = pace.rows if i % 5 else max(1, pace.rows // 3)
        pace.observe(rows, (fixed + row * rows) * (1 + noise * dice.random()))
    return pace.rows, fixed + row * pace.rows


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("row", [0.001, 0.004, 0.02, 0.05])
@pytest.mark.parametrize("fixed", [0.0, 0.01, 0.1])
def test_a_chunk_takes_about_half_a_second(fixed: float, row: float, noise: float) -> None:
    rows, seconds = settled(fixed, row, noise)
    assert seconds <= 1.1 * CHUNK_SECONDS or rows == FEWEST_ROWS
    assert rows == 512 or 2 * rows * row + fixed > CHUNK_SECONDS * (1 - noise) * 0.75


def test_a_fast_machine_takes_whole_batches_after_three_chunks() -> None:
    pace, sizes = Pace(512), []
    for _ in range(4):
        sizes.append(pace.rows)
        pace.observe(pace.rows, 0.005 + pace.rows * 0.0002)
    assert sizes == [FIRST_ROWS, 4 * FIRST_ROWS, 512, 512]


def test_a_fixed_cost_of_a_second_is_worth_a_large_batch() -> None:
    rows, seconds = settled(fixed=1.0, row=0.002)
    assert 256 <= rows <= 512
    assert seconds <= 2.1


def test_a_slow_machine_never_takes_less_than_it_must() -> None:
    assert settled(0.0, 3.0)[0] == FEWEST_ROWS
    assert Pace(4).rows == 4


def test_the_engine_goes_by_it() -> None:
    target = FakeTarget(n_ctx=2000, max_rows=512)
    engine = Engine(target, NoDrafting("plain"))
    list(engine.generate(Request([1] * 1500, max_tokens=1, quick=True)))
    assert target.decodes[0] == FIRST_ROWS
    assert max(target.decodes) > FIRST_ROWS
    assert sum(target.decodes) == 1500


def test_a_prompt_that_nobody_interrupts_is_always_cut_alike() -> None:
    target = FakeTarget(n_ctx=2000, max_rows=512)
    engine = Engine(target, NoDrafting("plain"))
    for first in (1, 2, 3):
        target.decodes.clear()
        list(engine.generate(Request([first, *[1] * 1499], max_tokens=1)))
        assert target.decodes == [512, 512, 476]

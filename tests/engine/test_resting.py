"""A slot at rest goes on elsewhere as if it had never been away."""

from __future__ import annotations

import numpy as np
import pytest

from gemmtp.engine.backend import FakeDrafter, FakeTarget
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import MtpDrafting
from gemmtp.engine.engine import Engine, Finished, Request, Token
from gemmtp.engine.resting import Resting
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import EngineError

GREEDY = SamplingParameters(temperature=0.0)


def engine(n_ctx: int = 256) -> Engine:
    target = FakeTarget(n_ctx=n_ctx, window=16, max_rows=8)
    made = Engine(target, MtpDrafting(FakeDrafter(target)), FixedDepth(3))
    made.checkpoints.budget = 1 << 20
    return made


def answer(to: Engine, prompt: list[int], n: int) -> tuple[list[int], Finished]:
    tokens = []
    for event in to.generate(Request(prompt, GREEDY, max_tokens=n)):
        match event:
            case Token(token=token):
                tokens.append(token)
            case Finished():
                return tokens, event
    raise AssertionError("the answer did not end")


def test_the_next_turn_is_the_same_and_reads_only_what_is_new() -> None:
    first, second = engine(), engine()
    prompt = [3, 1, 4, 1, 5]
    said, _ = answer(first, prompt, 60)
    resting = first.rest(0)
    assert resting is not None
    assert resting.text == prompt + said
    following = [*prompt, *said, 9, 2]
    second.adopt(0, resting)
    there, ended = answer(second, following, 40)
    here, stayed = answer(first, following, 40)
    assert there == here == answer(engine(), following, 40)[0]
    assert ended.statistics.cached == stayed.statistics.cached == len(prompt + said) - 1


def test_the_checkpoint_comes_along() -> None:
    first, second = engine(), engine()
    prompt = list(range(30))
    said, _ = answer(first, prompt, 60)
    resting = first.rest(0)
    assert resting is not None
    second.adopt(0, resting)
    other = [*prompt[:-2], *said]
    there, ended = answer(second, other, 10)
    assert there == answer(engine(), other, 10)[0]
    assert ended.statistics.cached_because == "checkpoint at 14"


def test_a_round_of_which_nothing_was_taken_is_cut_and_the_rest_rests() -> None:
    made, prompt = engine(), [3, 1, 4, 1, 5]
    made.submit(Request(prompt, GREEDY, max_tokens=60))
    rounds: list[list[int]] = []
    while len(rounds) < 6 or len(rounds[-1]) < 2:
        tokens = [event.token for event in made.step() if isinstance(event, Token)]
        rounds += [tokens] if tokens else []
    taken = sum(rounds[:-1], list(prompt))
    made.stop(0, len(taken))
    resting = made.rest(0)
    assert resting is not None
    assert (resting.text, resting.held) == (taken, len(taken) - 1)
    read = engine()
    answer(read, taken[:-1], 1)
    assert np.array_equal(resting.hidden, read.hidden(0))
    fresh = engine()
    fresh.adopt(0, resting)
    there, _ = answer(fresh, taken, 20)
    assert there == answer(engine(), taken, 20)[0]


def test_a_slot_that_holds_nothing_rests_nowhere() -> None:
    assert engine().rest(0) is None


def test_cells_of_another_text_are_refused_and_leave_the_slot_empty() -> None:
    first, second = engine(), engine(n_ctx=16)
    answer(first, [1, 2, 3], 30)
    resting = first.rest(0)
    assert resting is not None
    with pytest.raises(EngineError, match="do not fit"):
        second.adopt(0, resting)
    wrong = Resting(resting.text, resting.held - 1, resting.hidden, resting.cells)
    answer(second, [1, 2, 3], 5)
    third = engine()
    answer(third, [1, 2, 3], 5)
    with pytest.raises(EngineError, match="not those of the text"):
        third.adopt(0, wrong)
    assert third.text(0) == []
    assert answer(third, [1, 2, 3], 5)[1].statistics.cached == 0


def test_a_slot_at_work_takes_nothing() -> None:
    first = engine()
    answer(first, [1, 2, 3], 5)
    resting = first.rest(0)
    assert resting is not None
    np.testing.assert_array_equal(resting.hidden, first.hidden(0))
    first.submit(Request([1, 2], GREEDY, max_tokens=3))
    with pytest.raises(EngineError, match="at work"):
        first.adopt(0, resting)

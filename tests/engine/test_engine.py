"""Slots, prefix reuse, stopping, statistics and bad requests, on the fake backend."""

from __future__ import annotations

import numpy as np
import pytest

from gemmtp.engine.backend import FakeDrafter, FakeTarget
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import MtpDrafting, NoDrafting
from gemmtp.engine.engine import Engine, Event, Finished, Prefill, Request, Token
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.verify import Rule
from gemmtp.errors import EngineError, PromptTooLongError, UsageError


def engine_of(target: FakeTarget, depth: int = 3, skill: float = 0.8) -> Engine:
    return Engine(target, MtpDrafting(FakeDrafter(target, skill)), FixedDepth(depth))


def tokens_of(events: list[Event], slot: int = 0) -> list[int]:
    return [e.token for e in events if isinstance(e, Token) and e.slot == slot]


def run_all(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while step := engine.step():
        events += step
    return events


def test_several_slots_say_what_each_says_alone() -> None:
    prompts = [[1], [2, 3], [4, 5, 6] * 30, [7, 8]]
    alone = []
    for i, prompt in enumerate(prompts):
        engine = engine_of(FakeTarget(n_ctx=200))
        sampling = SamplingParameters(temperature=1.0, seed=i)
        alone.append(tokens_of(list(engine.generate(Request(prompt, sampling, max_tokens=40)))))
    target = FakeTarget(n_ctx=200, n_slots=4)
    engine = engine_of(target)
    slots = [
        engine.submit(Request(p, SamplingParameters(temperature=1.0, seed=i), max_tokens=40))
        for i, p in enumerate(prompts)
    ]
    events = run_all(engine)
    assert [tokens_of(events, slot) for slot in slots] == alone


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["compare", "reject", "block"])
def test_nothing_is_read_behind_a_drafted_end(rule: Rule, temperature: float) -> None:
    sampling = SamplingParameters(temperature)
    whole = tokens_of(list(engine_of(FakeTarget()).generate(Request([1], max_tokens=20))))
    # Drafts of 4 by a drafter that is always right: 1 token, 5, 5, and the end is drafted third.
    end = whole[13]
    assert end not in whole[:13]
    target = FakeTarget()
    engine = engine_of(target, depth=4, skill=1.0)
    request = Request([1], sampling, 20, frozenset({end}), accept=rule)
    *events, finished = engine.generate(request)
    assert isinstance(finished, Finished)
    assert finished.reason == "stop" or temperature
    said = tokens_of(events)
    if not temperature:
        assert said == whole[:14]
        assert target.decodes == [1, 5, 5, 3]
        assert finished.statistics.drafted == finished.statistics.accepted == 11
    # The slot is as good as any: what follows in another turn is what a fresh one says.
    more = Request([1, *said, 2], max_tokens=9)
    fresh = engine_of(FakeTarget()).generate(more)
    assert tokens_of(list(engine.generate(more))) == tokens_of(list(fresh))


def test_a_newcomer_joins_beside_a_running_answer() -> None:
    target = FakeTarget(n_ctx=200, n_slots=2, max_rows=16)
    engine = engine_of(target)
    first = engine.submit(Request([1, 2], max_tokens=60))
    events = engine.step() + engine.step()
    second = engine.submit(Request([9] * 40, max_tokens=5))
    seen = []
    while not any(isinstance(e, Prefill) and e.slot == second and e.done == 40 for e in seen):
        seen += engine.step()
    assert any(isinstance(e, Token) and e.slot == first for e in seen)
    events += seen + run_all(engine)
    expected = engine_of(FakeTarget(n_ctx=200))
    assert tokens_of(events, second) == tokens_of(
        list(expected.generate(Request([9] * 40, max_tokens=5)))
    )


def test_a_prompt_that_begins_alike_is_not_evaluated_again() -> None:
    target = FakeTarget()
    engine = engine_of(target)
    first = list(engine.generate(Request([1, 2, 3, 4], max_tokens=10)))
    text = engine.text(0)
    events = list(engine.generate(Request([*text, 9, 9], max_tokens=10)))
    end = events[-1]
    assert isinstance(end, Finished)
    # The newest token of the first answer was not in the cache yet.
    assert end.statistics.cached == len(text) - 1
    assert end.statistics.evaluated == 3
    fresh = engine_of(FakeTarget())
    assert tokens_of(events) == tokens_of(
        list(fresh.generate(Request([*text, 9, 9], max_tokens=10)))
    )
    assert len(tokens_of(first)) == 10


def test_the_same_prompt_again_evaluates_one_token() -> None:
    engine = engine_of(FakeTarget())
    once = tokens_of(list(engine.generate(Request([1, 2, 3, 4], max_tokens=10))))
    *events, end = engine.generate(Request([1, 2, 3, 4], max_tokens=10))
    assert isinstance(end, Finished)
    assert (end.statistics.cached, end.statistics.evaluated) == (3, 1)
    assert tokens_of(events) == once


def test_a_cut_behind_the_window_starts_anew() -> None:
    target = FakeTarget(n_ctx=400, window=8, max_rows=16, max_outputs=16)
    engine = engine_of(target)
    prompt = [1, 2, 3, 4]
    list(engine.generate(Request(prompt, max_tokens=200)))
    *_, end = engine.generate(Request([*prompt, 5], max_tokens=4))
    assert isinstance(end, Finished)
    assert end.statistics.cached == 0
    # Within the window the beginning is kept.
    *_, end = engine.generate(Request([*prompt, 5, 6], max_tokens=4))
    assert isinstance(end, Finished)
    assert end.statistics.cached == 5


@pytest.mark.parametrize("stop_after", range(1, 30))
def test_a_consumer_may_stop_anywhere(stop_after: int) -> None:
    target = FakeTarget()
    engine = engine_of(target, depth=4)
    stream = engine.generate(Request([1, 2, 3]))
    taken = []
    for event in stream:
        if isinstance(event, Token):
            taken.append(event.token)
            if len(taken) == stop_after:
                break
    stream.close()
    assert engine.text(0) == [1, 2, 3, *taken]
    # The newest token is the one that the next decode begins with; the hidden row precedes it.
    assert target.tokens(0) == (1, 2, 3, *taken[:-1])
    assert np.all(engine.hidden(0) == len(target.tokens(0)))
    whole = tokens_of(list(engine_of(FakeTarget()).generate(Request([1, 2, 3], max_tokens=40))))
    rest = engine.generate(Request([1, 2, 3, *taken], max_tokens=40 - stop_after))
    assert taken + tokens_of(list(rest)) == whole


def test_a_stop_inside_a_round_cuts_the_cache_there() -> None:
    whole = tokens_of(list(engine_of(FakeTarget(), skill=1.0).generate(Request([1], max_tokens=9))))
    for n in range(1, 9):
        target = FakeTarget()
        engine = engine_of(target, depth=4, skill=1.0)
        stop = frozenset({whole[n - 1]})
        *events, end = engine.generate(Request([1], stop_tokens=stop))
        first = whole.index(whole[n - 1]) + 1
        assert tokens_of(events) == whole[:first]
        assert isinstance(end, Finished)
        assert end.reason == "stop"
        assert target.tokens(0) == (1, *whole[: first - 1])


def test_max_tokens_is_exact_at_every_depth() -> None:
    for depth in range(6):
        for n in range(1, 9):
            *events, end = engine_of(FakeTarget(), depth).generate(Request([1], max_tokens=n))
            assert len(tokens_of(events)) == n
            assert isinstance(end, Finished)
            assert end.reason == "length"


def test_no_drafter_is_no_error() -> None:
    engine = Engine(FakeTarget(), NoDrafting("no drafter in this set"), FixedDepth(4))
    *_, end = engine.generate(Request([1], max_tokens=5))
    assert engine.drafting.reason == "no drafter in this set"
    assert isinstance(end, Finished)
    assert (end.statistics.rounds, end.statistics.drafted) == (4, 0)


def test_events_say_which_tokens_were_drafted() -> None:
    *events, end = engine_of(FakeTarget(), 3, 0.7).generate(Request([1], max_tokens=60))
    assert isinstance(end, Finished)
    flags = [e.drafted for e in events if isinstance(e, Token)]
    assert sum(flags) == end.statistics.accepted
    assert flags[0] is False


def test_an_abandoned_step_leaves_a_usable_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget()
    engine = engine_of(target)
    expected = tokens_of(list(engine_of(FakeTarget()).generate(Request([1, 2], max_tokens=30))))
    stream = engine.generate(Request([1, 2], max_tokens=30))
    for _ in range(6):
        next(stream)
    with monkeypatch.context() as patch:

        def interrupted(i: int) -> np.ndarray:
            raise KeyboardInterrupt

        patch.setattr(target, "logits", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    again = engine.generate(Request([1, 2], max_tokens=30))
    assert tokens_of(list(again)) == expected


def test_a_full_house_refuses() -> None:
    engine = engine_of(FakeTarget(n_slots=2))
    engine.submit(Request([1]))
    engine.submit(Request([2]))
    with pytest.raises(EngineError, match="Every slot is busy"):
        engine.submit(Request([3]))
    with pytest.raises(EngineError, match="Other requests"):
        next(engine.generate(Request([3])))


def test_bad_requests_say_what_is_wrong() -> None:
    engine = engine_of(FakeTarget(n_ctx=16))
    with pytest.raises(UsageError, match="empty"):
        engine.submit(Request([]))
    with pytest.raises(PromptTooLongError, match="17 tokens, the context holds 16"):
        engine.submit(Request([1] * 17))
    with pytest.raises(UsageError, match="outside"):
        engine.submit(Request([40]))
    with pytest.raises(UsageError, match="at least 1"):
        engine.submit(Request([1], max_tokens=0))
    with pytest.raises(UsageError, match="output rows"):
        Engine(FakeTarget(max_outputs=4), NoDrafting("none"), FixedDepth(8))


def test_a_prompt_as_long_as_the_context_gives_one_token() -> None:
    *events, end = engine_of(FakeTarget(n_ctx=16)).generate(Request([1] * 16))
    assert len(tokens_of(events)) == 1
    assert isinstance(end, Finished)
    assert end.reason == "context"

"""A beginning that prompts share is evaluated once, whoever comes first and whenever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtp.engine.backend import FakeDrafter, FakeTarget
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import MtpDrafting
from gemmtp.engine.engine import Engine, Event, Finished, Request, Token
from gemmtp.engine.media import Media, stand_ins

COMMON = list(range(1, 31))
N_SLOTS = 3


def engine_of(target: FakeTarget, depth: int = 2) -> Engine:
    return Engine(target, MtpDrafting(FakeDrafter(target)), FixedDepth(depth))


def alone(request: Request, window: int = 0) -> list[int]:
    events = engine_of(FakeTarget(n_ctx=400, window=window)).generate(request)
    return [event.token for event in events if isinstance(event, Token)]


def answers(events: list[Event], slot: int) -> list[int]:
    return [event.token for event in events if isinstance(event, Token) and event.slot == slot]


def rest(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while step := engine.step():
        events += step
    return events


def evaluated(events: list[Event]) -> int:
    return sum(event.statistics.evaluated for event in events if isinstance(event, Finished))


@pytest.mark.parametrize("max_rows", [12, 64])
def test_prompts_that_come_together_read_their_beginning_once(max_rows: int) -> None:
    target = FakeTarget(n_ctx=400, n_slots=N_SLOTS, max_rows=max_rows)
    engine = engine_of(target)
    requests = [Request([*COMMON, 35, i], max_tokens=12) for i in range(N_SLOTS)]
    slots = [engine.submit(request) for request in requests]
    events = rest(engine)
    for slot, request in zip(slots, requests, strict=True):
        assert answers(events, slot) == alone(request)
    assert evaluated(events) == len(COMMON) + 2 + (N_SLOTS - 1) * 1
    shared = [e.statistics.cached for e in events if isinstance(e, Finished)]
    assert sorted(shared) == [0, len(COMMON) + 1, len(COMMON) + 1]


def test_a_newcomer_takes_over_what_a_running_answer_holds() -> None:
    target = FakeTarget(n_ctx=400, n_slots=N_SLOTS)
    engine = engine_of(target)
    first = Request([*COMMON, 35], max_tokens=30)
    events: list[Event] = []
    slot = engine.submit(first)
    for _ in range(4):
        events += engine.step()
    second = Request([*COMMON, 36], max_tokens=9)
    other = engine.submit(second)
    events += rest(engine)
    assert answers(events, slot) == alone(first)
    assert answers(events, other) == alone(second)
    (statistics,) = (e.statistics for e in events if isinstance(e, Finished) and e.slot == other)
    assert (statistics.cached, statistics.evaluated) == (len(COMMON), 1)
    assert statistics.cached_because == "shared with another answer"


def test_a_window_that_moved_on_is_not_copied() -> None:
    window = 8
    target = FakeTarget(n_ctx=400, n_slots=2, window=window, max_rows=8)
    engine = engine_of(target, depth=1)
    first = Request([*COMMON, 35], max_tokens=60)
    events: list[Event] = []
    engine.submit(first)
    while len(answers(events, 0)) < 40:
        events += engine.step()
    second = Request([*COMMON, 36], max_tokens=9)
    other = engine.submit(second)
    events += rest(engine)
    assert answers(events, other) == alone(second, window)
    (statistics,) = (e.statistics for e in events if isinstance(e, Finished) and e.slot == other)
    assert statistics.cached == 0


def test_who_waits_goes_on_alone_when_the_reader_is_stopped() -> None:
    target = FakeTarget(n_ctx=400, n_slots=2, max_rows=8)
    engine = engine_of(target, depth=1)
    long = COMMON * 4
    reader = engine.submit(Request([*long, 35], max_tokens=5))
    follower = Request([*long, 36], max_tokens=9)
    waiting = engine.submit(follower)
    engine.step()
    engine.stop(reader)
    assert answers(rest(engine), waiting) == alone(follower)


def test_a_picture_is_shared_whole_or_not_at_all() -> None:
    target = FakeTarget(n_ctx=400, n_slots=2)
    engine = engine_of(target)
    rows = np.arange(80, dtype=np.float32).reshape(20, 4)
    picture = Media(10, 20, lambda: rows, causal=False)
    ids = [*range(1, 11), *stand_ins(b"a picture", 20)]
    requests = [Request([*ids, 5, i], max_tokens=8, media=(picture,)) for i in (1, 2)]
    slots = [engine.submit(request) for request in requests]
    events = rest(engine)
    for slot, request in zip(slots, requests, strict=True):
        assert answers(events, slot) == alone(request)
    assert target.media == [20]


@settings(max_examples=40, deadline=None)
@given(
    plan=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(1, 8), st.integers(0, 5)),
        min_size=1,
        max_size=8,
    ),
    window=st.sampled_from([0, 6, 40]),
    max_rows=st.sampled_from([9, 40]),
)
def test_whatever_comes_and_goes_each_says_what_it_says_alone(
    plan: list[tuple[int, int, int, int]], window: int, max_rows: int
) -> None:
    target = FakeTarget(n_ctx=400, n_slots=N_SLOTS, window=window, max_rows=max_rows)
    engine = engine_of(target)
    said: dict[int, list[int]] = {}
    asked: dict[int, tuple[int, Request]] = {}
    waiting = [
        (i, Request([*COMMON[:common], 35, own, own], max_tokens=n), steps)
        for i, (common, own, n, steps) in enumerate(plan)
    ]
    pause = 0
    while waiting or asked:
        while waiting and len(asked) < N_SLOTS and not pause:
            i, request, pause = waiting.pop(0)
            asked[engine.submit(request)] = (i, request)
        pause = max(0, pause - 1) if asked else 0
        for event in engine.step():
            if isinstance(event, Token):
                said.setdefault(asked[event.slot][0], []).append(event.token)
            elif isinstance(event, Finished):
                i, request = asked.pop(event.slot)
                assert said[i] == alone(request, window)


def test_a_newcomer_takes_the_slot_where_least_is_lost() -> None:
    engine = engine_of(FakeTarget(n_ctx=200, n_slots=2))
    greeting = [1, 2, 3]
    long, short = [*greeting, *[4] * 100], [*greeting, *[5] * 20]
    cached = []
    for prompt in (long, short, [*long, 6], [*short, 6], [*greeting, 7], [*long, 8]):
        *_, end = engine.generate(Request(prompt, max_tokens=2))
        assert isinstance(end, Finished)
        cached.append(end.statistics.cached)
    # The short text has to make room for the third, and the long one is still there.
    assert cached == [0, 0, 103, 23, 3, 103]

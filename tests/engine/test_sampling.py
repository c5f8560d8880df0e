"""The processed distribution, the counter-based draw, processors, stop strings."""

from __future__ import annotations

import numpy as np
import pytest

from gemmtp.engine.depth import FixedDepth, HeuristicDepth
from gemmtp.engine.processors import LogitBias, SuppressTokens
from gemmtp.engine.sampling import SamplingParameters, processed, uniform
from gemmtp.engine.stopping import StopStrings, StopWatch
from gemmtp.errors import UsageError

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], np.float32))


def dist(**parameters: float) -> dict[int, float]:
    d = processed(LOGITS, SamplingParameters(temperature=1.0, **parameters))  # type: ignore[arg-type]
    return {int(i): round(float(p), 4) for i, p in zip(d.ids, d.p, strict=True)}


def test_filters_keep_what_their_definitions_say() -> None:
    assert dist() == {0: 0.1, 1: 0.4, 2: 0.05, 3: 0.25, 4: 0.2}
    assert dist(top_k=2) == {1: 0.6154, 3: 0.3846}
    assert dist(top_p=0.6) == {1: 0.6154, 3: 0.3846}
    assert dist(top_p=0.7) == {1: 0.4706, 3: 0.2941, 4: 0.2353}
    assert dist(min_p=0.3) == {1: 0.4706, 3: 0.2941, 4: 0.2353}
    assert dist(top_k=3, top_p=0.5) == {1: 0.6154, 3: 0.3846}


def test_temperature_sharpens_and_flattens() -> None:
    cold = processed(LOGITS, SamplingParameters(temperature=0.5))
    p = np.array([0.1, 0.4, 0.05, 0.25, 0.2]) ** 2
    assert np.allclose(cold.p, p / p.sum(), atol=1e-6)


def test_a_forbidden_token_has_no_interval() -> None:
    logits = LOGITS.copy()
    SuppressTokens([1, 3]).apply(logits, [])
    d = processed(logits, SamplingParameters(temperature=1.0))
    assert list(d.ids) == [0, 2, 4]
    drawn = {d.draw(u) for u in np.linspace(0, 1, 101, endpoint=False)}
    assert drawn == {0, 2, 4}


def test_draws_follow_the_distribution() -> None:
    d = processed(LOGITS, SamplingParameters(temperature=1.0, top_k=3))
    n = 20_000
    drawn = [d.draw(uniform(7, position)) for position in range(n)]
    for token, p in zip(d.ids, d.p, strict=True):
        share = drawn.count(int(token)) / n
        # Five standard deviations of a binomial share.
        assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / n)


def test_a_draw_belongs_to_seed_and_position_alone() -> None:
    assert uniform(1, 5) == uniform(1, 5)
    values = {uniform(seed, position) for seed in range(50) for position in range(50)}
    assert len(values) == 2500
    assert all(0.0 <= value < 1.0 for value in values)
    # The text of a seed is a promise: these values must not change.
    assert uniform(0, 0) == 0.011546754286331562
    assert uniform(42, 7) == 0.4074136540795371
    assert uniform(2**64 - 1, 2**22) == 0.5979701667239412


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_absurd_parameters_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        SamplingParameters(**bad)  # type: ignore[arg-type]


def test_logit_bias_adds_and_forbids() -> None:
    logits = np.zeros(4, np.float32)
    LogitBias({1: 2.5, 2: -100}, 4).apply(logits, [])
    assert list(logits) == [0.0, 2.5, -np.inf, 0.0]
    with pytest.raises(UsageError, match="outside the vocabulary"):
        LogitBias({4: 1.0}, 4)
    with pytest.raises(UsageError, match="between"):
        LogitBias({1: 101.0}, 4)


def test_when_nothing_may_be_chosen_it_says_so() -> None:
    logits = np.full(4, -np.inf, np.float32)
    with pytest.raises(UsageError, match="No token"):
        processed(logits, SamplingParameters(temperature=1.0))


def test_the_heuristic_grows_by_two_and_shrinks_by_one() -> None:
    depth = HeuristicDepth(3, 8)
    seen = []
    for accepted in (3, 5, 2, 6, 8, 8, 0):
        seen.append(depth.choose())
        depth.learn(depth.choose(), accepted)
    assert seen == [3, 5, 7, 6, 8, 8, 8]
    assert depth.choose() == 7
    with pytest.raises(UsageError):
        FixedDepth(17)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_stop_string_is_found_across_pieces(size: int) -> None:
    text = b"one ENtwo END three"
    stops = StopStrings(["END", "never"])
    shown = b"".join(stops.feed(text[i : i + size]) for i in range(0, len(text), size))
    assert shown == b"one ENtwo "
    assert stops.found


def test_what_only_looked_like_a_stop_string_is_not_lost() -> None:
    stops = StopStrings(["abcd"])
    assert stops.feed(b"xxabc") == b"xx"
    assert stops.feed(b"abc") == b"abc"
    assert stops.flush() == b"abc"
    assert not stops.found


def test_the_watch_reports_the_token_that_completes_a_stop_string() -> None:
    pieces = [b"a", b"b\xc3", b"\xa9", b"c"]
    watch = StopWatch(["é"], pieces.__getitem__)
    assert [watch(i) for i in range(4)] == [False, False, True, True]
    with pytest.raises(UsageError):
        StopStrings([""])

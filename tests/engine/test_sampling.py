"""The processed distribution, the counter-based draw, processors, stop strings."""

from __future__ import annotations

import numpy as np
import pytest

from gemmtp.engine.depth import FixedDepth, HeuristicDepth
from gemmtp.engine.noise import Noise
from gemmtp.engine.processors import LogitBias, SuppressTokens
from gemmtp.engine.sampling import Distribution, SamplingParameters, Shaper
from gemmtp.engine.stopping import StopStrings, StopWatch
from gemmtp.errors import UsageError

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], np.float32))
EXPONENTIALS_0_0 = [1.2090441792468518, 0.528805931884829, 1.7188523802084634]
EXPONENTIALS_END = [0.1466115320020613, 0.7091158139058136, 0.880993790142738]


def dist(**parameters: float) -> dict[int, float]:
    d = Shaper(SamplingParameters(temperature=1.0, **parameters))(LOGITS)  # type: ignore[arg-type]
    return {int(i): round(float(p), 4) for i, p in zip(d.ids, d.p, strict=True)}


def test_filters_keep_what_their_definitions_say() -> None:
    assert dist() == {0: 0.1, 1: 0.4, 2: 0.05, 3: 0.25, 4: 0.2}
    assert dist(top_k=2) == {1: 0.6154, 3: 0.3846}
    assert dist(top_p=0.6) == {1: 0.6154, 3: 0.3846}
    assert dist(top_p=0.7) == {1: 0.4706, 3: 0.2941, 4: 0.2353}
    assert dist(min_p=0.3) == {1: 0.4706, 3: 0.2941, 4: 0.2353}
    assert dist(top_k=3, top_p=0.5) == {1: 0.6154, 3: 0.3846}


def test_temperature_sharpens_and_flattens() -> None:
    cold = Shaper(SamplingParameters(temperature=0.5))(LOGITS)
    p = np.array([0.1, 0.4, 0.05, 0.25, 0.2]) ** 2
    assert np.allclose(cold.p, p / p.sum(), atol=1e-6)


def test_a_forbidden_token_never_wins() -> None:
    logits = LOGITS.copy()
    SuppressTokens([1, 3]).apply(logits, [])
    d = Shaper(SamplingParameters(temperature=1.0))(logits)
    assert list(d.ids) == [0, 2, 4]
    drawn = {d.draw(Noise(1, position)) for position in range(200)}
    assert drawn == {0, 2, 4}


def test_draws_follow_the_distribution() -> None:
    d = Shaper(SamplingParameters(temperature=1.0, top_k=3))(LOGITS)
    n = 20_000
    drawn = [d.draw(Noise(7, position)) for position in range(n)]
    for token, p in zip(d.ids, d.p, strict=True):
        share = drawn.count(int(token)) / n
        # Five standard deviations of a binomial share.
        assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / n)


def test_a_variate_belongs_to_seed_position_and_token_alone() -> None:
    ids = np.array([3, 9, 262_143])
    assert list(Noise(1, 5).exponentials(ids)) == list(Noise(1, 5).exponentials(ids))
    assert Noise(1, 5).exponentials(ids)[1] == Noise(1, 5).exponentials(ids[1:2])[0]
    values = [
        Noise(seed, position).exponentials(ids) for seed in range(50) for position in range(50)
    ]
    assert len(np.unique(values)) == 7500
    assert np.mean(values) == pytest.approx(1.0, abs=0.06)
    assert np.std(values) == pytest.approx(1.0, abs=0.08)
    # The text of a seed is a promise: these values must not change.
    assert list(Noise(0, 0).exponentials(ids)) == pytest.approx(EXPONENTIALS_0_0, rel=1e-12)
    assert list(Noise(2**64 - 1, 2**22).exponentials(ids)) == pytest.approx(
        EXPONENTIALS_END, rel=1e-12
    )


def test_a_token_that_leaves_the_nucleus_changes_only_its_own_draws() -> None:
    random = np.random.default_rng(3)
    p = random.dirichlet(np.ones(50))
    whole, without = (Distribution(np.arange(n), p[:n] / p[:n].sum()) for n in (len(p), len(p) - 1))
    for position in range(2000):
        if whole.draw(Noise(1, position)) != 49:
            assert whole.draw(Noise(1, position)) == without.draw(Noise(1, position))


def test_the_margin_is_how_much_a_logit_must_change() -> None:
    d = Shaper(SamplingParameters(temperature=1.0))(LOGITS)
    for position in range(100):
        winner, margin = d.draw(Noise(5, position)), d.margin(Noise(5, position))
        for change, same in ((-0.99 * margin, True), (-1.01 * margin, False)):
            logits = LOGITS.astype(np.float64)
            logits[winner] += change
            moved = Shaper(SamplingParameters(temperature=1.0))(logits.astype(np.float64))
            assert (moved.draw(Noise(5, position)) == winner) is same


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
        Shaper(SamplingParameters(temperature=1.0))(logits)


def test_the_heuristic_grows_by_two_and_shrinks_by_one() -> None:
    depth = HeuristicDepth(3, 8)
    seen = []
    for accepted in (3, 5, 2, 6, 8, 8, 0):
        (planned,) = depth.plan([0], 0)
        seen.append(planned)
        depth.learn(0, planned, accepted, [])
    assert seen == [3, 5, 7, 6, 8, 8, 8]
    assert depth.plan([0, 1], 0) == [7, 3]
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


@pytest.mark.parametrize(
    "filters", [{"top_k": 20}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.8}, {"min_p": 0.1}]
)
def test_the_rows_before_do_not_change_a_distribution(filters: dict[str, float]) -> None:
    random = np.random.default_rng(4)
    parameters = SamplingParameters(temperature=0.9, **filters)  # type: ignore[arg-type]
    running = Shaper(parameters)
    for scale in (1.0, 8.0, 0.1, 3.0, 0.5, 30.0):
        for shift in (0.0, -40.0, 40.0):
            row = random.normal(shift, scale, 3000).astype(np.float32)
            row[random.integers(3000, size=200)] = -np.inf
            ran, fresh = running(row), Shaper(parameters)(row)
            assert list(ran.ids) == list(fresh.ids)
            assert np.allclose(ran.p, fresh.p, rtol=1e-12)
            assert ran.p.sum() == pytest.approx(1.0)


def test_the_nucleus_of_a_large_vocabulary_is_the_sorted_one() -> None:
    row = np.random.default_rng(5).normal(0.0, 2.0, 50_000).astype(np.float32)
    d = Shaper(SamplingParameters(temperature=1.0, top_p=0.7))(row)
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    order = np.argsort(-p)
    n = int(np.searchsorted(np.cumsum(p[order]), 0.7)) + 1
    assert list(d.ids) == sorted(order[:n])

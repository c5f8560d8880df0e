"""Without top-k: little is looked at, and the draw is the one from everything."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtp.engine.backend import Floats
from gemmtp.engine.noise import BLOCK, Noise
from gemmtp.engine.sampling import SamplingParameters, Shaper


def row(kind: str, n: int, seed: int) -> Floats:
    random = np.random.default_rng(seed)
    logits = random.normal(0, {"peaked": 4.0, "flat": 0.5, "ties": 2.0, "alike": 0.0}[kind], n)
    if kind == "ties":
        logits = np.round(logits)
    if seed % 3 == 0:
        logits[random.integers(0, n, n // 4)] = -np.inf
        logits[0] = 0.0
    return logits.astype(np.float32)


def by_definition(logits: Floats, p: SamplingParameters) -> set[int]:
    """The ids that top-p and min-p keep, by sorting everything."""
    scaled = (logits - logits.max()) * np.float32(1 / p.temperature)
    weights = np.exp(scaled, dtype=np.float32)
    order = np.lexsort((np.arange(len(weights)), -weights))
    sums = weights[order].cumsum(dtype=np.float64)
    before = np.concatenate([[0.0], sums[:-1]])
    inside = before < p.top_p * sums[-1] if p.top_p < 1 else True
    keep = order[inside & (weights[order] > 0)]
    return {int(i) for i in keep if weights[i] >= np.float32(p.min_p)}


parameters = st.builds(
    SamplingParameters,
    temperature=st.sampled_from([0.7, 1.0, 1.5]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
)
kinds = st.sampled_from(["peaked", "flat", "ties", "alike"])
sizes = st.sampled_from([1, 7, BLOCK, BLOCK + 1, 5000])


@settings(max_examples=60, deadline=None)
@given(p=parameters, kind=kinds, n=sizes, seed=st.integers(0, 1000))
def test_the_nucleus_is_what_its_definition_says(
    p: SamplingParameters, kind: str, n: int, seed: int
) -> None:
    logits = row(kind, n, seed)
    d = Shaper(p)(logits)
    assert set(d.ids.tolist()) == by_definition(logits, p)
    assert d.p.sum() == pytest.approx(1.0)
    assert (np.diff(d.ids) > 0).all()


@settings(max_examples=60, deadline=None)
@given(p=parameters, rows=st.lists(st.tuples(kinds, st.integers(0, 1000)), min_size=1), n=sizes)
def test_a_draw_that_looks_at_little_is_the_draw_from_everything(
    p: SamplingParameters, rows: list[tuple[str, int]], n: int
) -> None:
    shaper = Shaper(p)
    for position, (kind, seed) in enumerate(rows):
        logits, noise = row(kind, n, seed), Noise(seed, position)
        # What the rows before suggested must not show.
        assert shaper.choose(logits, noise) == Shaper(p)(logits).draw(noise)


def test_the_whole_vocabulary_of_gemma_is_drawn_from_alike() -> None:
    shaper = Shaper(SamplingParameters(1.0, top_p=0.95))
    for position, kind in enumerate(["peaked", "flat", "alike", "peaked", "ties"]):
        logits, noise = row(kind, 262_144, position), Noise(7, position)
        assert shaper.choose(logits, noise) == shaper(logits).draw(noise)


def test_frequencies_follow_the_weights_across_blocks() -> None:
    logits = np.full(2 * BLOCK, -np.inf, np.float32)
    shares = {3: 0.5, 4: 0.2, 3 + BLOCK: 0.2, 2 * BLOCK - 1: 0.1}
    logits[list(shares)] = np.log(np.array(list(shares.values())))
    shaper, n = Shaper(SamplingParameters(temperature=1.0)), 3000
    counts = Counter(shaper.choose(logits, Noise(11, position)) for position in range(n))
    statistic = sum((counts[t] - n * share) ** 2 / (n * share) for t, share in shares.items())
    # Chi-square with three degrees of freedom: one in a million lies above 30.
    assert statistic < 30


def test_spread_variates_are_exponential_and_independent() -> None:
    ids = np.arange(2 * BLOCK)
    values = np.array([Noise(1, position).spread(ids) for position in range(300)])
    assert values.mean() == pytest.approx(1.0, abs=0.01)
    assert values.std() == pytest.approx(1.0, abs=0.01)
    for quantile in (0.001, 0.1, 0.5, 0.9):
        share = (values < -np.log1p(-quantile)).mean()
        assert share == pytest.approx(quantile, rel=0.1)
    first = values[:, :BLOCK].min(axis=1)
    assert first.mean() == pytest.approx(1 / BLOCK, rel=0.2)
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.2
    # The text of a seed is a promise: these values must not change.
    assert Noise(0, 0).spread(np.array([3, 9])).tolist() == pytest.approx(SPREAD_0_0, rel=1e-12)


SPREAD_0_0 = [1.2157471229490224, 0.5355088755869997]

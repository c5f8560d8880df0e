"""Rejection sampling and block verification emit the target's distribution, exactly.

Enumeration: over toy vocabularies every draft, every acceptance and every residual is weighted in
rational arithmetic with the very formulas the engine uses; the law of the emitted text must equal
the target's to the last digit. Chi-square: the engine itself, with filters, processors and the
learned proposal, emits what the target alone would.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from gemmtp.engine import rejection
from gemmtp.engine.backend import FakeDrafter, FakeTarget, Floats
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import MtpDrafting, NoDrafting
from gemmtp.engine.engine import Engine, Request, Token
from gemmtp.engine.processors import LogitBias
from gemmtp.engine.rejection import block_steps, overlap, residual
from gemmtp.engine.sampling import Distribution, SamplingParameters
from gemmtp.engine.verify import Rule

Text = tuple[int, ...]
Model = Callable[[Text], Distribution]
Law = dict[Text, Fraction]


def fractions(ids: list[int], weights: list[int]) -> Distribution:
    total = sum(weights)
    return Distribution(np.array(ids), np.array([Fraction(w, total) for w in weights], object))


def model(seed: int, vocabulary: int, holes: bool) -> Model:
    """A random next-token law for every history; with ``holes`` some tokens are impossible."""

    def law(text: Text) -> Distribution:
        random = np.random.default_rng([seed, len(text), *text])
        weights = random.integers(0 if holes else 1, 6, vocabulary)
        weights[random.integers(vocabulary)] += 1
        ids = [i for i in range(vocabulary) if weights[i]]
        return fractions(ids, [int(weights[i]) for i in ids])

    return law


def drafts(q: Model, depth: int, stop_early: bool) -> Iterator[tuple[Text, Fraction]]:
    """Every draft and its probability; the early stop looks at q alone, before the draw."""

    def grow(draft: Text, probability: Fraction) -> Iterator[tuple[Text, Fraction]]:
        if len(draft) == depth or (stop_early and draft and max(q(draft).p) < Fraction(1, 2)):
            yield draft, probability
            return
        here = q(draft)
        for token, share in zip(here.ids, here.p, strict=True):
            yield from grow((*draft, int(token)), probability * share)

    yield from grow((), Fraction(1))


def rejected(p: Model, q: Model, draft: Text) -> Law:
    """What rejection sampling emits for a draft."""
    law: Law = defaultdict(Fraction)
    going = Fraction(1)
    for i, token in enumerate(draft):
        here, proposed = p(draft[:i]), q(draft[:i])
        keep = min(Fraction(1), here.of(token) / proposed.of(token))
        if keep < 1:
            rest = residual(here, proposed)
            for other, share in zip(rest.ids, rest.p, strict=True):
                law[*draft[:i], int(other)] += going * (1 - keep) * share
        going *= keep
    last = p(draft)
    for token, share in zip(last.ids, last.p, strict=True):
        law[*draft, int(token)] += going * share
    return law


def blocked(p: Model, q: Model, draft: Text) -> Law:
    """What block verification emits for a draft."""
    ps = [p(draft[:i]) for i in range(len(draft) + 1)]
    qs = [q(draft[:i]) for i in range(len(draft))]
    steps = block_steps(ps, qs, draft)
    law: Law = defaultdict(Fraction)
    longer = Fraction(1)
    for kept in range(len(draft), -1, -1):
        keep = Fraction(steps[kept - 1].keep) if kept else Fraction(1)
        weight = steps[kept - 1].weight if kept else 1
        last = ps[kept] if kept == len(draft) else residual(ps[kept], qs[kept], weight)
        if longer * keep:
            for token, share in zip(last.ids, last.p, strict=True):
                law[*draft[:kept], int(token)] += longer * keep * share
        longer *= 1 - keep
    return law


def completed(law: Law, p: Model, length: int) -> Law:
    """The law of the first ``length`` tokens when the target goes on alone."""
    whole: Law = defaultdict(Fraction)
    for text, probability in law.items():
        if len(text) >= length:
            whole[text[:length]] += probability
            continue
        here = p(text)
        longer = {(*text, int(t)): probability * s for t, s in zip(here.ids, here.p, strict=True)}
        for end, share in completed(longer, p, length).items():
            whole[end] += share
    return {text: share for text, share in whole.items() if share}


@pytest.mark.parametrize("emit", [rejected, blocked])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("stop_early", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_emitted_law_is_the_targets(
    emit: Callable[[Model, Model, Text], Law], holes: bool, stop_early: bool, depth: int, seed: int
) -> None:
    vocabulary = 3
    p, q = model(seed, vocabulary, holes), model(seed + 100, vocabulary, holes)
    law: Law = defaultdict(Fraction)
    for draft, probability in drafts(q, depth, stop_early):
        for text, share in emit(p, q, draft).items():
            law[text] += probability * share
    assert completed(law, p, depth + 1) == completed({(): Fraction(1)}, p, depth + 1)


def test_block_verification_keeps_at_least_as_much_as_rejection() -> None:
    for seed in range(12):
        p, q = model(seed, 3, False), model(seed + 100, 3, False)
        kept = {}
        for emit in (rejected, blocked):
            kept[emit] = sum(
                probability * share * (len(text) - 1)
                for draft, probability in drafts(q, 3, False)
                for text, share in emit(p, q, draft).items()
            )
        assert kept[blocked] >= kept[rejected]


def test_the_overlap_is_how_often_a_draft_is_kept() -> None:
    p, q = model(1, 4, True)(()), model(2, 4, True)(())
    keeps = sum(
        share * min(Fraction(1), p.of(int(token)) / share)
        for token, share in zip(q.ids, q.p, strict=True)
    )
    assert float(keeps) == overlap(p, q)


def test_a_misaligned_residual_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault of subtracting by index instead of by token id."""

    def by_index(p: Distribution, q: Distribution, weight: object = 1) -> Distribution:
        n = len(p.p)
        aligned = np.array([*q.p, *[Fraction(0)] * n], object)[:n]
        return Distribution(p.ids, np.maximum(weight * p.p - aligned, 0))

    monkeypatch.setattr(rejection, "excess", by_index)
    differing = 0
    for seed in range(4):
        p, q = model(seed, 3, True), model(seed + 100, 3, True)
        law: Law = defaultdict(Fraction)
        for draft, probability in drafts(q, 1, False):
            for text, share in rejected(p, q, draft).items():
                law[text] += probability * share
        differing += completed(law, p, 2) != completed({(): Fraction(1)}, p, 2)
    assert differing


class WideTarget(FakeTarget):
    """Few tokens and a history of two, so that texts repeat often enough to be counted."""

    def next_logits(self, history: list[int]) -> Floats:  # type: ignore[override]
        return super().next_logits(tuple(history[-2:]))


class RoughDrafter(FakeDrafter):
    """A drafter whose whole distribution is a blurred copy of the target's."""

    def step(self, tokens, hidden, positions, slots):  # type: ignore[no-untyped-def]
        logits, following = super().step(tokens, hidden, positions, slots)
        for i, slot in enumerate(slots):
            text = [*self.target.tokens(int(slot)), *self._drafted[int(slot)]]
            logits[i] = 0.6 * self.target.next_logits(text) + logits[i]
        return logits, following


def texts(rule: Rule | None, n: int, sampling: SamplingParameters, depth: int) -> Counter[Text]:
    target = WideTarget(n_vocab=6, n_ctx=64, seed=5)
    drafting = NoDrafting("plain") if rule is None else MtpDrafting(RoughDrafter(target))
    engine = Engine(target, drafting, FixedDepth(depth))
    bias = LogitBias({0: 1.0, 3: -100}, 6)
    counts: Counter[Text] = Counter()
    for _ in range(n):
        request = Request(
            [1, 2], sampling, 3, accept=rule or "auto", processors=(bias,), depth=FixedDepth(depth)
        )
        counts[tuple(e.token for e in engine.generate(request) if isinstance(e, Token))] += 1
    return counts


def law_of_target(sampling: SamplingParameters) -> dict[Text, float]:
    """The target's own law of three tokens, computed from the processed rows."""
    from gemmtp.engine.sampling import Shaper

    target, shape = WideTarget(n_vocab=6, seed=5), Shaper(sampling)
    law = {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, probability in law.items():
            logits = target.next_logits([1, 2, *text]).copy()
            LogitBias({0: 1.0, 3: -100}, 6).apply(logits, [])
            here = shape(logits)
            for token, share in zip(here.ids, here.p, strict=True):
                longer[(*text, int(token))] = probability * float(share)
        law = longer
    return law


@pytest.mark.parametrize("rule", [None, "reject", "block"])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(temperature=1.0),
        SamplingParameters(temperature=0.8, top_k=4, top_p=0.9, min_p=0.05),
    ],
)
def test_the_engine_emits_the_targets_distribution(
    rule: Rule | None, sampling: SamplingParameters
) -> None:
    n = 4000
    law = law_of_target(sampling)
    counts = texts(rule, n, sampling, depth=2)
    assert set(counts) <= set(law)
    # Rare texts are counted together, as chi-square needs expected counts of some size.
    cells: dict[Text, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for text, share in law.items():
        cell = cells[text if n * share >= 8 else ()]
        cell[0] += counts[text]
        cell[1] += n * share
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells.values())
    free = len(cells) - 1
    # Chi-square with k degrees of freedom has mean k and variance 2k: six deviations.
    assert statistic < free + 6 * np.sqrt(2 * free)


def test_drawn_drafts_are_kept_more_often_than_compared_ones() -> None:
    sampling = SamplingParameters(temperature=1.0)
    kept = {}
    for rule in ("compare", "reject", "block"):
        target = WideTarget(n_vocab=6, n_ctx=600, seed=5)
        engine = Engine(target, MtpDrafting(RoughDrafter(target)), FixedDepth(3))
        *_, end = engine.generate(Request([1, 2], sampling, 400, accept=rule))
        kept[rule] = end.statistics.tokens_per_round  # type: ignore[union-attr]
        assert end.statistics.rule == rule  # type: ignore[union-attr]
    assert kept["reject"] > 1.1 * kept["compare"]
    assert kept["block"] > 1.1 * kept["compare"]


def test_a_seed_compares_and_fresh_draws_do_not() -> None:
    seeded = Request([1], SamplingParameters(temperature=1.0, seed=1))
    assert seeded.rule == "compare"
    assert Request([1], SamplingParameters(temperature=1.0)).rule == "block"
    assert Request([1], SamplingParameters(), accept="reject").rule == "compare"
    assert Request([1], SamplingParameters(1.0, seed=1), accept="reject").rule == "reject"


def test_the_same_seed_repeats_a_rejection_sampled_text_at_one_depth() -> None:
    sampling = SamplingParameters(temperature=1.0, seed=9)
    for rule, depth in itertools.product(("reject", "block"), (1, 3)):
        said = []
        for _ in range(2):
            target = WideTarget(n_vocab=6, n_ctx=100, seed=5)
            engine = Engine(target, MtpDrafting(RoughDrafter(target)), FixedDepth(depth))
            events = engine.generate(Request([1, 2], sampling, 60, accept=rule))
            said.append([e.token for e in events if isinstance(e, Token)])
        assert said[0] == said[1]

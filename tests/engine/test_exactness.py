"""Rejection sampling and block verification emit the target's distribution, exactly.

Enumeration: over toy vocabularies every draft, every acceptance and every residual is weighted in
rational arithmetic with the very formulas the engine uses; the law of the emitted text must equal
the target's to the last digit. Chi-square: the engine itself, with filters, penalties, the learned
proposal and certain drafts among drawn ones, emits what the target alone would. Planted faults show
that either would notice.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from gemmtp.engine import proposal, rejection
from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import MtpDrafting
from gemmtp.engine.engine import Engine, Request, Token
from gemmtp.engine.processors import Processor
from gemmtp.engine.rejection import block_steps, overlap
from gemmtp.engine.sampling import MOST_TEMPERATURE, Distribution, SamplingParameters
from gemmtp.engine.verify import Rule
from tests.support import faults
from tests.support.law import (
    FILTERED,
    Choosy,
    Mixed,
    RoughDrafter,
    Source,
    Text,
    WideTarget,
    counted,
    deviations,
    processors,
)
from tests.support.law import law as law_of_target

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
        if len(draft) == depth or (stop_early and max(q(draft).p) < Fraction(1, 2)):
            yield draft, probability
            return
        here = q(draft)
        for token, share in zip(here.ids, here.p, strict=True):
            yield from grow((*draft, int(token)), probability * share)

    yield from grow((), Fraction(1))


def sharpened(q: Model) -> Model:
    """The proposal at half its temperature."""

    def law(text: Text) -> Distribution:
        here = q(text)
        squares = here.p * here.p
        return Distribution(here.ids, squares / squares.sum())

    return law


def flattened(q: Model) -> Model:
    """The proposal at a temperature so high that all of its tokens are alike."""
    return lambda text: fractions(list(q(text).ids), [1] * len(q(text).ids))


def best(q: Model) -> Model:
    """The proposal at temperature 0."""
    return lambda text: fractions([int(q(text).ids[q(text).p.argmax()])], [1])


def looked_up(q: Model) -> Model:
    """A certain token that has nothing to do with any distribution, as prompt lookup gives it."""
    return lambda text: fractions([(3 * sum(text) + 2 * len(text)) % 3], [1])


def either(q: Model) -> Model:
    """Lookup after some texts, the drafter after others: the text decides, before any draw."""
    return lambda text: (looked_up if sum(text) % 2 else sharpened)(q)(text)


PROPOSALS = {
    "as the drafter is": lambda q: q,
    "sharpened": sharpened,
    "flattened": flattened,
    "its best token": best,
    "prompt lookup": looked_up,
    "either": either,
}


def compared(p: Model, q: Model, draft: Text) -> Law:
    """What sample-and-compare emits for a draft."""
    law: Law = defaultdict(Fraction)
    going = Fraction(1)
    for i in range(len(draft) + 1):
        here = p(draft[:i])
        for token, share in zip(here.ids, here.p, strict=True):
            if draft[i : i + 1] != (int(token),):
                law[*draft[:i], int(token)] += going * share
        if i < len(draft):
            going *= here.of(draft[i])
    return law


def rejected(p: Model, q: Model, draft: Text) -> Law:
    """What rejection sampling emits for a draft."""
    law: Law = defaultdict(Fraction)
    going = Fraction(1)
    for i, token in enumerate(draft):
        here, proposed = p(draft[:i]), q(draft[:i])
        keep = min(Fraction(1), here.of(token) / proposed.of(token))
        if keep < 1:
            rest = rejection.residual(here, proposed)
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
        last = ps[kept] if kept == len(draft) else rejection.residual(ps[kept], qs[kept], weight)
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


def total_law(
    emit: Callable[[Model, Model, Text], Law], p: Model, q: Model, depth: int, stop_early: bool
) -> Law:
    """What is emitted over all drafts, and then by the target alone."""
    law: Law = defaultdict(Fraction)
    for draft, probability in drafts(q, depth, stop_early):
        for text, share in emit(p, q, draft).items():
            law[text] += probability * share
    return completed(law, p, depth + 1)


def variation(a: Law, b: Law) -> Fraction:
    """The total variation between two laws."""
    none = Fraction(0)
    return sum((abs(a.get(t, none) - b.get(t, none)) for t in {*a, *b}), none) / 2


@pytest.mark.parametrize("emit", [compared, rejected, blocked])
@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("stop_early", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_emitted_law_is_the_targets(
    emit: Callable[[Model, Model, Text], Law],
    proposal: str,
    holes: bool,
    stop_early: bool,
    depth: int,
) -> None:
    for seed in range(2):
        p, q = model(seed, 3, holes), PROPOSALS[proposal](model(seed + 100, 3, holes))
        target = completed({(): Fraction(1)}, p, depth + 1)
        assert variation(total_law(emit, p, q, depth, stop_early), target) == 0


def test_a_drawn_token_that_is_dropped_would_be_noticed() -> None:
    """The planted fault of looking at a drawn token before deciding whether to keep the draft."""

    def dropping(emit: Callable[[Model, Model, Text], Law]) -> Callable[[Model, Model, Text], Law]:
        def dropped(p: Model, q: Model, draft: Text) -> Law:
            unlikely = q(draft[:-1]).of(draft[-1]) < Fraction(1, 3)
            return emit(p, q, draft[:-1] if unlikely else draft)

        return dropped

    for emit in (rejected, blocked):
        found = []
        for seed in range(4):
            p, q = model(seed, 3, False), model(seed + 100, 3, False)
            target = completed({(): Fraction(1)}, p, 3)
            found.append(variation(total_law(dropping(emit), p, q, 2, False), target))
        assert max(found) > Fraction(1, 20)


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
    monkeypatch.setattr(rejection, "excess", faults.by_index)
    found = []
    for seed in range(4):
        p, q = model(seed, 3, True), model(seed + 100, 3, True)
        target = completed({(): Fraction(1)}, p, 2)
        found.append(variation(total_law(rejected, p, q, 1, False), target))
    assert max(found) > Fraction(1, 20)


UNFILTERED = SamplingParameters(temperature=1.0)
SAMPLES, BOUND = 4000, 6.0
"""Texts a case (``python -m tests.perf.exactness`` counts 100,000), and standard deviations."""


@pytest.fixture(autouse=True)
def same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds that are drawn once and for all, so that chance cannot fail a test one day."""
    draws = random.Random(7)
    monkeypatch.setattr("gemmtp.engine.engine.fresh_seed", lambda: draws.getrandbits(63))


@pytest.mark.parametrize(
    ("rule", "source", "sampling", "processing"),
    [
        (None, MtpDrafting, FILTERED, processors()),
        ("compare", Mixed, FILTERED, processors()),
        ("reject", Mixed, FILTERED, processors()),
        ("block", Mixed, FILTERED, processors()),
        ("block", MtpDrafting, UNFILTERED, ()),
    ],
)
def test_the_engine_emits_the_targets_distribution(
    rule: Rule | None,
    source: Source,
    sampling: SamplingParameters,
    processing: tuple[Processor, ...],
) -> None:
    counts = counted(SAMPLES, rule, sampling, source=source, processing=processing)
    assert deviations(counts, law_of_target(sampling, processing)) < BOUND


@pytest.mark.parametrize("rule", ["compare", "reject", "block"])
def test_an_end_that_is_drafted_changes_no_distribution(rule: Rule) -> None:
    ends = frozenset({4})
    counts = counted(
        SAMPLES, rule, FILTERED, source=Mixed, processing=processors(), stop_tokens=ends
    )
    expected = law_of_target(FILTERED, processors(), ends)
    assert deviations(counts, expected) < BOUND
    assert 0.1 < sum(p for text, p in expected.items() if text[-1] == 4) < 0.9


@pytest.mark.parametrize("rule", ["reject", "block"])
def test_a_sure_token_that_is_proposed_undrawn_changes_no_distribution(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row counts as sure from half a logit on, which some are and others not.
    monkeypatch.setattr(proposal, "SURE", 4 * math.exp(-0.5 / 2.5))
    counts = counted(SAMPLES, rule, FILTERED, depth=Choosy(3), processing=processors())
    assert deviations(counts, law_of_target(FILTERED, processors())) < BOUND


def test_a_sure_token_is_the_only_one_that_could_be_drawn() -> None:
    sharpness = proposal.Sharpness(SamplingParameters(1.0, top_k=64, top_p=0.95))
    logits = np.linspace(0, -1, 300, dtype=np.float32)
    logits[7] = sharpness.sure_margin
    assert 8 < sharpness.sure_margin < 10
    for near in (None, sharpness.near(logits)):
        assert sharpness.shaped(logits, max(proposal.FACTORS), near).ids.tolist() == [7]
    open_ended = proposal.Sharpness(SamplingParameters(1.0))
    assert open_ended.sure_margin == math.inf


@pytest.mark.parametrize("rule", ["compare", "reject", "block"])
def test_a_token_left_out_for_the_drafters_row_changes_no_distribution(rule: Rule) -> None:
    depth = Choosy(3)
    counts = counted(SAMPLES, rule, FILTERED, depth=depth, processing=processors())
    assert deviations(counts, law_of_target(FILTERED, processors())) < BOUND
    assert 0.2 < depth.taken / depth.looked < 0.8


@pytest.mark.parametrize(
    ("fault", "samples"), list(zip(faults.PLANTED, (1000, 1000, SAMPLES), strict=True))
)
def test_planted_faults_would_be_noticed(
    fault: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, plant = faults.PLANTED[fault]
    source = plant(monkeypatch)
    counts = counted(samples, rule, FILTERED, source=source, processing=processors())
    assert deviations(counts, law_of_target(FILTERED, processors())) > BOUND


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


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 99.0, MOST_TEMPERATURE])
@pytest.mark.parametrize("top_k", [0, 3])
def test_every_temperature_that_may_be_asked_for_draws(temperature: float, top_k: int) -> None:
    target = WideTarget(n_vocab=6, n_ctx=100, seed=5)
    engine = Engine(target, MtpDrafting(RoughDrafter(target)), FixedDepth(3))
    request = Request([1, 2], SamplingParameters(temperature, top_k), 60)
    said = [e.token for e in engine.generate(request) if isinstance(e, Token)]
    greedy = [e.token for e in engine.generate(Request([1, 2], max_tokens=60)) if type(e) is Token]
    assert len(said) == 60
    assert (said == greedy) == (temperature < 1)


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


@pytest.mark.parametrize("rule", ["reject", "block"])
def test_a_seeds_text_does_not_follow_the_clock(rule: Rule) -> None:
    sampling = SamplingParameters(temperature=1.0, seed=9)
    said, choices = [], []
    for depth in (FixedDepth(3), AdaptiveDepth(start=2)):
        target = WideTarget(n_vocab=6, n_ctx=200, seed=5)
        engine = Engine(target, MtpDrafting(RoughDrafter(target)), depth)
        *events, end = engine.generate(Request([1, 2], sampling, 150, accept=rule))
        said.append([e.token for e in events if isinstance(e, Token)])
        choices.append(end.statistics.choice)  # type: ignore[union-attr]
    assert said[0] == said[1]
    assert choices == ["3, as asked", "3, so that the seed repeats the text"]

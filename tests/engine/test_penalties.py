"""Repeat, presence, frequency and DRY: their definitions, and that a draft does not show."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtp.engine.backend import FakeDrafter, FakeTarget, Floats
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import Draft, MtpDrafting, NoDrafting
from gemmtp.engine.engine import Engine, Request, Token
from gemmtp.engine.penalties import PenaltyParameters
from gemmtp.engine.processors import Processor
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.verify import Ends, Rows, SampleAndCompare
from gemmtp.errors import UsageError
from tests.support.interruption import interrupted_at

VOCABULARY = 12
BREAKERS = frozenset({0, 5})
EXEMPT = frozenset({7})


def by_definition(
    p: PenaltyParameters, logits: Floats, prompt: list[int], answer: list[int]
) -> Floats:
    """The penalties read off the whole text, as slowly as their definitions are written."""
    out = logits.copy()
    text = [token for token in [*prompt, *answer] if token >= 0]
    if p.repeat_last_n:
        recent = text[-p.repeat_last_n :] if p.repeat_last_n > 0 else text
        for token in set(recent) - EXEMPT:
            repeat = np.float32(p.repeat)
            out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
    for token, n in Counter(answer).items():
        out[token] -= np.float32(p.presence) + np.float32(p.frequency) * np.float32(n)
    for token, n in repetitions(p, text).items():
        out[token] -= np.float32(p.dry_multiplier * p.dry_base ** (n - p.dry_allowed_length))
    return out


def repetitions(p: PenaltyParameters, text: list[int]) -> dict[int, int]:
    """p-e-w's loop: how long a repetition each token would continue."""
    if not p.dry_multiplier or not p.dry_last_n:
        return {}
    text = text[-p.dry_last_n :] if p.dry_last_n > 0 else text
    found: dict[int, int] = {}
    if not text or text[-1] in BREAKERS:
        return found
    for at in range(len(text) - 1):
        if text[at] != text[-1] or text[at + 1] in BREAKERS:
            continue
        n = 1
        while n <= at and text[at - n] == text[-1 - n] and text[at - n] not in BREAKERS:
            n += 1
        if n >= p.dry_allowed_length:
            found[text[at + 1]] = max(found.get(text[at + 1], 0), n)
    return found


parameters = st.builds(
    PenaltyParameters,
    repeat=st.sampled_from([0.8, 1.0, 1.3]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 5]),
    presence=st.sampled_from([0.0, 0.4]),
    frequency=st.sampled_from([-0.2, 0.0, 0.3]),
    dry_multiplier=st.sampled_from([0.0, 0.8]),
    dry_allowed_length=st.integers(1, 3),
    dry_last_n=st.sampled_from([-1, 0, 4, 9]),
)


@settings(max_examples=300, deadline=None)
@given(
    p=parameters,
    prompt=st.lists(st.integers(-2, 4) | st.just(7), min_size=1, max_size=30),
    steps=st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 6))),
)
def test_they_are_what_their_definitions_say_however_often_a_draft_is_taken_back(
    p: PenaltyParameters, prompt: list[int], steps: list[tuple[list[int], int]]
) -> None:
    processors = p.processors(EXEMPT, BREAKERS)
    answer: list[int] = []
    row = np.linspace(-3, 3, VOCABULARY, dtype=np.float32)
    for drafted, kept in [([], 0), *steps]:
        for token in [*drafted, None]:
            logits = row.copy()
            for processor in processors:
                processor.apply(logits, [*prompt, *answer])
            np.testing.assert_allclose(
                logits, by_definition(p, row, prompt, answer), rtol=0, atol=1e-5
            )
            if token is not None:
                answer.append(token)
                for processor in processors:
                    processor.accept(token)
        rejected = max(0, len(drafted) - kept)
        for processor in processors:
            processor.rollback(rejected)
        del answer[len(answer) - rejected :]


def test_dry_by_hand() -> None:
    # "1 2 3" was followed by 4, "2 3" by 6; the 9 is a breaker that 3 also preceded.
    (dry,) = PenaltyParameters(dry_multiplier=1.0, dry_base=2.0).processors(breakers=[9])
    logits = np.zeros(10, np.float32)
    dry.apply(logits, [1, 2, 3, 4, 8, 2, 3, 6, 2, 3, 9, 1, 2, 3])
    assert logits.tolist() == [0, 0, 0, 0, -2, 0, -1, 0, 0, 0]


def test_dry_is_bounded_where_a_text_repeats_itself_for_ever() -> None:
    (dry,) = PenaltyParameters(dry_multiplier=1.0).processors()
    logits = np.zeros(3, np.float32)
    dry.apply(logits, [1] * 2000)
    assert np.isfinite(logits).all()
    assert logits[1] < -1e38


def test_dry_takes_in_a_prompt_that_repeats_itself_in_moments() -> None:
    (dry,) = PenaltyParameters(dry_multiplier=1.0).processors()
    logits = np.zeros(3, np.float32)
    began = time.process_time()
    dry.apply(logits, [1, 2] * 4000)
    # Three seconds, were every repetition on the way looked at.
    assert time.process_time() - began < 1.0
    assert logits[1] < -1e38


def test_an_answer_that_goes_on_in_another_request_counts_from_its_beginning() -> None:
    """As in a chat whose context was full: what was said is in the prompt by then."""
    (penalty,) = PenaltyParameters(presence=0.5, frequency=0.25).processors()
    for token in (3, 3, 4):
        penalty.accept(token)
    logits = np.zeros(6, np.float32)
    penalty.apply(logits, [1, 2, 3, 3, 4])
    assert logits.tolist() == [0, 0, 0, -1.0, -0.75, 0]


def test_forbidden_tokens_stay_forbidden() -> None:
    logits = np.array([-np.inf, 1.0], np.float32)
    for processor in PenaltyParameters(repeat=1.5, dry_multiplier=1.0).processors():
        processor.apply(logits, [0, 1, 0, 1, 0, 1])
    assert logits[0] == -np.inf


def test_nothing_is_done_where_all_is_off() -> None:
    assert PenaltyParameters().processors() == ()
    assert PenaltyParameters(repeat=1.2, repeat_last_n=0).processors() == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"repeat": 0.0},
        {"repeat": 11.0},
        {"repeat_last_n": -2},
        {"presence": 2.5},
        {"frequency": -3.0},
        {"dry_multiplier": -1.0},
        {"dry_base": 0.5},
        {"dry_allowed_length": 0},
        {"dry_last_n": -5},
        {"repeat": float("nan")},
    ],
)
def test_absurd_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        PenaltyParameters(**wrong)  # type: ignore[arg-type]


ALL = PenaltyParameters(
    repeat=1.3, repeat_last_n=20, presence=0.5, frequency=0.3, dry_multiplier=0.8
)


class LoopingTarget(FakeTarget):
    """A model that likes to repeat itself, so that penalties decide much of its text."""

    def next_logits(self, history: list[int]) -> Floats:  # type: ignore[override]
        return super().next_logits(tuple(history[-1:]))


def said(
    depth: int, sampling: SamplingParameters, processors: tuple[Processor, ...], skill: float = 0.9
) -> list[int]:
    target = LoopingTarget(n_vocab=VOCABULARY, n_ctx=300)
    drafting = MtpDrafting(FakeDrafter(target, skill)) if depth else NoDrafting("plain")
    engine = Engine(target, drafting, FixedDepth(depth))
    request = Request([1, 2, 3], sampling, 200, processors=processors)
    return [e.token for e in engine.generate(request) if isinstance(e, Token)]


@pytest.mark.parametrize(
    "sampling", [SamplingParameters(), SamplingParameters(temperature=1.0, top_k=8, seed=3)]
)
def test_a_drafted_text_is_the_plain_one(sampling: SamplingParameters) -> None:
    processors = ALL.processors(breakers=BREAKERS)
    plain = said(0, sampling, processors)
    assert plain != said(0, sampling, ())
    for depth in (1, 3, 8):
        assert said(depth, sampling, processors) == plain


def test_ctrl_c_within_a_penalty_is_nothing_but_ctrl_c() -> None:
    def answered(engine: Engine) -> list[int]:
        request = Request([1, 2, 3], max_tokens=12, processors=ALL.processors())
        return [e.token for e in engine.generate(request) if isinstance(e, Token)]

    target = LoopingTarget(n_vocab=VOCABULARY, n_ctx=100)
    engine = Engine(target, MtpDrafting(FakeDrafter(target, 0.5)), FixedDepth(3))
    expected = answered(engine)
    for line in itertools.count(1, 23):
        parts = "engine/penalties", "engine/dry", "engine/ngrams"
        with suppress(KeyboardInterrupt), interrupted_at(line, *parts) as run:
            answered(engine)
        assert len(target.tokens(0)) == len(engine.text(0)) - 1
        assert answered(engine) == expected
        if run[0] < line:
            break
    assert line > 1000


def test_what_was_rejected_and_stays_counted_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = said(0, SamplingParameters(), ALL.processors())
    for processor in ALL.processors():
        monkeypatch.setattr(type(processor), "rollback", lambda self, n: None)
    assert said(3, SamplingParameters(), ALL.processors()) != plain


def test_a_penalty_blind_to_the_draft_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: within a round, every row is penalised as the first one is."""
    plain = said(0, SamplingParameters(), ALL.processors())
    accept, verify = Rows.accept, SampleAndCompare.verify

    def unseen(rows: Rows, token: int) -> None:
        rows.history.append(token)

    def late(self: SampleAndCompare, rows: Rows, draft: Draft, ends: Ends) -> list[int]:
        emitted = verify(self, rows, draft, ends)
        del rows.history[-len(emitted) :]
        for token in emitted:
            accept(rows, token)
        return emitted

    monkeypatch.setattr(Rows, "accept", unseen)
    monkeypatch.setattr(SampleAndCompare, "verify", late)
    assert said(0, SamplingParameters(), ALL.processors()) == plain
    assert said(3, SamplingParameters(), ALL.processors()) != plain

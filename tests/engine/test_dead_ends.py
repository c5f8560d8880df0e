"""Texts that lead to where no token is left, as those of a grammar and forbidden tokens may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pytest

from gemmtp.engine.backend import FakeDrafter, FakeTarget, Floats, Tokens
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import MtpDrafting, NoDrafting
from gemmtp.engine.engine import Engine, Failed, Finished, Request, Token
from gemmtp.engine.processors import LogitBias
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.verify import Rule
from gemmtp.errors import UsageError

N_VOCAB = 12
LAST_WORD = 7


class NothingBehind:
    """Lets no token through behind :data:`LAST_WORD`; complains itself where ``strict``."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        if history[-1] == LAST_WORD:
            if self._strict:
                raise UsageError("The grammar lets no token through here.")
            logits.fill(-np.inf)

    def accept(self, token: int) -> None:
        """The history says everything."""

    def rollback(self, n: int) -> None:
        """The history says everything."""

    def fork(self) -> Self:
        return self


class Misleading(FakeDrafter):
    """Drafts :data:`LAST_WORD` always."""

    def step(
        self, tokens: Tokens, hidden: Floats, positions: Tokens, slots: Tokens
    ) -> tuple[Floats, Floats]:
        logits, hidden = super().step(tokens, hidden, positions, slots)
        logits[:, LAST_WORD] += 100
        return logits, hidden


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("rule", ["compare", "reject", "block"])
def test_a_draft_that_leads_nowhere_is_no_end_of_the_answer(rule: Rule, strict: bool) -> None:
    target = FakeTarget(N_VOCAB, 100)
    engine = Engine(target, MtpDrafting(Misleading(target)), FixedDepth(3))
    # The target would hardly ever say it.
    processors = (LogitBias({LAST_WORD: -50.0}, N_VOCAB), NothingBehind(strict))
    request = Request([1], SamplingParameters(1.0), 40, accept=rule, processors=processors)
    *events, end = engine.generate(request)
    assert len([e for e in events if isinstance(e, Token)]) == 40
    assert end.statistics.drafted >= 30  # type: ignore[union-attr]
    assert LAST_WORD not in engine.text(0)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_leads_nowhere_is_said_whole_before_the_complaint(
    temperature: float, strict: bool
) -> None:
    def said(depth: int, skill: float) -> list[int]:
        target = FakeTarget(N_VOCAB, 200)
        drafting = MtpDrafting(FakeDrafter(target, skill)) if depth else NoDrafting("plain")
        engine = Engine(target, drafting, FixedDepth(depth))
        sampling = SamplingParameters(temperature, seed=5)
        with pytest.raises(UsageError):
            list(engine.generate(Request([1], sampling, processors=(nothing,))))
        # What was given out.
        return engine.text(0)[1:]

    nothing = NothingBehind(strict)
    plain = said(0, 0.0)
    assert plain[-1] == LAST_WORD
    assert len(plain) > 10
    for depth in (1, 3, 8):
        for skill in (0.0, 0.7, 1.0):
            assert said(depth, skill) == plain


def test_a_drafter_of_no_numbers_costs_no_more_than_time(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget(N_VOCAB, 100)
    drafter = FakeDrafter(target)
    step = drafter.step

    def broken(*arguments: Tokens) -> tuple[Floats, Floats]:
        logits, hidden = step(*arguments)  # type: ignore[arg-type]
        return np.full_like(logits, np.nan), hidden

    monkeypatch.setattr(drafter, "step", broken)
    engine = Engine(target, MtpDrafting(drafter), FixedDepth(3))
    *events, end = engine.generate(Request([1], SamplingParameters(1.0), 20))
    assert len([e for e in events if isinstance(e, Token)]) == 20
    assert end.statistics.drafted == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("depth", [0, 3])
def test_one_slots_dead_end_is_not_its_neighbours(depth: int, strict: bool) -> None:
    def made() -> Engine:
        target = FakeTarget(N_VOCAB, 200, n_slots=3)
        drafting = MtpDrafting(FakeDrafter(target, 0.8)) if depth else NoDrafting("plain")
        return Engine(target, drafting, FixedDepth(depth))

    prompts, alone = ([1], [2], [3, 4]), []
    for prompt in prompts:
        events = made().generate(Request(prompt, max_tokens=60))
        alone.append([event.token for event in events if isinstance(event, Token)])
    engine, said = made(), [[], [], []]  # type: ignore[var-annotated]
    ends: dict[int, Finished | Failed] = {}
    for prompt in prompts:
        processors = (NothingBehind(strict),) if prompt == [2] else ()
        engine.submit(Request(prompt, max_tokens=60, processors=processors))
    while events := engine.step():
        for event in events:
            if isinstance(event, Token):
                said[event.slot].append(event.token)
            elif isinstance(event, Finished | Failed):
                ends[event.slot] = event
    failed = ends[1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, UsageError)
    assert failed.statistics.generated == len(said[1]) == alone[1].index(LAST_WORD) + 1
    assert said == [alone[0], alone[1][: len(said[1])], alone[2]]
    assert engine.text(1) == [2, *said[1]]
    # The slot is as good as before.
    again = engine.generate(Request([2], max_tokens=60))
    assert [event.token for event in again if isinstance(event, Token)] == alone[1]

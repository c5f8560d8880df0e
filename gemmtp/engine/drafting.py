"""Where drafts come from: the MTP drafter, or nowhere and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gemmtp.engine.backend import ContextFullError, Drafter, Floats
from gemmtp.engine.processors import Processor


@dataclass(slots=True)
class Want:
    """A slot that asks for a draft.

    ``token`` is the newest token, at ``position``, not in the KV cache yet; ``hidden`` float32[d]
    is the target's state one position earlier; ``history`` ends with ``token``.
    """

    slot: int
    token: int
    position: int
    hidden: Floats
    depth: int
    history: list[int]
    processors: Sequence[Processor]
    stop_tokens: frozenset[int]


class DraftSource(Protocol):
    """Proposes tokens. ``reason`` says why it never does, and is None where it drafts."""

    reason: str | None

    def draft(self, wants: Sequence[Want]) -> list[list[int]]:
        """At most ``depth`` tokens for every want, in order."""

    @property
    def native_seconds(self) -> float:
        """Seconds spent in the drafter's forward passes so far."""


class NoDrafting:
    """Plain decoding, with the reason that is shown on the start line and in every statistic."""

    native_seconds = 0.0

    def __init__(self, reason: str) -> None:
        self.reason: str | None = reason

    def draft(self, wants: Sequence[Want]) -> list[list[int]]:
        return [[] for _ in wants]


class MtpDrafting:
    """Greedy drafts of a multi-token-prediction head, all slots in one pass a draft position.

    The head is autoregressive only through (token, hidden): every step of a draft stands at the
    newest token's position. A greedy draft is the best proposal for sample-and-compare, whose
    acceptance is the target's probability of the drafted token.
    """

    reason: str | None = None

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def native_seconds(self) -> float:
        return self._drafter.native_seconds

    def draft(self, wants: Sequence[Want]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in wants]
        active = [i for i, want in enumerate(wants) if want.depth > 0]
        if not active:
            return drafts
        try:
            self._steps(wants, drafts, active)
        finally:
            for want, draft in zip(wants, drafts, strict=True):
                _withdraw(want, draft)
        return drafts

    def _steps(self, wants: Sequence[Want], drafts: Sequence[list[int]], active: list[int]) -> None:
        hidden = np.stack([wants[i].hidden for i in active])
        newest = [wants[i].token for i in active]
        while active:
            try:
                logits, hidden = self._drafter.step(
                    np.array(newest, np.int32),
                    hidden,
                    np.array([wants[i].position for i in active], np.int32),
                    np.array([wants[i].slot for i in active], np.int32),
                )
            except ContextFullError:
                return
            for row, i in enumerate(active):
                drafts[i].append(_propose(logits[row], wants[i]))
            going = [row for row, i in enumerate(active) if not _finished(wants[i], drafts[i])]
            if len(going) < len(active):
                hidden = hidden[going]
                active = [active[row] for row in going]
            newest = [drafts[i][-1] for i in active]


def _propose(logits: Floats, want: Want) -> int:
    """The drafter's most likely token once the processors, which follow it, had their say."""
    if not want.processors:
        return int(logits.argmax())
    for processor in want.processors:
        processor.apply(logits, want.history)
    token = int(logits.argmax())
    want.history.append(token)
    for processor in want.processors:
        processor.accept(token)
    return token


def _withdraw(want: Want, draft: Sequence[int]) -> None:
    """Take the draft out of the history again: nothing of it is verified yet."""
    if want.processors and draft:
        del want.history[-len(draft) :]
        for processor in want.processors:
            processor.rollback(len(draft))


def _finished(want: Want, draft: Sequence[int]) -> bool:
    return len(draft) >= want.depth or draft[-1] in want.stop_tokens

"""Where drafts come from: the MTP drafter, or nowhere and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from gemmtp.engine.backend import ContextFullError, Drafter, Floats
from gemmtp.engine.depth import DepthChooser, Round
from gemmtp.engine.processors import Processor
from gemmtp.engine.proposal import Proposal
from gemmtp.engine.sampling import Distribution
from gemmtp.errors import UsageError

Source = Literal["mtp", "lookup"]
"""Who proposed a draft: the multi-token-prediction head, or the text itself."""
MTP: Source = "mtp"


@dataclass(slots=True)
class Want:
    """A slot that asks for a draft.

    ``token`` is the newest token, at ``position``, not in the KV cache yet; ``hidden`` float32[d]
    is the target's state one position earlier; ``history`` ends with ``token``. ``proposal`` draws
    the drafted tokens; without one they are the drafter's best. ``stops``, if any, is asked before
    every further pass whether to go on, and behind it whether to take the token; ``depth`` bounds
    both. ``most`` bounds drafts that no drafter is asked for.
    """

    slot: int
    token: int
    position: int
    hidden: Floats
    depth: int
    history: list[int]
    processors: Sequence[Processor]
    stop_tokens: frozenset[int]
    proposal: Proposal | None = None
    stops: DepthChooser | None = None
    most: int = 0


@dataclass(slots=True)
class Draft:
    """Drafted tokens, and the distributions they were drawn from where they were drawn.

    ``margins`` are, by token, by how much the drafter's best logit surpassed its second: it is
    sure of itself by so much. The last may be that of a token that was not taken. They are known
    where somebody asked for them. ``passes`` is how often the drafter ran.
    """

    tokens: list[int] = field(default_factory=list)
    q: list[Distribution] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    passes: int = 0
    source: Source = MTP


class DraftSource(Protocol):
    """Proposes tokens.

    ``reason`` says why it never does, and is None where it drafts; ``no_drafter`` why no drafter is
    in use, and is None where one is.
    """

    reason: str | None
    no_drafter: str | None

    def begin(self, slot: int) -> None:
        """A new text begins in ``slot``; until the next call it only grows."""

    def draft(self, wants: Sequence[Want]) -> list[Draft]:
        """At most ``depth`` tokens for every want, in order; up to ``most`` without a drafter."""

    def observe(self, round: Round) -> None:
        """What a round has cost, this source's draft and its verification."""

    @property
    def native_seconds(self) -> float:
        """Seconds spent in the drafter's forward passes so far."""


def described(source: DraftSource, depth: str) -> str:
    """Whether and how drafts are made, in a few words; ``depth`` describes the drafter's."""
    if source.reason is not None:
        return f"drafting off: {source.reason}"
    if source.no_drafter is not None:
        return f"drafting by prompt lookup: {source.no_drafter}"
    return f"drafting on, {depth}"


class _Forgetful:
    """The part of a source that remembers no text and looks at no clock."""

    def begin(self, slot: int) -> None:
        """All texts are alike."""

    def observe(self, round: Round) -> None:
        """The clock does not matter here."""


class NoDrafting(_Forgetful):
    """Plain decoding, with the reason that is shown on the start line and in every statistic."""

    native_seconds = 0.0

    def __init__(self, reason: str) -> None:
        self.reason: str | None = reason
        self.no_drafter: str | None = reason

    def draft(self, wants: Sequence[Want]) -> list[Draft]:
        return [Draft() for _ in wants]


class MtpDrafting(_Forgetful):
    """Drafts of a multi-token-prediction head, all slots in one pass a draft position.

    The head is autoregressive only through (token, hidden): every step of a draft stands at the
    newest token's position. Its best token is the best draft for sample-and-compare, whose
    acceptance is the target's probability of that token; rejection sampling wants drawn ones.
    """

    reason: str | None = None
    no_drafter: str | None = None

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def native_seconds(self) -> float:
        return self._drafter.native_seconds

    def draft(self, wants: Sequence[Want]) -> list[Draft]:
        drafts = [Draft() for _ in wants]
        active = [i for i, want in enumerate(wants) if want.depth > 0]
        if not active:
            return drafts
        lengths = [len(want.history) for want in wants]
        try:
            self._steps(wants, drafts, active)
        finally:
            # Nothing of a draft is verified yet.
            for want, length in zip(wants, lengths, strict=True):
                del want.history[length:]
        # Ctrl-C may have come within a processor, which cannot go back then, and is done with.
        for want, draft in zip(wants, drafts, strict=True):
            for processor in want.processors:
                processor.rollback(len(draft.tokens))
        return drafts

    def _steps(self, wants: Sequence[Want], drafts: Sequence[Draft], active: list[int]) -> None:
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
            going = [
                row for row, i in enumerate(active) if _propose(logits[row], wants[i], drafts[i])
            ]
            if len(going) < len(active):
                hidden = hidden[going]
                active = [active[row] for row in going]
            newest = [drafts[i].tokens[-1] for i in active]


def _propose(logits: Floats, want: Want, draft: Draft) -> bool:
    """Draft one more token where that pays, and say whether another one is wanted.

    The processors, which follow the draft, have had their say by then.
    """
    draft.passes += 1
    try:
        for processor in want.processors:
            processor.apply(logits, want.history)
    except UsageError:
        # A grammar lets nothing through behind this draft, which the target may never say.
        return False
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):
        return False
    if want.stops is not None:
        draft.margins.append(_margin(logits, best))
        # The target reads no row for an end, which therefore costs nothing.
        ends = want.proposal is None and best in want.stop_tokens
        if not ends and not want.stops.takes(want.slot, draft.margins):
            return False
    if want.proposal is None:
        token = best
    else:
        position = want.position + 1 + len(draft.tokens)
        margin = draft.margins[-1] if draft.margins else None
        token, q = want.proposal.draw(logits, position, best, margin)
        draft.q.append(q)
    draft.tokens.append(token)
    if want.processors:
        want.history.append(token)
        for processor in want.processors:
            processor.accept(token)
    if len(draft.tokens) >= want.depth or token in want.stop_tokens:
        return False
    return want.stops is None or want.stops.goes_on(want.slot, draft.margins)


def _margin(logits: Floats, best: int) -> float:
    """How far the second logit lies below that of ``best``."""
    highest = logits[best]
    logits[best] = -np.inf
    margin = float(highest - logits.max())
    logits[best] = highest
    return margin

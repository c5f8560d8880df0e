"""How many tokens to draft next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gemmtp.errors import UsageError

MAX_DEPTH = 16
"""The deepest draft the loop makes; public runs of Gemma 4 gain nothing past 8."""

HEURISTIC_START = 3
"""Where the heuristic begins: the depth that llama.cpp's MTP drafting uses throughout."""

FOR_THE_SEED = "so that the seed repeats the text"
"""Why a depth is fixed that was not asked for."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a round cost: ``steps`` drafter passes, then one target pass over ``rows`` rows.

    ``slots`` answers took part and ``context`` tokens lay in their caches together. Seconds are
    wall time, our own Python included.
    """

    slots: int
    rows: int
    steps: int
    draft_seconds: float
    verify_seconds: float
    context: int = 0


class DepthChooser(Protocol):
    """Says how deep drafts go and learns from what came of them.

    A slot is known to it from :meth:`join` on. A draft may always be shorter than what was asked
    for, and never depends on tokens that were not drafted yet.
    """

    @property
    def most(self) -> int:
        """The deepest draft it can ask for."""

    @property
    def watches(self) -> bool:
        """Whether :meth:`goes_on` and :meth:`takes` are to be asked."""

    def join(self, slot: int, rule: str) -> None:
        """A new answer begins in ``slot``; its drafts are verified by ``rule``."""

    def plan(self, slots: Sequence[int], context: int) -> list[int]:
        """The greatest depth of the next draft of each slot; 0 decodes plainly."""

    def goes_on(self, slot: int, margins: Sequence[float]) -> bool:
        """Whether to draft another token behind these.

        ``margins`` are, for every token drafted so far, by how much the drafter's best logit
        surpassed its second.
        """

    def takes(self, slot: int, margins: Sequence[float]) -> bool:
        """Whether the token whose margin is the last one is to be drawn and verified."""

    def learn(self, slot: int, drafted: int, accepted: int, margins: Sequence[float]) -> None:
        """``accepted`` of the ``drafted`` tokens were kept; ``margins`` of all looked at."""

    def observe(self, round: Round) -> None:
        """A round's cost."""

    def describe(self) -> str:
        """A few words for the start line."""

    def explain(self) -> str:
        """What it would do now and why, for the statistics."""


def checked_depth(depth: int) -> int:
    """``depth``; raises :class:`~gemmtp.errors.UsageError` outside 0 to :data:`MAX_DEPTH`."""
    if not 0 <= depth <= MAX_DEPTH:
        raise UsageError(
            f"A draft depth lies between 0 and {MAX_DEPTH}, not {depth}.",
            "0 decodes plainly, and auto measures what pays.",
        )
    return depth


class _Unclocked:
    """The part of a chooser that looks neither at the clock nor at the drafter."""

    watches = False

    def join(self, slot: int, rule: str) -> None:
        """All answers are alike."""

    def goes_on(self, slot: int, margins: Sequence[float]) -> bool:
        return True

    def takes(self, slot: int, margins: Sequence[float]) -> bool:
        return True

    def observe(self, round: Round) -> None:
        """The clock does not matter here."""


class FixedDepth(_Unclocked):
    """Always the same depth; ``because`` says why, behind a comma."""

    def __init__(self, depth: int, because: str = "as asked") -> None:
        self._depth, self._because = checked_depth(depth), because

    @property
    def most(self) -> int:
        return self._depth

    def plan(self, slots: Sequence[int], context: int) -> list[int]:
        return [self._depth] * len(slots)

    def learn(self, slot: int, drafted: int, accepted: int, margins: Sequence[float]) -> None:
        """A fixed depth does not learn."""

    def describe(self) -> str:
        return f"{self._depth}"

    def explain(self) -> str:
        return f"{self._depth}, {self._because}"


def unclocked(depth: DepthChooser) -> DepthChooser:
    """``depth``, or a fixed one in place of one that watches what comes and follows the clock."""
    if not depth.watches:
        return depth
    return FixedDepth(min(HEURISTIC_START, depth.most), FOR_THE_SEED)


class HeuristicDepth(_Unclocked):
    """Two more after a draft that was kept whole, one less otherwise, never below one.

    This is the ``heuristic`` schedule of assisted generation in transformers, for every slot.
    """

    def __init__(self, start: int = HEURISTIC_START, most: int = MAX_DEPTH) -> None:
        self._most = checked_depth(most)
        self._start = min(max(1, checked_depth(start)), self._most)
        self._depths: dict[int, int] = {}

    @property
    def most(self) -> int:
        return self._most

    def plan(self, slots: Sequence[int], context: int) -> list[int]:
        return [self._depths.get(slot, self._start) for slot in slots]

    def learn(self, slot: int, drafted: int, accepted: int, margins: Sequence[float]) -> None:
        if not drafted:
            return
        step = 2 if accepted == drafted else -1
        depth = self._depths.get(slot, self._start) + step
        self._depths[slot] = min(max(depth, 1), self._most)

    def describe(self) -> str:
        return f"heuristic, up to {self._most}"

    def explain(self) -> str:
        depths = sorted(set(self._depths.values())) or [self._start]
        return f"{', '.join(map(str, depths))} by what was kept last"

"""Two sources of drafts in one: each slot and round takes the one that is worth more.

A draft by lookup costs nothing to make and may be long; the drafter's costs a pass a token and is
good everywhere. What each brings is known from the rounds before: how often matches of that length
were right (:mod:`gemmtp.engine.lookup`), what a target pass over so many rows takes
(:mod:`gemmtp.engine.costs`), and how many tokens a second rounds without lookup made. The choice is
made before anything is drawn, so it changes no distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemmtp.engine.costs import OUTLIER, Costs, CostsByContext
from gemmtp.engine.depth import Round
from gemmtp.engine.drafting import Draft, DraftSource, Want
from gemmtp.engine.lookup import LookupText, Match, MatchAcceptance
from gemmtp.engine.sampling import Distribution

MOST = 15
"""The longest draft by lookup; 16 rows are what a target pass takes in well on all machines."""

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15)
"""Lengths that are considered: fewer sizes of passes are measured sooner."""

LONG_MATCH = 8
"""From here on a text is being copied, and the drafter is better than elsewhere too."""

SHARE = 0.08
"""How much of what is known of rounds without lookup the newest one makes up."""

KNOWN = 3
"""Rounds after which they count as known."""

FIRST_PROBE, LAST_PROBE = 8, 256
"""Rounds by lookup until the drafter is tried again; doubled every time."""


@dataclass(slots=True)
class _Pace:
    """Averages of rounds without a draft by lookup."""

    rounds: int = 0
    tokens: float = 0.0
    rows: float = 0.0
    draft: float = 0.0
    seconds: float = 0.0
    since: int = 0
    probe_after: int = FIRST_PROBE
    warm: bool = False

    def add(self, round: Round, tokens: int) -> None:
        self.since = 0
        if not self.warm:
            # The first pass of a kind may build graphs and touch weights for the first time.
            self.warm = True
            return
        self.rounds += 1
        share = max(SHARE, 1 / self.rounds)
        self.tokens += share * (tokens - self.tokens)
        self.rows += share * (round.rows - self.rows)
        self.draft += share * (round.draft_seconds - self.draft)
        seconds = round.draft_seconds + round.verify_seconds
        if self.rounds > KNOWN:
            # As the costs that it is compared with, it does not believe that a stall is the rule.
            seconds = min(seconds, OUTLIER * self.seconds)
        self.seconds += share * (seconds - self.seconds)


@dataclass(slots=True)
class _Proposed:
    """What lookup proposed to a slot, whether or not it was drafted."""

    match: Match
    tokens: list[int]


@dataclass(slots=True)
class _Last:
    """The round that was drafted last."""

    copying: bool = False
    looked_up: bool = False
    round: Round | None = None


class CombinedDrafting:
    """Drafts by lookup where they are expected to pay more, else those of ``other``.

    ``other`` may be :class:`~gemmtp.engine.drafting.NoDrafting`: lookup then works alone, and
    drafts only where that beats plain decoding.
    """

    reason: str | None = None

    def __init__(self, other: DraftSource) -> None:
        self._other = other
        self.no_drafter = other.no_drafter
        self._texts: dict[int, LookupText] = {}
        self._proposed: dict[int, _Proposed] = {}
        self._kept = MatchAcceptance()
        self._costs = CostsByContext()
        self._paces: dict[tuple[int, bool], _Pace] = {}
        self._last = _Last()

    @property
    def native_seconds(self) -> float:
        return self._other.native_seconds

    def begin(self, slot: int) -> None:
        self._other.begin(slot)
        self._texts.setdefault(slot, LookupText()).begin()
        self._proposed.pop(slot, None)

    def observe(self, round: Round) -> None:
        self._other.observe(round)
        self._last.round = round
        self._costs.at(round.context).add(
            round.rows, round.slots, round.steps, round.draft_seconds, round.verify_seconds
        )

    def draft(self, wants: Sequence[Want]) -> list[Draft]:
        self._learn(wants)
        self._propose(wants)
        copying = any(p.match.length >= LONG_MATCH for p in self._proposed.values())
        lengths = self._lengths(wants, copying)
        self._last = _Last(copying, any(lengths))
        drafts = self._other.draft(
            [
                replace(want, depth=0) if length else want
                for want, length in zip(wants, lengths, strict=True)
            ]
        )
        return [
            self._looked_up(want, length) if length else draft
            for want, length, draft in zip(wants, lengths, drafts, strict=True)
        ]

    def _learn(self, wants: Sequence[Want]) -> None:
        """See what the last round's texts went on with."""
        said: list[int] = []
        for want in wants:
            new = self._texts[want.slot].follow(want.history)
            proposed = self._proposed.pop(want.slot, None)
            if new is not None:
                said.append(len(new))
                if proposed is not None:
                    self._kept.learn(proposed.match.length, proposed.tokens, new)
        last = self._last
        if last.round is None or len(said) < last.round.slots or len(said) < len(wants):
            return
        pace = self._pace(len(wants), last.copying)
        if last.looked_up:
            pace.since += 1
        else:
            pace.add(last.round, sum(said))

    def _propose(self, wants: Sequence[Want]) -> None:
        # Also what was proposed to slots that have ended.
        self._proposed.clear()
        for want in wants:
            text = self._texts[want.slot]
            match = text.longest() if want.most else None
            if match is not None:
                tokens = text.continuation(match.at, min(want.most, MOST))
                if tokens:
                    self._proposed[want.slot] = _Proposed(match, tokens)

    def _lengths(self, wants: Sequence[Want], copying: bool) -> list[int]:
        """How many tokens of what was proposed each slot drafts."""
        slots = len(wants)
        pace = self._pace(slots, copying)
        if pace.rounds < KNOWN and self.no_drafter is not None:
            # Without a drafter a token a round is all there is, whatever the text is like.
            pace = self._pace(slots, not copying)
        if pace.rounds < KNOWN or not self._proposed:
            return [0] * slots
        if pace.since >= pace.probe_after:
            pace.since, pace.probe_after = 0, min(2 * pace.probe_after, LAST_PROBE)
            return [0] * slots
        costs = self._costs.at(sum(want.position for want in wants))
        if costs.empty:
            return [0] * slots
        return [self._length(want, pace, slots, costs) for want in wants]

    def _pace(self, slots: int, copying: bool) -> _Pace:
        return self._paces.setdefault((slots, copying), _Pace())

    def _length(self, want: Want, pace: _Pace, slots: int, costs: Costs) -> int:
        """The length with the most tokens a second, 0 where the other source makes more.

        Beside others, the slot's neighbours are taken to go on without lookup.
        """
        proposed = self._proposed.get(want.slot)
        if proposed is None:
            return 0
        beside = (slots - 1) / slots
        expected = self._kept.tokens(proposed.match.length, len(proposed.tokens))
        best, best_rate = 0, pace.tokens / pace.seconds
        for length in LENGTHS:
            if length > len(proposed.tokens):
                break
            seconds = costs.verify(round(beside * pace.rows) + length + 1)
            if slots > 1:
                seconds += pace.draft
            rate = (beside * pace.tokens + expected[length]) / seconds
            if rate > best_rate:
                best, best_rate = length, rate
        return best

    def _looked_up(self, want: Want, length: int) -> Draft:
        tokens = self._proposed[want.slot].tokens[:length]
        ends = (i + 1 for i, token in enumerate(tokens) if token in want.stop_tokens)
        tokens = tokens[: next(ends, length)]
        drawn = want.proposal is not None
        q = [Distribution.certain(token) for token in tokens] if drawn else []
        return Draft(tokens, q, source="lookup")

"""A draft length that measures: the depth with the most expected tokens a second, 0 included.

Two things are learned while decoding. How often the draft's i-th token is kept once the ones before
it were, with older rounds counting less. And what a whole round costs at each depth, by the number
of slots: measured, not modelled, because the cost of a target pass is not a line in its rows (2 can
take less time than 1). A round at depth k is expected to emit 1 + a1 + a1 a2 + ... + a1 a2...ak
tokens, and the best depth is the one with the most of them a second.

The text does not depend on any of this where drafts are compared; where they are verified by
rejection, the depth is chosen before the draft is drawn, which keeps the distribution.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmtp.engine.depth import checked_depth

PRIOR_KEPT = 0.75
"""Acceptance assumed before anything is known, worth one observation."""

IDLE_FORGET = 0.99
"""The same for a round without a draft: what was known grows stale, and drafting is tried again."""

FORGET = 0.97
"""What a round's observation of acceptance is worth one round later."""

COST_SHARE, STALE_SHARE = 0.15, 0.5
"""How much of a cost estimate the newest round makes up, and at most after a long while."""

STALE_ROUNDS = 100
"""Rounds without a look at a depth after which its cost counts as stale."""

OUTLIER = 2.0
"""A round counts at most so many times its depth's estimate: a machine may stall for a moment."""

TRIES = 2
"""Rounds after which a depth's cost counts as known."""

FIRST_PROBE, LAST_PROBE = 24, 384
"""Rounds until another depth is tried again; doubled when that did not pay."""

HOPE = 0.9
"""What a guessed cost is lowered by, so that a promising depth is tried before it is judged."""


@dataclass(slots=True)
class _Cost:
    seconds: float = 0.0
    rounds: int = 0
    last: int = 0

    def add(self, seconds: float, now: int) -> None:
        if self.rounds >= TRIES:
            seconds = min(seconds, OUTLIER * self.seconds)
        stale = STALE_SHARE * min(1.0, (now - self.last) / STALE_ROUNDS)
        self.last = now
        share = max(COST_SHARE, stale, 1 / (self.rounds + 1))
        self.seconds += share * (seconds - self.seconds)
        self.rounds += 1


@dataclass(slots=True)
class _Regime:
    """What is known for one number of slots."""

    costs: dict[int, _Cost] = field(default_factory=dict)
    rounds: int = 0
    best: int | None = None
    since_probe: int = 0
    probe_after: int = FIRST_PROBE


class AdaptiveDepth:
    """Chooses among depths 0 to ``most``, beginning at ``start``."""

    def __init__(self, start: int = 3, most: int = 8) -> None:
        self._most = checked_depth(most)
        self._start = min(checked_depth(start), most)
        self._hits = [0.0] * most
        self._tries = [0.0] * most
        self._regimes: dict[int, _Regime] = {}

    @property
    def most(self) -> int:
        return self._most

    def describe(self) -> str:
        return f"adaptive, up to {self._most}"

    def learn(self, drafted: int, accepted: int) -> None:
        if not drafted:
            self._hits = [IDLE_FORGET * hits for hits in self._hits]
            self._tries = [IDLE_FORGET * tries for tries in self._tries]
        for i in range(min(accepted + 1, drafted)):
            self._hits[i] = FORGET * self._hits[i] + (i < accepted)
            self._tries[i] = FORGET * self._tries[i] + 1

    def observe(self, slots: int, depth: int, seconds: float) -> None:
        """A round of ``slots`` answers, each drafted ``depth`` deep, took ``seconds``."""
        regime = self._regimes.setdefault(slots, _Regime())
        regime.rounds += 1
        regime.costs.setdefault(depth, _Cost()).add(seconds, regime.rounds)

    def choose(self, slots: int = 1) -> int:
        regime = self._regimes.setdefault(slots, _Regime())
        # Plain decoding and the first depth are measured before anything is compared with them.
        for depth in (self._start, 0):
            if not self._known(regime, depth):
                return depth
        best = max(range(self._most + 1), key=lambda depth: self._rate(regime, depth))
        if best != regime.best:
            regime.best, regime.since_probe, regime.probe_after = best, 0, FIRST_PROBE
        regime.since_probe += 1
        # Where the best is not to draft, what is known of drafting fades, which tries it again.
        if best == 0 or regime.since_probe <= regime.probe_after:
            return best
        # The runner-up refreshes what is known of the neighbours, and of plain decoding.
        regime.since_probe = 0
        regime.probe_after = min(2 * regime.probe_after, LAST_PROBE)
        others = [depth for depth in (0, best - 1, best + 1, best + 2) if 0 <= depth <= self._most]
        others = [depth for depth in others if depth != best]
        return max(others, key=lambda depth: self._rate(regime, depth))

    def expected(self, depth: int) -> float:
        """Tokens that a round of this depth is expected to emit."""
        tokens = kept = 1.0
        for i in range(depth):
            kept *= (self._hits[i] + PRIOR_KEPT) / (self._tries[i] + 1)
            tokens += kept
        return tokens

    def _rate(self, regime: _Regime, depth: int) -> float:
        return self.expected(depth) / self._cost(regime, depth)

    def _known(self, regime: _Regime, depth: int) -> bool:
        return depth in regime.costs and regime.costs[depth].rounds >= TRIES

    def _cost(self, regime: _Regime, depth: int) -> float:
        """Seconds of a round; along a line, on the hopeful side, for a depth not tried enough."""
        if self._known(regime, depth):
            return regime.costs[depth].seconds
        known = sorted(other for other in regime.costs if self._known(regime, other))
        if len(known) == 1:
            return HOPE * regime.costs[known[0]].seconds
        above = next((i for i, other in enumerate(known) if other > depth), len(known) - 1)
        low, high = known[above - 1], known[above]
        a, b = regime.costs[low].seconds, regime.costs[high].seconds
        return HOPE * max(a, a + (b - a) * (depth - low) / (high - low))

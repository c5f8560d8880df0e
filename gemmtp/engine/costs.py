"""What a round costs on this machine: a drafter pass by slots, a target pass by rows.

Measured, not modelled, because the cost of a target pass is not a line in its rows: 2 can take less
time than 1, and a kernel may change at 5. A count of rows that was not measured yet is guessed
along a line between its neighbours, on the hopeful side, so that it is tried before it is judged.
Costs grow with what lies in the caches, so they are kept apart by context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COST_SHARE, STALE_SHARE = 0.15, 0.5
"""How much of a cost estimate the newest round makes up, and at most after a long while."""

STALE_ROUNDS = 100
"""Rounds without a look at a number of rows after which its cost counts as stale."""

OUTLIER = 2.0
"""A round counts at most so many times its estimate: a machine may stall for a moment."""

STALE_HOPE = 0.05
"""How much less a stale cost is taken to be: what was measured while the machine was busy is tried
again, and what has long been nearly as good."""

TRIES = 2
"""Rounds after which a cost counts as known."""

HOPE = 0.9
"""What a guessed cost is multiplied by."""

EXACT_ROWS, ROW_STEP = 16, 4
"""Up to here every number of rows is measured by itself, above in steps of so many."""

FIRST_CONTEXT = 4096
"""Tokens in the caches up to which attention counts little; each doubling is measured apart."""


@dataclass(slots=True)
class _Cost:
    seconds: float = 0.0
    rounds: int = 0
    last: int = 0

    def add(self, seconds: float, now: int) -> None:
        if self.rounds >= TRIES:
            seconds = min(seconds, OUTLIER * self.seconds)
            stale = min(1.0, (now - self.last) / STALE_ROUNDS)
            # A stall makes a pass slower and nothing makes it faster: good news is believed.
            share = 1.0 if stale == 1.0 and seconds < self.seconds else STALE_SHARE * stale
            self.seconds += max(COST_SHARE, share) * (seconds - self.seconds)
        else:
            # The first pass of a kind may build graphs and touch weights for the first time.
            self.seconds = min(seconds, self.seconds) if self.rounds else seconds
        self.last = now
        self.rounds += 1


@dataclass(slots=True)
class Costs:
    """Seconds by rows and by slots, at one size of context."""

    _verify: dict[int, _Cost] = field(default_factory=dict)
    _draft: dict[int, _Cost] = field(default_factory=dict)
    _now: int = 0

    def add(self, rows: int, slots: int, steps: int, draft: float, verify: float) -> None:
        """A round of ``rows`` and ``steps`` took ``verify`` and ``draft`` seconds."""
        self._now += 1
        self._verify.setdefault(bucket_of(rows), _Cost()).add(verify, self._now)
        if steps:
            self._draft.setdefault(slots, _Cost()).add(draft / steps, self._now)

    @property
    def empty(self) -> bool:
        """Whether nothing has been measured."""
        return not self._verify

    def knows(self, rows: int) -> bool:
        """Whether a pass over ``rows`` has been measured."""
        cost = self._verify.get(bucket_of(rows))
        return cost is not None and cost.rounds >= TRIES

    def fresh(self, rows: int) -> bool:
        """Whether this process has measured a pass over ``rows``, and not only an earlier one."""
        return self.knows(rows) and self._verify[bucket_of(rows)].last > 0

    def last_measured(self, rows: int) -> int:
        """The number of the round that last measured ``rows``; the lowest where none did."""
        cost = self._verify.get(bucket_of(rows))
        return -STALE_ROUNDS if cost is None else cost.last

    def verify(self, rows: int) -> float:
        """Seconds of a target pass over ``rows``. Something must have been measured."""
        if self.knows(rows):
            return self._verify[bucket_of(rows)].seconds
        known = sorted(other for other in self._verify if self.knows(other))
        if not known:
            return HOPE * min(cost.seconds for cost in self._verify.values())
        if len(known) == 1:
            return HOPE * self._verify[known[0]].seconds
        above = next((i for i, other in enumerate(known) if other > rows), len(known) - 1)
        low, high = known[max(0, above - 1)], known[max(1, above)]
        a, b = self._verify[low].seconds, self._verify[high].seconds
        a_row = (b - a) / (high - low)
        if rows > high:
            # What comes behind a step is not another one.
            least = self._verify[known[0]].seconds
            a_row = min(a_row, (b - least) / (high - known[0]))
            return HOPE * max(min(a, b), b + a_row * (rows - high))
        return HOPE * max(min(a, b), a + a_row * (rows - low))

    def hoped(self, rows: int) -> float:
        """The same, and a little less where it is stale."""
        if not self.knows(rows):
            return self.verify(rows)
        cost = self._verify[bucket_of(rows)]
        stale = min(1.0, (self._now - cost.last) / STALE_ROUNDS)
        return cost.seconds * (1.0 - STALE_HOPE * stale)

    def draft(self, slots: int) -> float:
        """Seconds of a drafter pass for ``slots`` answers; 0 before one was measured."""
        if not self._draft:
            return 0.0
        nearest = min(self._draft, key=lambda other: abs(other - slots))
        return self._draft[nearest].seconds

    def state(self) -> dict[str, dict[str, float]]:
        """Known seconds, fit for JSON."""
        return {
            "verify": {str(n): c.seconds for n, c in self._verify.items() if c.rounds >= TRIES},
            "draft": {str(n): c.seconds for n, c in self._draft.items()},
        }

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Begin with an earlier process's costs, as stale ones. Raises ValueError on nonsense."""
        for name, table in (("verify", self._verify), ("draft", self._draft)):
            for key, seconds in state[name].items():
                if not 0 < float(seconds) < 1e4:
                    raise ValueError(f"{seconds} is no cost")
                table[int(key)] = _Cost(float(seconds), TRIES, -STALE_ROUNDS)


def bucket_of(rows: int) -> int:
    """The number of rows that stands for ``rows``."""
    return rows if rows <= EXACT_ROWS else -(-rows // ROW_STEP) * ROW_STEP


def doublings(context: int) -> int:
    """How often ``context`` tokens double the size that counts as small."""
    return ((max(context, 1) - 1) // FIRST_CONTEXT).bit_length()


class CostsByContext:
    """One :class:`Costs` for every doubling of what lies in the caches."""

    def __init__(self) -> None:
        self._costs: dict[int, Costs] = {}

    def at(self, context: int) -> Costs:
        """Those of ``context`` tokens; a size met first begins with the next smaller one's."""
        size = doublings(context)
        if size not in self._costs:
            costs = Costs()
            smaller = [other for other in self._costs if other < size]
            if smaller:
                costs.restore(self._costs[max(smaller)].state())
            self._costs[size] = costs
        return self._costs[size]

    def state(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {str(size): costs.state() for size, costs in self._costs.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError on nonsense."""
        for size, costs in state.items():
            self._costs[int(size)] = Costs()
            self._costs[int(size)].restore(costs)

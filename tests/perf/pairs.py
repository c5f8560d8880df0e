"""Two ways of doing the same, held against each other in pairs, with bounds.

A pair runs both ways one after the other on the same prompt, so a change of the machine's load
meets both. The ratio is that of the sums; its bounds come from resampling the pairs (Efron, "An
Introduction to the Bootstrap", 1993).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

RESAMPLES = 4000
COVERED = 0.95


@dataclass(frozen=True)
class Ratio:
    """A ratio and the bounds that cover it in 95 of 100 cases."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, a: Sequence[tuple[float, float]], b: Sequence[tuple[float, float]]) -> Self:
        """The rate of ``a`` over the rate of ``b``; each is (amount, cost) by pair."""
        x, y = np.array(a, float), np.array(b, float)
        picks = np.random.default_rng(0).integers(0, len(x), (RESAMPLES, len(x)))
        sums_x, sums_y = x[picks].sum(1), y[picks].sum(1)
        ratios = (sums_x[:, 0] / sums_x[:, 1]) / (sums_y[:, 0] / sums_y[:, 1])
        tail = 50 * (1 - COVERED)
        low, high = np.percentile(ratios, [tail, 100 - tail])
        total_x, total_y = x.sum(0), y.sum(0)
        value = (total_x[0] / total_x[1]) / (total_y[0] / total_y[1])
        return cls(float(value), float(low), float(high))

    def show(self) -> str:
        """As ``1.31 (1.27-1.35)``."""
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass
class Column:
    """What one way gave, by pair: tokens that rounds emitted, their number, and their seconds."""

    emitted: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    overlaps: list[float] = field(default_factory=list)

    @property
    def a_round(self) -> float:
        return sum(self.emitted) / sum(self.rounds)

    @property
    def rate(self) -> float:
        return sum(self.emitted) / sum(self.seconds)

    def rate_over(self, other: Column) -> Ratio:
        """Tokens a second over the other's."""
        return Ratio.of(
            list(zip(self.emitted, self.seconds, strict=True)),
            list(zip(other.emitted, other.seconds, strict=True)),
        )

    def a_round_over(self, other: Column) -> Ratio:
        """Tokens a round over the other's."""
        return Ratio.of(
            list(zip(self.emitted, self.rounds, strict=True)),
            list(zip(other.emitted, other.rounds, strict=True)),
        )

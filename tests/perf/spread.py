"""What many measurements of one thing say: the median and the quartiles around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Median, first and third quartile."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Raises statistics.StatisticsError without a value."""
        low, high = np.percentile(values, [25, 75]) if len(values) else (0.0, 0.0)
        return cls(median(values), float(low), float(high))

    def show(self, digits: int = 1) -> str:
        """As ``48.5 (47.9-49.0)``."""
        return f"{self.middle:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]))

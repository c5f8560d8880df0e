"""What it takes to choose a token from a row of 262,144 logits, by filters and shape of the row.

    python -m tests.perf.rows

Rows differ from one to the next as they do in a text: what one row suggests for the next is right
in most and wrong in some. A figure is the median over the rows, with quartiles, in milliseconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from gemmtp.engine.backend import Floats
from gemmtp.engine.noise import Noise
from gemmtp.engine.sampling import SamplingParameters, Shaper

from .spread import Spread, print_table

N_VOCAB = 262_144
SHAPES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "sure": lambda random: _row(random, deviation=3.0, leaders=3, ahead=14.0),
    "open": lambda random: _row(random, deviation=3.0, leaders=60, ahead=8.0),
    "flat": lambda random: _row(random, deviation=1.0, leaders=0, ahead=0.0),
    "all alike": lambda random: _row(random, deviation=0.0, leaders=0, ahead=0.0),
}
CASES = {
    "T 1, top-k 64, top-p .95": SamplingParameters(1.0, 64, 0.95),
    "T 1, top-p .95": SamplingParameters(1.0, 0, 0.95),
    "T 1.5, top-p .95": SamplingParameters(1.5, 0, 0.95),
    "T 1": SamplingParameters(1.0),
    "T 1.5": SamplingParameters(1.5),
    "T 1.5, min-p .02": SamplingParameters(1.5, min_p=0.02),
}
LIMITS = {case: 0.15 if parameters.top_k else 0.5 for case, parameters in CASES.items()}
"""Milliseconds that a row may take."""


def _row(random: np.random.Generator, deviation: float, leaders: int, ahead: float) -> Floats:
    row = random.normal(-10.0, deviation, N_VOCAB) if deviation else np.full(N_VOCAB, -10.0)
    # Rows of a text are more or less open, as words go on or begin.
    row[random.integers(0, N_VOCAB, leaders)] += ahead + random.normal(0.0, 2.0, leaders)
    return row.astype(np.float32)


def milliseconds(parameters: SamplingParameters, rows: list[Floats], *, whole: bool) -> Spread:
    """Time to choose from each row, or with ``whole`` to make its distribution."""
    shaper = Shaper(parameters)
    taken = []
    for position, row in enumerate(rows):
        start = time.thread_time()
        if whole:
            shaper(row)
        else:
            shaper.choose(row, Noise(1, position))
        taken.append(1000 * (time.thread_time() - start))
    return Spread.of(taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--check", action="store_true", help="fail when a row takes too long")
    arguments = parser.parse_args()
    missed = []
    for whole in (False, True):
        table = []
        for case, parameters in CASES.items():
            line = [case]
            for shape, draw in SHAPES.items():
                if parameters.top_k and shape == "all alike":
                    line.append("")  # all tie with the k-th, and none of them is left out
                    continue
                random = np.random.default_rng(0)
                rows = [draw(random) for _ in range(arguments.rows)]
                spread = milliseconds(parameters, rows, whole=whole)
                line.append(spread.show(3))
                if not whole and spread.middle > LIMITS[case]:
                    missed.append(f"{case}, {shape}: {spread.middle:.3f} ms")
            table.append(line)
        what = "the distribution, for rejection" if whole else "a token, compared"
        print_table([f"ms for {what}", *SHAPES], table)
        print()
    print("too slow: " + "; ".join(missed) if missed else "every choice within its limit")
    if arguments.check and missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

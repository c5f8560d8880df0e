"""Many texts through the engine, held against the target's own law by chi-square.

    python -m tests.perf.exactness

Every acceptance rule, with top-k, top-p and min-p, with all penalties, with drafts of the drafter
and certain ones among them. A row says by how many standard deviations chi-square lies from its
mean; the planted faults show that it would be noticed.
"""

from __future__ import annotations

import argparse
import time

import pytest

from tests.support import faults
from tests.support.law import FILTERED, Mixed, counted, deviations, law, processors

from .spread import print_table

BOUND = 5.0
"""Deviations that a right program exceeds about once in a million rows."""

PLANTED = 10_000
"""Texts for each planted fault."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100_000)
    arguments = parser.parse_args()
    expected, rows, wrong = law(FILTERED, processors()), [], []
    for rule in (None, "compare", "reject", "block"):
        start = time.process_time()
        counts = counted(arguments.samples, rule, FILTERED, source=Mixed, processing=processors())
        seconds = time.process_time() - start
        found = deviations(counts, expected)
        name = rule or "plain"
        wrong += [name] if abs(found) > BOUND else []
        rows.append([name, f"{arguments.samples:,}", f"{found:.2f}", f"{seconds:.0f} s"])
    for name, (rule, plant) in faults.PLANTED.items():
        with pytest.MonkeyPatch.context() as patch:
            source = plant(patch)
            counts = counted(PLANTED, rule, FILTERED, source=source, processing=processors())
        found = deviations(counts, expected)
        wrong += [name] if found < BOUND else []
        rows.append([f"{rule}, planted: {name}", f"{PLANTED:,}", f"{found:.2f}", ""])
    print(f"{len(expected)} different texts are possible")
    print_table(["rule", "texts", "deviations", "CPU"], rows)
    if wrong:
        raise SystemExit("wrong: " + ", ".join(wrong))


if __name__ == "__main__":
    main()

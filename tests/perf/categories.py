"""Speed by kind of prompt on the cost-shaped demo set: T = 0 and T = 1, plain and drafted.

    python -m tests.perf.categories

One round runs every draft depth over every category's prompts at both temperatures; a cell is the
median over the rounds with its quartiles. Answers end where the model ends them.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemmtp.engine.sampling import SamplingParameters

from .demo_set import prompts, shaped_pair
from .runner import Run, Runner, open_pair
from .spread import Spread, print_table

DEPTHS = (0, 1, 2, 3, 4)
TEMPERATURES = (0.0, 1.0)
MAX_TOKENS = 128
N_CTX = 1024


@dataclass
class Cell:
    """One category at one temperature and depth: a rate a round, and all rounds' acceptance."""

    rates: list[float] = field(default_factory=list)
    emitted: int = 0
    rounds: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add(self, runs: Sequence[Run]) -> None:
        """The runs of one round. Answers of a single token say nothing about the rate."""
        seconds = sum(run.seconds for run in runs)
        emitted = sum(run.round_tokens for run in runs)
        if not emitted:
            return
        self.rates.append(emitted / seconds)
        self.emitted += emitted
        self.rounds += sum(run.rounds for run in runs)
        for run in runs:
            self.drafted_at = _summed(self.drafted_at, run.drafted_at)
            self.accepted_at = _summed(self.accepted_at, run.accepted_at)

    @property
    def tokens_a_round(self) -> float:
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> str:
        """Kept of those that reached the position, for each draft position."""
        pairs = zip(self.accepted_at, self.drafted_at, strict=True)
        return "/".join(f"{a / d:.2f}".removeprefix("0") for a, d in pairs if d)


def _summed(a: Sequence[int], b: Sequence[int]) -> list[int]:
    size = max(len(a), len(b))
    padded = [[*counts, *[0] * (size - len(counts))] for counts in (a, b)]
    return [x + y for x, y in zip(*padded, strict=True)]


Cells = dict[tuple[float, str, int], Cell]


def measure(
    runner: Runner, asked: dict[str, list[list[int]]], rounds: int, depths: Sequence[int] = DEPTHS
) -> Cells:
    """All cells by temperature, category and depth; the order of depths turns with the rounds."""
    cells: Cells = defaultdict(Cell)
    for depth in depths:  # warm before anything is counted
        runner.run(next(iter(asked.values()))[0], depth, 16)
    for turn in range(rounds):
        order = [*depths[turn % len(depths) :], *depths[: turn % len(depths)]]
        for temperature in TEMPERATURES:
            sampling = SamplingParameters(temperature, top_k=64, top_p=0.95, seed=turn)
            for category, of_category in asked.items():
                for depth in order:
                    cells[temperature, category, depth].add(
                        [
                            runner.run(prompt, depth, MAX_TOKENS, sampling=sampling, stop=True)
                            for prompt in of_category
                        ]
                    )
    return cells


def show(cells: Cells, temperature: float, depths: Sequence[int] = DEPTHS) -> None:
    """One line a category: rates, the best depth over plain, and what depth 3 accepted."""
    categories = list(dict.fromkeys(name for t, name, _ in cells if t == temperature))
    rows = []
    for name in categories:
        row = {depth: cells[temperature, name, depth] for depth in depths}
        if not row[0].rates:
            rows.append([name, *[""] * (len(depths) + 4)])
            continue
        speedups = {
            depth: Spread.of([a / b for a, b in zip(cell.rates, row[0].rates, strict=True)])
            for depth, cell in row.items()
        }
        best = max(speedups, key=lambda depth: speedups[depth].middle)
        third = row.get(3, row[max(depths)])
        rows.append(
            [
                name,
                *(Spread.of(cell.rates).show() for cell in row.values()),
                f"{best}",
                speedups[best].show(2),
                f"{third.tokens_a_round:.2f}",
                third.acceptance,
            ]
        )
    head = [f"T = {temperature:g}, tok/s", *(f"draft {d}" if d else "plain" for d in depths)]
    print_table([*head, "best", "x plain", "tokens a round at 3", "acceptance at 3"], rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path, help="a shaped pair other than the demo set's")
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=4, help="prompts a category")
    parser.add_argument("--categories", nargs="*", default=[], help="some categories only")
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    if (arguments.target is None) != (arguments.drafter is None):
        parser.error("--target and --drafter go together")
    pair = (arguments.target, arguments.drafter) if arguments.target else shaped_pair()
    with open_pair(*pair, n_ctx=N_CTX, max_depth=max(DEPTHS), threads=arguments.threads) as runner:
        asked = dict(prompts(runner, arguments.prompts, arguments.categories))
        cells = measure(runner, asked, arguments.rounds)
    for temperature in TEMPERATURES:
        show(cells, temperature)
        print()


if __name__ == "__main__":
    main()

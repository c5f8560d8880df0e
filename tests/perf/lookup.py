"""Copying a text back with one word changed: by the drafter alone, and with prompt lookup.

    python -m tests.perf.lookup

The demo set cannot copy on demand, so the target is made to say the text: wherever its rows agree
with the text so far, the logit of the text's next token is raised above all others. The drafter is
not told, and drafts as it would behind such a text. One text is the demo's own, greedy answers one
after another, which its drafter guesses best; the other is prose of this project's documentation,
which it guesses badly. A third case is no copy at all: what lookup costs where there is nothing to
look up, on the demo's own answers.

All variants run in turn on the cost-shaped pair, with 95% bounds of the ratio by resampling rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.engine.backend import Floats, Row, Target
from gemmtp.engine.combined import MOST, CombinedDrafting
from gemmtp.engine.depth import DepthChooser, FixedDepth
from gemmtp.engine.drafting import DraftSource, NoDrafting
from gemmtp.engine.engine import Engine, Finished, Request, Token
from gemmtp.engine.stats import Statistics
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import LoadOptions
from gemmtp.llama.pair import Pair, check_files
from gemmtp_models.names import demo

from .demo_set import prompts, shaped_pair
from .pairs import Ratio
from .runner import Runner
from .spread import Spread, print_table

COPIED, CHANGED_AT, NOT_COPIED = 400, 200, 128
"""Tokens of the copied text, where a word of it is changed, and tokens of an answer without."""

N_CTX = 1024
DEPTH, DEEPEST = 3, 8
SPEEDUP, NEVER_SLOWER = 1.5, 0.96
CATEGORIES = ("stories", "python", "lists", "gemmtp", "counting", "json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"


class Told:
    """A target that says ``text``; everything else is that of ``target``."""

    def __init__(self, target: Target, text: Sequence[int]) -> None:
        self._target, self._text = target, list(text)
        self._next: list[int | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def decode(self, rows: Sequence[Row]) -> None:
        """Decode, and note what is to follow each output row."""
        self._target.decode(rows)
        following = (row.position + 1 for row in rows if row.output)
        self._next = [self._text[i] if i < len(self._text) else None for i in following]

    def logits(self, i: int) -> Floats:
        """The target's, with the text's next token above all others."""
        logits = self._target.logits(i)
        token = self._next[i]
        if token is not None:
            logits[token] = logits.max() + np.float32(20)
        return logits


@dataclass
class Variant:
    """One way of decoding: its source and depth go on learning from run to run."""

    source: DraftSource
    depth: DepthChooser
    counts: list[tuple[float, float]] = field(default_factory=list)
    last: Statistics = field(default_factory=Statistics)

    def run(self, target: Target, prompt: list[int], n: int) -> tuple[int, ...]:
        """Decode ``n`` tokens; returns them."""
        engine = Engine(target, self.source, self.depth)
        tokens = []
        for event in engine.generate(Request(prompt, max_tokens=n)):
            if isinstance(event, Token):
                tokens.append(event.token)
            elif isinstance(event, Finished):
                self.last = event.statistics
        self.counts.append((self.last.round_tokens, self.last.decode_seconds))
        return tuple(tokens)

    @property
    def rates(self) -> list[float]:
        """Tokens a second, run by run."""
        return [tokens / seconds for tokens, seconds in self.counts if tokens]


def variants(pair: Pair) -> dict[str, Variant]:
    """Plain, drafter alone, lookup alone, and both."""
    mtp, none = pair.engine.drafting, NoDrafting("not used here")
    return {
        "plain": Variant(none, FixedDepth(0)),
        "drafter": Variant(mtp, AdaptiveDepth(DEPTH, DEEPEST)),
        "lookup": Variant(CombinedDrafting(none), FixedDepth(DEPTH)),
        "both": Variant(CombinedDrafting(mtp), AdaptiveDepth(DEPTH, DEEPEST)),
    }


def own_text(runner: Runner, n: int) -> list[int]:
    """``n`` tokens of the demo's greedy answers."""
    text: list[int] = []
    for asked in prompts(runner, 8, CATEGORIES).values():
        for prompt in asked:
            text += runner.run(prompt, 0, 64, stop=True).tokens[:-1]
    return text[:n]


def measure(pair: Pair, rounds: int) -> dict[str, dict[str, Variant]]:
    """Cases to variants."""
    runner = Runner(pair)
    document = runner.tokenize(DOCUMENT.read_text("utf-8"))
    copies = {"the demo's own text": own_text(runner, COPIED), "documentation": document[:COPIED]}
    changed = runner.tokenize(" elephant")[-1]
    found: dict[str, dict[str, Variant]] = {}
    for case, text in copies.items():
        prompt = [*runner.tokenize("<|turn>user\nCopy:\n"), *text, *runner.tokenize("\n")[1:]]
        answer = [*text[:CHANGED_AT], changed, *text[CHANGED_AT + 1 :]]
        told = Told(pair.engine.target, [*prompt, *answer])
        found[case] = _rounds(pair, told, prompt, len(answer), rounds)
    open_ended = [p for (p,) in prompts(runner, 1, CATEGORIES).values()]
    found["no copy"] = variants(pair)
    for turn in range(rounds):
        prompt = open_ended[turn % len(open_ended)]
        _all_alike(_turned(found["no copy"], turn), pair.engine.target, prompt, NOT_COPIED)
    return found


def _rounds(
    pair: Pair, target: Target, prompt: list[int], n: int, rounds: int
) -> dict[str, Variant]:
    made = variants(pair)
    for turn in range(rounds):
        _all_alike(_turned(made, turn), target, prompt, n)
    return made


def _all_alike(made: Sequence[Variant], target: Target, prompt: list[int], n: int) -> None:
    if len({variant.run(target, prompt, n) for variant in made}) > 1:
        raise SystemExit("the variants say different texts")


def _turned(made: dict[str, Variant], turn: int) -> list[Variant]:
    """The variants in an order that turns with the rounds."""
    order = list(made.values())
    start = turn % len(order)
    return order[start:] + order[:start]


def show(found: dict[str, dict[str, Variant]]) -> list[str]:
    """Print rates and ratios to the drafter alone; returns what is missed."""
    rows, missed = [], []
    for case, made in found.items():
        ratio = Ratio.of(made["both"].counts, made["drafter"].counts)
        counts = made["both"].last.by_source
        rows.append(
            [
                case,
                *(Spread.of(variant.rates).show() for variant in made.values()),
                ratio.show(),
                f"{made['drafter'].last.tokens_per_round:.2f}",
                f"{made['both'].last.tokens_per_round:.2f}",
                ", ".join(f"{name} {c.accepted}/{c.drafted}" for name, c in counts.items()),
            ]
        )
        copied = case != "no copy"
        bound, reached = (SPEEDUP, ratio.value) if copied else (NEVER_SLOWER, ratio.low)
        if reached < bound:
            missed.append(f"{case}: {reached:.3f} ({bound:g})")
    head = ["tok/s, T = 0, 1 slot", *next(iter(found.values())), "both over drafter"]
    print_table([*head, "tokens a round, drafter", "both", "kept by both, last run"], rows)
    return missed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--as-is", action="store_true", help="the demo set, not cost-shaped")
    parser.add_argument("--check", action="store_true", help="fail when a figure is missed")
    arguments = parser.parse_args()
    options = ContextOptions(n_ctx=N_CTX, max_depth=max(MOST, DEEPEST), threads=arguments.threads)
    own = demo()
    pair_files = (own.target, own.drafter) if arguments.as_is else shaped_pair()
    files = check_files(*pair_files)
    with Pair.open(files, FixedDepth(DEEPEST), options, LoadOptions(gpu_layers=0)) as pair:
        missed = show(measure(pair, arguments.rounds))
    print("missed: " + "; ".join(missed) if missed else "every figure met")
    if arguments.check and missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""What quantising costs in drafting: acceptance by recipe, draft depth, and which file it is.

    python -m tests.perf.acceptance TARGET_DIR DRAFTER_DIR [--prompts FILE] [--recipes f16 q4_k_m]

Every recipe is applied to both files, to the target alone and to the drafter alone, the other one
staying f16. The answers are greedy; agreement is the share of positions at which the target's
choice is that of the f16 target, on the f16 target's own answers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gemmtp.engine.backend import Row
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Finished, Request, Token
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import Model
from gemmtp.llama.pair import Pair, check_files
from gemmtp.llama.target import TargetContext
from gemmtp_quantize.pipeline import build_folder
from gemmtp_quantize.plan import plan_set
from gemmtp_quantize.recipe import load_recipe, recipe_names

DEPTHS = (1, 2, 3, 4)
TOKENS = 200
BASE = "f16"
PROMPTS = (
    "import os\n", "def main(", "class Node:\n    def __init__(self", "for i in range(",
    "    return self.", "try:\n    import", "# Copyright", "if __name__ ==", '"""Return the',
    "with open(", "raise ValueError(", "@property\n    def",
)  # fmt: skip


def measure(target: Path, drafter: Path, depth: int, prompts: Sequence[str]) -> list[float]:
    """Acceptance at each draft position, then tokens a round, over all prompts."""
    options = ContextOptions(n_ctx=TOKENS + 64, max_depth=depth, threads=1)
    drafted, accepted = np.zeros(depth), np.zeros(depth)
    rounds = tokens = 0
    with Pair.open(check_files(target, drafter), FixedDepth(depth), options) as pair:
        for prompt in prompts:
            request = Request(
                pair.model.tokenize(prompt, special=True, bos=True), max_tokens=TOKENS
            )
            for event in pair.engine.generate(request):
                if isinstance(event, Finished):
                    counts = event.statistics
                    drafted[: len(counts.drafted_at)] += counts.drafted_at
                    accepted[: len(counts.accepted_at)] += counts.accepted_at
                    rounds += counts.rounds
                    tokens += counts.round_tokens
    return [*(accepted / drafted), tokens / rounds]


def answers(target: Path, drafter: Path, prompts: Sequence[str]) -> list[list[int]]:
    """Prompt and greedy answer, as tokens."""
    texts = []
    options = ContextOptions(n_ctx=TOKENS + 64, max_depth=1, threads=1)
    with Pair.open(check_files(target, drafter), FixedDepth(1), options) as pair:
        for prompt in prompts:
            start = pair.model.tokenize(prompt, special=True, bos=True)
            events = pair.engine.generate(Request(start, max_tokens=TOKENS))
            texts.append([*start, *(e.token for e in events if isinstance(e, Token))])
    return texts


def choices(target: Path, texts: Sequence[Sequence[int]]) -> list[int]:
    """The target's greedy choice at every position of every text."""
    chosen = []
    longest = max(map(len, texts))
    options = ContextOptions(n_ctx=longest + 8, threads=1)
    with Model.open(target) as model, TargetContext(model, options) as context:
        for text in texts:
            context.remove(0, 0)
            for position, token in enumerate(text):
                context.decode([Row(0, token, position, True)])
                chosen.append(int(context.logits(0).argmax()))
    return chosen


def main() -> None:
    """Print one line for each recipe and combination."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("--prompts", type=Path, help="one prompt a line")
    parser.add_argument("--recipes", nargs="*", default=recipe_names())
    arguments = parser.parse_args()
    prompts: Sequence[str] = PROMPTS
    if arguments.prompts:
        prompts = arguments.prompts.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: build_folder(
                plan_set(arguments.target, arguments.drafter, load_recipe(name)),
                Path(folder) / Path(name).stem, force=False, threads=2,
            ).files
            for name in {*arguments.recipes, BASE}
        }  # fmt: skip
        base = files[BASE]
        texts = answers(base["target"], base["drafter"], prompts)
        reference = choices(base["target"], texts)
        for name in arguments.recipes:
            mine = files[name]
            own = choices(mine["target"], texts)
            same = float(np.mean(np.equal(own, reference)))
            print(f"{name}: target's choices as in {BASE}: {same:.2%}", flush=True)
            for label, target, drafter in (
                ("both", mine, mine), ("target", mine, base), ("drafter", base, mine)
            ):  # fmt: skip
                for depth in DEPTHS:
                    *at, rate = measure(target["target"], drafter["drafter"], depth, prompts)
                    positions = " ".join(f"{share:.3f}" for share in at)
                    print(
                        f"  {label:8} draft {depth}: {positions}  tokens a round {rate:.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

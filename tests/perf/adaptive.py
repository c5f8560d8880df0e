"""The adaptive depth against plain decoding and against every fixed depth.

    python -m tests.perf.adaptive                    # cost-shaped demo set, by category
    python -m tests.perf.adaptive --worst            # where drafting cannot pay

First all depths answer a few prompts in turn, which says the best fixed one. Then come the pairs
that count: a prompt is answered adaptively, plainly and at that depth, one right after the other.
The adaptive chooser is one for all prompts, as in a process that goes on, and has answered two of
every kind before anything counts, since a run begins with what earlier ones learned; ``--cold``
leaves that out, and so do the worst cases. Those are the demo set as it is, whose target costs
little more than its drafter, the cost-shaped set with a drafter whose input is scrambled, and a
simulated mixture of experts, where the first rows of a pass cost most.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import gguf
import numpy as np

from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import ModelError
from gemmtp_models.names import demo
from tests.support.machine import MACHINES, TEXTS, Machine, adaptive

from .demo_set import prompts, shaped_pair
from .pairs import Column, Ratio
from .runner import GREEDY, Runner, open_pair
from .spread import print_table

N_CTX = 1024
MOST = 8
DEPTHS = (0, 1, 2, 3, 4, 6)
MAX_TOKENS = 64
WARM = 6
"""Prompts that say which fixed depth is the best."""
EXPERIENCE = 2
"""Prompts of every category that the chooser has answered before."""
SIMULATED_ROUNDS = 400
SCRAMBLED = "nextn.pre_projection.weight"


def scrambled(drafter: Path, folder: Path) -> Path:
    """A copy of the drafter whose input projection has its rows mixed: its drafts are noise."""
    path = folder / "noise.gguf"
    path.write_bytes(drafter.read_bytes())
    reader = gguf.GGUFReader(path, "r+")
    (tensor,) = (t for t in reader.tensors if t.name == SCRAMBLED)
    order = np.random.default_rng(0).permutation(len(tensor.data))
    tensor.data[:] = tensor.data[order]
    reader.data.flush()
    return path


@dataclass
class Measured:
    """Columns by depth, None for the adaptive one; ``tried`` are those of the prompts before."""

    tried: dict[int | None, Column]
    best: int
    counted: dict[int | None, Column]


def measure(
    runner: Runner,
    asked: Sequence[Sequence[int]],
    pairs: int,
    chooser: AdaptiveDepth,
    depths: Sequence[int],
    sampling: SamplingParameters,
) -> Measured | None:
    """None where the answers are too short for a round."""

    def answered(variants: Sequence[int | None], turns: range) -> dict[int | None, Column]:
        columns: dict[int | None, Column] = {variant: Column() for variant in variants}
        for turn in turns:
            at = turn % len(variants)
            for variant in [*variants[at:], *variants[:at]]:
                depth = chooser if variant is None else variant
                prompt = asked[turn % len(asked)]
                run = runner.run(prompt, depth, MAX_TOKENS, sampling=sampling, stop=True)
                columns[variant].emitted.append(run.round_tokens)
                columns[variant].rounds.append(run.rounds)
                columns[variant].seconds.append(run.seconds)
        return columns

    tried = answered([None, *depths], range(-WARM, 0))
    if not sum(tried[0].emitted):
        return None
    best = max(depths, key=lambda depth: tried[depth].rate)
    return Measured(tried, best, answered(list(dict.fromkeys([None, 0, best])), range(pairs)))


def row_of(name: str, measured: Measured) -> list[str]:
    """Rates, and what the adaptive depth makes of plain decoding and of the best fixed depth."""
    adaptive, fixed = measured.counted[None], measured.counted
    return [
        name,
        *(f"{column.rate:.1f}" for depth, column in measured.tried.items() if depth is not None),
        f"{adaptive.rate:.1f}",
        adaptive.rate_over(fixed[0]).show(),
        f"{measured.best}",
        adaptive.rate_over(fixed[measured.best]).show(),
        f"{adaptive.a_round:.2f}",
    ]


def experts(pairs: int) -> list[list[str]]:
    """What the adaptive depth makes of plain decoding where rows are dear, from cold, by text."""
    verify, rows = MACHINES["experts"], []
    for name, text in TEXTS.items():
        reached, plain = [], []
        for seed in range(pairs):
            machine = Machine(verify, text, seed=seed)
            machine.play(adaptive(), SIMULATED_ROUNDS)
            reached.append((machine.tokens, machine.seconds))
            plain.append((1.0, verify(1)))
        rows.append([f"experts, {name}", Ratio.of(reached, plain).show()])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worst", action="store_true")
    parser.add_argument("--cold", action="store_true", help="begin without any experience")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--depths", type=int, nargs="*", default=DEPTHS)
    parser.add_argument("--categories", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    sampling = GREEDY
    if arguments.temperature:
        sampling = SamplingParameters(arguments.temperature, top_k=64, top_p=0.95)
    bare, shaped = demo(), shaped_pair()
    if bare.drafter is None:
        raise ModelError("The demo set has no drafter.")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        pairs = {"": shaped}
        if arguments.worst:
            pairs = {
                "bare, ": (bare.target, bare.drafter),
                "noise, ": (shaped[0], scrambled(shaped[1], Path(folder))),
            }
        for label, pair in pairs.items():
            chooser = AdaptiveDepth(3, MOST)
            with open_pair(*pair, n_ctx=N_CTX, max_depth=MOST, threads=arguments.threads) as runner:
                if not (arguments.cold or arguments.worst):
                    for prompt in chain(*prompts(runner, EXPERIENCE).values()):
                        runner.run(prompt, chooser, MAX_TOKENS, sampling=sampling, stop=True)
                asked = prompts(runner, arguments.pairs, arguments.categories)
                for name, of_category in asked.items():
                    measured = measure(
                        runner, of_category, arguments.pairs, chooser, arguments.depths, sampling
                    )
                    if measured is not None:
                        rows.append(row_of(label + name, measured))
                        print(*rows[-1], sep=" | ", flush=True)
    if arguments.worst:
        print_table(["simulated", "x plain"], experts(arguments.pairs))
    fixed = [f"draft {d}" if d else "plain" for d in arguments.depths]
    head = [f"T = {arguments.temperature:g}, tok/s", *fixed, "adaptive", "x plain", "best"]
    print_table([*head, "x best", "tokens a round"], rows)


if __name__ == "__main__":
    main()

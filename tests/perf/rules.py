"""Acceptance rules at what people sample with: comparing, rejection, block verification.

    python -m tests.perf.rules                  # the cost-shaped demo set: tokens a second
    python -m tests.perf.rules --bare           # the demo set itself: tokens a round, quickly

Pairs: every prompt is answered by every rule, one right after the other, without a seed, at
Gemma's defaults (T = 1, top-k 64, top-p 0.95) or at ``--temperature``. ``sum min(p, q)`` is what
rejection sampling would keep of a single draft, at the sharpness that was chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from statistics import fmean

from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.engine.depth import DepthChooser
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.verify import Rule
from gemmtp.errors import ModelError
from gemmtp_models.names import demo

from .demo_set import prompts, shaped_pair
from .pairs import Column
from .runner import Runner, open_pair
from .spread import print_table

RULES: tuple[Rule, ...] = ("compare", "reject", "block")
N_CTX = 1024
MOST = 8
MAX_TOKENS = 64
WARM = 6
"""Answers before the counting begins: adaptive depths and sharpness are learned by then."""

Depths = Mapping[Rule, int | DepthChooser]


def measure(
    runner: Runner,
    asked: Sequence[Sequence[int]],
    pairs: int,
    sampling: SamplingParameters,
    depths: Depths,
) -> dict[Rule, Column]:
    """One column a rule over ``pairs`` prompts, taken in turn from ``asked``."""
    columns: dict[Rule, Column] = {rule: Column() for rule in RULES}
    for turn in range(-WARM, pairs):
        at = turn % len(RULES)
        for rule in RULES[at:] + RULES[:at]:
            run = runner.run(
                asked[turn % len(asked)],
                depths[rule],
                MAX_TOKENS,
                sampling=sampling,
                stop=True,
                accept=rule,
            )
            if turn < 0:
                continue
            column = columns[rule]
            column.emitted.append(run.round_tokens)
            column.rounds.append(run.rounds)
            column.seconds.append(run.seconds)
            if run.overlap is not None:
                column.overlaps.append(run.overlap)
    return columns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bare", action="store_true", help="the demo set as it is")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--draft", type=int, help="a fixed depth; adaptive without it")
    parser.add_argument("--categories", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    sampling = SamplingParameters(arguments.temperature, top_k=64, top_p=0.95)
    files = demo() if arguments.bare else None
    if files is not None and files.drafter is None:
        raise ModelError("The demo set has no drafter.")
    pair = (files.target, files.drafter) if files is not None else shaped_pair()
    rows = []
    with open_pair(*pair, n_ctx=N_CTX, max_depth=MOST, threads=arguments.threads) as runner:
        asked = prompts(runner, arguments.pairs, arguments.categories)
        depths: Depths = {
            rule: AdaptiveDepth(3, MOST) if arguments.draft is None else arguments.draft
            for rule in RULES
        }
        for name, of_category in asked.items():
            columns = measure(runner, of_category, arguments.pairs, sampling, depths)
            if not sum(columns["compare"].emitted):
                continue
            row = [name, *(f"{columns[rule].a_round:.2f}" for rule in RULES)]
            for rule in RULES[1:]:
                row.append(columns[rule].a_round_over(columns["compare"]).show())
            for rule in RULES[1:]:
                row.append(columns[rule].rate_over(columns["compare"]).show())
            overlaps = columns["reject"].overlaps
            rows.append([*row, f"{fmean(overlaps):.2f}" if overlaps else ""])
            print(*rows[-1], sep=" | ", flush=True)
    head = [f"T = {arguments.temperature:g}", *RULES, "reject/compare", "block/compare"]
    print_table([*head, "tok/s reject", "tok/s block", "sum min(p, q)"], rows)


if __name__ == "__main__":
    main()

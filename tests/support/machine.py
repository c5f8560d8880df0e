"""A simulated machine, and texts that are drafted on it with more or less luck."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.engine.depth import Round

MOST = 8
DRAFT = 0.05
"""What a drafter's pass costs, where a target's pass over one row costs 1."""
Verify = Callable[[int], float]
Text = Sequence[tuple[float, float]]
"""For one kind of token, or two: how probable it is, and how often such a draft is kept."""


def rate(verify: Verify, text: Text, depth: int) -> float:
    """Tokens a second at a fixed depth, in the long run."""
    kept = sum(share * often for share, often in text)
    return sum(kept**i for i in range(depth + 1)) / (verify(depth + 1) + depth * DRAFT)


class Machine:
    """Plays rounds: kinds of tokens are drawn, and the drafter's margin tells the kind."""

    def __init__(self, verify: Verify, text: Text, noise: float = 0.1, seed: int = 0) -> None:
        self.verify, self.text, self.noise = verify, text, noise
        self.random = np.random.default_rng(seed)
        self.tokens = self.seconds = 0.0
        self.depths: list[int] = []

    def draft(self, chooser: AdaptiveDepth, slot: int, most: int) -> tuple[list[float], int, int]:
        """The margins of one slot's draft, its length, and how many of its tokens are kept."""
        margins: list[float] = []
        drafted, accepted, alive = 0, 0, True
        while drafted < most and (not margins or chooser.goes_on(slot, margins)):
            kind = int(len(self.text) > 1 and self.random.random() > self.text[0][0])
            margins.append(1.0 + 4.0 * kind)
            if not chooser.takes(slot, margins):
                break
            alive = alive and self.random.random() < self.text[kind][1]
            drafted += 1
            accepted += alive
        return margins, drafted, accepted

    def play(self, chooser: AdaptiveDepth, rounds: int, slots: Sequence[int] = (0,)) -> float:
        """Tokens a second over ``rounds``."""
        before = self.tokens, self.seconds
        for _ in range(rounds):
            plan = chooser.plan(slots, 100)
            drafts = [self.draft(chooser, s, k) for s, k in zip(slots, plan, strict=True)]
            rows = sum(drafted + 1 for _, drafted, _ in drafts)
            steps = max(len(margins) for margins, _, _ in drafts)
            noise = float(self.random.lognormal(0.0, self.noise))
            draft, verify = steps * DRAFT * noise, self.verify(rows) * noise
            for slot, (margins, drafted, accepted) in zip(slots, drafts, strict=True):
                chooser.learn(slot, drafted, accepted, margins)
                self.tokens += 1 + accepted
                self.depths.append(drafted)
            chooser.observe(Round(len(slots), rows, steps, draft, verify, 100))
            self.seconds += draft + verify
        return (self.tokens - before[0]) / (self.seconds - before[1])


def adaptive(slots: Sequence[int] = (0,)) -> AdaptiveDepth:
    chooser = AdaptiveDepth(3, MOST)
    for slot in slots:
        chooser.join(slot, "compare")
    return chooser


MACHINES: dict[str, Verify] = {
    "memory-bound": lambda n: 0.97 + 0.03 * n,
    "two rows cheaper than one": lambda n: 1.0 if n == 1 else 0.80 + 0.05 * n,
    "every row costs": lambda n: 0.4 + 0.6 * n,
    "experts": lambda n: 0.65 + 0.35 * min(n, 3) + 0.2 * max(0, n - 3),
    "a step at five rows": lambda n: 1.0 + 0.01 * n + (0.8 if n >= 5 else 0.0),
}
TEXTS: dict[str, Text] = {
    "certain": [(1.0, 0.995)],
    "code": [(1.0, 0.88)],
    "prose": [(1.0, 0.55)],
    "noise": [(1.0, 0.02)],
    "patches": [(0.4, 0.15), (0.6, 0.97)],
}

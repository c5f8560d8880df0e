"""The adaptive depth finds the best depth of a simulated machine, and 0 where drafting loses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.errors import UsageError

MOST = 8
Cost = Callable[[int], float]


def rate(cost: Cost, kept: list[float], depth: int) -> float:
    """Tokens a second at a fixed depth, in the long run."""
    return (1 + sum(np.prod(kept[:i]) for i in range(1, depth + 1))) / cost(depth)


def simulate(
    chooser: AdaptiveDepth, cost: Cost, kept: list[float], rounds: int, noise: float, seed: int = 0
) -> float:
    """Tokens a second over ``rounds`` of a machine with these costs and acceptances."""
    random = np.random.default_rng(seed)
    tokens = seconds = 0.0
    for _ in range(rounds):
        depth = chooser.choose()
        accepted = 0
        while accepted < depth and random.random() < kept[accepted]:
            accepted += 1
        spent = cost(depth) * float(random.lognormal(0.0, noise))
        chooser.learn(depth, accepted)
        chooser.observe(1, depth, spent)
        tokens, seconds = tokens + 1 + accepted, seconds + spent
    return tokens / seconds


MACHINES: dict[str, Cost] = {
    "memory-bound": lambda k: 1.0 + 0.05 * k,
    "two rows cheaper than one": lambda k: 1.0 if k == 0 else 0.85 + 0.07 * k,
    "every row costs": lambda k: 1.0 + 0.6 * k,
    "experts": lambda k: 1.0 + 0.35 * min(k, 2) + 0.2 * max(0, k - 2),
    "a step at five rows": lambda k: 1.0 + 0.04 * k + (0.8 if k >= 4 else 0.0),
}
TEXTS = {
    "code": [0.92, 0.88, 0.86, 0.86, 0.85, 0.85, 0.85, 0.85],
    "prose": [0.6, 0.55, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
    "noise": [0.02] * 8,
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("text", TEXTS)
def test_it_comes_near_the_best_fixed_depth_and_never_far_below_plain(
    machine: str, text: str
) -> None:
    cost, kept = MACHINES[machine], TEXTS[text]
    best = max(rate(cost, kept, depth) for depth in range(MOST + 1))
    reached = [
        simulate(AdaptiveDepth(3, MOST), cost, kept, 400, noise=0.1, seed=seed) for seed in range(8)
    ]
    assert np.median(reached) >= 0.95 * best
    assert min(reached) >= 0.93 * rate(cost, kept, 0)


def test_it_follows_a_machine_and_a_text_that_change() -> None:
    chooser = AdaptiveDepth(3, MOST)
    simulate(chooser, MACHINES["every row costs"], TEXTS["noise"], 300, 0.05)
    after = simulate(chooser, MACHINES["memory-bound"], TEXTS["code"], 1500, 0.05)
    best = max(rate(MACHINES["memory-bound"], TEXTS["code"], d) for d in range(MOST + 1))
    assert after >= 0.7 * best


def test_a_stalled_round_does_not_change_its_mind() -> None:
    chooser = AdaptiveDepth(3, MOST)
    simulate(chooser, MACHINES["memory-bound"], TEXTS["code"], 300, 0.02)
    settled = chooser.choose()
    chooser.observe(1, settled, 50.0)
    assert abs(chooser.choose() - settled) <= 2


def test_slots_are_measured_apart() -> None:
    chooser = AdaptiveDepth(3, MOST)
    for _ in range(50):
        for slots, cost in ((1, lambda k: 1 + 0.05 * k), (8, lambda k: 1 + 1.6 * k)):
            depth = chooser.choose(slots)
            chooser.learn(depth, min(depth, 2))
            chooser.observe(slots, depth, cost(depth))
    # One choice in many is a probe.
    assert sorted(chooser.choose(1) for _ in range(5))[2] >= 2
    assert sorted(chooser.choose(8) for _ in range(5))[2] == 0


def test_absurd_bounds_are_refused() -> None:
    with pytest.raises(UsageError):
        AdaptiveDepth(3, 17)
    with pytest.raises(UsageError):
        AdaptiveDepth(-1)

"""The arithmetic of rejection sampling and block verification.

``p`` is the target's processed distribution, ``q`` the one a draft was drawn from, aligned by token
id. Nothing here draws; the formulas hold for exact fractions as well as for floats, and the tests
enumerate them in rational arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gemmtp.engine.sampling import Distribution


def overlap(p: Distribution, q: Distribution) -> float:
    """The sum of min(p, q): how often rejection sampling keeps a token drawn from ``q``."""
    return float(np.minimum(p.p, q.at(p.ids)).sum())


def excess(p: Distribution, q: Distribution, weight: float = 1) -> Distribution:
    """``max(0, weight * p - q)`` by token id, not normalised."""
    return Distribution(p.ids, np.maximum(weight * p.p - q.at(p.ids), 0))


def residual(p: Distribution, q: Distribution, weight: float = 1) -> Distribution:
    """The normalised excess: what is emitted in place of a rejected draft.

    Where nothing is left (``p`` equals ``q`` up to rounding) ``p`` itself is right.
    """
    rest = excess(p, q, weight)
    keep = rest.p > 0
    if not keep.any():
        return p
    return Distribution(rest.ids[keep], rest.p[keep] / rest.p[keep].sum())


class BlockStep(NamedTuple):
    """After i drafted tokens: the joint weight of the draft, and the share that stops there."""

    weight: float
    keep: float


def block_steps(
    p: Sequence[Distribution], q: Sequence[Distribution], draft: Sequence[int]
) -> list[BlockStep]:
    """For every prefix of ``draft``, longest last, whether it may be kept.

    ``p[i]`` and ``q[i]`` follow the first i drafted tokens; ``p`` has one more entry than ``q``.
    The longest prefix whose independent uniform number lies below its ``keep`` is accepted (Sun et
    al., "Block Verification Accelerates Speculative Decoding", arXiv 2403.10444, algorithm 2).
    """
    steps = []
    weight: float = 1
    for i, token in enumerate(draft):
        ratio = p[i].of(token) / q[i].of(token)
        weight = min(weight * ratio, 1)
        if i + 1 == len(draft):
            keep = weight
        else:
            more = excess(p[i + 1], q[i + 1], weight).p.sum()
            slack = more + 1 - weight
            keep = more / slack if slack > 0 else 1
        steps.append(BlockStep(weight, keep))
    return steps

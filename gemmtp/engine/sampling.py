"""From a row of logits to a token: greedy, or temperature, top-k, top-p, min-p and one draw.

The order is that of transformers, and of Google's reference for Gemma: temperature, top-k, top-p,
min-p. The draw for a position depends on the seed and the position alone (a counter-based
generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), so drafting, which
visits some positions twice and others never, cannot shift the stream.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats
from gemmtp.errors import UsageError

NOTHING_LEFT = "No token may be chosen here.", "Loosen the logit biases."


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How a token is chosen. ``temperature`` 0 is greedy and the other numbers are then unused.

    ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 each switch their filter off. ``seed`` None draws a
    fresh seed for every request. Raises :class:`~gemmtp.errors.UsageError` on absurd numbers.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise UsageError(f"Temperature must lie between 0 and 100, not {self.temperature}.")
        if self.top_k < 0:
            raise UsageError(f"Top-k must be 0 (off) or more, not {self.top_k}.")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"Top-p must lie above 0 and up to 1, not {self.top_p}.")
        if not 0.0 <= self.min_p <= 1.0:
            raise UsageError(f"Min-p must lie between 0 and 1, not {self.min_p}.")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise UsageError(f"A seed is a whole number from 0 to 2**64 - 1, not {self.seed}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """A processed next-token distribution: ``ids`` int64[k] ascending, ``p`` float64[k], sum 1.

    The cumulative sum runs in the order of token ids, not of probabilities: rounding that swaps
    two nearly equal tokens then moves an edge by a hair, and not a whole interval elsewhere.
    """

    ids: NDArray[np.int64]
    p: NDArray[np.float64]

    def draw(self, uniform: float) -> int:
        """The token whose interval of the cumulative distribution holds ``uniform`` in [0, 1)."""
        edges = np.cumsum(self.p)
        i = int(np.searchsorted(edges, uniform * edges[-1], side="right"))
        return int(self.ids[min(i, len(self.ids) - 1)])

    def edge_distance(self, uniform: float) -> float:
        """How far ``uniform`` lies from the nearest edge of the cumulative distribution."""
        return float(np.min(np.abs(np.cumsum(self.p) - uniform)))


def processed(logits: Floats, parameters: SamplingParameters) -> Distribution:
    """The distribution a token is drawn from; ``logits`` float32[n_vocab] are left as they are.

    Raises :class:`~gemmtp.errors.UsageError` when no token is left, as when all are biased away.
    """
    n = len(logits)
    if 0 < parameters.top_k < n:
        # Every token that ties with the k-th stays, so the set does not depend on a sort's whim.
        edge = np.partition(logits, n - parameters.top_k)[n - parameters.top_k]
        ids = np.flatnonzero((logits >= edge) & (logits > -np.inf))
    else:
        ids = np.flatnonzero(logits > -np.inf)
    if not len(ids):
        raise UsageError(*NOTHING_LEFT)
    scaled = logits[ids].astype(np.float64) / parameters.temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    if parameters.top_p < 1.0:
        ids, p = _filtered(ids, p, _nucleus(p, parameters.top_p))
    if parameters.min_p > 0.0:
        ids, p = _filtered(ids, p, p >= parameters.min_p * p.max())
    return Distribution(ids, p)


def _nucleus(p: NDArray[np.float64], top_p: float) -> NDArray[np.bool_]:
    """The fewest tokens, most probable first, that reach ``top_p`` together (Holtzman 2020)."""
    descending = np.argsort(-p, kind="stable")
    reached = int(np.searchsorted(np.cumsum(p[descending]), top_p)) + 1
    keep = np.zeros(len(p), bool)
    keep[descending[:reached]] = True
    return keep


def _filtered(
    ids: NDArray[np.int64], p: NDArray[np.float64], keep: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    kept = p[keep]
    return ids[keep], kept / kept.sum()


def fresh_seed() -> int:
    """A seed below 2**63 from the system's entropy, to be shown so that a run can be repeated."""
    return secrets.randbits(63)


def uniform(seed: int, position: int) -> float:
    """The draw in [0, 1) that belongs to (``seed``, ``position``), with 53 random bits."""
    bits = int(np.random.Philox(key=seed, counter=position).random_raw())
    return (bits >> 11) * 2.0**-53

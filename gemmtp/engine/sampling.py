"""From a row of logits to a token: greedy, or temperature, top-k, top-p, min-p and a race.

The order is that of transformers, and of Google's reference for Gemma: temperature, top-k, top-p,
min-p.

Every token gets an exponential variate that depends on the seed, the position and the token alone,
and the token with the smallest variate divided by its probability wins (the exponential race, which
is the Gumbel-max trick: Maddison et al., "A* Sampling", 2014). So drafting, which visits some
positions twice and others never, cannot shift the stream; and where two forward passes round
differently, the choice changes only if the two leaders are that close. A draw along the cumulative
distribution would move every interval behind a token that enters or leaves the nucleus.
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
    """A processed next-token distribution: ``ids`` int64[k] ascending, ``p`` float64[k], sum 1."""

    ids: NDArray[np.int64]
    p: NDArray[np.float64]

    def draw(self, seed: int, position: int) -> int:
        """The token that belongs to ``seed`` and ``position``; frequencies follow ``p``."""
        return int(self.ids[self._arrivals(seed, position).argmin()])

    def margin(self, seed: int, position: int) -> float:
        """How far the second in the race lies behind, in logits divided by the temperature."""
        if len(self.ids) < 2:
            return float("inf")
        first, second = np.partition(self._arrivals(seed, position), 1)[:2]
        return float(np.log(second / first))

    def _arrivals(self, seed: int, position: int) -> NDArray[np.float64]:
        arrivals: NDArray[np.float64] = exponentials(seed, position, self.ids) / self.p
        return arrivals


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
    ids, p = _filtered(ids, p, p > 0.0)
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


def exponentials(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[k]: the standard exponential variate of every (``seed``, ``position``, id).

    Seed and position pick a 64-bit state (Philox: Salmon et al., "Parallel random numbers: as easy
    as 1, 2, 3", 2011), from which SplitMix64 (Steele et al., 2014) is taken at the id's place.
    """
    state = np.uint64(np.random.Philox(key=seed, counter=position).random_raw())
    z = state + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    # 53 random bits and a half, so that the logarithm never meets zero.
    uniform = ((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    variates: NDArray[np.float64] = -np.log(uniform)
    return variates

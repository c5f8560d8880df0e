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
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats
from gemmtp.engine.noise import Noise
from gemmtp.engine.topk import TopK
from gemmtp.engine.wide import SMALLEST_TEMPERATURE, Wide
from gemmtp.errors import UsageError

MOST_TEMPERATURE = 100.0

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
        if not 0.0 <= self.temperature <= MOST_TEMPERATURE:
            raise UsageError(
                f"Temperature must lie between 0 and {MOST_TEMPERATURE:g}, not {self.temperature}.",
                "0 always takes the likeliest token; Gemma was made for 1.",
            )
        if self.top_k < 0:
            raise UsageError(
                f"Top-k must be 0 or more, not {self.top_k}.", "0 is off; Gemma was made for 64."
            )
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(
                f"Top-p must lie above 0 and up to 1, not {self.top_p}.",
                "1 is off; Gemma was made for 0.95.",
            )
        if not 0.0 <= self.min_p <= 1.0:
            raise UsageError(f"Min-p must lie between 0 and 1, not {self.min_p}.", "0 is off.")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise UsageError(
                f"A seed is a whole number from 0 to 2**64 - 1, not {self.seed}.",
                "Without one every answer is drawn afresh.",
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """A processed next-token distribution: ``ids`` int64[k] ascending, ``p`` float64[k], sum 1.

    ``wide`` says which of a position's two families of variates its draws use; see :class:`Noise`.
    """

    ids: NDArray[np.int64]
    p: NDArray[np.float64]
    wide: bool = False

    @classmethod
    def certain(cls, token: int) -> Self:
        """All probability on one token."""
        return cls(np.array([token]), np.array([1.0]))

    def of(self, token: int) -> float:
        """The probability of ``token``."""
        share: float = self.at(np.array([token]))[0]
        return share

    def at(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[n]: the probabilities of ``ids``, 0 where this distribution has none."""
        places = np.minimum(self.ids.searchsorted(ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.p[places], 0)

    def draw(self, noise: Noise) -> int:
        """The token that wins the race of ``noise``; frequencies over seeds follow ``p``."""
        return int(self.ids[self._arrivals(noise).argmin()])

    def margin(self, noise: Noise) -> float:
        """How far the second in the race lies behind, in logits divided by the temperature."""
        if len(self.ids) < 2:
            return float("inf")
        first, second = np.partition(self._arrivals(noise), 1)[:2]
        return float(np.log(second / first))

    def _arrivals(self, noise: Noise) -> NDArray[np.float64]:
        variates = noise.spread(self.ids) if self.wide else noise.exponentials(self.ids)
        arrivals: NDArray[np.float64] = variates / self.p
        return arrivals


class Shaper:
    """Turns rows of logits into distributions.

    Without top-k, :class:`~gemmtp.engine.wide.Wide` does the work.
    """

    def __init__(self, parameters: SamplingParameters) -> None:
        self.parameters = parameters
        self._top_k = TopK(parameters.top_k)
        self._wide = Wide(parameters.temperature, parameters.top_p, parameters.min_p)

    def __call__(self, logits: Floats) -> Distribution:
        """The distribution a token is drawn from; ``logits`` float32[n_vocab] stay as they are.

        Raises :class:`~gemmtp.errors.UsageError` when no token is left, as when all are biased
        away.
        """
        if self._whole(logits):
            ids, p = self._wide.kept(self._weights(logits))
            return Distribution(ids, p / p.sum(), wide=True)
        ids = self._top_k(logits)
        return self.among(ids, logits[ids])

    def among(self, ids: NDArray[np.int64], logits: Floats) -> Distribution:
        """The distribution over those tokens of a row that top-k has left, with their logits.

        Raises as the whole does.
        """
        parameters = self.parameters
        p = self._shares(logits)
        if parameters.top_p < 1.0:
            keep = _nucleus(p, parameters.top_p)
            ids, p = ids[keep], p[keep]
        keep = (p > 0.0) & (p >= parameters.min_p * p.max())
        kept = p[keep]
        return Distribution(ids[keep], kept / kept.sum())

    def choose(self, logits: Floats, noise: Noise) -> int:
        """The token that the distribution's ``draw`` gives, without making the distribution."""
        if self._whole(logits):
            return self._wide.draw(self._weights(logits), noise)
        return self(logits).draw(noise)

    def _whole(self, logits: Floats) -> bool:
        """Whether top-k is off, or lets the whole row through."""
        return not 0 < self.parameters.top_k < len(logits)

    def _weights(self, logits: Floats) -> Floats:
        best = logits.max()
        if best == -np.inf:
            raise UsageError(*NOTHING_LEFT)
        return self._wide.weights(logits, best)

    def _shares(self, logits: Floats) -> NDArray[np.float64]:
        """float64[k]: the probabilities of tokens among themselves."""
        if not len(logits):
            raise UsageError(*NOTHING_LEFT)
        temperature = max(self.parameters.temperature, SMALLEST_TEMPERATURE)
        scaled = logits.astype(np.float64) / temperature
        p = np.exp(scaled - scaled.max())
        shares: NDArray[np.float64] = p / p.sum()
        return shares


def _nucleus(p: NDArray[np.float64], top_p: float) -> NDArray[np.bool_]:
    """The fewest tokens, most probable first, that reach ``top_p`` together (Holtzman 2020)."""
    descending = np.argsort(-p, kind="stable")
    reached = int(np.searchsorted(np.cumsum(p[descending]), top_p)) + 1
    keep = np.zeros(len(p), bool)
    keep[descending[:reached]] = True
    return keep


def fresh_seed() -> int:
    """A seed below 2**63 from the system's entropy, to be shown so that a run can be repeated."""
    return secrets.randbits(63)

"""Random numbers that depend on a seed, a position and a token, and on nothing else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 512
"""Tokens whose smallest variate is known before any of them is looked at; see :meth:`spread`."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRSTS, _WINNERS = np.uint64(1 << 40), np.uint64(1 << 41)
_BLOCK_BITS = np.uint64(BLOCK.bit_length() - 1)


class Noise(NamedTuple):
    """Which random numbers a draw uses.

    ``purpose`` keeps the draws of one position apart, ``round`` those of drafts that visit a
    position again. Sample-and-compare leaves both 0, so that its text is the same at any depth.
    """

    seed: int
    position: int
    purpose: int = 0
    round: int = 0

    def bits(self) -> int:
        """64 random bits (Philox: Salmon et al., "Parallel random numbers", 2011)."""
        counter = self.position | self.round << 64 | self.purpose << 128
        return int(np.random.Philox(key=self.seed, counter=counter).random_raw())

    def uniform(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        return (self.bits() >> 11) * 2.0**-53

    def exponentials(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[k]: a standard exponential variate for every token id."""
        return _exponentials(_mixed(self.bits(), ids.astype(np.uint64)))

    def blocks(self, n: int) -> Blocks:
        """What is known of the first ``n`` blocks of ids before any id is looked at."""
        return Blocks(self.bits(), n)

    def spread(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[k]: standard exponential variates again, others than :meth:`exponentials`.

        Of every :data:`BLOCK` ids, the smallest variate and its id are drawn first: it is
        exponential, so many times as fast, and every id is as likely. The others lie above it by
        variates of their own, because an exponential variable that has not ended yet begins anew.
        So a race among all tokens can leave out the blocks where none can win.
        """
        return self.blocks(int(ids.max()) // BLOCK + 1).of(ids)


class Blocks:
    """Each block's smallest variate, ``first`` float64[n], and its id, ``winners`` int64[n]."""

    def __init__(self, bits: int, n: int) -> None:
        self._bits = bits
        numbers = np.arange(n, dtype=np.uint64)
        self.first = _exponentials(_mixed(bits, numbers + _FIRSTS)) / BLOCK
        places = _mixed(bits, numbers + _WINNERS) >> (np.uint64(64) - _BLOCK_BITS)
        self.winners: NDArray[np.int64] = ((numbers << _BLOCK_BITS) + places).astype(np.int64)

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[k]: the variates of ``ids`` in these blocks."""
        numbers = ids >> _BLOCK_BITS.astype(np.int64)
        own = _exponentials(_mixed(self._bits, ids.view(np.uint64)))
        own[self.winners[numbers] == ids] = 0.0
        variates: NDArray[np.float64] = self.first[numbers] + own
        return variates


def _mixed(bits: int, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele et al., 2014), begun at ``bits`` and taken at each of ``counters``."""
    z = np.uint64(bits) + (counters + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _exponentials(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    # 53 random bits and a half, so that the logarithm never meets zero.
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    variates: NDArray[np.float64] = -np.log(uniform)
    return variates

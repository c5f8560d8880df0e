"""Rows where the whole vocabulary takes part, because top-k is off.

Every token gets a weight, its probability over the best token's. Which token is drawn is found
without sorting them and without a random number for each: :meth:`Noise.spread` says for blocks of
tokens how early the first of them can arrive, and the race looks only where the leader may still be
beaten. Whether the winner belongs to the nucleus takes one sum; where it does not, the race is run
again among the likelier ones. What earlier rows suggest only decides what is looked at first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats
from gemmtp.engine.noise import BLOCK, Blocks, Noise

SMALLEST_TEMPERATURE = 1e-20

HEAD = 8.0
"""Tokens so many times likelier than the average are looked at before the blocks. Then about as
many blocks have to be looked at, whatever the row is like."""

BLOCKS_AT_ONCE = 8
UNSURE = 1e-4
"""Shares nearer to top-p than this are summed again in double precision."""

THRESHOLD_STEP = 8.0
"""How much less likely than the last row's least token of the nucleus this row's may be."""


class Wide:
    """Shapes such rows for one set of parameters."""

    def __init__(self, temperature: float, top_p: float, min_p: float) -> None:
        self._factor = np.float32(1 / max(temperature, SMALLEST_TEMPERATURE))
        self._top_p, self._min_p = top_p, np.float32(min_p)
        self._threshold = np.float32(0.0)

    def weights(self, logits: Floats, best: np.float32) -> Floats:
        """float32[n_vocab]: ``exp((logits - best) / temperature)``."""
        weights: Floats = np.subtract(logits, best)
        if self._factor != 1:
            np.multiply(weights, self._factor, out=weights)
        np.exp(weights, out=weights)
        return weights

    def kept(self, weights: Floats) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ids that may be drawn, ascending, and their weights."""
        if self._top_p < 1.0:
            ids = self._nucleus(weights)
        else:
            ids = np.flatnonzero(weights > 0)
        kept = weights[ids]
        if self._min_p:
            above = kept >= self._min_p
            ids, kept = ids[above], kept[above]
        return ids, kept.astype(np.float64)

    def draw(self, weights: Floats, noise: Noise) -> int:
        """The token of :meth:`kept` that wins the race of ``noise``."""
        blocks = noise.blocks(-(-len(weights) // BLOCK))
        total = racing_total = float(weights.sum())
        racing = weights
        if self._min_p:
            racing = np.multiply(weights, weights >= self._min_p)
            racing_total = float(racing.sum())
        while True:
            limit = np.float32(HEAD * racing_total / len(weights))
            head = np.flatnonzero(racing >= limit)
            token = _first(racing, head, limit, blocks)
            if self._top_p == 1.0:
                return token
            # The tokens likelier than one of the head are of the head.
            of_head = head if weights[token] >= limit else None
            if self._inside(weights, token, of_head, total):
                return token
            racing = np.where(_likelier(weights, token), racing, np.float32(0))

    def _inside(
        self, weights: Floats, token: int, head: NDArray[np.int64] | None, total: float
    ) -> bool:
        """Whether the likelier tokens, and those as likely before it, have less than top-p.

        All of them are among ``head``, where it is given; ``total`` is the sum of weights.
        """
        own = weights[token]
        if head is not None:
            values = weights[head]
            likelier = values[(values > own) | ((values == own) & (head < token))].sum()
        else:
            ties = np.count_nonzero(weights[:token] == own)
            likelier = np.dot(weights, (weights > own).astype(np.float32)) + ties * own
        share = float(likelier) / total
        if abs(share - self._top_p) < UNSURE:
            exact = weights[_likelier(weights, token)].sum(dtype=np.float64)
            share = float(exact / weights.sum(dtype=np.float64))
        return share < self._top_p

    def _nucleus(self, weights: Floats) -> NDArray[np.int64]:
        """The fewest tokens, likeliest first, that reach top-p together (Holtzman 2020)."""
        wanted = self._top_p * float(weights.sum(dtype=np.float64))
        for threshold in (self._threshold, np.float32(0)):
            ids = np.flatnonzero(weights > threshold)
            values = weights[ids]
            falling = np.sort(values)[::-1]
            sums = falling.cumsum(dtype=np.float64)
            if len(sums) and sums[-1] >= wanted:
                break
        reached = min(int(sums.searchsorted(wanted)), len(sums) - 1)
        edge = falling[reached]
        keep = values > edge
        # Of equally likely tokens at the edge, those with the lower ids.
        at_edge = np.flatnonzero(values == edge)
        keep[at_edge[: reached + 1 - int(np.count_nonzero(keep))]] = True
        self._threshold = np.float32(edge / THRESHOLD_STEP)
        nucleus: NDArray[np.int64] = ids[keep]
        return nucleus


def _first(weights: Floats, head: NDArray[np.int64], limit: np.float32, blocks: Blocks) -> int:
    """The token with the smallest variate over its weight; ``head`` has those from ``limit`` on."""
    best = _Leader(weights)
    known = blocks.winners < len(weights)
    best.take(blocks.winners[known], blocks.first[known])
    best.take(head, blocks.of(head))
    # No other token of a block arrives before its smallest variate over the largest weight left.
    order = blocks.first.argsort()
    order = order[blocks.first[order] < best.arrival * limit]
    for start in range(0, len(order), BLOCKS_AT_ONCE):
        some = order[start : start + BLOCKS_AT_ONCE]
        some = some[blocks.first[some] < best.arrival * limit]
        ids = (some[:, np.newaxis] * BLOCK + np.arange(BLOCK)).ravel()
        ids = ids[ids < len(weights)]
        best.take(ids, blocks.of(ids))
    return best.token


class _Leader:
    """The earliest arrival so far."""

    def __init__(self, weights: Floats) -> None:
        self._weights = weights
        self.token, self.arrival = -1, np.inf

    def take(self, ids: NDArray[np.int64], variates: NDArray[np.float64]) -> None:
        """Let ``ids`` with these variates take part; weights of 0 never arrive."""
        if len(ids):
            with np.errstate(divide="ignore"):
                arrivals = variates / self._weights[ids]
            first = int(arrivals.argmin())
            if arrivals[first] < self.arrival:
                self.token, self.arrival = int(ids[first]), float(arrivals[first])


def _likelier(weights: Floats, token: int) -> NDArray[np.bool_]:
    """Which tokens the nucleus takes before ``token``."""
    before: NDArray[np.bool_] = weights > weights[token]
    before[:token] |= weights[:token] == weights[token]
    return before

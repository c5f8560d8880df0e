"""The highest logits of a row without sorting it.

Rows that follow each other are alike, so the edge of the last row tells nearly where this one's
lies. Where it does not, tokens are dealt into many classes like cards: the k-th highest of the
classes' best logits lies not above the k-th highest logit, so whatever lies below it is out,
whatever the row looks like. Neighbours go to different classes, since a vocabulary has its frequent
tokens side by side. The result is the same by either way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats

CLASSES_A_TOKEN = 64
"""So many classes for each token that is wanted: then few of the best share one."""

SHORTEST_CLASS = 4
"""Tokens in a class below which dealing saves nothing."""

MANY = 8
"""So many times k tokens are too many to be left by the edge of the row before."""

WIDEST_SLACK, SLACK_STEP = np.float32(2.0), np.float32(0.8)
"""How far below the last row's edge is looked, and what that is multiplied by where it was much."""


def top_k(logits: Floats, k: int) -> NDArray[np.int64]:
    """Ids int64[n], ascending, of the ``k`` highest of ``logits`` float32[n_vocab].

    Ties with the k-th are all in; tokens at minus infinity are not, so there may be fewer.
    """
    return _among(logits, np.flatnonzero(logits >= _least(logits, k)), k)


class TopK:
    """The same for rows of one text, which is quicker where they are alike."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._threshold, self._slack = np.float32(np.inf), WIDEST_SLACK

    def __call__(self, logits: Floats) -> NDArray[np.int64]:
        """Ids int64[n] as :func:`top_k` gives them."""
        k = self._k
        ids = np.flatnonzero(logits >= self._threshold)
        if k <= len(ids) <= MANY * k:
            ids = _among(logits, ids, k)
        else:
            self._slack = WIDEST_SLACK if len(ids) < k else SLACK_STEP * self._slack
            ids = top_k(logits, k)
        if len(ids) >= k:
            self._threshold = logits[ids].min() - self._slack
        return ids


def _among(logits: Floats, ids: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """The ``k`` highest of ``ids`` and their ties."""
    if len(ids) <= k:
        return ids
    values = logits[ids]
    edge = np.partition(values, len(ids) - k)[len(ids) - k]
    kept: NDArray[np.int64] = ids[values >= edge]
    return kept


def _least(logits: Floats, k: int) -> np.float32:
    """A finite bound that the k-th highest logit, if there is one, does not fall below."""
    lowest = np.finfo(np.float32).min
    classes = CLASSES_A_TOKEN * k
    rows = len(logits) // classes
    if rows < SHORTEST_CLASS:
        return lowest
    best = logits[: rows * classes].reshape(rows, classes).max(0)
    return max(lowest, np.partition(best, classes - k)[classes - k])

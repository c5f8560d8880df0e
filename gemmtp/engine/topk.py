"""The highest logits of a row without sorting it.

Tokens are dealt into many classes like cards. The k-th highest of the classes' best logits lies not
above the k-th highest logit, so whatever lies below it is out; hardly more than k tokens are left
to sort, whatever the row looks like.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats

CLASSES_A_TOKEN = 16
"""So many classes for each token that is wanted: then few of the best share one."""

SHORTEST_CLASS = 4
"""Tokens in a class below which dealing saves nothing."""


def top_k(logits: Floats, k: int) -> NDArray[np.int64]:
    """Ids int64[n], ascending, of the ``k`` highest of ``logits`` float32[n_vocab].

    Ties with the k-th are all in; tokens at minus infinity are not, so there may be fewer.
    """
    ids = np.flatnonzero(logits >= _least(logits, k))
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

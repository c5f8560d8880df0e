"""Which keys a query may look at: the same document, the past, the window."""

import torch
from torch import Tensor

from demo.shapes import FULL, SLIDING


def causal(documents: Tensor, images: Tensor, window: int) -> dict[str, Tensor]:
    """Masks bool[B, 1, S, S] of a target over rows of packed documents int64[B, S].

    A query at position p sees keys from p - window + 1 to p in sliding layers, as llama.cpp's
    standard window does. There, and only there, a row of an image (int64[B, S], -1 for text) sees
    the image's later rows too.
    """
    behind = _behind(documents.shape[1])
    same = documents[:, None, :, None] == documents[:, None, None, :]
    picture = (images[:, None, :, None] == images[:, None, None, :]) & (images >= 0)[
        :, None, :, None
    ]
    full = same & (behind >= 0)
    return {FULL: full, SLIDING: (full | picture) & (behind < window)}


def before(documents: Tensor, window: int) -> dict[str, Tensor]:
    """The drafter's masks: at position p only keys before p, since p is not in the cache yet.

    The first token of a document sees itself, so that no row of the softmax is empty; nothing is
    learned there.
    """
    behind = _behind(documents.shape[1])
    same = documents[:, None, :, None] == documents[:, None, None, :]
    full = same & (behind >= 1)
    sliding = full & (behind < window)
    lone = ~full.any(-1, keepdim=True) & (behind == 0)
    return {FULL: full | lone, SLIDING: sliding | lone}


def _behind(length: int) -> Tensor:
    index = torch.arange(length)
    return index[:, None] - index[None, :]

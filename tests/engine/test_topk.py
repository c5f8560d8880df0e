"""The tokens that top-k lets through are those that sorting the row would give."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats
from gemmtp.engine.topk import CLASSES_A_TOKEN, top_k


def sorted_out(logits: Floats, k: int) -> list[int]:
    """By definition: all that reach the k-th highest finite logit."""
    finite = np.sort(logits[logits > -np.inf])[::-1]
    if not len(finite):
        return []
    edge = finite[min(k, len(finite)) - 1]
    return np.flatnonzero(logits >= edge).tolist()


def rows() -> dict[str, Floats]:
    random = np.random.default_rng(3)
    plain = random.normal(0, 3, 50_000).astype(np.float32)
    few = np.full(50_000, -np.inf, np.float32)
    few[random.choice(50_000, 20, replace=False)] = random.normal(0, 1, 20)
    crowd = plain.copy()
    # The best tokens all in one class, however the row is dealt among 16 * k classes.
    crowd[:: CLASSES_A_TOKEN * 64] += 100
    tied = np.round(plain)
    return {
        "plain": plain,
        "few left": few,
        "one class": crowd,
        "ties": tied,
        "all alike": np.zeros(50_000, np.float32),
        "none left": np.full(50_000, -np.inf, np.float32),
        "best at the end": np.sort(plain),
        "lowest numbers": np.full(50_000, np.finfo(np.float32).min),
        "short": plain[:70],
    }


@pytest.mark.parametrize("name", rows())
@pytest.mark.parametrize("k", [1, 3, 64, 1000, 60_000])
def test_the_same_as_sorting(name: str, k: int) -> None:
    row = rows()[name]
    before = row.copy()
    assert top_k(row, k).tolist() == sorted_out(row, k)
    assert np.array_equal(row, before)


def test_a_row_in_which_nothing_is_alike_leaves_little_to_sort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = []
    flatnonzero = np.flatnonzero

    def seen(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        found = flatnonzero(mask)
        left.append(len(found))
        return found

    monkeypatch.setattr(np, "flatnonzero", seen)
    top_k(np.random.default_rng(1).normal(0, 1, 262_144).astype(np.float32), 64)
    assert 64 <= left[0] < 2 * 64

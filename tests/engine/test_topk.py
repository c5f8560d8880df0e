"""The tokens that top-k lets through are those that sorting the row would give."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats
from gemmtp.engine.topk import CLASSES_A_TOKEN, TopK, top_k


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
    # The best tokens all in one class, however the row is dealt among 64 * k classes.
    crowd[:: CLASSES_A_TOKEN * 3] += 100
    tied = np.round(plain)
    # As in a vocabulary whose frequent tokens come first.
    first = np.full(50_000, -1, np.float32)
    first[:2_500] = random.normal(0, 3, 2_500)
    return {
        "plain": plain,
        "few left": few,
        "one class": crowd,
        "ties": tied,
        "first ones": first,
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


@pytest.mark.parametrize("k", [3, 64, 1000])
def test_the_row_before_changes_nothing(k: int) -> None:
    random = np.random.default_rng(9)
    of_a_text = TopK(k)
    plain = rows()["plain"]
    for _ in range(3):
        for name, row in rows().items():
            assert of_a_text(row).tolist() == sorted_out(row, k), name
            near = plain + random.normal(0, 0.2, len(plain)).astype(np.float32)
            assert of_a_text(near).tolist() == sorted_out(near, k)


def test_hardly_more_than_k_tokens_are_left_to_sort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = []
    flatnonzero = np.flatnonzero

    def seen(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        found = flatnonzero(mask)
        left.append(len(found))
        return found

    monkeypatch.setattr(np, "flatnonzero", seen)
    random = np.random.default_rng(1)
    first = np.full(262_144, -1, np.float32)
    first[:2_500] = random.normal(0, 3, 2_500)
    for row in (random.normal(0, 1, 262_144).astype(np.float32), first):
        top_k(row, 64)
    assert max(left) < 2 * 64

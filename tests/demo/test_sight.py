"""What the tower is taught about the patches of a drawing fits what stands there."""

from random import Random

import pytest

pytest.importorskip("torch", reason="needs the extra [train]")

from demo.corpus.drawings import BACKGROUNDS, Drawing, Figure
from demo.corpus.scenes import scene
from demo.images import grid
from demo.sight import Labels, labels_of

pytestmark = pytest.mark.train
BUDGET = 70


def labels(drawing: Drawing) -> tuple[Labels, int]:
    """The labels at the set's own budget, and how many patches a row has."""
    columns, rows = grid(drawing.width, drawing.height, BUDGET)
    return labels_of(drawing, columns, rows), 3 * columns


def test_a_figure_has_one_middle_however_it_falls_on_the_patches() -> None:
    rng = Random(3)
    for drawing in (scene(rng, 0.3) for _ in range(60)):
        found, _ = labels(drawing)
        assert found.middle.sum().item() == pytest.approx(len(drawing.figures), abs=1e-4)


def test_a_patch_tells_how_far_the_middle_of_its_own_figure_is() -> None:
    figures = tuple(Figure("square", "red", x, 0.5, 0.2) for x in (0.25, 0.75))
    found, wide = labels(Drawing(240, 160, BACKGROUNDS[0], figures, seed=1))
    high = len(found.inside) // wide
    for index in found.inside.nonzero().flatten().tolist():
        x, y = index % wide, index // wide
        own = 0.25 if x < wide / 2 else 0.75
        away = (own * wide - 0.5 - x, 0.5 * high - 0.5 - y)
        assert found.offset[index].tolist() == pytest.approx(away, abs=1e-4)
    assert found.inside.sum() > 20

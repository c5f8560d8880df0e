"""Drawings are the same for a seed, and what is asked about them fits what they show."""

import itertools
from random import Random

import numpy as np
import pytest

from demo.corpus.drawings import (
    BACKGROUNDS,
    COLOURS,
    HELD_OUT_KINDS,
    SHAPES,
    Drawing,
    Figure,
    covered,
    draw,
    stands_out,
)
from demo.corpus.pictures import NOT_SHOWN, picture_examples, place_of, plural, questions
from demo.corpus.scenes import scene
from demo.picture_figures import unseen

SAMPLE = 300
WHITE = BACKGROUNDS[0]


def drawing(*figures: Figure, width: int = 240, height: int = 160) -> Drawing:
    return Drawing(width, height, WHITE, figures, seed=1)


def answers(drawn: Drawing) -> dict[str, list[str]]:
    """What every question about a drawing wants, by what it asks for."""
    found: dict[str, list[str]] = {}
    for question in questions(drawn):
        found.setdefault(question.about, []).append(question.answer)
    return found


def test_a_seed_gives_the_same_pixels_again_and_another_seed_gives_others() -> None:
    first, again = (scene(Random(5)) for _ in range(2))
    assert np.array_equal(draw(first), draw(again))
    assert first != scene(Random(6))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_figure_has_its_colour_where_it_stands_and_nowhere_else(shape: str, colour: str) -> None:
    ground = next(ground for ground in BACKGROUNDS if stands_out(colour, ground))
    drawn = Drawing(240, 160, ground, (Figure(shape, colour, 0.25, 0.5, 0.3),), seed=2)
    pixels, shares = draw(drawn).astype(int), covered(drawn, 24, 16)[0]
    cells = pixels.reshape(16, 10, 24, 10, 3).mean((1, 3))
    near = [np.linalg.norm(cells - tint, axis=-1) for tint in COLOURS[colour]]
    painted = np.min(near, axis=0)
    assert (painted[shares == 1] < np.linalg.norm(cells - ground, axis=-1)[shares == 1]).all()
    assert np.linalg.norm(cells[shares == 0] - ground, axis=-1).max() < 60
    assert shares.sum() > 20


def test_a_figure_keeps_its_proportions_in_wide_and_upright_pictures() -> None:
    for width, height in ((300, 120), (120, 300)):
        shares = covered(
            drawing(Figure("square", "red", 0.5, 0.5, 0.3), width=width, height=height),
            width // 10,
            height // 10,
        )[0]
        rows, columns = (shares > 0.5).any(1).sum(), (shares > 0.5).any(0).sum()
        assert rows == columns


def test_one_figure_is_named_and_placed() -> None:
    found = answers(drawing(Figure("star", "orange", 0.2, 0.5, 0.2)))
    assert found == {
        "what": ["An orange star."],
        "colour": ["It is orange."],
        "shape": ["It is a star."],
        "count": ["There is one star."],
        "place": ["On the left."],
        "presence": ["Yes.", "No."],
    }


def test_groups_are_counted() -> None:
    crosses = [Figure("cross", "green", 0.2 + 0.2 * i, 0.3, 0.08) for i in range(3)]
    assert answers(drawing(*crosses)) == {
        "what": ["Three green crosses."],
        "colour": ["They are green."],
        "shape": ["They are crosses."],
        "count": ["There are three crosses."],
        "presence": ["Yes.", "No."],
    }


def test_a_figure_between_the_places_is_not_asked_for_its_place() -> None:
    assert place_of(Figure("circle", "red", 0.35, 0.35, 0.1)) is None
    assert "place" not in answers(drawing(Figure("circle", "red", 0.35, 0.35, 0.1)))


def test_the_figures_of_a_scene_stand_out_and_do_not_touch() -> None:
    rng = Random(9)
    for drawn in (scene(rng) for _ in range(SAMPLE)):
        assert all(stands_out(figure.colour, drawn.background) for figure in drawn.figures)
        shorter = min(drawn.width, drawn.height)
        for one, other in itertools.combinations(drawn.figures, 2):
            apart = np.hypot((one.x - other.x) * drawn.width, (one.y - other.y) * drawn.height)
            assert apart > (one.radius + other.radius) * shorter


def test_no_kind_that_is_held_out_comes_up_in_training() -> None:
    shown = [
        figure.kind
        for example in itertools.islice(picture_examples(4), SAMPLE)
        for picture in example.pictures
        for figure in picture.figures
    ]
    assert len(set(shown)) > 30
    assert not set(shown) & HELD_OUT_KINDS
    assert all(drawn.held_out for drawn in unseen(10, new_kinds=True))


def test_conversations_show_pictures_early_late_and_not_at_all() -> None:
    examples = list(itertools.islice(picture_examples(4), SAMPLE))
    blind = [example for example in examples if not example.pictures]
    assert {example.answer for example in blind} == {NOT_SHOWN}
    assert any(len(example.pictures) == 2 for example in examples)
    assert any(example.messages[0]["role"] == "system" for example in examples)
    later = [example for example in examples if isinstance(example.messages[-1]["content"], str)]
    assert len(later) > SAMPLE // 5


def test_shapes_have_their_plurals() -> None:
    assert [plural(shape) for shape in ("star", "cross")] == ["stars", "crosses"]

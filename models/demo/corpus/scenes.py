"""Which figures a drawing holds and where: one, or up to four of a kind."""

from collections.abc import Sequence
from random import Random

from demo.corpus.drawings import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    Colour,
    Drawing,
    Figure,
    sizes,
    stands_out,
)

# Where a single figure may stand: ranges of x and y in fractions of the picture.
PLACES: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "on the left": ((0.14, 0.27), (0.38, 0.62)),
    "on the right": ((0.73, 0.86), (0.38, 0.62)),
    "at the top": ((0.38, 0.62), (0.14, 0.27)),
    "at the bottom": ((0.38, 0.62), (0.73, 0.86)),
    "in the middle": ((0.44, 0.56), (0.44, 0.56)),
}
MOST_FIGURES = 4
SINGLE_SHARE = 0.6
TURN = 0.22
# Free room around each figure of a group, as a multiple of its radius.
ROOM = 1.45
EDGE = 0.06


def scene(rng: Random, single_share: float = SINGLE_SHARE) -> Drawing:
    """A drawing of one figure or of a group."""
    return one(rng) if rng.random() < single_share else group(rng)


def one(rng: Random) -> Drawing:
    """A single figure, at one of the places or anywhere."""
    width, height = sizes(rng)
    ground = rng.choice(BACKGROUNDS)
    kind = _kind(rng, ground)
    if rng.random() < 0.75:
        place = rng.choice(list(PLACES.values()))
        radius = rng.uniform(0.12, 0.24 if place != PLACES["in the middle"] else 0.44)
        x, y = (rng.uniform(*span) for span in place)
    else:
        radius = rng.uniform(0.12, 0.42)
        x, y = (rng.uniform(0.42, 0.58) for _ in range(2))
        free = max(0.0, 0.46 - radius)
        x, y = x + rng.uniform(-free, free), y + rng.uniform(-free, free)
    return Drawing(width, height, ground, (_figure(rng, kind, x, y, radius),), _seed(rng))


def group(rng: Random) -> Drawing:
    """Two to four figures of one kind, anywhere."""
    while True:
        width, height = sizes(rng)
        ground = rng.choice(BACKGROUNDS)
        kind = _kind(rng, ground)
        figures = _scattered(rng, [kind] * rng.randint(2, MOST_FIGURES), width, height)
        if figures:
            return Drawing(width, height, ground, figures, _seed(rng))


def _scattered(
    rng: Random, members: Sequence[tuple[str, str]], width: int, height: int
) -> tuple[Figure, ...]:
    """The members at places where none touches another; empty when there was no room."""
    shorter = min(width, height)
    radius = rng.uniform(0.1, 0.17)
    figures: list[Figure] = []
    for kind in members:
        size = radius * rng.uniform(0.85, 1.15)
        margin_x, margin_y = size * shorter / width + EDGE, size * shorter / height + EDGE
        for _ in range(60):
            x, y = rng.uniform(margin_x, 1 - margin_x), rng.uniform(margin_y, 1 - margin_y)
            near = any(
                ((x - f.x) * width) ** 2 + ((y - f.y) * height) ** 2
                < (ROOM * (size + f.radius) * shorter) ** 2
                for f in figures
            )
            if not near:
                figures.append(_figure(rng, kind, x, y, size))
                break
        else:
            return ()
    return tuple(figures)


def _kind(rng: Random, ground: Colour) -> tuple[str, str]:
    """A colour that stands out, and a shape."""
    return rng.choice([c for c in COLOURS if stands_out(c, ground)]), rng.choice(SHAPES)


def _figure(rng: Random, kind: tuple[str, str], x: float, y: float, radius: float) -> Figure:
    colour, shape = kind
    return Figure(shape, colour, x, y, radius, rng.uniform(-TURN, TURN))


def _seed(rng: Random) -> int:
    return rng.getrandbits(32)

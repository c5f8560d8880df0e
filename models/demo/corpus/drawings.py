"""Drawings of plain figures: what stands in a picture, and its pixels.

The same drawing gives the same pixels. A few kinds (a shape in a colour) are kept from training
wherever they would stand in a picture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Pixels = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
# Tints of each colour; the first one decides whether it stands out.
COLOURS: dict[str, tuple[Colour, ...]] = {
    "red": ((215, 35, 40), (255, 0, 0), (185, 25, 30)),
    "orange": ((245, 140, 25), (255, 165, 0), (240, 120, 30)),
    "yellow": ((245, 220, 40), (255, 255, 0), (250, 210, 60)),
    "green": ((35, 150, 60), (0, 128, 0), (40, 200, 60)),
    "blue": ((35, 80, 205), (0, 0, 255), (60, 125, 225)),
    "purple": ((130, 50, 165), (128, 0, 128), (155, 75, 205)),
    "black": ((25, 25, 28), (0, 0, 0)),
    "white": ((246, 246, 244), (255, 255, 255)),
}
BACKGROUNDS: tuple[Colour, ...] = (
    (255, 255, 255),
    (222, 222, 222),
    (128, 130, 134),
    (240, 228, 200),
    (205, 225, 245),
    (44, 48, 60),
)
HELD_OUT_KINDS = frozenset(
    {("purple", "star"), ("orange", "cross"), ("green", "ring"), ("blue", "triangle")}
)
# Squared distance in RGB below which a figure would hardly stand out.
LEAST_CONTRAST = 100**2
TINT = 14
NOISE = 6.0
OVERSAMPLING = 2
# Sides of a picture: the shorter one in pixels, and how much longer the other may be.
SHORTER_SIDE = (80, 420)
LONGEST_RATIO = 2.5


@dataclass(frozen=True)
class Figure:
    """Centre in fractions of width and height, radius in fractions of the shorter side."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float
    turn: float = 0.0

    @property
    def kind(self) -> tuple[str, str]:
        """Colour and shape."""
        return self.colour, self.shape


@dataclass(frozen=True)
class Drawing:
    """A picture of `figures`; `seed` decides tints, shading and noise."""

    width: int
    height: int
    background: Colour
    figures: tuple[Figure, ...]
    seed: int

    @property
    def held_out(self) -> bool:
        """True when one of its kinds is kept from training."""
        return any(figure.kind in HELD_OUT_KINDS for figure in self.figures)


def draw(drawing: Drawing) -> Pixels:
    """The picture's pixels, RGB uint8[height, width, 3]."""
    rng = np.random.default_rng(drawing.seed)
    scale = OVERSAMPLING
    size = (drawing.width * scale, drawing.height * scale)
    canvas = Image.new("RGB", size, _tinted(drawing.background, rng))
    brush = ImageDraw.Draw(canvas)
    for figure in drawing.figures:
        outline = _outline(figure, *size)
        tints = COLOURS[figure.colour]
        fill = _tinted(tints[rng.integers(len(tints))], rng)
        ground = canvas.getpixel((0, 0))
        _paint(brush, figure.shape, outline, fill, ground)
    pixels = np.asarray(canvas.reduce(scale), np.float32)
    shade = rng.uniform(-TINT, TINT, 2)
    slope = np.linspace(0, shade[0], drawing.height)[:, None]
    slope = slope + np.linspace(0, shade[1], drawing.width)[None, :]
    noise = rng.normal(0, rng.uniform(0, NOISE), pixels.shape[:2])
    return np.clip(pixels + (slope + noise)[:, :, None], 0, 255).astype(np.uint8)


def covered(drawing: Drawing, columns: int, rows: int, cell: int = 8) -> npt.NDArray[np.float32]:
    """Share of each cell of a grid that each figure covers, float32[figures, rows, columns]."""
    size = (columns * cell, rows * cell)
    shares = np.zeros((len(drawing.figures), rows, columns), np.float32)
    for i, figure in enumerate(drawing.figures):
        mask = Image.new("L", size, 0)
        outline = _outline(figure, *size, proportion=drawing.width / drawing.height)
        _paint(ImageDraw.Draw(mask), figure.shape, outline, 1, 0)
        cells = np.asarray(mask, np.float32).reshape(rows, cell, columns, cell)
        shares[i] = cells.mean((1, 3))
    return shares


def _tinted(colour: Colour, rng: np.random.Generator) -> Colour:
    red, green, blue = (np.array(colour) + rng.integers(-TINT, TINT + 1, 3)).clip(0, 255).tolist()
    return red, green, blue


def _outline(
    figure: Figure, width: int, height: int, proportion: float | None = None
) -> list[tuple[float, float]]:
    """Corners in pixels; `proportion` is width / height of the picture before it was stretched."""
    proportion = proportion or width / height
    # The shorter side as a fraction of width and of height.
    across = figure.radius * min(1.0, 1 / proportion) * width
    down = figure.radius * min(1.0, proportion) * height
    corners = [
        (
            (figure.x * width + across * (x * math.cos(figure.turn) - y * math.sin(figure.turn))),
            (figure.y * height + down * (x * math.sin(figure.turn) + y * math.cos(figure.turn))),
        )
        for x, y in _CORNERS[figure.shape]
    ]
    return corners


def _paint(
    brush: ImageDraw.ImageDraw,
    shape: str,
    outline: Sequence[tuple[float, float]],
    fill: Colour | int,
    ground: object,
) -> None:
    brush.polygon(outline, fill=fill)
    if shape == "ring":
        middle_x = sum(x for x, _ in outline) / len(outline)
        middle_y = sum(y for _, y in outline) / len(outline)
        hole = [
            (middle_x + RING_HOLE * (x - middle_x), middle_y + RING_HOLE * (y - middle_y))
            for x, y in outline
        ]
        brush.polygon(hole, fill=ground)  # type: ignore[arg-type]


def _polygon(count: int, start: float, inner: float = 1.0) -> list[tuple[float, float]]:
    """`count` corners on the unit circle; every second one drawn in to `inner`."""
    return [
        (
            (inner if i % 2 else 1.0) * math.cos(start + 2 * math.pi * i / count),
            (inner if i % 2 else 1.0) * math.sin(start + 2 * math.pi * i / count),
        )
        for i in range(count)
    ]


RING_HOLE = 0.58
ARM = 0.3
_ROUND = _polygon(64, 0.0)
# Unit outlines, y downwards.
_CORNERS: dict[str, list[tuple[float, float]]] = {
    "circle": _ROUND,
    "ring": _ROUND,
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": [(0.0, -0.95), (0.95, 0.75), (-0.95, 0.75)],
    "star": _polygon(10, -math.pi / 2, 0.42),
    "cross": [
        (-ARM, -1), (ARM, -1), (ARM, -ARM), (1, -ARM), (1, ARM), (ARM, ARM),
        (ARM, 1), (-ARM, 1), (-ARM, ARM), (-1, ARM), (-1, -ARM), (-ARM, -ARM),
    ],
}  # fmt: skip


def sizes(rng: Random) -> tuple[int, int]:
    """Width and height of a picture, upright as often as not."""
    shorter = rng.randint(*SHORTER_SIDE)
    longer = round(shorter * math.exp(rng.uniform(0, math.log(LONGEST_RATIO))))
    return (shorter, longer) if rng.random() < 0.5 else (longer, shorter)


def stands_out(colour: str, background: Colour) -> bool:
    """Whether a figure of that colour can be seen on that background."""
    pairs = zip(COLOURS[colour][0], background, strict=True)
    return sum((a - b) ** 2 for a, b in pairs) >= LEAST_CONTRAST

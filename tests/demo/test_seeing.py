"""The committed set tells what drawings show, and cannot once the way to them is broken."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib import resources
from pathlib import Path
from random import Random

import numpy as np
import pytest

from demo.corpus.drawings import Drawing, Pixels
from demo.corpus.example import Example
from demo.corpus.pictures import NOT_SHOWN, WHAT, ask, questions
from demo.picture_figures import grade, unseen
from demo.reader import Reader, Tally, open_set
from gemmtp.prompt.attachments import Picture

FOLDER = Path(str(resources.files("gemmtp_models"))) / "demo_set"
# The smallest budget; the figures in the notes are taken at the others too.
TOKENS = 70
DRAWINGS = 24
# Of them, how many are told right, and how many at most once something is broken.
PROMISED, SPOILED = 22, 20
ASKED = ("what", "colour", "shape", "place")
PATCH, CELL = 16, 48

Fault = Callable[[Pixels], Pixels]


class Spoiled(Reader):
    """A reader whose pictures pass a fault on their way to the projector."""

    fault: Fault | None = None

    def picture(self, drawing: Drawing) -> Picture:
        picture = super().picture(drawing)
        if self.fault is None:
            return picture
        pixels = np.ascontiguousarray(self.fault(picture.pixels))
        return replace(picture, pixels=pixels, key=pixels.tobytes())


@pytest.fixture(scope="module")
def reader() -> Iterator[Spoiled]:
    with ExitStack() as stack:
        opened = open_set(FOLDER, stack, image_tokens=TOKENS, make=Spoiled)
        assert isinstance(opened, Spoiled)
        yield opened


@pytest.fixture(scope="module")
def asked() -> list[Example]:
    """One question about each of a few unseen drawings, what it asks for in turn."""
    rng = Random(1)
    found: list[Example] = []
    for drawing in unseen(8 * DRAWINGS):
        wanted = ASKED[len(found) % len(ASKED)]
        fitting = [question for question in questions(drawing) if question.about == wanted]
        if fitting and len(found) < DRAWINGS:
            found.append(ask(fitting[0], fitting[0].wordings[0], drawing, rng=rng))
    assert len(found) == DRAWINGS
    return found


def right(reader: Spoiled, asked: list[Example], fault: Fault | None) -> Tally:
    """How many of the questions are answered right when pictures pass `fault`."""
    reader.fault, tally = fault, Tally()
    for example in asked:
        grade(reader, example, tally)
    return tally


def test_unseen_drawings_are_told_right_and_drafting_changes_nothing(
    reader: Spoiled, asked: list[Example]
) -> None:
    tally = right(reader, asked, None)
    assert tally.right >= PROMISED, tally.wrong
    assert tally.changed == 0
    assert tally.statistics.tokens_per_round > 2


def test_without_a_picture_it_says_so(reader: Spoiled) -> None:
    example = Example("pictures", ({"role": "user", "content": WHAT[0]},), NOT_SHOWN)
    assert reader.ask(example, Tally()) == NOT_SHOWN


def _swapped_channels(pixels: Pixels) -> Pixels:
    return pixels[:, :, ::-1]


def _not_centred(pixels: Pixels) -> Pixels:
    """What [0, 1] looks like to a tower that wants [-1, 1]."""
    return (pixels // 2 + 128).astype(np.uint8)


def _columns_for_rows(pixels: Pixels) -> Pixels:
    """Patches in column order, each with its own pixels upright."""
    height, width, _ = pixels.shape
    rows, columns = height // PATCH, width // PATCH
    patches = pixels.reshape(rows, PATCH, columns, PATCH, 3).transpose(2, 0, 1, 3, 4)
    swapped = patches.reshape(rows, columns, PATCH, PATCH, 3).transpose(0, 2, 1, 3, 4)
    return swapped.reshape(pixels.shape)


def _transposed_patches(pixels: Pixels) -> Pixels:
    """Each patch in its place, its rows and columns swapped."""
    height, width, _ = pixels.shape
    patches = pixels.reshape(height // PATCH, PATCH, width // PATCH, PATCH, 3)
    return patches.transpose(0, 3, 2, 1, 4).reshape(pixels.shape)


def _lost_positions(pixels: Pixels) -> Pixels:
    """The same tokens anywhere."""
    height, width, _ = pixels.shape
    cells = pixels.reshape(height // CELL, CELL, width // CELL, CELL, 3).swapaxes(1, 2)
    order = np.random.default_rng(0).permutation(cells.shape[0] * cells.shape[1])
    shuffled = cells.reshape(-1, CELL, CELL, 3)[order].reshape(cells.shape)
    return shuffled.swapaxes(1, 2).reshape(pixels.shape)


@pytest.mark.parametrize(
    "fault",
    [_swapped_channels, _not_centred, _columns_for_rows, _transposed_patches, _lost_positions],
)
def test_a_fault_on_the_way_to_the_tower_shows(
    reader: Spoiled, asked: list[Example], fault: Fault
) -> None:
    assert right(reader, asked, fault).right <= SPOILED

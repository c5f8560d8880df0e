"""Whether a projector sees what its checkpoint sees, from the image file on (extra ``[train]``).

transformers opens, resizes and encodes an image by its own processor and tower in float32; here
``gemmtp.prompt.attachments`` and llama.cpp's mtmd do. Compared are the rows that the text model is
given, one for each token of the image.

Two kinds of file are handed to transformers as it takes an image object, because its reader of
files loses what is in them: transparency is laid on white in place of dropped, and 16 bits of grey
become 8 in place of being cut off at 255.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmtp.errors import UsageError
from gemmtp.llama.model import Model
from gemmtp.llama.projector import Projector
from gemmtp.prompt.attachments import Frame, Picture, read_picture
from gemmtp_models.header import read_header
from gemmtp_models.projector import check_projector

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ImageFile:
    """An image as it lies on the disk."""

    name: str
    data: bytes


@dataclass(frozen=True)
class ImageComparison:
    """One image of ``size`` (width, height), which became ``tokens`` rows.

    ``cosine`` is that of the row that agrees least and ``error`` the largest
    ``|ours - reference| / |reference|`` of a row; ``pixels`` is the largest difference of a value
    (of 255) after both sides resized the image.
    """

    name: str
    size: tuple[int, int]
    tokens: int
    pixels: int
    cosine: float
    error: float


def compare_images(
    target_dir: Path,
    target_file: Path,
    projector_file: Path,
    images: Sequence[ImageFile],
    *,
    tokens: int,
    threads: int = 0,
) -> list[ImageComparison]:
    """Run both sides over ``images`` with a budget of ``tokens`` each.

    Raises UsageError when torch and transformers are not installed, and what opening the files and
    reading the images raises.
    """
    reference = Reference.open(target_dir)
    header = read_header(projector_file)
    with (
        Model.open(target_file) as model,
        Projector.open(header, model, threads=threads) as projector,
    ):
        geometry = check_projector(header, model.n_embd)
        frame = Frame(tokens, geometry.side, geometry.longest)
        pictures = (read_picture(image.data, image.name, frame) for image in images)
        return [
            compare_rows(picture, projector.encode(picture), *reference.rows(image, tokens))
            for image, picture in zip(images, pictures, strict=True)
        ]


def compare_rows(
    picture: Picture, rows: Floats, pixels: NDArray[np.uint8], expected: Floats
) -> ImageComparison:
    """``rows`` of ``picture`` against the ``expected`` ones that the ``pixels`` became."""
    same = picture.pixels.shape == pixels.shape and rows.shape == expected.shape
    if not same:
        return ImageComparison(picture.name, _size(picture), picture.tokens, 255, 0.0, np.inf)
    norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(expected, axis=1)
    cosine = np.sum(rows.astype(np.float64) * expected, axis=1) / norms
    error = np.linalg.norm(rows - expected, axis=1) / np.linalg.norm(expected, axis=1)
    difference = np.abs(picture.pixels.astype(np.int16) - pixels).max()
    return ImageComparison(
        picture.name,
        _size(picture),
        picture.tokens,
        int(difference),
        float(cosine.min()),
        float(error.max()),
    )


def _size(picture: Picture) -> tuple[int, int]:
    return picture.width, picture.height


def image_table(comparisons: Iterable[ImageComparison]) -> str:
    """A table for people."""
    lines = [f"{'image':24}{'pixels':>12}{'tokens':>8}  {'off by':>6}  worst cosine  worst error"]
    for c in comparisons:
        size = f"{c.size[0]}x{c.size[1]}"
        lines.append(
            f"{c.name:24}{size:>12}{c.tokens:8}  {c.pixels:6}  {c.cosine:12.7f}  {c.error:11.1e}"
        )
    return "\n".join(lines) + "\n"


class Reference:
    """A checkpoint in transformers, float32, with its own image processor."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model, processor

    @classmethod
    def open(cls, directory: Path) -> Reference:
        """Load tower, projection and text model; raises UsageError without the extra."""
        try:
            import torch
            import transformers
        except ImportError as error:
            raise UsageError(
                "Comparing with the checkpoint needs torch and transformers.",
                "Install them with: pip install gemmtp[train]",
            ) from error
        model = transformers.Gemma4ForConditionalGeneration.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        )
        return cls(model.eval(), transformers.AutoImageProcessor.from_pretrained(directory))

    def inputs(self, image: ImageFile, tokens: int) -> Any:
        """What the processor makes of an image for the model."""
        return self.processor(images=opened(image), max_soft_tokens=tokens, return_tensors="pt")

    def rows(self, image: ImageFile, tokens: int) -> tuple[NDArray[np.uint8], Floats]:
        """(uint8[h, w, 3], float32[n, d]): the pixels as resized, and the projected rows."""
        import torch

        inputs = self.inputs(image, tokens)
        positions = inputs["image_position_ids"]
        with torch.no_grad():
            features = self.model.model.get_image_features(inputs["pixel_values"], positions)
        rows: Floats = features.pooler_output[0].numpy()
        patch = self.model.config.vision_config.patch_size
        return _pixels(inputs["pixel_values"][0].numpy(), positions[0].numpy(), patch), rows


def opened(image: ImageFile) -> Any:
    """The pillow image, upright as transformers' own reader turns it, in 8 bits a channel."""
    from PIL import Image, ImageOps

    opened = ImageOps.exif_transpose(Image.open(io.BytesIO(image.data)))
    if opened.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(opened) >> 8).astype(np.uint8))
    return opened


def _pixels(patches: Floats, positions: NDArray[np.int64], patch: int) -> NDArray[np.uint8]:
    """The picture that was cut into ``patches`` float32[n, p * p * 3], padding at position -1."""
    columns, rows = positions.max(axis=0) + 1
    picture = np.zeros((rows, patch, columns, patch, 3), np.uint8)
    for values, (x, y) in zip(patches, positions, strict=True):
        if x >= 0:
            picture[y, :, x] = np.rint(values.reshape(patch, patch, 3) * 255)
    return picture.reshape(rows * patch, columns * patch, 3)

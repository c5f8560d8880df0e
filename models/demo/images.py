"""From pixels to what the vision tower reads, as Gemma 4's own processor makes it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.models.gemma4.image_processing_pil_gemma4 import (
    Gemma4ImageProcessorPil,
    convert_image_to_patches,
    get_aspect_ratio_preserving_size,
)

from demo.corpus.drawings import Pixels

PATCH, POOLING = 16, 3
CELL = PATCH * POOLING


@dataclass(frozen=True)
class Patches:
    """A picture cut up: `values` float32[n, 768] in [0, 1], `places` int64[n, 2] as (x, y).

    `columns` and `rows` count the image's tokens: n = 9 * columns * rows.
    """

    values: Tensor
    places: Tensor
    columns: int
    rows: int

    @property
    def tokens(self) -> int:
        """How many rows of the prompt the picture takes."""
        return self.columns * self.rows


def grid(width: int, height: int, budget: int) -> tuple[int, int]:
    """Columns and rows of tokens that a picture of that size gets within `budget` tokens."""
    high, wide = get_aspect_ratio_preserving_size(
        height, width, PATCH, budget * POOLING**2, POOLING
    )
    return wide // CELL, high // CELL


def patches(pixels: Pixels, budget: int) -> Patches:
    """Stretch RGB uint8[h, w, 3] to the largest size within `budget` tokens and cut it up."""
    height, width, _ = pixels.shape
    columns, rows = grid(width, height, budget)
    image = Image.fromarray(pixels).resize((columns * CELL, rows * CELL), Image.Resampling.BICUBIC)
    values = np.asarray(image, np.float32).transpose(2, 0, 1) / 255
    x, y = np.meshgrid(np.arange(columns * POOLING), np.arange(rows * POOLING), indexing="xy")
    return Patches(
        torch.from_numpy(convert_image_to_patches(values, PATCH).copy()),
        torch.from_numpy(np.stack([x, y], -1).reshape(-1, 2)),
        columns,
        rows,
    )


def save_processor(folder: Path, tokens: int) -> None:
    """Write what a checkpoint says about its pictures, `tokens` at most, as transformers does."""
    Gemma4ImageProcessorPil(max_soft_tokens=tokens).save_pretrained(folder)

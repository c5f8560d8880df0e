"""Image files for tests, made by pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def noise(width: int, height: int, channels: int = 3, seed: int = 0) -> Image.Image:
    """Random pixels: RGB with 3 channels, RGBA with 4."""
    shape = (height, width, channels)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of ``image`` as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width: int = 80, height: int = 60, seed: int = 0) -> bytes:
    """A PNG of random pixels."""
    return saved(noise(width, height, seed=seed))

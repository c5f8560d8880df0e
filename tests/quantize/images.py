"""Twenty image files of all the shapes, depths and formats that people have, drawn by numpy."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gemmtp_quantize.image_parity import ImageFile

ORIENTATION = 0x0112


def scene(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Soft light, sharp edges and grain: RGB uint8[height, width, 3]."""
    random = np.random.default_rng([width, height, seed])
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    u, v = x / max(width, 64), y / max(height, 64)
    waves = [np.sin(7 * u + 3 * v), np.cos(5 * v - 2 * u), np.sin(11 * u * v + 1)]
    picture = np.stack(waves, axis=-1) * 70 + 128
    for _ in range(5):
        cx, cy, size = random.uniform(0, width), random.uniform(0, height), random.uniform(0.1, 0.3)
        inside = np.hypot(x - cx, y - cy) < size * min(width, height)
        picture[inside] = random.uniform(0, 255, 3)
    picture[: height // 3, width // 2 : width // 2 + 3] = 255
    picture += random.normal(0, 6, picture.shape)
    return picture.clip(0, 255).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of an image file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _rgb(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(scene(width, height, seed))


def _turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(_rgb(400, 300), "JPEG", exif=exif, quality=90)


def _with_alpha(mode: str) -> Image.Image:
    image = _rgb(300, 200).convert(mode)
    fade = np.linspace(0, 255, 300, dtype=np.uint8)
    image.putalpha(Image.fromarray(np.repeat(fade[None], 200, axis=0)))
    return image


def _see_through_palette() -> bytes:
    image = _rgb(200, 300).quantize(16)
    return encoded(image, "PNG", transparency=3)


def _deep_grey() -> Image.Image:
    y, x = np.mgrid[0:240, 0:320]
    return Image.fromarray((x * 150 + y * 70 + (x * y) % 97).astype(np.uint16))


def images() -> Iterator[ImageFile]:
    """All twenty, by what is special about them."""
    png = "PNG"
    for width, height in ((1, 1), (17, 31), (800, 600), (1920, 1080), (1, 2000), (4096, 16)):
        yield ImageFile(f"{width}x{height}", encoded(_rgb(width, height), png))
    yield ImageFile("right size already", encoded(_rgb(816, 768), png))
    yield ImageFile("alpha", encoded(_with_alpha("RGBA"), png))
    yield ImageFile("grey with alpha", encoded(_with_alpha("LA"), png))
    yield ImageFile("grey", encoded(_rgb(640, 480).convert("L"), png))
    yield ImageFile("grey, 16 bits", encoded(_deep_grey(), png))
    yield ImageFile("black and white", encoded(_rgb(100, 100).convert("1"), png))
    yield ImageFile("palette", encoded(_rgb(200, 300).quantize(256), png))
    yield ImageFile("palette, transparent", _see_through_palette())
    yield ImageFile("JPEG turned by EXIF", _turned(6))
    yield ImageFile("JPEG mirrored by EXIF", _turned(2))
    yield ImageFile("JPEG, CMYK", encoded(_rgb(500, 333).convert("CMYK"), "JPEG", quality=90))
    yield ImageFile("WebP", encoded(_rgb(333, 500), "WEBP", quality=80))
    frames = [_rgb(123, 77, seed) for seed in (1, 2)]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    yield ImageFile("GIF, animated", moving)
    yield ImageFile("BMP", encoded(_rgb(123, 457), "BMP"))

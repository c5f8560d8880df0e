"""Pictures are what Gemma's own image processor makes of the same file (extra ``[train]``)."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from gemmtp.prompt.attachments import Frame, read_picture
from gemmtp_models.memory_projector import IMAGE_BUDGETS
from tests.support.pictures import noise, saved

pytestmark = pytest.mark.train
processing = pytest.importorskip(
    "transformers.models.gemma4.image_processing_pil_gemma4", reason="needs the extra [train]"
)
torch = pytest.importorskip("torch")
PATCH, POOLING = 16, 3


def test_every_size_is_the_processors() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20_000):
        width, height = (int(side) for side in 2 ** draw.uniform(0, 16, 2))
        budget = int(draw.choice(IMAGE_BUDGETS))
        wanted = processing.get_aspect_ratio_preserving_size(
            height, width, PATCH, budget * POOLING**2, POOLING
        )
        assert Frame(budget).size(width, height) == wanted[::-1]


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGB", "RGBA"])
def test_every_pixel_is_the_processors(mode: str) -> None:
    data = saved(noise(500, 300, 4).convert(mode))
    pixels = read_picture(data, mode).pixels
    height, width, _ = pixels.shape
    grid = pixels.reshape(height // PATCH, PATCH, width // PATCH, PATCH, 3)
    patches = grid.transpose(0, 2, 1, 3, 4).reshape(-1, PATCH * PATCH * 3)
    processor = processing.Gemma4ImageProcessorPil()
    wanted = processor.preprocess(Image.open(io.BytesIO(data)), return_tensors="np")
    shown = wanted["pixel_values"][0][: len(patches)] * 255
    assert np.array_equal(patches, np.round(shown).astype(np.uint8))


@pytest.mark.parametrize("size", [(800, 600), (17, 31), (1, 2000), (4096, 16)])
def test_torch_resamples_almost_alike(size: tuple[int, int]) -> None:
    image = noise(*size)
    pixels = read_picture(saved(image), "noise").pixels.astype(int)
    channels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(
        channels, size=pixels.shape[:2], mode="bicubic", antialias=True, align_corners=False
    )
    difference = np.abs(pixels - resized[0].permute(1, 2, 0).numpy())
    assert difference.max() <= 2
    assert np.mean(difference > 0) < 0.02

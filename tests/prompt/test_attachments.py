"""Pictures: what of an image file the model gets to see, and what of a bad one the user."""

from __future__ import annotations

import io
import random
import re
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gemmtp.errors import UsageError
from gemmtp.prompt import attachments
from gemmtp.prompt.attachments import Frame, data_url, image_bytes, picture_of_part, read_picture
from gemmtp.prompt.conversation import Image as ImagePart
from gemmtp_models.memory_projector import IMAGE_BUDGETS
from tests.support.pictures import noise, png, saved


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_the_five_formats_are_read(kind: str) -> None:
    red = Image.new("RGB", (96, 96), (250, 10, 10))
    picture = read_picture(saved(red, kind), "red")
    assert str(picture) == "red 96x96, 256 tokens"
    assert picture.pixels.shape == (768, 768, 3)
    assert np.abs(picture.pixels.astype(int) - (250, 10, 10)).max() <= 6


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [
        (1, 1, (768, 768)),
        (17, 31, (576, 1056)),
        (800, 600, (912, 672)),
        (1920, 1080, (1056, 576)),
        (1, 2000, (48, 13440)),
        (4096, 16, (12816, 48)),
    ],
)
def test_sizes_are_those_of_gemmas_own_processor(
    width: int, height: int, size: tuple[int, int]
) -> None:
    assert Frame().size(width, height) == size


@given(
    st.integers(1, attachments.MAX_SIDE),
    st.integers(1, attachments.MAX_SIDE),
    st.sampled_from(IMAGE_BUDGETS),
    st.integers(1, 4000),
)
def test_no_size_exceeds_budget_or_positions(
    width: int, height: int, budget: int, longest: int
) -> None:
    frame = Frame(budget, longest=longest)
    columns, rows = (pixels // 48 for pixels in frame.size(width, height))
    assert 1 <= columns * rows <= budget
    assert max(columns, rows) <= longest
    assert all(pixels % 48 == 0 for pixels in frame.size(width, height))


def test_transparency_lies_on_white() -> None:
    clear = Image.new("RGBA", (48, 600), (0, 0, 0, 0))
    clear.paste((0, 0, 255, 255), (0, 0, 48, 300))
    pixels = read_picture(saved(clear), "half").pixels
    assert pixels[10, 10].tolist() == [0, 0, 255]
    assert pixels[-10, 10].tolist() == [255, 255, 255]


def test_a_transparent_palette_colour_lies_on_white() -> None:
    image = Image.new("P", (60, 60), 1)
    image.putpalette([0, 0, 0, 200, 0, 0])
    assert read_picture(saved(image, transparency=1), "p").pixels.min() == 255
    assert read_picture(saved(image, transparency=0), "p").pixels[5, 5].tolist() == [200, 0, 0]


def test_sixteen_bits_of_grey_keep_their_shades() -> None:
    ramp = np.repeat(np.arange(0, 65536, 1024, dtype=np.uint16)[None], 64, axis=0)
    pixels = read_picture(saved(Image.fromarray(ramp)), "ramp").pixels
    middle = pixels[pixels.shape[0] // 2, :, 0].astype(int)
    assert middle[0] <= 2
    assert middle[-1] >= 250
    assert np.all(np.diff(middle) >= -1)


def test_exif_turns_a_picture() -> None:
    image = Image.new("RGB", (100, 50), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 50, 50))
    exif = Image.Exif()
    exif[0x0112] = 6  # The camera was held a quarter turn to the right.
    picture = read_picture(saved(image, exif=exif), "turned")
    assert (picture.width, picture.height) == (50, 100)
    assert picture.pixels[40, 40].tolist() == [255, 255, 255]
    assert picture.pixels[-40, 40].tolist() == [0, 0, 0]


def test_exif_that_cannot_be_read_is_no_reason_to_refuse() -> None:
    broken = saved(noise(40, 40), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert read_picture(broken, "x").width == 40


def test_of_an_animation_the_first_frame_is_read() -> None:
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue", "green")]
    for kind in ("GIF", "WEBP", "PNG"):
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:])
        red, green, blue = read_picture(data, "moving").pixels[30, 30].tolist()
        assert red > 200
        assert max(green, blue) < 60


def test_the_key_tells_pictures_and_sizes_apart() -> None:
    data = png()
    keys = {
        read_picture(data, "a").key,
        read_picture(data, "b", Frame(70)).key,
        read_picture(png(seed=1), "a").key,
    }
    assert len(keys) == 3
    assert read_picture(data, "other name").key in keys


def png_of(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG that claims a size, with ``data`` in place of its compressed pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "cat.png is empty."),
        (b"hello, I am a text", "cat.png is no PNG, JPEG, WebP, GIF or BMP image."),
        (b"\0" * 4096, "cat.png is no PNG, JPEG, WebP, GIF or BMP image."),
        (png_of(100_000, 100_000), "cat.png is too large: more than 178,000,000 pixels."),
        (png_of(9_000, 9_000), "cat.png is too large: 9,000 x 9,000."),
        (png_of(70_000, 1), "cat.png is too large: 70,000 x 1."),
        (png_of(80, 60)[:20], "cat.png is damaged: Truncated File Read."),
        (b"%PDF-1.7\n", "cat.png is no PNG, JPEG, WebP, GIF or BMP image."),
    ],
)
def test_a_bad_file_gets_one_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_picture(data, "cat.png")
    assert caught.value.message == sentence


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_a_cut_file_is_called_damaged(kind: str) -> None:
    data = saved(noise(64, 64), kind)
    with pytest.raises(UsageError, match=r"^cat is damaged: .+\.$"):
        read_picture(data[: len(data) // 2], "cat")


def test_the_extension_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "really-a-jpeg.png"
    path.write_bytes(saved(noise(40, 30), "JPEG"))
    assert read_picture(image_bytes(path), path.name).width == 40


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read: No such file"):
        image_bytes(tmp_path / "missing.png")
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory"):
        image_bytes(tmp_path)


def test_no_more_than_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "MAX_FILE_BYTES", 1000)
    endless = io.BytesIO(png() + bytes(10_000))
    with pytest.raises(UsageError, match=r"^big holds more than 1,000 bytes\.$"):
        read_picture(image_bytes(endless), "big")
    assert endless.tell() == 1001


def test_a_bomb_is_not_unpacked() -> None:
    bomb = png_of(8193, 8193, zlib.compress(bytes(1 << 20)))
    tracemalloc.start()
    with pytest.raises(UsageError, match="too large"):
        read_picture(bomb, "bomb")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_part_of_a_message_carries_its_picture() -> None:
    data = png()
    part = ImagePart(data_url(data))
    assert picture_of_part(part, "image 1").key == read_picture(data, "x").key
    named = ImagePart(data_url(data).replace("data:image;", "data:image/png;"))
    assert picture_of_part(named, "image 1").key == read_picture(data, "x").key


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/cat.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "data:image/png,plain",
        "data:image/png;base64,@@@@",
        "data:image/png;base64,",
        "data:",
    ],
)
def test_nothing_is_fetched_for_a_part(url: str) -> None:
    with pytest.raises(UsageError, match=r"^image 1 "):
        picture_of_part(ImagePart(url), "image 1")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_changed_bytes_give_a_picture_or_a_sentence(kind: str) -> None:
    seed = saved(noise(24, 24), kind)
    draw = random.Random(kind)
    refusals = []
    for _ in range(60):
        data = bytearray(seed)
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            assert read_picture(bytes(data), "x", Frame(70)).tokens <= 70
        except UsageError as error:
            refusals.append(error.message)
    assert all(re.fullmatch(r"x [^\n]+\.", sentence) for sentence in refusals)

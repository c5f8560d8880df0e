"""Pictures for the model: bounded, decoded, turned upright, and resized as Gemma's processor does.

Gemma 4's own processor (``Gemma4ImageProcessor`` of transformers) stretches every image to the
largest size within the budget whose sides are whole tokens, by bicubic resampling with
antialiasing; transparency lies on white. Here it is the same, in pillow, whose bicubic differs from
torchvision's by two levels of 255 at most. llama.cpp would keep the aspect and pad black instead;
it copies a picture that has the right size already.

What is read is bounded first: bytes, then the sides and pixels that the header claims.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gemmtp.errors import UsageError
from gemmtp.prompt.conversation import Image as ImagePart
from gemmtp.prompt.source import unreadable
from gemmtp_models.memory_projector import DEFAULT_IMAGE_TOKENS, IMAGE_BUDGETS, budget_words

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_FILE_BYTES = 64 << 20
MAX_SIDE = 65_535
"""JPEG's own limit; it also bounds the tables of the resampling."""

MAX_PIXELS = 1 << 26
"""67 million, as 8,192 x 8,192: at most 0.6 GB while a transparent one is decoded."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF")
"""How the files of these formats begin; BMP's two letters could be any text."""

TOKEN_SIDE = 48
"""Pixels along one side of a token of the published sizes: patches of 16, pooled by 3."""

LONGEST = 3_413
"""Tokens along one side of an image for which the published towers have positions."""

_STRIP = 256
"""Rows that are laid on white at a time."""

_CONVERT = "Convert it first, for example with: magick IMAGE image.png"


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image as the projector takes it.

    ``pixels`` is RGB uint8[h, w, 3], both sides whole tokens; ``width`` and ``height`` are those of
    the original, upright; ``key`` is its identity: SHA-256 over its bytes and the size it was
    brought to; ``tokens`` is how many positions it takes.
    """

    pixels: NDArray[np.uint8]
    name: str
    width: int
    height: int
    key: bytes
    tokens: int

    def __str__(self) -> str:
        """ "cat.png 640x480, 280 tokens" """
        return f"{self.name} {self.width}x{self.height}, {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class Frame:
    """What bounds a picture: the budget in ``tokens``, and the projector's geometry."""

    tokens: int = DEFAULT_IMAGE_TOKENS
    side: int = TOKEN_SIDE
    longest: int = LONGEST

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The width and height that an image of this size is stretched to.

        ``get_aspect_ratio_preserving_size`` of transformers' ``image_processing_gemma4``, bounded
        by ``longest``.
        """
        factor = math.sqrt(self.tokens * self.side**2 / (width * height))
        columns = math.floor(factor * width / self.side)
        rows = math.floor(factor * height / self.side)
        if not rows:
            columns = min(width // height, self.tokens)
        elif not columns:
            rows = min(height // width, self.tokens)
        columns, rows = (min(max(count, 1), self.longest) for count in (columns, rows))
        return columns * self.side, rows * self.side


def checked_budget(tokens: int) -> int:
    """``tokens``, one of the budgets Gemma 4 was trained with; raises UsageError otherwise."""
    if tokens not in IMAGE_BUDGETS:
        raise UsageError(
            f"An image takes {budget_words()} tokens, not {tokens}.",
            "Fewer answer sooner, more show smaller things.",
        )
    return tokens


def read_picture(data: bytes, name: str, frame: Frame | None = None) -> Picture:
    """The picture in the bytes of a PNG, JPEG, WebP, GIF or BMP; of an animation the first frame.

    Raises :class:`~gemmtp.errors.UsageError` with one sentence about ``name`` for anything that is
    too large, damaged, or no image of these formats.
    """
    frame = frame or Frame()
    if not data:
        raise UsageError(f"{name} is empty.")
    _check_bytes(len(data), name)
    image = _opened(data, name)
    _load(image, name)
    _turn(image)
    width, height = image.size
    size = frame.size(width, height)
    pixels = _resized(_on_white(image), size)
    digest = hashlib.sha256(data)
    digest.update(b"%dx%d" % size)
    tokens = size[0] * size[1] // frame.side**2
    return Picture(pixels, name, width, height, digest.digest(), tokens)


def image_bytes(source: Path | BinaryIO) -> bytes:
    """What a file or a stream holds, one byte beyond what :func:`read_picture` takes at most.

    Raises :class:`~gemmtp.errors.UsageError` when the file cannot be read.
    """
    if not isinstance(source, Path):
        return source.read(MAX_FILE_BYTES + 1)
    try:
        with source.expanduser().open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise unreadable(source, error) from error


def picture_of_part(part: ImagePart, name: str, frame: Frame | None = None) -> Picture:
    """The picture of a message's part whose URL carries it (``data:image/png;base64,...``).

    Raises as :func:`read_picture` does, and for a URL that points elsewhere: nothing is fetched.
    """
    head, comma, body = part.url.partition(",")
    if not head.lower().startswith("data:") or not comma:
        raise UsageError(
            f"{name} is no data: URL, and images are not fetched from elsewhere.",
            "Send the image itself, as data:image/png;base64,...",
        )
    if not head.lower().endswith(";base64"):
        raise UsageError(f"{name} is a data: URL without base64.")
    # Four characters hold three bytes.
    _check_bytes(len(body) * 3 // 4, name)
    try:
        data = base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"{name} is no valid base64.") from error
    return read_picture(data, name, frame)


def data_url(data: bytes) -> str:
    """An image file's bytes as the URL that :func:`picture_of_part` reads."""
    return "data:image;base64," + base64.b64encode(data).decode("ascii")


def _check_bytes(size: int, name: str) -> None:
    if size > MAX_FILE_BYTES:
        raise UsageError(f"{name} holds more than {MAX_FILE_BYTES:,} bytes.", "Make it smaller.")


# Decoders of untrusted bytes raise whatever comes: OSError, SyntaxError, struct.error, KeyError.


def _opened(data: bytes, name: str) -> Image:
    """The image behind its checked header, not decoded yet."""
    from PIL import Image, UnidentifiedImageError

    try:
        with _quiet():
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        if data.startswith(_SIGNATURES):
            raise _damaged(name, "its header cannot be read") from error
        raise UsageError(f"{name} is no PNG, JPEG, WebP, GIF or BMP image.", _CONVERT) from error
    except Image.DecompressionBombError as error:
        raise _too_large(name) from error
    except Exception as error:
        raise _damaged(name, error) from error
    width, height = image.size
    if width < 1 or height < 1:
        raise UsageError(f"{name} is an image without pixels.")
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise _too_large(name, f"{width:,} x {height:,}")
    return image


def _load(image: Image, name: str) -> None:
    """Decode the first frame."""
    try:
        with _quiet():
            image.load()
    except Exception as error:
        raise _damaged(name, error) from error


def _turn(image: Image) -> None:
    """Turn it as its EXIF data says; EXIF data that cannot be read says nothing."""
    from PIL import ImageOps

    with _quiet(), contextlib.suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without pillow's warnings, of what is refused here or of oddities that do not matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _on_white(image: Image) -> Image:
    """In RGB, transparency on white, as ``convert_to_rgb`` of transformers does it.

    Of 16 bits a channel the upper eight are taken, as PNG readers do; pillow's own conversion of
    grey would make everything above 255 white.
    """
    from PIL import Image

    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    width, height = image.size
    whole = Image.new("RGB", image.size)
    for top in range(0, height, _STRIP):
        box = (0, top, width, min(top + _STRIP, height))
        strip = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
        whole.paste(Image.alpha_composite(white, strip).convert("RGB"), box)
    return whole


def _resized(image: Image, size: Sequence[int]) -> NDArray[np.uint8]:
    from PIL import Image

    width, height = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(image, np.uint8))


def _too_large(name: str, size: str = "more than 178,000,000 pixels") -> UsageError:
    return UsageError(
        f"{name} is too large: {size}.",
        f"An image may have {MAX_PIXELS:,} pixels and sides of {MAX_SIDE:,}; scale it down.",
    )


def _damaged(name: str, cause: BaseException | str) -> UsageError:
    """What a decoder says, as one line of at most a hundred printable characters."""
    words = " ".join(str(cause).split()) or type(cause).__name__
    reason = "".join(c for c in words if c.isprintable())[:100].rstrip(". ")
    return UsageError(f"{name} is damaged: {reason}.", "Save or fetch it again.")

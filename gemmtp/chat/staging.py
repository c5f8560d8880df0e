"""Attachments that wait for the next message."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from gemmtp.errors import UsageError
from gemmtp.prompt import source
from gemmtp.prompt.attachments import MAX_FILE_BYTES, Frame, Picture, data_url, read_picture
from gemmtp.prompt.conversation import Image, Message, Part, Text

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
_CLIPBOARD_TOOLS = ("wl-paste", "xclip")
_MAX_LOOKED_AT = 4096
"""A text longer than this is not searched for dropped files."""

_WORD = re.compile(r"'[^']+'|\"[^\"]+\"|(?:\\.|[^\s\\'\"])+")


@dataclass(slots=True)
class Staging:
    """Images and texts in the order in which they were attached; sent with the next message.

    ``frame`` bounds the pictures; a set without a projector has none, and ``blind`` says so with
    what to do about it. ``unload`` gives the projector's memory back until the next image.
    """

    frame: Frame | None = None
    blind: UsageError = field(default_factory=lambda: UsageError("This set sees no images."))
    unload: Callable[[], None] = lambda: None
    images: list[tuple[Picture, Image]] = field(default_factory=list)
    files: list[tuple[Path, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.images or self.files)

    def labels(self) -> list[str]:
        """One for each: ``[image 1: cat.png 640x480, 280 tokens]``."""
        images = [f"[image {i}: {picture}]" for i, (picture, _) in enumerate(self.images, 1)]
        return images + [
            f"[file: {path.name}, {len(text):,} characters]" for path, text in self.files
        ]

    def add_image(self, data: bytes, name: str) -> str:
        """Attach the image in ``data``; return its label.

        Raises :class:`~gemmtp.errors.UsageError` for no image, and for a set that sees none.
        """
        if self.frame is None:
            raise self.blind
        picture = read_picture(data, name, self.frame)
        self.images.append((picture, Image(data_url(data))))
        return self.labels()[len(self.images) - 1]

    def add_image_file(self, path: Path) -> str:
        """Attach the image in a file; raises :class:`~gemmtp.errors.UsageError`."""
        try:
            with path.expanduser().open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
        return self.add_image(data, path.name)

    def add_file(self, path: Path) -> str:
        """Attach a text file; raises :class:`~gemmtp.errors.UsageError`."""
        self.files.append((path, source.read_file(path)))
        return self.labels()[-1]

    def take(self, text: str) -> Message:
        """The message of everything that waits and ``text``; nothing waits afterwards."""
        parts: list[Part] = [part for _, part in self.images]
        words = source.joined("", text, source.attached(self.files))
        if words:
            parts.append(Text(words))
        self.clear()
        return Message("user", tuple(parts))

    def clear(self) -> None:
        """Attach nothing."""
        self.images, self.files = [], []


def is_image(path: Path) -> bool:
    """Whether the name says that ``path`` is an image."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def dropped(text: str) -> Iterator[tuple[str, Path]]:
    """Image files that exist and are named in ``text`` as terminals drop them, with the words.

    Terminals put quotes around a dropped path, backslashes before its spaces, or write a URL.
    """
    if len(text) > _MAX_LOOKED_AT:
        return
    for match in _WORD.finditer(text):
        word = match.group()
        name = word[1:-1] if word[0] in "'\"" else re.sub(r"\\(.)", r"\1", word)
        if name.startswith("file://"):
            name = urllib.request.url2pathname(urllib.parse.urlsplit(name).path)
        path = Path(name).expanduser() if name.startswith("~/") else Path(name)
        if is_image(path) and _is_file(path):
            yield word, path


def embedded(message: Message) -> Message:
    """``message`` with its images in ``data:`` URLs, where they were paths.

    Raises :class:`~gemmtp.errors.UsageError` when a file cannot be read.
    """
    return replace(message, parts=tuple(map(_embedded, message.parts)))


def _embedded(part: Part) -> Part:
    if not isinstance(part, Image) or part.url.startswith("data:"):
        return part
    try:
        return Image(data_url(Path(part.url).read_bytes()))
    except OSError as error:
        raise UsageError(f"An image of the chat cannot be read: {error.strerror}.") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        # A name that is too long, or no name at all.
        return False


def clipboard_image() -> bytes:
    """The image on the clipboard as PNG; raises :class:`~gemmtp.errors.UsageError` without one."""
    import io

    from PIL import ImageGrab

    try:
        image = ImageGrab.grabclipboard()
    except (NotImplementedError, OSError, ValueError, subprocess.SubprocessError) as error:
        known = any(map(shutil.which, _CLIPBOARD_TOOLS))
        hint = None if known else f"Install {' or '.join(_CLIPBOARD_TOOLS)}."
        raise UsageError("The clipboard cannot be read.", hint) from error
    if image is None or isinstance(image, list):
        raise UsageError("There is no image on the clipboard.", "Texts are pasted as usual.")
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()

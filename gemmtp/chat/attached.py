"""Pictures and sounds of a session, kept beside it by their contents.

A session's log names them ``attached:sha256-HEX.EXT``; the bytes lie in the session's own folder,
so that it opens again when the original has moved, and goes whole when it is removed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import mimetypes
import re
import urllib.parse
import urllib.request
from dataclasses import replace
from pathlib import Path

from gemmtp.chat.whole import written_whole
from gemmtp.errors import UsageError
from gemmtp.prompt.conversation import Audio, Image, Message, Part
from gemmtp.prompt.source import unreadable

SCHEME = "attached:"
_NAME = re.compile(r"sha256-[0-9a-f]{64}(\.[a-z0-9]{1,8})?")
_DATA = re.compile(r"data:([a-zA-Z0-9.+/-]*)(;[^,]*)?,", re.ASCII)

_FORMS = (
    (re.compile(rb"\x89PNG"), ".png"),
    (re.compile(rb"\xff\xd8\xff"), ".jpg"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), ".webp"),
    (re.compile(rb"GIF8"), ".gif"),
)


def keep(message: Message, folder: Path) -> Message:
    """``message`` with its media copied into ``folder`` and named by their contents.

    Places on the network stay as they are. Raises :class:`~gemmtp.errors.UsageError` when a file
    cannot be read, and OSError when the copy cannot be written.
    """
    return replace(message, parts=tuple(_kept(part, folder) for part in message.parts))


def found(message: Message, folder: Path) -> Message:
    """The reverse of :func:`keep`: images are paths in ``folder``, sounds their data again."""
    return replace(message, parts=tuple(_found(part, folder) for part in message.parts))


def data_url(path: Path) -> str:
    """The file at ``path`` as a ``data:`` URL; raises OSError."""
    kind = mimetypes.guess_type(path.name)[0] or "image"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _kept(part: Part, folder: Path) -> Part:
    match part:
        case Image(url) if not url.startswith((SCHEME, "http://", "https://")):
            data, suffix = _image(url)
            return Image(SCHEME + _store(data, suffix, folder))
        case Audio(data=data64, format=form) if not data64.startswith(SCHEME):
            suffix = f".{form.lower()}"
            return Audio(SCHEME + _store(_base64(data64), suffix, folder), form)
    return part


def _found(part: Part, folder: Path) -> Part:
    match part:
        case Image(url) if url.startswith(SCHEME):
            return Image(str(_place(url, folder)))
        case Audio(data=name, format=form) if name.startswith(SCHEME):
            try:
                data = _place(name, folder).read_bytes()
            except OSError as error:
                raise UsageError(f"A sound of the session is missing: {error}") from error
            return Audio(base64.b64encode(data).decode(), form)
    return part


def _place(name: str, folder: Path) -> Path:
    """The file that a log names; a log cannot name anything outside the folder."""
    name = name.removeprefix(SCHEME)
    if not _NAME.fullmatch(name):
        raise UsageError(f"The session names an attachment {name!r}, which cannot be.")
    return folder / name


def _image(url: str) -> tuple[bytes, str]:
    """The bytes of an image and what its name should end in."""
    if head := _DATA.match(url):
        data = url[head.end() :]
        if ";base64" in (head[2] or ""):
            content = _base64(data)
        else:
            content = urllib.parse.unquote_to_bytes(data)
        return content, mimetypes.guess_extension(head[1]) or _suffix(content)
    if url.startswith("file://"):
        url = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    path = Path(url).expanduser()
    try:
        return path.read_bytes(), path.suffix.lower()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def _suffix(content: bytes) -> str:
    """What the name of an image should end in, by how the image begins."""
    return next((suffix for form, suffix in _FORMS if form.match(content)), "")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise UsageError(f"An attachment is no base64: {error}") from error


def _store(content: bytes, suffix: str, folder: Path) -> str:
    """Write ``content`` once, whole or not at all; return its name."""
    name = f"sha256-{hashlib.sha256(content).hexdigest()}"
    if _NAME.fullmatch(name + suffix):
        name += suffix
    path = folder / name
    if path.exists():
        return name
    folder.mkdir(mode=0o700, exist_ok=True)
    with written_whole(path) as file:
        file.write(content)
    return name

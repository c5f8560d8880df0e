"""What a list of sessions says about each."""

from __future__ import annotations

import time

from gemmtp import settings
from gemmtp.chat import names, shelf
from gemmtp.chat.sessions import load
from gemmtp.errors import GemmtpError, ModelError
from gemmtp.prompt.conversation import Json
from gemmtp_models.names import find

TITLE = 60
"""The most characters of the first question that stand for a session."""


def listed(name: str) -> Json | None:
    """One session's line; None when nothing was said in it, or it went just now.

    ``problem`` says why it cannot be read, None when it can.
    """
    path = shelf.path_of(name)
    try:
        status = path.stat()
        is_open = shelf.is_open(name)
    except (OSError, GemmtpError):
        return None
    row: Json = {
        "name": name,
        "used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.st_mtime)),
        "open": is_open,
        "unnamed": names.is_by_date(name),
        "bytes": status.st_size,
        "kv": shelf.kv_path(name).is_file(),
    }
    try:
        replay = load(name, words=False)
    except GemmtpError as error:
        return row | {"model": "", "turns": 0, "title": "", "problem": error.message}
    told = [*replay.dropped, *replay.messages]
    if not told:
        return None
    words = next((m.text for m in told if m.role == "user" and m.text), "")
    return row | {
        "model": replay.model,
        "model_is_here": _is_here(replay.model),
        "created": replay.created,
        "turns": replay.turns,
        "title": _short(" ".join(words.split())),
        "problem": None,
    }


def _is_here(model: str) -> bool:
    try:
        find(model, settings.data_dir())
    except ModelError:
        return False
    return True


def _short(text: str) -> str:
    return text if len(text) <= TITLE else text[: TITLE - 1] + "…"

"""What sessions are called."""

from __future__ import annotations

import re
import time
import unicodedata

from gemmtp.errors import UsageError

MAX_BYTES = 200
_NAME = re.compile(r"\w[\w.\-]*(?<!\.)")
_BY_DATE = re.compile(r"\d{4}-\d\d-\d\d-\d{6}(-\d+)?")


def checked(name: str) -> str:
    """The name in one Unicode form.

    Raises :class:`~gemmtp.errors.UsageError` for what is no name of a file everywhere: letters,
    digits, ``_``, ``-`` and ``.`` are allowed, the first being no ``-`` and no ``.``.
    """
    name = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(name) or len(name.encode("utf-8", "replace")) > MAX_BYTES:
        raise UsageError(
            f"{name!r} is no name for a session.",
            f"Letters, digits, _, - and . make one, at most {MAX_BYTES} bytes.",
        )
    return name


def by_date(count: int = 1) -> str:
    """The name of an unnamed chat that begins now; ``count`` tells those of one second apart."""
    name = time.strftime("%Y-%m-%d-%H%M%S")
    return name if count == 1 else f"{name}-{count}"


def is_by_date(name: str) -> bool:
    """Whether a session was named by :func:`by_date`."""
    return _BY_DATE.fullmatch(name) is not None

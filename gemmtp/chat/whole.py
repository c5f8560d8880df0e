"""Files of a session that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".partial"
"""What the name of a file ends in while it is being written."""


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file for the user alone that takes its name when the block has ended well.

    Whatever goes wrong, nothing half-written stays behind. Raises OSError.
    """
    partial = path.with_name(path.name + SUFFIX)
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)

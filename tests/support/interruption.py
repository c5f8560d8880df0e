"""Ctrl-C at a chosen line of the code under test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupted_at(line: int, *parts: str, without: str = "\0") -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the ``line``-th line run in files whose path has one of ``parts``.

    Files that have ``without`` in their path are passed over. The list that is given holds how many
    lines were run so far; where they are fewer than ``line``, nothing is raised.
    """
    run = [0]

    def lines(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            run[0] += 1
            if run[0] == line:
                raise KeyboardInterrupt
        return lines

    def calls(frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        wanted = any(part in path for part in parts) and without not in path
        return lines if wanted else None

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        yield run
    finally:
        sys.settrace(before)

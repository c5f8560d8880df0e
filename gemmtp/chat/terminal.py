"""The keyboard while an answer comes: keys wait for the next prompt, Ctrl-C ends the answer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

if sys.platform != "win32":
    import termios

_INPUT_FLAGS, _LOCAL_FLAGS = 0, 3
"""Where :func:`termios.tcgetattr` has them."""


@contextmanager
def kept_modes() -> Iterator[None]:
    """Leave the terminal as it was, also when a signal ends the chat between two modes."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    file = sys.stdin.fileno()
    modes = termios.tcgetattr(file)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(file, termios.TCSADRAIN, modes)


class Answering:
    """From its beginning to its end, an answer's hold on keyboard and Ctrl-C.

    ``stopped`` turns true with the first Ctrl-C, and the answer ends behind the token at hand. A
    second Ctrl-C raises KeyboardInterrupt as usual. Keys are not echoed into the answer; they are
    read by the prompt that comes next. ``quiet`` false leaves the terminal as it is.
    """

    def __init__(self, *, quiet: bool) -> None:
        self.stopped = False
        self._quiet = quiet
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._handlers[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupted)
        self._silence()
        if sys.platform != "win32" and self._modes is not None:
            # After Ctrl-Z and fg the shell has set its own modes.
            self._handlers[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._continued)
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Terminal and Ctrl-C as they were, to ask something in between.

        Keys that were pressed before are no answer to it.
        """
        self._restore()
        if sys.platform != "win32" and self._modes is not None:
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        ours = signal.signal(signal.SIGINT, self._handlers[signal.SIGINT])
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, ours)
            self._silence()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        before = self._handlers[signal.SIGINT]
        if self.stopped and callable(before):
            before(number, frame)
        self.stopped = True

    def _continued(self, number: int, frame: FrameType | None) -> None:
        # A job in the background may not touch the terminal; it comes here again with fg.
        if sys.platform != "win32" and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
            self._silence()

    def _silence(self) -> None:
        if sys.platform == "win32" or not self._quiet or not sys.stdin.isatty():
            return
        file = sys.stdin.fileno()
        modes = termios.tcgetattr(file)
        self._modes = self._modes or [*modes]
        modes[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
        modes[_INPUT_FLAGS] &= ~termios.ICRNL
        termios.tcsetattr(file, termios.TCSANOW, modes)

    def _restore(self) -> None:
        if sys.platform != "win32" and self._modes is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._modes)

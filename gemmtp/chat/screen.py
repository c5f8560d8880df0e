"""What a chat prints: the answer on stdout; thoughts, notes and progress on stderr.

Text of a model, a file's name or an error may hold anything, so everything loses its control
characters here.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from typing import Literal, TextIO

from gemmtp.chat.render import DIM, RESET, Highlight, Markdown

Channel = Literal["answer", "thought", "call"]

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DUMB = ("", "dumb", "unknown")
"""Values of TERM that promise nothing but lines."""


def printable(text: str) -> str:
    """``text`` without what could move a cursor, change a title or ring a bell."""
    return _CONTROLS.sub("", text)


def is_dumb() -> bool:
    """Whether the terminal can do no more than print lines."""
    return sys.platform != "win32" and os.environ.get("TERM", "") in DUMB


@dataclass
class Screen:
    """Where a chat prints.

    ``coloured`` is for both streams; ``moving`` allows a line that comes and goes on stderr.
    """

    out: TextIO
    err: TextIO
    coloured: bool = False
    moving: bool = False
    columns: int = 80
    _markdown: Markdown | None = None
    _channel: Channel | None = field(default=None, init=False)
    _ended: bool = field(default=True, init=False)
    _passing: bool = field(default=False, init=False)

    @classmethod
    def of_terminal(cls) -> Screen:
        """The screen of this process: colours as NO_COLOR and TERM allow, on terminals alone."""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                # A terminal that is not UTF-8 shows ? for what it lacks.
                stream.reconfigure(errors="replace")
        moving = sys.stderr.isatty() and not is_dumb()
        coloured = moving and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        return cls(sys.stdout, sys.stderr, coloured, moving)

    def words(self, channel: Channel, text: str) -> None:
        """A piece of what the model says."""
        text = printable(text)
        if not text:
            return
        self.clear()
        if channel != self._channel:
            self.end()
            self._channel = channel
        self._ended = text.endswith("\n")
        if channel != "answer":
            self._to_err(self._dim(text))
            return
        if self.coloured:
            text = self._renderer().feed(text)
        self.out.write(text)
        self.out.flush()

    def end(self) -> None:
        """What the model said is complete; the next text stands on a line of its own."""
        self.clear()
        if self._markdown is not None:
            self.out.write(self._markdown.finish())
        if not self._ended:
            (self.out if self._channel == "answer" else self.err).write("\n")
        self._ended, self._channel = True, None
        self.out.flush()
        self.err.flush()

    def say(self, text: str, *, dim: bool = False) -> None:
        """Lines of the program's own, on stderr."""
        self.end()
        text = "\n".join(printable(line) for line in text.split("\n"))
        self._to_err((self._dim(text) if dim else text) + "\n")

    def note(self, text: str) -> None:
        """One line about what happened."""
        self.say(f"note: {text}", dim=True)

    def passing(self, text: str) -> None:
        """A line that the next print removes; nothing where the terminal cannot remove it."""
        if not self.moving or not self._ended:
            return
        self._passing = True
        self._to_err("\r\x1b[K" + self._dim(fitting(printable(text), self._width() - 1)))

    def clear(self) -> None:
        """Take the passing line away."""
        if self._passing:
            self._passing = False
            self._to_err("\r\x1b[K")

    def _renderer(self) -> Markdown:
        if self._markdown is None:
            self._markdown = Markdown(_highlighter)
        return self._markdown

    def _to_err(self, text: str) -> None:
        self.err.write(text)
        self.err.flush()

    def _dim(self, text: str) -> str:
        if not self.coloured or not text:
            return text
        ended = text.endswith("\n")
        return f"\x1b[{DIM}m{text.removesuffix(chr(10))}{RESET}" + ("\n" if ended else "")

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self.err.fileno()).columns or self.columns
        except (OSError, ValueError):
            return self.columns


def _highlighter(language: str) -> Highlight:
    # pygments takes a while to import, and most answers hold no code.
    from gemmtp.chat.highlight import highlighter

    return highlighter(language)


def fitting(text: str, columns: int) -> str:
    """The beginning of a line that takes at most so many columns; … stands for the rest."""
    from prompt_toolkit.utils import get_cwidth

    if get_cwidth(text) <= columns:
        return text
    width, kept = 1, []
    for character in text:
        width += get_cwidth(character)
        if width > columns:
            break
        kept.append(character)
    return "".join(kept) + ("…" if columns > 0 else "")

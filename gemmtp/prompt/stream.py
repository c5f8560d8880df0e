"""Token bytes to text: characters split over tokens, stop strings, terminal control sequences.

Nothing is lost: what is held back because it may be half a character or the beginning of a stop
string comes out at the end.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from gemmtp.engine.stopping import StopStrings

# A model must not move the cursor, change the title or ring the bell of somebody's terminal.
# Tab, newline and carriage return before a newline are text; every other C0 and C1 control is not.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


class TextStream:
    """Bytes in, displayable text out.

    With ``terminal`` true, control characters are removed; without their escape character the rest
    of a control sequence is harmless text.
    """

    def __init__(self, stops: Sequence[str] = (), *, terminal: bool = False) -> None:
        self._stops = StopStrings(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._terminal = terminal
        self._carriage = ""

    def feed(self, piece: bytes) -> str:
        """The text that ``piece`` completes."""
        return self._shown(self._decoder.decode(self._stops.feed(piece)))

    def finish(self) -> str:
        """The rest, when no more bytes will come."""
        text = self._decoder.decode(self._stops.flush(), final=True)
        return self._shown(text, last=True)

    def _shown(self, text: str, *, last: bool = False) -> str:
        if not self._terminal:
            return text
        text = self._carriage + text
        self._carriage = ""
        if text.endswith("\r") and not last:
            # Whether this is half of a line end shows with the next piece.
            text, self._carriage = text[:-1], "\r"
        return _CONTROL.sub("", text)

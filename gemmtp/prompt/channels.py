"""Thoughts told apart from the answer, by tokens.

With thinking on, Gemma 4 writes ``<|channel>thought\\n...<channel|>answer``. The markers are tokens
of their own, so text that merely looks like one is never taken for one, however many tokens arrive
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from gemmtp.prompt.stream import TextStream

Kind = Literal["answer", "thinking"]
OPEN, CLOSE = "<|channel>", "<channel|>"
_NAME = "thought"


class Piece(NamedTuple):
    """Some text of the answer or of the thoughts before it."""

    kind: Kind
    text: str


class ChannelStream:
    """Tokens in, pieces of answer and thoughts out; nothing is lost but the markers.

    ``token_bytes`` gives a token's bytes; ``opening`` and ``closing`` are the markers' ids, None
    where the vocabulary has none. Stop strings apply to the answer alone.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        opening: int | None,
        closing: int | None,
        stops: Sequence[str] = (),
        *,
        terminal: bool = False,
    ) -> None:
        self._token_bytes = token_bytes
        self._opening, self._closing = opening, closing
        self._terminal = terminal
        self._answer = TextStream(stops, terminal=terminal)
        self._thinking: _Thoughts | None = None

    @property
    def kind(self) -> Kind:
        """What the next token belongs to."""
        return "answer" if self._thinking is None else "thinking"

    def feed(self, token: int) -> Piece:
        """The text that ``token`` completes; empty for a marker."""
        if token == self._opening and self._thinking is None:
            self._thinking = _Thoughts(self._terminal)
            return Piece("thinking", "")
        if self._thinking is None:
            return Piece("answer", self._answer.feed(self._token_bytes(token)))
        if token == self._closing:
            rest = self._thinking.finish()
            self._thinking = None
            return Piece("thinking", rest)
        return Piece("thinking", self._thinking.feed(self._token_bytes(token)))

    def finish(self) -> list[Piece]:
        """What was held back, when no more tokens will come."""
        pieces = [Piece("answer", self._answer.finish())]
        if self._thinking is not None:
            pieces.insert(0, Piece("thinking", self._thinking.finish()))
        return [piece for piece in pieces if piece.text]


class _Thoughts:
    """The text of one channel without its name line."""

    def __init__(self, terminal: bool) -> None:
        self._stream = TextStream(terminal=terminal)
        self._head: str | None = ""

    def feed(self, piece: bytes) -> str:
        return self._without_name(self._stream.feed(piece))

    def finish(self) -> str:
        text = self._without_name(self._stream.finish())
        if self._head is not None:
            # No line end came: the whole channel was its name, or it has none.
            text = "" if self._head == _NAME else self._head
            self._head = None
        return text

    def _without_name(self, text: str) -> str:
        if self._head is None:
            return text
        self._head += text
        name, newline, rest = self._head.partition("\n")
        if newline and name == _NAME:
            self._head = None
            return rest
        if newline or not _NAME.startswith(name):
            head, self._head = self._head, None
            return head
        return ""

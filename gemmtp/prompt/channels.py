"""Thoughts, answer and tool calls told apart by tokens.

With thinking on, Gemma 4 writes ``<|channel>thought\\n...<channel|>answer``; a tool is called by
``<|tool_call>call:name{...}<tool_call|>``. The markers are tokens of their own, so text that merely
looks like one is never taken for one, however many tokens arrive at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from gemmtp.engine.stopping import StopWatch
from gemmtp.prompt.calls import parse_call
from gemmtp.prompt.conversation import ToolCall
from gemmtp.prompt.stream import TextStream

Kind = Literal["answer", "thinking", "tool_call"]
QUOTE = '<|"|>'
_NAME = "thought"


class Markers(NamedTuple):
    """The ids of the markers; None where the vocabulary has none or they are not looked for."""

    thought: int | None = None
    thought_end: int | None = None
    call: int | None = None
    call_end: int | None = None
    quote: int | None = None

    @classmethod
    def of(cls, marker: Callable[[str], int | None]) -> Markers:
        """Those of a vocabulary; ``marker`` gives the id of a marker's text."""
        texts = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", QUOTE)
        return cls(*map(marker, texts))


class Written(NamedTuple):
    """A finished tool call: its text between the markers, and what it means if that is clear."""

    text: str
    call: ToolCall | None


class Piece(NamedTuple):
    """Some text of one kind; ``written`` comes with the last piece of a tool call."""

    kind: Kind
    text: str
    written: Written | None = None


class Sorter:
    """Says of every token which part it belongs to, and whether it is a marker between parts."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self.kind: Kind = "answer"
        """What the next token belongs to."""

    def take(self, token: int) -> tuple[Kind, bool]:
        """The part of ``token``, and whether it opens or closes that part."""
        m, before = self._markers, self.kind
        if before != "tool_call" and token == m.call:
            # A call ends a thought that was not closed.
            self.kind = "tool_call"
        elif before == "answer" and token == m.thought:
            self.kind = "thinking"
        elif token == {"thinking": m.thought_end, "tool_call": m.call_end}.get(before):
            self.kind = "answer"
            return before, True
        return self.kind, self.kind != before


def stop_in_answer(
    stops: Sequence[str], markers: Markers, token_bytes: Callable[[int], bytes]
) -> Callable[[int], bool] | None:
    """Tells of every token whether it completes a stop string of the answer; None without any."""
    if not stops:
        return None
    sorter, watch = Sorter(markers), StopWatch(stops, token_bytes)
    return lambda token: sorter.take(token) == ("answer", False) and watch(token)


class ChannelStream:
    """Tokens in, pieces of answer, thoughts and tool calls out; only the markers are left out.

    ``token_bytes`` gives a token's bytes. Stop strings apply to the answer alone. ``terminal``
    removes control characters from all pieces, ``thinking_terminal`` from the thoughts, which may
    go elsewhere.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        markers: Markers,
        stops: Sequence[str] = (),
        *,
        terminal: bool = False,
        thinking_terminal: bool | None = None,
    ) -> None:
        self._token_bytes, self._quote = token_bytes, markers.quote
        self._sorter = Sorter(markers)
        self._terminal = terminal
        self._thinking_terminal = terminal if thinking_terminal is None else thinking_terminal
        self._answer = TextStream(stops, terminal=terminal)
        self._thinking: _Thoughts | None = None
        self._call: _Call | None = None

    @property
    def kind(self) -> Kind:
        """What the next token belongs to."""
        return self._sorter.kind

    def feed(self, token: int) -> Piece:
        """The text that ``token`` completes; empty for a marker.

        A call that begins inside a thought gives the thought's last piece.
        """
        kind, marker = self._sorter.take(token)
        if marker:
            return self._turned(kind)
        if self._call is not None:
            if token == self._quote:
                return Piece(kind, self._call.quote())
            return Piece(kind, self._call.feed(self._token_bytes(token)))
        if self._thinking is not None:
            return Piece(kind, self._thinking.feed(self._token_bytes(token)))
        return Piece(kind, self._answer.feed(self._token_bytes(token)))

    def finish(self) -> list[Piece]:
        """What was held back, when no more tokens will come."""
        pieces = [Piece("answer", self._answer.finish())]
        if self._thinking is not None:
            pieces.insert(0, Piece("thinking", self._thinking.finish()))
        if self._call is not None:
            pieces.append(self._written())
        return [piece for piece in pieces if piece.text or piece.written]

    def _turned(self, kind: Kind) -> Piece:
        """A marker: open what begins, finish what ends."""
        thoughts, self._thinking = self._thinking, None
        rest = Piece("thinking", thoughts.finish()) if thoughts else None
        if self._call is not None:
            return self._written()
        if self._sorter.kind == "tool_call":
            self._call = _Call(self._terminal)
        elif self._sorter.kind == "thinking":
            self._thinking = _Thoughts(self._thinking_terminal)
        return rest or Piece(kind, "")

    def _written(self) -> Piece:
        call, self._call = self._call, None
        rest = call.finish() if call else ""
        return Piece("tool_call", rest, call.written() if call else None)


class _Call:
    """The text of one tool call, cut at its quotes."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._stream = TextStream(terminal=terminal)
        self._texts = [""]

    def feed(self, piece: bytes) -> str:
        return self._add(self._stream.feed(piece))

    def quote(self) -> str:
        rest = self.finish()
        self._stream = TextStream(terminal=self._terminal)
        self._texts.append("")
        return rest + QUOTE

    def finish(self) -> str:
        return self._add(self._stream.finish())

    def written(self) -> Written:
        return Written(QUOTE.join(self._texts), parse_call(self._texts))

    def _add(self, text: str) -> str:
        self._texts[-1] += text
        return text


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

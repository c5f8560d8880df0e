"""An answer being written: tokens in, words out, and the message that they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gemmtp.chat.pieces import Channel, Words
from gemmtp.chat.voice import Vocabulary
from gemmtp.prompt.channels import ChannelStream, Kind, Markers, Piece
from gemmtp.prompt.conversation import Message, Text

_CHANNELS: dict[Kind, Channel] = {"answer": "answer", "thinking": "thought", "tool_call": "call"}


class Writing:
    """Writes into ``message``, which holds exactly the words that were given out so far."""

    def __init__(self, model: Vocabulary, stops: Sequence[str], *, terminal: bool) -> None:
        markers = Markers.of(model.marker)
        self._stream = ChannelStream(model.token_bytes, markers, stops, terminal=terminal)
        self._ends = model.end_tokens
        self._tokens = self._drafted = 0
        self.message = Message("assistant")
        self.said: list[int] = []
        """The answer's tokens, thoughts and markers included."""

    def feed(self, token: int, drafted: bool) -> Words | None:
        """The words that ``token`` completes; None where they still wait for more."""
        self.said.append(token)
        self._tokens += 1
        self._drafted += drafted
        if token in self._ends:
            return None
        piece = self._stream.feed(token)
        return self._words(piece) if piece.text or piece.written else None

    def finish(self) -> Iterator[Words]:
        """What was held back, when no more tokens will come."""
        yield from map(self._words, self._stream.finish())

    def _words(self, piece: Piece) -> Words:
        message = self.message
        match piece.kind:
            case "thinking":
                message = replace(message, thinking=message.thinking + piece.text)
            case "answer" if piece.text:
                message = replace(message, parts=(Text(message.text + piece.text),))
            case "tool_call" if piece.written and piece.written.call:
                call = replace(piece.written.call, id=f"call_{len(message.tool_calls)}")
                message = replace(message, tool_calls=(*message.tool_calls, call))
        tokens, drafted = self._tokens, self._drafted
        self.message, self._tokens, self._drafted = message, 0, 0
        return Words(_CHANNELS[piece.kind], piece.text, tokens, drafted, piece.written)

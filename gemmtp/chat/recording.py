"""A stream of an answer's pieces that are recorded before anybody prints them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemmtp.chat.replay import Channel
from gemmtp.chat.sessions import Session
from gemmtp.prompt.channels import ChannelStream, Kind, Markers, Piece

_CHANNELS: dict[Kind, Channel] = {"answer": "answer", "thinking": "thought", "tool_call": "call"}


class RecordedStream(ChannelStream):
    """A :class:`~gemmtp.prompt.channels.ChannelStream` whose pieces go into ``session`` as well."""

    def __init__(
        self,
        session: Session,
        token_bytes: Callable[[int], bytes],
        markers: Markers,
        stops: Sequence[str] = (),
        *,
        terminal: bool = False,
        thinking_terminal: bool | None = None,
    ) -> None:
        super().__init__(
            token_bytes,
            markers,
            stops,
            terminal=terminal,
            thinking_terminal=thinking_terminal,
        )
        self._session = session

    def feed(self, token: int) -> Piece:
        return self._recorded(super().feed(token))

    def finish(self) -> list[Piece]:
        return [self._recorded(piece) for piece in super().finish()]

    def _recorded(self, piece: Piece) -> Piece:
        self._session.record_words(_CHANNELS[piece.kind], piece.text)
        if piece.written is not None:
            self._session.record_call(piece.written.text)
        return piece

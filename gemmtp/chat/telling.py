"""An answer on its way from the dialogue to screen and session, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from gemmtp.chat.dialogue import Dialogue, Pieces
from gemmtp.chat.pieces import Dropped, Piece, Reading, TurnEnd, Words
from gemmtp.chat.screen import Screen
from gemmtp.chat.sessions import Session
from gemmtp.chat.tally import Tally, Turn
from gemmtp.chat.terminal import Answering

_PATIENCE = 0.5
"""Seconds of reading a prompt before its progress is shown."""

_ENDINGS: Mapping[str, str] = {
    "interrupted": "stopped; what was said stays (/regen answers again, /undo takes it back)",
    "length": "stopped at max_tokens (/set max_tokens off)",
    "context": "the context is full; the answer ends here (/context shows what fills it)",
}
_FIRST_WORDS = 40
"""Characters of a dropped turn that name it."""


class Telling:
    """Prints and records answers; ``hide`` keeps their thoughts from the screen."""

    def __init__(self, dialogue: Dialogue, session: Session, screen: Screen) -> None:
        self.dialogue, self.session, self.screen = dialogue, session, screen
        self.hide = False
        self.tally = Tally()
        self.used = 0
        """Tokens of the context that the conversation takes, for the line below the prompt."""
        self._answering: Answering | None = None
        self._dropped_some = False

    def tell(self, pieces: Pieces) -> None:
        """An answer, until it ends or Ctrl-C ends it; what was said is kept in any case."""
        begun = time.monotonic()
        some = ended = False
        with Answering(quiet=self.screen.moving) as self._answering:
            try:
                for piece in pieces:
                    some, ended = True, isinstance(piece, TurnEnd)
                    self._show(piece, time.monotonic() - begun)
                    if self._answering.stopped:
                        break
            except KeyboardInterrupt:
                # A second Ctrl-C, for an answer whose next piece takes too long to come.
                some = True
            finally:
                pieces.close()
                if some and not ended and self.dialogue.last is not None:
                    self._end(self.dialogue.last)
                self.screen.end()
                self._answering = None

    def paused(self) -> AbstractContextManager[None]:
        """A context in which something can be asked in the middle of an answer."""
        return nullcontext() if self._answering is None else self._answering.paused()

    def _show(self, piece: Piece, seconds: float) -> None:
        match piece:
            case Reading(done=done, total=total):
                if seconds > _PATIENCE:
                    self.screen.passing(f"reading {done:,} of {total:,} tokens")
            case Words(channel="thought", text=text) if self.hide:
                self.session.record_words("thought", text)
                self.screen.passing("thinking" + "." * (1 + int(seconds) % 3))
            case Words(channel=channel, text=text, call=call):
                self.session.record_words(channel, text)
                if call is not None:
                    self.session.record_call(call.text)
                self.screen.words(channel, text)
            case Dropped():
                self._dropped_some = True
                self.session.record_drop(piece.turns, piece.summary)
                self.screen.note(_dropped(piece))
            case TurnEnd():
                self._end(piece)

    def _end(self, end: TurnEnd) -> None:
        self.session.record_end(end.reason, end.statistics)
        counts = end.statistics
        self.used = counts.cached + counts.evaluated + counts.generated
        if self._dropped_some:
            # The counts are those of several requests then.
            self.used, self._dropped_some = self.dialogue.usage().used, False
        self.used = min(self.used, self.dialogue.n_ctx)
        temperature = self.dialogue.sampling.temperature
        off = self.dialogue.pair.engine.drafting.reason
        self.tally.turns.append(Turn(end.statistics, temperature, off, end.cached_because))
        if note := _ENDINGS.get(end.reason):
            self.screen.note(note)
        if trouble := self.session.trouble:
            self.screen.note(f"the chat is not written to the disk: {trouble}")


def _dropped(piece: Dropped) -> str:
    n = piece.turns
    first = next((m.text for m in piece.messages if m.role == "user"), "")
    words = " ".join(first.split())
    words = words if len(words) <= _FIRST_WORDS else words[: _FIRST_WORDS - 1] + "…"
    what = "summarised" if piece.summary else "dropped from the context"
    turns = "the oldest turn was" if n == 1 else f"the oldest {n} turns were"
    return f"{turns} {what}, beginning with “{words}”"

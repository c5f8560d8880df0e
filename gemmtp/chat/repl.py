"""The prompt of a chat: inputs in, commands done, answers streamed, everything recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal, get_args

from gemmtp.chat.commands import Leave, command_in
from gemmtp.chat.dialogue import Dialogue, Overflow
from gemmtp.chat.parameters import set_parameter
from gemmtp.chat.pieces import Dropped, Piece, Reading, TurnEnd, Words
from gemmtp.chat.reader import Cancelled, Reader, unquoted
from gemmtp.chat.screen import Screen
from gemmtp.chat.sessions import Session
from gemmtp.chat.staging import IMAGE_SUFFIXES, Staging, dropped, embedded
from gemmtp.chat.status import Status
from gemmtp.chat.tally import Tally, Turn
from gemmtp.chat.terminal import Answering
from gemmtp.engine.depth import DepthChooser
from gemmtp.errors import GemmtpError, UsageError
from gemmtp.prompt import source
from gemmtp.prompt.conversation import Message, Part

Thinking = Literal["on", "off", "hide"]

_OVERFLOW: Mapping[str, tuple[str, Overflow]] = {
    "s": ("stop here", "stop"),
    "d": ("drop the oldest turns", "shift"),
    "m": ("summarise them", "summarise"),
}
_LEAVE_HINT = "Ctrl-D or /bye leaves"
_PATIENCE = 0.5
"""Seconds of reading a prompt before its progress is shown."""


class Repl:
    """A chat at a terminal. ``depth_of`` makes the depth chooser that a word asks for."""

    def __init__(
        self,
        dialogue: Dialogue,
        session: Session,
        screen: Screen,
        reader: Reader,
        staging: Staging,
        *,
        depth_of: Callable[[str], DepthChooser],
        draft: str = "auto",
        hide_thinking: bool = False,
    ) -> None:
        self.dialogue: Dialogue = dialogue
        self.session, self.staging = session, staging
        self.screen, self.reader = screen, reader
        self.draft: str = draft
        self.tally = Tally()
        self.prefill = ""
        self._used = 0
        self._depth_of, self._hide_thinking = depth_of, hide_thinking
        self._editing = False
        self._answering: Answering | None = None

    def run(self) -> None:
        """Read and answer until the user leaves."""
        while True:
            default, self.prefill = self.prefill, ""
            try:
                self.take(self.reader.read(default))
            except (EOFError, Leave):
                break
            except Cancelled as cancelled:
                self._cancelled(cancelled.typed)
            except KeyboardInterrupt:
                self.screen.note(f"interrupted; {_LEAVE_HINT}")
            except GemmtpError as error:
                self.complain(error)

    def take(self, text: str) -> None:
        """Do what one input says.

        Raises :class:`Leave` when it ends the chat, and :class:`~gemmtp.errors.GemmtpError`.
        """
        editing, self._editing = self._editing, False
        if not text.strip():
            if editing:
                self.screen.note("nothing was changed")
            return
        if command := command_in(text):
            pieces = command[0].run(self, command[1])
            if pieces is not None:
                self.stream(pieces)
            return
        try:
            text = source.checked_argument(unquoted(text))
        except UsageError:
            self.prefill = text.encode("utf-8", "replace").decode("utf-8")
            raise
        text = self._with_files(text)
        if editing:
            self.stream(self.edit(text))
        elif text or self.staging.files:
            self.stream(self.ask(text))

    def complain(self, error: GemmtpError) -> None:
        """Say what went wrong, as the command line says it."""
        self.screen.say(
            f"gemmtp: {error.message}" + (f"\nhint: {error.hint}" if error.hint else "")
        )

    def stream(self, pieces: Iterator[Piece]) -> None:
        """Print and record an answer as it comes; Ctrl-C ends it and keeps what was said."""
        begun = time.monotonic()
        with Answering(quiet=self.screen.moving) as self._answering:
            try:
                for piece in pieces:
                    self._show(piece, time.monotonic() - begun)
                    if self._answering.stopped and not isinstance(piece, TurnEnd):
                        self._leave(pieces)
                        break
            except KeyboardInterrupt:
                self._leave(pieces)
            finally:
                self.screen.end()
                self._answering = None

    def _show(self, piece: Piece, seconds: float) -> None:
        match piece:
            case Reading(done=done, total=total):
                if seconds > _PATIENCE:
                    self.screen.passing(f"reading {done:,} of {total:,} tokens")
            case Words(channel="thought", text=text) if self._hide_thinking:
                self.session.record_words("thought", text)
                self.screen.passing("thinking" + "." * (1 + int(seconds) % 3))
            case Words(channel=channel, text=text, call=call):
                self.session.record_words(channel, text)
                if call is not None:
                    self.session.record_call(call.text)
                self.screen.words(channel, text)
            case Dropped():
                self.session.record_drop(piece.turns, piece.summary)
                self.screen.note(_dropped_words(piece))
            case TurnEnd():
                self._ended(piece)

    def _leave(self, pieces: Iterator[Piece]) -> None:
        """Stop an answer behind the token at hand."""
        if isinstance(pieces, Generator):
            pieces.close()
        if self.dialogue.last is not None:
            self._ended(self.dialogue.last)

    def _ended(self, end: TurnEnd) -> None:
        self.session.record_end(end.reason, end.statistics)
        counts = end.statistics
        self._used = counts.cached + counts.evaluated + counts.generated
        temperature = self.dialogue.sampling.temperature
        off = self.dialogue.pair.engine.drafting.reason
        self.tally.turns.append(
            Turn(end.statistics, temperature, off, end.cached_because, end.reason)
        )
        if note := _ENDINGS.get(end.reason):
            self.screen.note(note)
        if trouble := self.session.trouble:
            self.screen.note(f"the chat is not written to the disk: {trouble}")

    # What inputs and commands do.

    def ask(self, text: str) -> Iterator[Piece]:
        """Say ``text`` with everything that is staged."""
        return self._said(text, (), self.dialogue.ask, self.session.record_user)

    def edit(self, text: str) -> Iterator[Piece]:
        """Say ``text`` in place of the last message, whose attachments stay."""
        media = next(m.media for m in reversed(self.dialogue.messages) if m.role == "user")
        return self._said(text, media, self.dialogue.edit, self.session.record_edit)

    def regenerate(self) -> Iterator[Piece]:
        """Another answer to the last message."""
        return self._begun(self.dialogue.regenerate(), self.session.record_regenerate)

    def _said(
        self,
        text: str,
        media: Sequence[Part],
        say: Callable[[Message], Iterator[Piece]],
        record: Callable[[Message], None],
    ) -> Iterator[Piece]:
        staged = self.staging.images, self.staging.files
        message = self.staging.take(text)
        message = replace(message, parts=(*media, *message.parts))
        try:
            yield from self._begun(say(message), lambda: record(message))
        except GemmtpError:
            if message not in self.dialogue.messages:
                # It was not said, so it may be changed and said again.
                self.staging.images, self.staging.files = staged
                self.prefill = text
            raise

    def _begun(self, pieces: Iterator[Piece], record: Callable[[], None]) -> Iterator[Piece]:
        """``pieces``, recorded once the first one shows that the answer can be given."""
        try:
            first = next(pieces)
            record()
            yield first
            yield from pieces
        finally:
            if isinstance(pieces, Generator):
                pieces.close()

    def undo(self) -> None:
        """Take the last exchange back."""
        if not self.dialogue.undo():
            raise UsageError("Nothing was said yet.")
        self.session.record_undo()
        self.screen.note("the last message and its answer are gone")

    def clear(self) -> None:
        """Begin anew."""
        self.dialogue.clear()
        self.staging.clear()
        self.session.record_clear()

    def last_text(self) -> str | None:
        """What the user said last, None before anything was said."""
        messages = reversed(self.dialogue.messages)
        return next((message.text for message in messages if message.role == "user"), None)

    def begin_edit(self) -> None:
        """The next input replaces the last message, which stands there to be changed."""
        self._editing, self.prefill = True, self.last_text() or ""

    def set_system(self, text: str) -> None:
        """Another system message, empty for none."""
        self.dialogue.set_system(text)
        self.session.record_system(text)

    def set(self, name: str, word: str) -> None:
        """Change a parameter of ``/set``; raises UsageError and changes nothing if it cannot be."""
        set_parameter(self, name, word)
        self.session.record_setting(name, word)

    def set_draft(self, word: str) -> None:
        """Draft as ``word`` says; raises UsageError for what is no depth."""
        self.dialogue.depth = self._depth_of(word)
        self.draft = word

    @property
    def thinking(self) -> Thinking:
        """Whether the model thinks first, and whether that is shown."""
        if not self.dialogue.thinking:
            return "off"
        return "hide" if self._hide_thinking else "on"

    def set_thinking(self, word: str) -> None:
        """Change :attr:`thinking`; raises UsageError for another word."""
        if word not in get_args(Thinking):
            raise UsageError(
                f"{word!r} is no way to think.", "/think on, /think off or /think hide."
            )
        self.dialogue.thinking, self._hide_thinking = word != "off", word == "hide"
        self.session.record_setting("think", word)

    def load(self, name: str) -> None:
        """Go on with another session; raises :class:`~gemmtp.errors.GemmtpError`."""
        if name == self.session.name:
            raise UsageError("That is this chat.")
        session = Session.open(name)
        self.session.close()
        self.session = session
        self.resume()

    def resume(self) -> None:
        """Take over what the session holds: messages, system message, settings."""
        replay = self.session.replay
        self.dialogue.load(
            [embedded(message) for message in self.session.messages()],
            replay.summary or "",
        )
        if replay.system is not None:
            self.dialogue.set_system(replay.system)
        for name, value in replay.settings.items():
            self._restore(name, str(value))
        self.tally, self._editing = Tally(), False
        self.staging.clear()
        n = replay.turns
        self.screen.note(f"going on with {self.session.name}, {n} turn{'s' if n != 1 else ''}")

    def _restore(self, name: str, word: str) -> None:
        """A setting as it was, if this program still knows it."""
        try:
            if name == "think":
                self.set_thinking(word)
            else:
                set_parameter(self, name, word)
        except UsageError as error:
            self.screen.note(f"{name} {word} is not taken over: {error.message}")

    def drafting(self) -> str:
        """Whether and how deep it drafts, in a few words."""
        if off := self.dialogue.pair.engine.drafting.reason:
            return f"drafting off: {off}"
        depth = self.dialogue.depth or self.dialogue.pair.engine.depth
        return f"drafting {depth.describe()}" if depth.most else "drafting off: depth 0"

    def status(self, model: str) -> Status:
        """What stands below the prompt."""
        engine = self.dialogue.pair.engine
        chooser = self.dialogue.depth or engine.depth
        last = self.tally.turns[-1] if self.tally.turns else None
        return Status(
            model,
            engine.drafting.reason or (None if chooser.most else "depth 0"),
            chooser.describe(),
            last.depth if last else None,
            self._used,
            engine.target.n_ctx,
            last.rate if last else "",
            self.staging.labels(),
        )

    def context_lines(self) -> list[str]:
        """What fills the context."""
        n_ctx = self.dialogue.pair.engine.target.n_ctx
        return [f"{self._used:,} of {n_ctx:,} tokens"]

    def decide(self, needed: int, free: int) -> Overflow:
        """Ask what to do about a full context; the hook of :attr:`Dialogue.overflow`."""
        question = f"The conversation needs {needed:,} tokens; {free:,} are free."
        choices = {key: words for key, (words, _) in _OVERFLOW.items()}
        self.screen.end()
        try:
            with self._answering.paused() if self._answering else nullcontext():
                return _OVERFLOW[self.reader.choose(question, choices)][1]
        except (Cancelled, EOFError):
            return "stop"

    def _with_files(self, text: str) -> str:
        """``text`` after what it names was attached: dropped images if wanted, and ``@files``."""
        for word, path in dropped(text):
            if self.staging.frame is None:
                self.complain(self.staging.blind)
            elif self.reader.choose(f"Attach {path.name}?", {"y": "yes", "n": "no"}) == "y":
                self.screen.say(self.staging.add_image_file(path))
                text = text.replace(word, "", 1)
        for path in source.mentioned(text):
            image = path.suffix.lower() in IMAGE_SUFFIXES
            add = self.staging.add_image_file if image else self.staging.add_file
            self.screen.say(add(path))
        return text.strip()

    def _cancelled(self, typed: str) -> None:
        if self._editing:
            self._editing = False
            self.screen.note("nothing was changed")
        elif not typed.strip():
            self.screen.note(_LEAVE_HINT)


_ENDINGS: Mapping[str, str] = {
    "interrupted": "stopped; what was said stays (/regen answers again, /undo takes it back)",
    "length": "stopped at max_tokens (/set max_tokens off)",
    "context": "the context is full; the answer ends here (/context shows what fills it)",
}


def _dropped_words(piece: Dropped) -> str:
    n = piece.turns
    first = next((m.text for m in piece.messages if m.role == "user"), "")
    words = " ".join(first.split())
    words = words[:40] + "…" if len(words) > 40 else words
    what = "were summarised" if piece.summary else "left the context"
    return f"the oldest {n} turn{'s' if n != 1 else ''} {what}, beginning with “{words}”"

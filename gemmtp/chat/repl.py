"""The prompt of a chat: inputs in, commands done, answers streamed, everything recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

from gemmtp.chat.commands import Leave, command_in
from gemmtp.chat.dialogue import Dialogue, Pieces
from gemmtp.chat.filling import filling
from gemmtp.chat.idle import reading_ahead
from gemmtp.chat.parameters import set_parameter
from gemmtp.chat.reader import Cancelled, Reader, decoded, unquoted
from gemmtp.chat.room import Overflow
from gemmtp.chat.screen import Screen
from gemmtp.chat.sessions import Session
from gemmtp.chat.staging import IMAGE_SUFFIXES, Staging, dropped, embedded
from gemmtp.chat.status import Status
from gemmtp.chat.tally import Tally
from gemmtp.chat.telling import Telling
from gemmtp.engine.depth import DepthChooser
from gemmtp.engine.drafting import described
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
        self.screen, self.reader, self.staging = screen, reader, staging
        self.telling = Telling(dialogue, session, screen)
        self.telling.hide = hide_thinking
        self.draft: str = draft
        self.prefill = ""
        self._depth_of = depth_of
        self._editing = False

    @property
    def session(self) -> Session:
        """Where everything is recorded."""
        return self.telling.session

    def run(self) -> None:
        """Read and answer until the user leaves."""
        while True:
            default, self.prefill = self.prefill, ""
            try:
                with reading_ahead(self.dialogue):
                    text = self.reader.read(default)
                self.take(text)
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
                self.telling.tell(pieces)
            return
        try:
            text = source.checked_argument(decoded(unquoted(text)))
        except UsageError:
            self.prefill = text.encode("utf-8", "replace").decode("utf-8")
            raise
        text = self._with_files(text)
        if editing:
            try:
                self.telling.tell(self.edit(text))
            except GemmtpError:
                self._editing = bool(self.prefill)
                raise
        elif text or self.staging.files:
            self.telling.tell(self.ask(text))

    def complain(self, error: GemmtpError) -> None:
        """Say what went wrong, as the command line says it."""
        self.screen.say(
            f"gemmtp: {error.message}" + (f"\nhint: {error.hint}" if error.hint else "")
        )

    # What inputs and commands do.

    def ask(self, text: str) -> Pieces:
        """Say ``text`` with everything that is staged."""
        return self._said(text, (), self.dialogue.ask, self.session.record_user)

    def edit(self, text: str) -> Pieces:
        """Say ``text`` in place of the last message, whose attachments stay."""
        media = next(m.media for m in reversed(self.dialogue.messages) if m.role == "user")
        return self._said(text, media, self.dialogue.edit, self.session.record_edit)

    def regenerate(self) -> Pieces:
        """Another answer to the last message."""
        return self._begun(self.dialogue.regenerate(), self.session.record_regenerate)

    def _said(
        self,
        text: str,
        media: Sequence[Part],
        say: Callable[[Message], Pieces],
        record: Callable[[Message], None],
    ) -> Pieces:
        staged = self.staging.images, self.staging.files
        message = self.staging.take(text)
        message = replace(message, parts=(*media, *message.parts))
        said = False

        def recorded() -> None:
            nonlocal said
            said = True
            record(message)

        try:
            yield from self._begun(say(message), recorded)
        except GemmtpError:
            if not said:
                # It may be changed and said again.
                self.staging.images, self.staging.files = staged
                self.prefill = text
            raise

    def _begun(self, pieces: Pieces, record: Callable[[], None]) -> Pieces:
        """``pieces``, recorded once the first one shows that the answer can be given."""
        try:
            first = next(pieces)
            record()
            yield first
            yield from pieces
        finally:
            pieces.close()

    def undo(self) -> None:
        """Take the last exchange back."""
        if not self.dialogue.undo():
            raise UsageError("Nothing was said yet.")
        self.session.record_undo()
        self._recount()
        self.screen.note("the last message and its answer are gone")

    def clear(self) -> None:
        """Begin anew."""
        self.dialogue.clear()
        self.staging.clear()
        self.session.record_clear()
        self.telling.used = 0

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
        return "hide" if self.telling.hide else "on"

    def set_thinking(self, word: str) -> None:
        """Change :attr:`thinking`; raises UsageError for another word."""
        if word not in get_args(Thinking):
            raise UsageError(
                f"{word!r} is no way to think.", "/think on, /think off or /think hide."
            )
        self.dialogue.thinking, self.telling.hide = word != "off", word == "hide"
        self.session.record_setting("think", word)

    def load(self, name: str) -> None:
        """Go on with another session; raises :class:`~gemmtp.errors.GemmtpError`."""
        if name == self.session.name:
            raise UsageError("That is this chat.")
        session = Session.open(name)
        if note := session.go_on_with(self.session.origin):
            self.screen.note(note)
        self.session.close()
        self.telling.session = session
        self.resume()

    def resume(self, given: Collection[str] = ()) -> None:
        """Take over what the session holds: messages, system message, settings but ``given``."""
        replay = self.session.replay
        self.dialogue.load(
            [embedded(message) for message in self.session.messages()],
            replay.summary or "",
        )
        if replay.system is not None:
            self.dialogue.set_system(replay.system)
        for name, value in replay.settings.items():
            if name not in given:
                self._restore(name, str(value))
        self.telling.tally, self._editing = Tally(), False
        self._recount()
        self.staging.clear()
        n = replay.turns
        self.screen.note(f"going on with {self.session.name}, {n} turn{'s' if n != 1 else ''}")
        if not replay.complete:
            self.screen.note("the last answer was cut off; /regen answers again")

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
        source = self.dialogue.pair.engine.drafting
        depth = self.dialogue.depth or self.dialogue.pair.engine.depth
        if source.no_drafter is not None:
            return described(source, depth.describe())
        if not depth.most:
            return "drafting off: depth 0"
        return f"drafting {depth.describe()} ({depth.explain()})"

    def status(self, model: str) -> Status:
        """What stands below the prompt."""
        engine = self.dialogue.pair.engine
        chooser = self.dialogue.depth or engine.depth
        turns = self.telling.tally.turns
        last = turns[-1] if turns else None
        return Status(
            model,
            engine.drafting.reason or (None if chooser.most else "depth 0"),
            chooser.describe() if engine.drafting.no_drafter is None else "by prompt lookup",
            last.depth if last else None,
            self.telling.used,
            engine.target.n_ctx,
            last.rate if last and last.statistics.rounds else "",
            self.staging.labels(),
        )

    def _recount(self) -> None:
        """How full the context is after something but an answer has changed it."""
        self.telling.used = 0
        try:
            if self.dialogue.messages:
                self.telling.used = self.dialogue.usage().used
        except GemmtpError as error:
            # Such as images in the chat of a set that sees none.
            self.complain(error)

    def context_lines(self) -> list[str]:
        """What fills the context."""
        return filling(self.dialogue.usage())

    def decide(self, needed: int, free: int) -> Overflow:
        """Ask what to do about a full context; the hook of :attr:`Dialogue.overflow`."""
        question = f"The conversation needs {needed:,} tokens; {free:,} are free."
        choices = {key: words for key, (words, _) in _OVERFLOW.items()}
        self.screen.end()
        try:
            with self.telling.paused():
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

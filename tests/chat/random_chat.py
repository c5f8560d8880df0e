"""Random chats through the real line editor, beside a plain model of what they come to.

A script is a list of inputs as keys: words, pastes, commands good and bad, Ctrl-C at the prompt and
within answers, the terminal resized at any time. :class:`Model` follows them in its own few lines.
"""

from __future__ import annotations

import io
import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from gemmtp.chat import shelf
from gemmtp.chat.commands import COMMANDS
from gemmtp.chat.completion import ChatCompleter
from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.editing import EditingReader
from gemmtp.chat.history import SharedHistory
from gemmtp.chat.pieces import Piece, Words
from gemmtp.chat.reader import Cancelled
from gemmtp.chat.repl import Repl
from gemmtp.chat.screen import Screen
from gemmtp.chat.sessions import Origin, Session, load
from gemmtp.chat.staging import Staging
from gemmtp.chat.telling import Telling
from gemmtp.engine.depth import FixedDepth
from tests.chat.echo import answer_to, echo_voice

ENTER, CTRL_C, CTRL_D, ALT_ENTER, UP = "\r", "\x03", "\x04", "\x1b\r", "\x1b[A"
TEXTS = ("hello there", "code please", "escapes", "a 語 b 👩‍💻", "what is 3 + 4?", "x", "long one")
LINES = ("one line\nand another", "def f():\n    return 1\n\n\nend", "a\tb\nc")
BAD = (
    *("/sttas", "/set", "/set temperature hot", "/set top_k -3", "/set draft 99", "/set nothing 1"),
    *("/image", "/image nowhere.png", "/audio a.wav", "/save", "/save a/b", "/load nothing"),
    *("/file nowhere.txt", "/think maybe", "/mtp maybe", "/help", "/help nothing", "/stats"),
    *("/context", "/think", "/mtp", "/system", "/help set", "/set top_p", "@nowhere.txt"),
)
"""Inputs after which everything is as before."""


def depth_of(word: str) -> FixedDepth:
    return FixedDepth(3 if word == "auto" else int(word))


@dataclass(frozen=True)
class Said:
    """An exchange."""

    asked: str
    answer: str = ""
    thought: str = ""


@dataclass(frozen=True)
class State:
    """What a session holds."""

    said: tuple[Said, ...] = ()
    system: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Model:
    """What a chat should have come to."""

    state: State = State()
    staged: int = 0
    saved: dict[str, State] = field(default_factory=dict)
    name: str = ""
    typed: list[str] = field(default_factory=list)
    editing: bool = False

    def history(self, text: str) -> None:
        if text.strip() and not text.startswith(" ") and self.typed[-1:] != [text]:
            self.typed.append(text)

    def take(self, text: str, stop_at: int | None) -> None:
        """Follow one input; an answer ends after ``stop_at`` pieces."""
        self.history(text)
        editing, self.editing = self.editing, False
        text = text.strip()
        if text.startswith('"""'):
            text = text.removeprefix('"""').removesuffix('"""').strip("\n")
        if not text or text in BAD:
            return
        if text.startswith("/"):
            self.command(*text[1:].partition(" ")[::2], stop_at)
        elif editing:
            self.answer(self.state.said[:-1], self.with_files(text), stop_at)
        else:
            self.answer(self.state.said, self.with_files(text), stop_at)

    def command(self, name: str, argument: str, stop_at: int | None) -> None:
        said = self.state.said
        if name == "clear":
            self.state, self.staged = replace(self.state, said=()), 0
        elif name == "undo":
            self.state = replace(self.state, said=said[:-1])
        elif name == "regen" and said:
            self.answer(said[:-1], said[-1].asked, stop_at)
        elif name == "edit" and said and argument:
            self.answer(said[:-1], self.with_files(argument), stop_at)
        elif name == "edit" and said:
            self.editing = True
        elif name == "system":
            self.state = replace(self.state, system="" if argument == "off" else argument)
        elif name in ("set", "think", "mtp"):
            key, _, word = argument.partition(" ")
            if name != "set":
                word = {"on": "auto", "off": "0"}.get(argument, argument)
                key, word = ("think", argument) if name == "think" else ("draft", word)
            self.state = replace(self.state, settings={**self.state.settings, key: word})
        elif name == "file":
            self.staged = 0 if argument == "-" else self.staged + 1
        elif name == "save" and argument not in self.saved and argument != self.name:
            self.name = argument
        elif name == "load" and argument in self.saved:
            if self.name:
                self.saved[self.name] = self.state
            loaded = self.saved.pop(argument)
            settings = {**self.state.settings, **loaded.settings}
            self.state = replace(loaded, settings=settings)
            self.name, self.staged = argument, 0

    def with_files(self, text: str) -> str:
        blocks = ["notes.txt\n```\nsome notes\n```"] * self.staged
        self.staged = 0
        return "\n\n".join([*blocks, text])

    def answer(self, before: tuple[Said, ...], asked: str, stop_at: int | None) -> None:
        answer, thought = answer_to(asked), ""
        if self.state.settings.get("think", "off") != "off":
            thought = f"They said {len(asked)} characters."
        if stop_at is not None:
            answer = answer[: max(0, stop_at - len(thought))]
            thought = thought[:stop_at]
        self.state = replace(self.state, said=(*before, Said(asked, answer, thought)))


@dataclass
class Step:
    """Keys that are typed at a prompt; a Ctrl-C comes after ``stop_at`` pieces of the answer."""

    keys: str
    text: str | None
    stop_at: int | None = None


def script_of(chance: random.Random) -> list[Step]:
    """Some steps; ``text`` is what they send, None where Ctrl-C takes the keys back."""
    return [_step(chance) for _ in range(chance.randint(3, 16))]


def _step(chance: random.Random) -> Step:
    text = _text(chance)
    stop_at = chance.randrange(60) if chance.random() < 0.25 else None
    kind = chance.random()
    if kind < 0.08:
        return Step(chance.choice(["", "half a thou"]) + CTRL_C, None)
    if kind < 0.12:
        return Step(ENTER, "")
    if kind < 0.17:
        return Step(UP + ENTER, UP, stop_at)
    if "\n" in text:
        quoted = chance.random() < 0.5
        keys = f'"""{text}"""'.replace("\n", ENTER) if quoted else f"\x1b[200~{text}\x1b[201~"
        return Step(keys + ENTER, f'"""{text}"""' if quoted else text, stop_at)
    return Step(text + ENTER, text, stop_at)


def _text(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(TEXTS)
    if kind < 0.45:
        return chance.choice(LINES)
    if kind < 0.6:
        return chance.choice(BAD)
    return chance.choice(
        [
            *(
                "/undo",
                "/undo",
                "/regen",
                "/regen",
                "/edit",
                "/edit",
                "/edit other words",
                "/clear",
            ),
            *("/system Be brief.", "/system off", "/file notes.txt", "/file -"),
            f"/set temperature {chance.choice(['0', '0.5', '1'])}",
            f"/set seed {chance.randrange(9)}",
            f"/mtp {chance.choice(['on', 'off', '1', '4'])}",
            f"/think {chance.choice(['on', 'off', 'hide'])}",
            f"/save {chance.choice('abc')}",
            f"/load {chance.choice('abc')}",
        ]
    )


class Resizing(DummyOutput):
    """A terminal whose size changes whenever somebody looks."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def get_size(self) -> Size:
        if self._chance.random() < 0.02:
            signal.raise_signal(signal.SIGWINCH)
        return Size(self._chance.randint(1, 50), self._chance.randint(2, 200))


class Keyboard(EditingReader):
    """Types the next step whenever it is asked, and follows it in the model."""

    def __init__(self, keys: PipeInput, steps: list[Step], model: Model, history: Path) -> None:
        super().__init__(history, ChatCompleter(COMMANDS), self.status)
        self.keys, self.steps, self.model = keys, steps, model
        self.stop_at: int | None = None
        self.repl: Repl

    def status(self, columns: int) -> str:
        return self.repl.status("echo").line(columns)

    def read(self, default: str = "") -> str:
        leave = Step((CTRL_C if default else "") + CTRL_D, None)
        step = self.steps.pop(0) if self.steps else leave
        self.keys.send_text(step.keys)
        self.stop_at = step.stop_at
        try:
            text = super().read(default)
        except Cancelled:
            self.model.editing = False
            raise
        self.model.take(text, step.stop_at)
        return text


def run_script(seed: int, home: Path) -> list[Step]:
    """Run one random chat with its state in ``home``; returns its steps.

    Raises AssertionError where what it came to is not what the model says, and whatever the chat
    raised.
    """
    chance = random.Random(seed)
    (home / "notes.txt").write_text("some notes\n")
    script, model = script_of(chance), Model()
    out, err = io.StringIO(), io.StringIO()
    with create_pipe_input() as keys, create_app_session(input=keys, output=Resizing(chance)):
        reader = Keyboard(keys, [*script], model, home / "history")
        session = Session.create(Origin("echo"))
        dialogue = Dialogue(echo_voice(n_ctx=1 << 14))
        screen = Screen(out, err, coloured=chance.random() < 0.5)
        repl = reader.repl = Repl(dialogue, session, screen, reader, Staging(), depth_of=depth_of)
        telling = repl.telling = _Interrupted(dialogue, session, screen)
        telling.reader = reader
        repl.run()
        repl.session.close()
    _compare(repl, model, home)
    return script


class _Interrupted(Telling):
    """Ctrl-C comes after so many pieces of an answer."""

    reader: Keyboard

    def _show(self, piece: Piece, seconds: float) -> None:
        super()._show(piece, seconds)
        if self.reader.stop_at is not None:
            self.reader.stop_at -= isinstance(piece, Words)
            if self.reader.stop_at <= 0:
                self.reader.stop_at = None
                signal.raise_signal(signal.SIGINT)


def _compare(repl: Repl, model: Model, home: Path) -> None:
    state, dialogue = model.state, repl.dialogue
    said = [(m.role, m.text, m.thinking) for m in dialogue.messages]
    expected = []
    for exchange in state.said:
        expected += [("user", exchange.asked, "")]
        expected += [("assistant", exchange.answer, exchange.thought)]
    assert said == expected
    # A session in which nothing was ever said is not kept.
    if dialogue.messages or shelf.path_of(repl.session.name).exists():
        assert load(repl.session.name).messages == dialogue.messages
    assert dialogue.system == state.system
    assert repl.thinking == state.settings.get("think", "off")
    assert repl.draft == state.settings.get("draft", "auto")
    assert f"{dialogue.sampling.temperature:g}" == state.settings.get("temperature", "0")
    assert str(dialogue.sampling.seed or 0) == state.settings.get("seed", "0")
    assert len(repl.staging.files) == model.staged
    assert SharedHistory(home / "history").get_strings() == model.typed
    if model.name:
        assert repl.session.name == model.name
    text = repl.screen.err.getvalue() if isinstance(repl.screen.err, io.StringIO) else ""
    assert "Traceback" not in text

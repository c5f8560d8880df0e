"""Chats in tests: what somebody types, and what came of it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.repl import Repl
from gemmtp.chat.screen import Screen
from gemmtp.chat.sessions import Origin, Session
from gemmtp.chat.staging import Staging
from gemmtp.engine.depth import FixedDepth
from gemmtp.errors import UsageError
from gemmtp.prompt.attachments import Frame
from tests.chat.echo import EchoVoice, echo_voice


@dataclass
class Script:
    """A reader of inputs written down before; then the user leaves."""

    inputs: list[str | BaseException]
    answers: list[str] = field(default_factory=list)
    defaults: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)

    def read(self, default: str = "") -> str:
        self.defaults.append(default)
        if not self.inputs:
            raise EOFError
        text = self.inputs.pop(0)
        if isinstance(text, BaseException):
            raise text
        return text

    def choose(self, question: str, choices: Mapping[str, str]) -> str:
        self.questions.append(question)
        return self.answers.pop(0)


@dataclass
class Chat:
    """A finished chat: what stdout and stderr got, and what is left."""

    out: str
    err: str
    repl: Repl
    script: Script

    @property
    def messages(self) -> list[str]:
        return [message.text for message in self.repl.dialogue.messages]


Talk = Callable[..., Chat]


def depth_of(word: str) -> FixedDepth:
    if not word.isdecimal() and word != "auto":
        raise UsageError(f"{word!r} is no draft depth.")
    return FixedDepth(3 if word == "auto" else int(word))


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """A chat of these inputs with a model that repeats what it hears."""
    monkeypatch.setenv("GEMMTP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")

    def talk(
        *inputs: str | BaseException,
        answers: tuple[str, ...] = (),
        voice: EchoVoice | None = None,
        session: Session | None = None,
        frame: Frame | None = None,
        coloured: bool = False,
        resume: bool = False,
        prepare: Callable[[Repl], None] = lambda repl: None,
    ) -> Chat:
        out, err = io.StringIO(), io.StringIO()
        script = Script(list(inputs), list(answers))
        dialogue = Dialogue(voice or echo_voice())
        session = session or Session.create(Origin("echo"))
        screen = Screen(out, err, coloured, moving=False)
        staging = Staging(frame, UsageError("echo has no projector.", "Take another set."))
        repl = Repl(dialogue, session, screen, script, staging, depth_of=depth_of)
        dialogue.overflow = repl.decide
        prepare(repl)
        if resume:
            repl.resume()
        repl.run()
        repl.session.close()
        return Chat(out.getvalue(), err.getvalue(), repl, script)

    return talk

"""Ctrl-C, SIGTERM and SIGHUP: what was said is kept, and the exit code says what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pexpect
import pytest

from gemmtp.chat import sessions, shelf
from gemmtp.cli import app, main, signals
from gemmtp.llama import library
from gemmtp.llama.model import Model
from tests.cli.conftest import program

ENDLESS = ("--temperature", 0, "--threads", 1, "--logit-bias", "1=-100", "--logit-bias", "106=-100")


@pytest.fixture
def answering(home: Path, tiny: tuple[Path, Path]) -> tuple[object, ...]:
    """An answer of thousands of tokens, recorded."""
    return ("run", tiny[0], "--drafter", tiny[1], *ENDLESS, "--session", "a", "--ctx", 4096, "the")


@contextmanager
def running(
    args: tuple[object, ...], **options: object
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
    """The program, its stdout and its stderr; its stdin is at its end."""
    with program(args, **options) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.close()
        yield process, process.stdout, process.stderr


LONGEST_PIECE = 16
"""Characters of one token of the tiny model, at most."""


@pytest.mark.parametrize(
    ("number", "code", "note"),
    [
        (signal.SIGINT, 130, "gemmtp: Interrupted.\n"),
        (signal.SIGTERM, 143, "gemmtp: ended by SIGTERM\n"),
        (signal.SIGHUP, 129, "gemmtp: ended by SIGHUP\n"),
    ],
)
def test_the_answer_so_far_is_printed_and_recorded(
    answering: tuple[object, ...], number: signal.Signals, code: int, note: str
) -> None:
    with running(answering) as (process, stdout, stderr):
        out = stdout.read(50)
        process.send_signal(number)
        out += stdout.read()
        assert process.wait(60) == code
        error = stderr.read().decode()
    assert error.endswith(note)
    assert "Traceback" not in error
    replay = sessions.load("a")
    assert not replay.complete
    assert replay.endings[-1].reason == "interrupted"
    assert replay.endings[-1].statistics["generated"] > 10
    # The line end is the terminal's, not the answer's; a piece is recorded before it is printed.
    printed, recorded = out.decode("utf-8", "replace").removesuffix("\n"), replay.messages[-1].text
    assert recorded.startswith(printed)
    assert len(recorded) - len(printed) <= LONGEST_PIECE


def test_json_says_that_it_was_interrupted(answering: tuple[object, ...]) -> None:
    with running((*answering, "--json")) as (process, stdout, _):
        _until_recorded(20)
        process.send_signal(signal.SIGTERM)
        document = json.loads(stdout.read())
        assert process.wait(60) == 143
    assert document["finish_reason"] == "interrupted"
    assert document["completion_tokens"] >= 20


def test_a_closed_pipe_ends_quietly_and_is_recorded(answering: tuple[object, ...]) -> None:
    with running(answering) as (process, stdout, stderr):
        out = stdout.read(20)
        stdout.close()
        assert process.wait(60) == 0
        assert all(line.startswith((b"note: ", b"target.gguf ")) for line in stderr)
    replay = sessions.load("a")
    assert replay.endings[-1].reason == "interrupted"
    assert replay.messages[-1].text.encode().startswith(out[:15])


def test_a_chat_that_is_told_to_end_saves_its_session_and_cache(
    answering: tuple[object, ...],
) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "gemmtp", *map(str, answering[:-1]), "--save-kv"],
        env={**os.environ, "TERM": "dumb"},
        encoding="utf-8",
        codec_errors="ignore",
        timeout=60,
    )
    child.expect_exact(">>> ")
    child.sendline("the thin man")
    _until_recorded(20)
    child.kill(signal.SIGTERM)
    assert child.read().endswith("gemmtp: ended by SIGTERM\r\n")
    child.close()
    assert (child.exitstatus, child.signalstatus) == (143, None)
    question, answer = sessions.load("a").messages
    assert (question.text, bool(answer.text)) == ("the thin man", True)
    assert not shelf.is_open("a")
    assert shelf.kv_path("a").is_file()


def test_a_signal_that_was_ignored_stays_ignored(answering: tuple[object, ...]) -> None:
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with running((*answering, "--max-tokens", 60), preexec_fn=nohup) as (process, stdout, _):
        stdout.read(5)
        process.send_signal(signal.SIGHUP)
        assert stdout.read()
        assert process.wait(60) == 0
    assert sessions.load("a").endings[-1].reason == "length"


def test_ctrl_c_while_a_prompt_is_awaited_is_no_traceback() -> None:
    with program(("run", "demo", "--threads", 1)) as process:
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
        assert process.returncode == 130
        assert error == b"gemmtp: Interrupted.\n"


def test_ctrl_c_while_commands_are_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "run", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "gemmtp: Interrupted.\n"


@pytest.fixture
def handled() -> Iterator[None]:
    with signals.handled():
        yield


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, signals.Terminated)],
)
def test_a_load_stops_where_the_signal_comes(
    tiny: tuple[Path, Path], number: signal.Signals, raised: type[BaseException]
) -> None:
    shares = []

    def progress(share: float) -> bool:
        shares.append(share)
        signal.raise_signal(number)
        return True

    with pytest.raises(raised):
        Model.open(tiny[0], progress=progress)
    assert len(shares) == 1
    Model.open(tiny[0]).close()


@pytest.mark.usefixtures("handled")
def test_nothing_is_raised_through_llama_cpp(tiny: tuple[Path, Path]) -> None:
    lines: list[str] = []

    def sink(line: str) -> None:
        if not lines:
            os.kill(os.getpid(), signal.SIGINT)
        lines.append(line)

    def load() -> None:
        with library.log.shown(sink):
            Model.open(tiny[0]).close()
            # The load was not disturbed; the signal comes as soon as Python is on its own again.
            time.sleep(60)

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        load()
    assert time.monotonic() - begin < 30
    assert len(lines) > 10


def test_a_second_signal_does_not_cut_short_what_is_saved() -> None:
    saved = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            saved.append("all")

    with signals.handled(), pytest.raises(signals.Terminated) as ended:
        work()
    assert saved == ["all"]
    assert ended.value.code == 143


def _until_recorded(words: int) -> None:
    deadline = time.monotonic() + 60
    path = shelf.path_of("a")
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b'"words"') >= words:
            return
        time.sleep(0.02)
    raise AssertionError("nothing was recorded")

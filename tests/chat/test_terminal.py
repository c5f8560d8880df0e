"""The chat in a real terminal, with the demo set."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

SGR_COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
READY = r"/help for help\)"
Start = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ``gemmtp run demo`` on a terminal of its own and wait for the prompt."""
    running: list[pexpect.spawn[str]] = []

    def start(*args: str, ready: str = READY, **environment: str) -> pexpect.spawn[str]:
        # pexpect answers no question about where the cursor is.
        settings = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "GEMMTP_HOME": str(tmp_path)}
        kept = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        child = pexpect.spawn(
            sys.executable,
            ["-m", "gemmtp", "run", "demo", "--threads", "1", "--temperature", "0", *args],
            env=kept | settings | environment,
            encoding="utf-8",
            codec_errors="replace",
            timeout=60,
            dimensions=(24, 80),
        )
        running.append(child)
        child.expect(ready)
        return child

    yield start
    for child in running:
        child.close(force=True)


def code(child: pexpect.spawn[str]) -> int | None:
    """How it ended."""
    child.expect(pexpect.EOF)
    child.close()
    status: int | None = child.exitstatus
    return status


def test_a_chat_from_its_first_line_to_its_last(start: Start) -> None:
    child = start()
    assert "demo:3 · 1 thread · ctx 4096 f16 · drafting on, adaptive" in child.before
    child.send("What is the capital of France?\r")
    child.expect_exact("The capital of France is Paris.")
    child.expect(READY)
    child.send("/stats\r")
    child.expect("tokens a round")
    child.send("\x03")
    child.expect("Ctrl-D or /bye leaves")
    child.expect(READY)
    child.send("\x04")
    assert code(child) == 0


def test_ctrl_c_ends_the_answer_and_the_chat_goes_on(start: Start) -> None:
    ends = (1, 6, 14)
    child = start(*(word for end in ends for word in ("--logit-bias", f"{end}=-100")))
    for question, answer in (("Count from 1 to 99.", "1, 2, 3"), ("What is 2 + 2?", "= 4")):
        child.send(question + "\r")
        child.expect_exact(answer)
        child.send("\x03")
        child.expect("stopped; what was said stays")
        child.expect(READY)
        # What it says next would depend on where it was stopped.
        child.send("/clear\r")
        child.expect("a new conversation begins")
        child.expect(READY)
    child.send("/bye\r")
    assert code(child) == 0


def test_a_dumb_terminal_gets_lines_and_nothing_else(start: Start, tmp_path: Path) -> None:
    child = start(ready=">>> ", TERM="dumb")
    heard = child.before
    for line, answer in (
        (b"What is the capital of France?", r"Paris\.\s+>>> "),
        (b'"""Some words', r"\.\.\. "),
        (b'on two lines"""', r"\n>>> "),
        (b"/context", r"free[\s\S]*>>> "),
        (b"caf\xe9", r"not UTF-8[\s\S]*>>> "),
    ):
        os.write(child.child_fd, line + b"\r")
        child.expect(answer)
        heard += child.before + child.after
    child.send("\x04")
    assert code(child) == 0
    assert "\x1b" not in heard
    assert (tmp_path / "state/sessions").is_dir()


def test_no_color_means_no_colour(start: Start) -> None:
    coloured = start()
    assert SGR_COLOUR.search(coloured.before + coloured.after)
    child = start(NO_COLOR="1")
    child.send("What is 2 + 2?\r")
    child.expect_exact("= 4")
    heard = child.before
    child.expect(READY)
    assert not SGR_COLOUR.search(heard + child.before)


def test_a_terminal_that_is_told_to_end_is_left_as_it_was(start: Start) -> None:
    child = start()
    child.send("What is 2 + 2?\r")
    child.expect_exact("= 4")
    child.expect(READY)
    assert not termios.tcgetattr(child.child_fd)[3] & termios.ICANON
    child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF)
    modes = termios.tcgetattr(child.child_fd)
    assert modes[3] & termios.ICANON
    assert modes[3] & termios.ECHO
    child.close()
    assert child.exitstatus == 128 + signal.SIGTERM


def test_suspended_and_resumed(start: Start, tmp_path: Path) -> None:
    command = f"{sys.executable} -m gemmtp run demo --threads 1 --temperature 0"
    kept = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    settings = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "GEMMTP_HOME": str(tmp_path)}
    shell = pexpect.spawn(
        "bash", ["--norc", "-i"], env=kept | settings, encoding="utf-8", timeout=60
    )
    shell.sendline(f"PS1='SHE''LL> '; {command}")
    shell.expect(READY)
    shell.send("Count from 3 ")
    shell.send("\x1a")
    shell.expect_exact("SHELL> ")
    shell.sendline("fg")
    shell.expect_exact("Count from 3")
    shell.send("to 7.\r")
    shell.expect_exact("3, 4, 5, 6, 7.")
    shell.expect(READY)
    shell.send("\x04")
    shell.expect_exact("SHELL> ")
    shell.sendline("exit")
    shell.expect(pexpect.EOF)
    shell.close()


def test_save_kv_saves_for_the_session_that_was_gone_on_with(start: Start, tmp_path: Path) -> None:
    first = start("--session", "other")
    first.send("What is 2 + 2?\r")
    first.expect_exact("= 4")
    first.expect(READY)
    first.send("/bye\r")
    assert code(first) == 0
    child = start("--session", "first", "--save-kv")
    child.send("What is 3 + 4?\r")
    child.expect_exact("= 7")
    child.expect(READY)
    child.send("/load other\r")
    child.expect("going on with other")
    child.send("What is 1 + 1?\r")
    child.expect_exact("= 2")
    child.expect(READY)
    child.send("/bye\r")
    assert code(child) == 0
    assert [path.stem for path in tmp_path.glob("state/sessions/*.kv")] == ["other"]
    back = start("--session", "other")
    assert "not used" not in back.before
    back.send("What is 5 + 1?\r")
    back.expect_exact("= 6")

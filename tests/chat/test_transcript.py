"""The chat of docs/chat.md as tmux shows it, at several widths."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")

START = (
    "demo:3 · 1 thread · ctx 4096 f16 · drafting on, adaptive, up to 8 · vision: projector in RAM"
)
HINT = ">>> Send a message (/help for help)"
RATE = r"[0-9.]+ tok/s \(1 slot, draft [0-9], T 0\)"


class Pane:
    """A terminal of so many columns in which ``gemmtp run demo`` runs."""

    def __init__(self, folder: Path, columns: int) -> None:
        self._tmux = ["tmux", "-S", str(folder / "tmux")]
        environment = f"env TERM=xterm-256color LANG=C.utf8 GEMMTP_HOME={folder}"
        command = f"{sys.executable} -m gemmtp run demo --threads 1 --temperature 0"
        self.call("new-session", "-d", "-x", f"{columns}", "-y", "30", f"{environment} {command}")

    def call(self, *args: str) -> str:
        done = subprocess.run([*self._tmux, *args], check=True, capture_output=True, text=True)
        return done.stdout

    def lines(self) -> list[str]:
        """What is shown, without empty lines."""
        shown = self.call("capture-pane", "-p").splitlines()
        return [line.rstrip() for line in shown if line.strip()]

    def wait(self, holds: Callable[[list[str]], bool]) -> list[str]:
        """The lines once they hold what is waited for."""
        end = time.monotonic() + 60
        while not holds(lines := self.lines()):
            assert time.monotonic() < end, lines
            time.sleep(0.05)
        return lines

    def say(self, text: str) -> list[str]:
        """Type a line and wait for the prompt behind what comes of it."""
        prompts = sum(line.startswith(">>> ") for line in self.lines())
        self.call("send-keys", "-l", text)
        self.wait(lambda lines: any(line.endswith(text) for line in lines))
        self.call("send-keys", "Enter")
        return self.wait(
            lambda lines: HINT in lines and sum(line.startswith(">>> ") for line in lines) > prompts
        )


@pytest.fixture
def pane(tmp_path: Path) -> Iterator[Callable[[int], Pane]]:
    panes = []

    def start(columns: int) -> Pane:
        panes.append(Pane(tmp_path, columns))
        panes[-1].wait(lambda lines: HINT in lines and len(lines) > 2)
        return panes[-1]

    yield start
    for pane in panes:
        pane.call("kill-server")


@pytest.mark.parametrize("columns", [80, 200])
def test_a_chat_as_it_is_shown(pane: Callable[[int], Pane], columns: int) -> None:
    shown = pane(columns)
    shown.say("What is the capital of France?")
    shown.say("/think on")
    shown.say("What is 3 + 4?")
    *lines, status = shown.wait(lambda lines: "tok/s" in lines[-1])
    assert lines == [
        *(START[i : i + columns] for i in range(0, len(START), columns)),
        ">>> What is the capital of France?",
        "The capital of France is Paris.",
        ">>> /think on",
        "note: thinking is on",
        ">>> What is 3 + 4?",
        "Ones: 3 + 4 = 7. Tens: 0 + 0 = 0.",
        "3 + 4 = 7.",
        HINT,
    ]
    wide = r"demo:3 · drafting adaptive, up to 8, last [0-9] · "
    narrow = r"(demo:3 · )?drafting [0-9] · "
    context = r"context [0-9]+ of 4,096 \([0-9]%\) · "
    assert re.fullmatch((wide if columns > 80 else narrow) + context + RATE, status)


def test_wide_characters_a_paste_and_another_width(pane: Callable[[int], Pane]) -> None:
    shown = pane(80)
    shown.call("set-buffer", "one 語\ntwo 👩 three\n\nfour")
    shown.call("paste-buffer", "-p")
    pasted = [">>> one 語", "... two 👩 three", "...", "... four"]
    shown.wait(lambda lines: lines[2:6] == pasted)
    shown.call("resize-window", "-x", "34", "-y", "30")
    shown.wait(lambda lines: lines[-5:-1] == pasted and lines[-1].startswith("drafting on · 0%"))
    shown.call("send-keys", "C-c")
    shown.wait(lambda lines: HINT.startswith(lines[-2]) or HINT[:34] in lines)

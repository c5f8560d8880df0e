"""What a terminal gets: no control sequence of the model's, thoughts dim and apart."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.streams import CONTROLS


def shown(args: Sequence[object], *, out: bool = True, err: bool = False) -> tuple[str, str]:
    """What ``gemmtp ARGS`` writes to stdout and stderr, each a terminal or a pipe."""
    command = [sys.executable, "-m", "gemmtp", *map(str, args)]
    pairs = [pty.openpty() if terminal else os.pipe() for terminal in (out, err)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pairs[0][1], stderr=pairs[1][1]
    ) as process:
        texts = []
        for _, writing in pairs:
            os.close(writing)
        for reading, _ in pairs:
            data = b""
            while piece := _read(reading):
                data += piece
            os.close(reading)
            texts.append(data.decode())
        assert process.wait(60) == 0, texts
    return texts[0], texts[1]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        # Linux reports the end of a terminal's other side as an error.
        return b""


def test_no_control_sequence_of_the_model_reaches_a_terminal(tiny: tuple[Path, Path]) -> None:
    args = ("run", tiny[0], "--raw", "--threads", 1, "--temperature", 3, "--seed", 3, "the")
    few = ("--max-tokens", 200, "--top-k", 0, "--top-p", 1)
    piped, _ = shown((*args, *few), out=False)
    terminal, _ = shown((*args, *few))
    assert len(CONTROLS & set(piped)) > 3
    assert not CONTROLS & set(terminal)
    kept = "".join(c for c in piped if c not in CONTROLS)
    assert re.sub(r"\r", "", terminal) == re.sub(r"\r", "", kept)
    json_lines, _ = shown((*args, *few, "--stream-json"))
    assert not CONTROLS & set(json_lines)


def test_thoughts_are_dim_on_a_terminal_and_apart_from_the_answer() -> None:
    args = ("run", "demo", "What is 3 + 4?", "--think", "--threads", 1, "--temperature", 0)
    answer, thoughts = shown(args, out=False, err=True)
    assert "7" in answer
    assert "\x1b" not in answer
    dim = "".join(re.findall(r"\x1b\[2m(.*?)\x1b\[0m", thoughts, re.DOTALL))
    assert "3 + 4 = 7" in dim
    _, hidden = shown((*args, "--hide-thinking"), out=False)
    assert "3 + 4 = 7" not in hidden

"""Where inputs come from: a line editor on a terminal that can move its cursor, lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gemmtp.errors import UsageError

PROMPT, CONTINUED = ">>> ", "... "
QUOTES = '"""'
PLACEHOLDER = "Send a message (/help for help)"


class Reader(Protocol):
    """Asks the user for something."""

    def read(self, default: str = "") -> str:
        """One input, as typed; ``default`` stands there already, to be changed.

        Raises EOFError when the user leaves (Ctrl-D), and :class:`Cancelled` on Ctrl-C.
        """

    def choose(self, question: str, choices: Mapping[str, str]) -> str:
        """The key of one of ``choices``, which map a letter to what it stands for.

        Raises EOFError on Ctrl-D and :class:`Cancelled` on Ctrl-C.
        """


class Cancelled(Exception):
    """Ctrl-C at a prompt; ``typed`` is what stood there."""

    def __init__(self, typed: str) -> None:
        super().__init__()
        self.typed = typed


def is_open(text: str) -> bool:
    """Whether ``text`` begins with three quotes that are not closed yet."""
    text = text.strip()
    return text.startswith(QUOTES) and (len(text) < 2 * len(QUOTES) or not text.endswith(QUOTES))


def unquoted(text: str) -> str:
    """What an input says: without the three quotes around it, or the space at its ends."""
    text = text.strip()
    if text.startswith(QUOTES):
        text = text.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")
    return text


def decoded(text: str) -> str:
    """``text`` whose UTF-8 the terminal's own encoding, such as ASCII, could not read."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return text


class PlainReader:
    """Lines from a terminal that can do nothing else."""

    def __init__(self) -> None:
        if hasattr(sys.stdin, "reconfigure"):
            # Bytes that are no UTF-8 are refused with a sentence, not with a traceback.
            sys.stdin.reconfigure(errors="surrogateescape")

    def read(self, default: str = "") -> str:
        lines = [self._line(PROMPT)]
        while is_open("\n".join(lines)):
            lines.append(self._line(CONTINUED))
        return "\n".join(lines)

    def choose(self, question: str, choices: Mapping[str, str]) -> str:
        print_question(question, choices)
        while True:
            answer = self._line("? ").strip().lower()[:1]
            if answer in choices:
                return answer

    def _line(self, prompt: str) -> str:
        try:
            return input(prompt)
        except EOFError:
            sys.stderr.write("\n")
            raise
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            raise Cancelled("") from None


def print_question(question: str, choices: Mapping[str, str]) -> None:
    """A question and its answers, on stderr."""
    words = ", ".join(f"[{key}] {meaning}" for key, meaning in choices.items())
    sys.stderr.write(f"{question}\n{words}\n")
    sys.stderr.flush()


def edited(text: str) -> str:
    """``text`` after the user changed it in an editor of their own.

    VISUAL or EDITOR name it. Raises :class:`~gemmtp.errors.UsageError` when there is none or it
    fails.
    """
    command = _editor()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "message.md")
        path.write_text(text, "utf-8", errors="replace")
        try:
            code = subprocess.call([*command, str(path)])
        except OSError as error:
            raise UsageError(
                f"The editor {command[0]} does not start: {error.strerror}."
            ) from error
        if code:
            raise UsageError(f"The editor {command[0]} failed with exit code {code}.")
        with contextlib.suppress(UnicodeDecodeError):
            return path.read_text("utf-8").rstrip("\n")
    raise UsageError("The editor saved text that is not UTF-8.")


def _editor() -> list[str]:
    for variable in ("VISUAL", "EDITOR"):
        if words := shlex.split(os.environ.get(variable, "")):
            return words
    for name in ("editor", "nano", "vi", "notepad"):
        if shutil.which(name):
            return [name]
    raise UsageError("There is no editor.", "Name one in the variable EDITOR.")

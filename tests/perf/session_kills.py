"""Kill a running chat at random moments and look at what is left of its session.

    python -m tests.perf.session_kills [KILLS] [--chat] [--signal TERM] [--seed N]

Every trial runs ``gemmtp run demo --session NAME`` on a session of a few turns and ends the process
by SIGKILL (or another signal) at a random moment: one in four while Python starts and the model
loads, the others from the moment the question is recorded to the end of the answer. Then the
session has to reopen with every turn that was finished before, with the question once it was
recorded, and with all words that were printed. Words are recorded before they are printed, so at
most one piece may be recorded and not printed. In the end every session answers once more.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pexpect

from gemmtp.chat import log, shelf
from gemmtp.chat.sessions import Session
from gemmtp.prompt.conversation import Message

WORDS = 120
"""Tokens of an answer; the tokens that end one are forbidden."""

TURNS = 5
"""After so many trials the session is left to its end once, checked, and another begun."""

COMMAND = (
    *(sys.executable, "-m", "gemmtp", "run", "demo", "--threads", "1", "--temperature", "0"),
    *("--max-tokens", str(WORDS), "--logit-bias", "1=-100", "--logit-bias", "6=-100"),
)
_NOTES = re.compile(r"^(note: stopped|gemmtp: ended).*$", re.MULTILINE)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


@dataclass
class Report:
    """Where the process was when it ended, and what was wrong."""

    moments: Counter[str] = field(default_factory=Counter)
    unprinted: int = 0
    """Trials in which a piece was recorded and not printed."""
    problems: list[str] = field(default_factory=list)


class OneShot:
    """``gemmtp run demo --session NAME QUESTION``, its output in a pipe; thoughts go elsewhere."""

    channels = ("answer",)

    def __init__(self, name: str, question: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "--session", name, question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def asked(self) -> None:
        """Returns at once: the question stands on the command line."""

    def running(self) -> bool:
        """Whether the process is at work."""
        return self._process.poll() is None

    def end(self, number: int) -> tuple[str, int]:
        """Send a signal; return the words that were printed and the exit code."""
        self._process.send_signal(number)
        out, error = self._process.communicate()
        printed = error if b"Traceback" in error else out
        return printed.decode("utf-8", "ignore").removesuffix("\n"), self._process.returncode


class Chat:
    """The same at the prompt of a chat, in a terminal that can do nothing and shows thoughts."""

    channels = ("answer", "thought")

    def __init__(self, name: str, question: str) -> None:
        self._question = question
        self._asked = self._answered = False
        self._child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], "--session", name],
            env={**os.environ, "TERM": "dumb"},
            encoding="utf-8",
            codec_errors="ignore",
            dimensions=(50, 4000),
            timeout=300,
        )

    def asked(self) -> None:
        """Wait for the prompt and type the question."""
        self._child.expect_exact(">>> ")
        self._child.sendline(self._question)
        self._child.expect_exact(self._question)
        self._asked = True

    def running(self) -> bool:
        """Whether the answer has not come to its end, where the prompt comes again."""
        if self._asked and not self._answered:
            self._answered = self._child.expect_exact([">>> ", pexpect.TIMEOUT], timeout=0) == 0
        return not self._answered and bool(self._child.isalive())

    def end(self, number: int) -> tuple[str, int]:
        """Send a signal; return the words that were printed and the exit code."""
        shown = str(self._child.before) if self._answered else ""
        self._child.kill(number)
        shown += str(self._child.read())
        self._child.close()
        if "Traceback" in shown:
            return shown, 1
        code = self._child.exitstatus
        words = shown.partition(">>> ")[0] if self._asked else ""
        printed = _NOTES.sub("", _ESCAPES.sub("", words)).strip("\n")
        return printed, -(self._child.signalstatus or 0) if code is None else code


@dataclass(frozen=True)
class Pace:
    """Seconds until the question is recorded, and from there to the end of the answer."""

    start: float
    answer: float


def victim(kind: type[OneShot | Chat], name: str, question: str, moment: float, pace: Pace) -> Any:
    """A process at its moment: one in four before the question, the others in the answer."""
    asked = _recorded(name)
    process = kind(name, question)
    if moment < 0.25:
        time.sleep(4 * moment * pace.start)
        return process
    process.asked()
    while process.running() and _recorded(name) == asked:
        time.sleep(0.002)
    end = time.monotonic() + (moment - 0.25) / 0.75 * pace.answer
    while process.running() and time.monotonic() < end:
        time.sleep(0.001)
    return process


def check(
    name: str,
    before: list[Message],
    question: str,
    printed: str,
    channels: Sequence[str],
    report: Report,
) -> None:
    """Hold what is left of a session against what was there and what was printed."""
    now, complete = _left(name)
    if now[: len(before)] != before:
        report.problems.append(f"{name}: finished turns changed")
    new = now[len(before) :]
    moment = "before the question was recorded"
    if new:
        moment = "before the first word" if len(new) == 1 else "in the answer"
        moment = "behind the answer" if complete else moment
        if new[0] != Message.of("user", question):
            report.problems.append(f"{name}: the question became {new[0].text!r}")
    report.moments[moment] += 1
    pieces = _pieces(name, channels) if new else []
    # A terminal breaks the line between a thought and the answer.
    if "".join(printed.split()) == "".join("".join(pieces).split()):
        return
    report.unprinted += 1
    if "".join(printed.split()) != "".join("".join(pieces[:-1]).split()):
        report.problems.append(f"{name}: {''.join(pieces)!r} recorded, {printed!r} printed")


def _pieces(name: str, channels: Sequence[str]) -> list[str]:
    """The words that were recorded since the last question."""
    pieces: list[str] = []
    for record in log.read(shelf.path_of(name)):
        if record["type"] == "message":
            pieces = []
        elif record["type"] == "words" and record["channel"] in channels:
            pieces.append(record["text"])
    return pieces


def measure(
    kills: int, *, chat: bool = False, number: int = signal.SIGKILL, seed: int = 1
) -> Report:
    """Run the trials in a home of their own."""
    moments = random.Random(seed)
    kind = Chat if chat else OneShot
    report = Report()
    with tempfile.TemporaryDirectory() as home:
        os.environ["GEMMTP_HOME"] = home
        pace = _pace(kind)
        for i in range(kills):
            name, question = f"s{i // TURNS}", f"What is {i} + 4?"
            before, _ = _left(name)
            process = victim(kind, name, question, moments.random(), pace)
            printed, code = process.end(number)
            check(name, before, question, printed, kind.channels, report)
            if code not in (0, -number, 128 + number):
                report.problems.append(f"{name}: exit code {code}, {printed!r}")
        for i in range(-(-kills // TURNS)):
            _goes_on(f"s{i}", report)
    return report


def _pace(kind: type[OneShot | Chat]) -> Pace:
    begin = time.monotonic()
    process = kind("pace", "How long does it take?")
    process.asked()
    while not _recorded("pace"):
        time.sleep(0.002)
    asked = time.monotonic()
    while process.running():
        time.sleep(0.002)
    process.end(signal.SIGKILL)
    return Pace(asked - begin, time.monotonic() - asked)


def _recorded(name: str) -> int:
    """How many questions the session holds."""
    path = shelf.path_of(name)
    return path.read_bytes().count(b'{"type":"message"') if path.exists() else 0


def _left(name: str) -> tuple[list[Message], bool]:
    """The messages of a session that reopens, and whether the last answer is whole."""
    if not shelf.path_of(name).exists():
        return [], True
    with Session.open(name) as session:
        return session.messages(), session.replay.complete


def _goes_on(name: str, report: Report) -> None:
    """Whether a session that was ended so often answers one more question."""
    before, _ = _left(name)
    process = OneShot(name, "And now?")
    while process.running():
        time.sleep(0.01)
    _, code = process.end(signal.SIGKILL)
    now, complete = _left(name)
    if code or not complete or now[: len(before)] != before:
        report.problems.append(f"{name}: does not go on, exit code {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kills", type=int, nargs="?", default=50)
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--signal", default="KILL")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    number = signal.Signals[f"SIG{options.signal}"]
    report = measure(options.kills, chat=options.chat, number=number, seed=options.seed)
    where = "in a chat" if options.chat else "in one-shot mode"
    print(f"{options.kills} times {number.name} {where}:")
    for moment, count in report.moments.most_common():
        print(f"  {count:3} {moment}")
    print(f"  {report.unprinted} times a piece was recorded that was not printed yet")
    print(f"  {len(report.problems)} problems")
    for problem in report.problems:
        print(f"    {problem}")
    sys.exit(bool(report.problems))


if __name__ == "__main__":
    main()

"""The command line, called in this process or as a program of its own."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from gemmtp.cli import app


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run ``gemmtp ARGS`` in this process; ``stdin`` bytes are piped in."""

    def call(*args: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["gemmtp", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = app.run()
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def program(args: Sequence[object], **options: object) -> subprocess.Popen[bytes]:
    """``gemmtp ARGS`` as a process with piped stdin, stdout and stderr."""
    return subprocess.Popen(
        [sys.executable, "-m", "gemmtp", *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )

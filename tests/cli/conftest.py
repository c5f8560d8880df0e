"""The command line, called in this process or as a program of its own."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemmtp.cli import app
from tests.support.hub import LocalHub
from tests.support.published import CLIP, publish


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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of our own, and nothing of the user's or of other programs'."""
    monkeypatch.setenv("GEMMTP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def contents(tiny: tuple[Path, Path]) -> dict[str, bytes]:
    return {"target": tiny[0].read_bytes(), "drafter": tiny[1].read_bytes(), "projector": CLIP}


@pytest.fixture
def server(
    home: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalHub]:
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        publish(hub, home, contents)
        yield hub

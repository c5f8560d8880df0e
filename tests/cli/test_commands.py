"""``show``, ``doctor``, ``--version``, ``--help``: what they print, what they never import."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import gemmtp
from gemmtp.cli.app import COMMANDS, function_of
from tests.cli.conftest import Cli
from tests.support.tiny_pair import write_drafter

HEAVY = ("llama_cpp", "numpy", "rich", "jinja2", "prompt_toolkit", "gguf", "httpx")


def test_show_reads_a_file_and_checks_its_pair(
    cli: Cli, tiny: tuple[Path, Path], tmp_path: Path
) -> None:
    shown = cli("show", tiny[0], "--drafter", tiny[1])
    assert shown.code == 0
    assert "architecture  gemma4\n" in shown.out
    assert "gemma4.attention.sliding_window" in shown.out
    assert "string[] of 384" in shown.out or "of 384" in shown.out
    assert "pair: target and drafter match" in shown.out
    other = write_drafter(tmp_path / "other.gguf", backbone=48)
    assert "drafter does not match: hidden 48" in cli("show", tiny[0], "--drafter", other).out
    document = json.loads(cli("show", tiny[0], "--drafter", tiny[1], "--json").out)
    assert document["pair"]["matches"] is True
    assert document["metadata"]["gemma4.block_count"] == 4
    assert sum(document["tensor_types"].values()) > 40


def test_doctor_names_versions_devices_and_threads(cli: Cli) -> None:
    report = json.loads(cli("doctor", "--json").out)
    assert report["version"] == gemmtp.__version__
    assert report["threads"] >= 1
    assert [device["kind"] for device in report["devices"]].count("cpu") == 1
    text = cli("doctor")
    assert text.code == 0
    assert "drafting          the multi-token-prediction calls are there" in text.out


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["run", "--help"]])
def test_nothing_heavy_is_imported_for_help(args: list[str]) -> None:
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['gemmtp', *{args!r}]\n"
        "try:\n    runpy.run_module('gemmtp', run_name='__main__')\n"
        "except SystemExit as exit:\n    assert not exit.code, exit.code\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_the_version_is_the_packages(cli: Cli) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gemmtp", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"gemmtp {gemmtp.__version__}\n"


def test_wrong_use_exits_with_2(cli: Cli) -> None:
    assert cli("run").code == 2
    assert cli("nosuchcommand").code == 2
    assert cli("run", "--nosuchoption").code == 2


def test_help_says_of_a_command_what_the_command_says_of_itself() -> None:
    for name, command in COMMANDS.items():
        function = function_of(name)
        if isinstance(function, typer.Typer):
            said: str | None = str(function.info.help)
        else:
            said = inspect.getdoc(function)
        assert said is not None
        assert command.summary == said.split("\n\n")[0].replace("\n", " "), name

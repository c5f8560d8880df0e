"""Writes ``docs/cli.md`` from the commands' own help; ``--check`` fails when it is out of date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.main import get_group
from typer.testing import CliRunner

from gemmtp.cli.app import COMMANDS, app, function_of

PAGE = Path(__file__).with_name("cli.md")
HEAD = "# Commands\n\nGenerated from `--help` by `python docs/generate_cli.py`.\n"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name in _names():
        args = [*name.split(), "--help"]
        shown = CliRunner().invoke(app, args, prog_name="gemmtp", terminal_width=80).output
        lines = "\n".join(line.rstrip() for line in shown.strip().splitlines())
        parts.append(f"\n## gemmtp {name}".rstrip() + f"\n\n```\n{lines}\n```\n")
    return "".join(parts)


def _names() -> Iterator[str]:
    """Every command, those of a group behind the group."""
    yield ""
    for name in sorted(COMMANDS):
        yield name
        function = function_of(name)
        if isinstance(function, typer.Typer):
            yield from (f"{name} {found.name}" for found in get_group(function).commands.values())


def main() -> None:
    if "--check" not in sys.argv:
        PAGE.write_text(page(), "utf-8")
    elif PAGE.read_text("utf-8") != page():
        sys.exit(f"{PAGE.name} is out of date: run python docs/generate_cli.py")


if __name__ == "__main__":
    main()

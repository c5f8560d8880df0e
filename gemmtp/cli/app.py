"""All commands in one application, and what the user sees when one fails."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from gemmtp.cli import SIGNALLED
from gemmtp.errors import GemmtpError, InterruptedByUser
from gemmtp.settings import debug


class Command(NamedTuple):
    """The line that ``--help`` says of a command, and its function where that has another name."""

    summary: str
    function: str = ""


COMMANDS = {
    "run": Command("Chat in the terminal, or answer one prompt on stdout."),
    "pull": Command("Fetch a set: target, drafter and projector, checked to belong together."),
    "list": Command(
        "List the sets that are here, or with --available those that can be pulled.", "list_sets"
    ),
    "show": Command("Show what is in a set or a file, and whether its pair matches."),
    "rm": Command("Remove sets; a file that another set names stays."),
    "cp": Command("Give a set a second name."),
    "create": Command("Make a set of GGUF files; they are checked to belong together and copied."),
    "verify": Command("Hash every file of the sets and check their pairs again."),
    "plan": Command("Say what a set needs, what fits, and what to give up when it does not."),
    "quantize": Command("Turn a checkpoint and its assistant into one matched set."),
    "sessions": Command("List, show, rename, remove and export conversations."),
    "doctor": Command("Check the installation and the machine."),
}
"""In the order of ``--help``; a command's module has its name and is imported late."""


def function_of(name: str) -> Callable[..., None] | typer.Typer:
    """The function of a command, or the group of commands, imported now."""
    module = importlib.import_module(f"gemmtp.cli.{name}")
    function: Callable[..., None] | typer.Typer
    function = getattr(module, COMMANDS[name].function or name)
    return function


class _Commands(TyperGroup):
    """Loads commands late, and lets Ctrl-C and a closed pipe through to :func:`run`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        function = function_of(cmd_name)
        if isinstance(function, typer.Typer):
            return get_command(function)
        alone = typer.Typer(
            rich_markup_mode=None,
            add_completion=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        alone.command(cmd_name)(function)
        return get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedByUser("Interrupted.") from None
        except BrokenPipeError:
            raise _ClosedPipe from None


class _ClosedPipe(Exception):
    """Whoever read our output went away; there is nobody to tell."""


app = typer.Typer(
    name="gemmtp",
    cls=_Commands,
    help="Gemma 4 with its multi-token-prediction drafter, in the terminal.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", "-V", help="Print the version and exit."),
) -> None:
    if version:
        from gemmtp import __version__

        typer.echo(f"gemmtp {__version__}")
        raise typer.Exit


def run() -> int:
    """Run the command line; return the exit code of :mod:`gemmtp.errors`."""
    try:
        try:
            app()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 0
            if code <= SIGNALLED:
                # Flush here: at the interpreter's end a closed pipe would print a warning.
                sys.stdout.flush()
            return code
    except (_ClosedPipe, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except GemmtpError as error:
        if debug():
            raise
        report(error)
        return error.exit_code
    return 0


def report(error: GemmtpError) -> None:
    """One sentence and, where there is one, a hint, on stderr."""
    sys.stderr.write(f"gemmtp: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")

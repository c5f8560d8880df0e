"""All commands in one application, and what the user sees when one fails."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from gemmtp.cli.cp import cp
from gemmtp.cli.create import create
from gemmtp.cli.doctor import doctor
from gemmtp.cli.list import list_sets
from gemmtp.cli.plan import plan
from gemmtp.cli.pull import pull
from gemmtp.cli.quantize import quantize
from gemmtp.cli.rm import rm
from gemmtp.cli.run import run as run_command
from gemmtp.cli.show import show
from gemmtp.cli.verify import verify
from gemmtp.errors import GemmtpError, InterruptedByUser
from gemmtp.settings import debug


class _Commands(TyperGroup):
    """Lets Ctrl-C and a closed pipe through to :func:`run` instead of click's own words."""

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
app.command("run")(run_command)
app.command("pull")(pull)
app.command("list")(list_sets)
app.command("show")(show)
app.command("rm")(rm)
app.command("cp")(cp)
app.command("create")(create)
app.command("verify")(verify)
app.command("plan")(plan)
app.command("quantize")(quantize)
app.command("doctor")(doctor)


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
            # Flush here: at the interpreter's end a closed pipe would print a warning.
            sys.stdout.flush()
            return exit.code if isinstance(exit.code, int) else 0
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

"""``gemmtp sessions``: conversations listed, shown, renamed, removed, exported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from gemmtp.cli.complete import session_names

NAME = typer.Argument(..., metavar="NAME", help="A session.", autocompletion=session_names)

sessions = typer.Typer(
    name="sessions",
    help="List, show, rename, remove and export conversations.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@sessions.command("list")
def list_sessions(
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """List sessions, the one used last first."""
    import json

    from gemmtp.chat import shelf
    from gemmtp.chat.listing import listed

    rows = [row for name in shelf.by_use() if (row := listed(name)) is not None]
    if as_json:
        sys.stdout.write(json.dumps({"sessions": rows}, indent=2) + "\n")
        return
    for line in _lines(rows):
        _print(line)


@sessions.command()
def show(name: str = NAME) -> None:
    """Print what was said."""
    from gemmtp.chat.export import transcript
    from gemmtp.chat.sessions import load

    for block in transcript(load(name)):
        _print(block)


@sessions.command()
def rename(
    name: str = NAME, new: str = typer.Argument(..., metavar="NEW", help="Its name from now on.")
) -> None:
    """Give a session another name."""
    from gemmtp.chat.sessions import Session

    with Session.open(name) as session:
        session.rename(new)


@sessions.command()
def rm(
    chosen: list[str] = typer.Argument(
        None, metavar="[NAME...]", help="Sessions.", autocompletion=session_names
    ),
    unnamed: bool = typer.Option(False, "--unnamed", help="All chats without a name of their own."),
) -> None:
    """Remove sessions with what is attached to them."""
    from gemmtp.chat import names, shelf
    from gemmtp.errors import UsageError

    gone = list(dict.fromkeys(chosen or []))
    if unnamed:
        gone += [name for name in shelf.by_use() if names.is_by_date(name) and name not in gone]
    elif not gone:
        raise UsageError("Nothing to remove was named.", "Name a session, or give --unnamed.")
    for name in gone:
        shelf.is_open(name)
    for name in gone:
        shelf.remove(name)
        sys.stderr.write(f"removed {name}\n")


@sessions.command()
def export(
    name: str = NAME,
    form: str = typer.Option("markdown", "--format", metavar="F", help="markdown or json."),
    output: Path | None = typer.Option(
        None, "--output", "-o", metavar="F", help="A file instead of stdout."
    ),
) -> None:
    """Write a session as Markdown, or as JSON in OpenAI's shape."""
    import json

    from gemmtp.chat.export import document, markdown
    from gemmtp.chat.sessions import load
    from gemmtp.errors import GemmtpError, UsageError

    if form not in ("markdown", "json"):
        raise UsageError(f"{form!r} is no form to export.", "Use markdown or json.")
    replay = load(name)
    if form == "json":
        text = json.dumps(document(name, replay), ensure_ascii=False, indent=2) + "\n"
    else:
        text = markdown(name, replay)
    if output is None:
        _print(text.removesuffix("\n"))
        return
    try:
        output.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        raise GemmtpError(f"{output} cannot be written: {error.strerror}") from error


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    widths = {key: max((len(row[key]) for row in rows), default=0) for key in ("name", "model")}
    lines = []
    for row in rows:
        if row["problem"]:
            lines.append(f"{row['name']:{widths['name']}}  {row['problem']}")
            continue
        used = row["used"][:16].replace("T", " ")
        turns = f"{row['turns']} turn{'s' if row['turns'] != 1 else ''}"
        marks = ["in use"] if row["open"] else []
        marks += [] if row["model_is_here"] else ["model not here"]
        lines.append(
            f"{row['name']:{widths['name']}}  {used}  {turns:>9}  {row['model']:{widths['model']}}"
            f"  {row['title']}" + (f"  ({', '.join(marks)})" if marks else "")
        )
    return lines


def _print(text: str) -> None:
    """Onto stdout; a terminal gets no control characters that a model wrote."""
    from gemmtp.prompt.stream import TextStream

    stream = TextStream(terminal=sys.stdout.isatty())
    shown = stream.feed(text.encode("utf-8", "replace")) + stream.finish()
    sys.stdout.write(shown + "\n")

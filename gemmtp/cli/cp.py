"""``gemmtp cp``: a second name for a set; its files are there once."""

from __future__ import annotations

import json
import sys

import typer

from gemmtp.cli.complete import installed_names


def cp(
    source: str = typer.Argument(
        ..., metavar="NAME", help="A set in the store.", autocompletion=installed_names
    ),
    name: str = typer.Argument(..., metavar="NEW", help="family:tag of the copy."),
    force: bool = typer.Option(False, "--force", help="Replace a set of this name."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Give a set a second name."""
    from gemmtp import settings
    from gemmtp_models import names
    from gemmtp_models.store import Store

    old, new = names.set_name(source), names.set_name(name)
    Store(settings.data_dir()).copy(old, new, replace_existing=force)
    if as_json:
        sys.stdout.write(json.dumps({"source": old, "name": new}, indent=2) + "\n")
    else:
        sys.stderr.write(f"{new} is {old}\n")

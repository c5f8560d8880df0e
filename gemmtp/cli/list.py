"""``gemmtp list``: the sets that are here."""

from __future__ import annotations

import sys
from typing import Any

import typer

MIB = 2**20


def list_sets(
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """List the sets that are here."""
    import json

    rows = _rows()
    if as_json:
        sys.stdout.write(json.dumps({"sets": rows}, indent=2) + "\n")
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        contents = " + ".join(row["layers"]) or row["problem"]
        sys.stdout.write(f"{row['name']:{width}}  {row['size'] / MIB:10,.1f} MiB  {contents}\n")


def _rows() -> list[dict[str, Any]]:
    """The packaged demo first, then the store; a broken set is listed with its problem."""
    from gemmtp import settings
    from gemmtp.errors import ModelError
    from gemmtp_models import names
    from gemmtp_models.store import Store

    store = Store(settings.data_dir())
    rows = []
    for name in (names.DEMO, *store.names()):
        row: dict[str, Any] = {"name": name, "size": 0, "layers": [], "problem": None}
        try:
            files = names.find(name, store.root)
        except ModelError as error:
            row["problem"] = error.message
        else:
            layers = files.manifest.layers if files.manifest else {}
            row["size"] = sum(layer.size for layer in layers.values())
            row["layers"] = list(layers)
        rows.append(row)
    return rows

"""``gemmtp list``: the sets that are here, and those that can be pulled."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from gemmtp_models.manifest import Manifest
    from gemmtp_models.store import Store

MIB = 2**20


def list_sets(
    available: bool = typer.Option(False, "--available", help="The sets that can be pulled."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """List the sets that are here, or with --available those that can be pulled."""
    import json

    from gemmtp import settings
    from gemmtp_models import unfinished
    from gemmtp_models.store import Store

    store = Store(settings.data_dir())
    left = 0
    if available:
        rows = _available(store)
    else:
        rows = _installed(store)
        left = unfinished.unfinished_bytes(store.downloads)
    if as_json:
        document = {"sets": rows, "unfinished_bytes": left}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    for line in _lines(rows):
        sys.stdout.write(line + "\n")
    if left:
        sys.stderr.write(
            f"{left / MIB:,.1f} MiB are in unfinished pulls (gemmtp rm --unfinished)\n"
        )


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    width = max((len(row["name"]) for row in rows), default=0)
    lines = []
    for row in rows:
        size = "size unknown" if row["size"] is None else f"{row['size'] / MIB:10,.1f} MiB"
        contents = " + ".join(row["layers"]) or row["problem"]
        here = "  (here)" if row.get("installed") else ""
        lines.append(f"{row['name']:{width}}  {size:>14}  {contents}{here}")
    return lines


def _installed(store: Store) -> list[dict[str, Any]]:
    """The packaged demo first, then the store; a broken set is listed with its problem."""
    from gemmtp_models import names

    def manifest(name: str) -> Manifest | None:
        return store.resolve(name).manifest

    rows = [_row(names.DEMO, lambda name: names.demo().manifest)]
    return rows + [_row(name, manifest) for name in store.names()]


def _row(name: str, manifest_of: Callable[[str], Manifest | None]) -> dict[str, Any]:
    from gemmtp.errors import ModelError

    row: dict[str, Any] = {"name": name, "size": 0, "layers": [], "problem": None}
    try:
        manifest = manifest_of(name)
    except ModelError as error:
        return row | {"problem": error.message}
    layers = manifest.layers if manifest else {}
    size = sum(layer.size for layer in layers.values())
    return row | {"size": size, "layers": list(layers)}


def _available(store: Store) -> list[dict[str, Any]]:
    from gemmtp import settings
    from gemmtp_models import catalogue, names

    here = set(store.names())
    title = "A toy of a few megabytes that comes with gemmtp"
    demo = _row(names.DEMO, lambda name: names.demo().manifest)
    rows = [demo | {"title": title, "context": None, "installed": True}]
    for name, entry in sorted(catalogue.entries(settings.config_dir()).items()):
        rows.append(
            {
                "name": name,
                "size": entry.size,
                "layers": list(entry.files),
                "problem": None,
                "title": entry.title,
                "context": entry.context,
                "installed": name in here,
            }
        )
    return rows

"""``gemmtp verify``: whether the files of sets are still what they were."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from gemmtp.cli.complete import installed_names

if TYPE_CHECKING:
    from gemmtp_models.store import Store


def verify(
    sets: list[str] = typer.Argument(
        None,
        metavar="[NAME...]",
        help="Sets in the store; all of them without a name.",
        autocompletion=installed_names,
    ),
    repair: bool = typer.Option(
        False, "--repair", help="Remove damaged files, so that the next pull fetches them."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Hash every file of the sets and check their pairs again."""
    from gemmtp import settings
    from gemmtp.errors import BadModelFileError
    from gemmtp_models import names
    from gemmtp_models.store import Store

    store = Store(settings.data_dir())
    chosen = [names.set_name(name) for name in sets or []] or store.names()
    hashes: dict[str, str] = {}
    rows = [_check(store, name, hashes, repair) for name in chosen]
    if as_json:
        sys.stdout.write(json.dumps({"sets": rows}, indent=2) + "\n")
    else:
        for row in rows:
            words = "; ".join(row["problems"]) or "all files are right"
            sys.stdout.write(f"{row['name']}: {words}\n")
    broken = [row["name"] for row in rows if row["problems"]]
    if broken:
        raise BadModelFileError(
            f"{len(broken)} of {len(rows)} sets have damaged or missing files.",
            f"gemmtp verify --repair {broken[0]} and gemmtp pull {broken[0]} fetch them again.",
        )


def _check(store: Store, name: str, hashes: dict[str, str], repair: bool) -> dict[str, Any]:
    """What is wrong with one set; a file that several sets share is hashed once."""
    from gemmtp.errors import BadModelFileError, ModelError
    from gemmtp_models.pull import check_set
    from gemmtp_models.store import sha256_of

    problems: list[str] = []
    files = {}
    try:
        manifest = store.manifest(name)
    except BadModelFileError as error:
        return {"name": name, "problems": [error.message.rstrip(".")]}
    for role, layer in manifest.layers.items():
        path = store.find(layer)
        if path is None:
            problems.append(f"the {role} is missing or incomplete")
            continue
        found = hashes.get(str(path)) or sha256_of(path)
        hashes[str(path)] = found
        if found != layer.sha256:
            problems.append(f"the {role} is damaged: sha256 {found[:12]}, not {layer.sha256}")
            if repair and path == store.blob(layer.sha256 or ""):
                path.unlink(missing_ok=True)
            continue
        files[role] = path
    if not problems:
        try:
            check_set(files)
        except ModelError as error:
            problems.append(error.message.rstrip("."))
    return {"name": name, "problems": problems}

"""``gemmtp create``: a set of files that are here already."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gemmtp_models.manifest import Role
    from gemmtp_models.modelfile import Modelfile


def create(
    name: str = typer.Argument(..., metavar="NAME", help="family:tag of the new set."),
    target: Path | None = typer.Option(None, "--target", metavar="F", help="The target's GGUF."),
    drafter: Path | None = typer.Option(None, "--drafter", metavar="F", help="Its drafter."),
    projector: Path | None = typer.Option(None, "--projector", metavar="F", help="Its projector."),
    modelfile: Path | None = typer.Option(
        None, "--from-modelfile", metavar="F", help="Take files and settings from a Modelfile."
    ),
    force: bool = typer.Option(False, "--force", help="Replace a set of this name."),
    as_json: bool = typer.Option(False, "--json", help="The manifest on stdout."),
) -> None:
    """Make a set of GGUF files; they are checked to belong together and copied.

    Of a file in parts the first one is named; the parts are joined.
    """
    from gemmtp import settings
    from gemmtp.errors import UsageError
    from gemmtp_models.download import disk_error
    from gemmtp_models.manifest import Layer, Manifest, check_name
    from gemmtp_models.modelfile import Modelfile, read_modelfile
    from gemmtp_models.pull import check_set
    from gemmtp_models.store import Store

    check_name(name)
    recipe = Modelfile() if modelfile is None else read_modelfile(modelfile)
    files = _files(recipe, target, drafter, projector)
    store = Store(settings.data_dir())
    if store.exists(name) and not force:
        raise UsageError(f"There is a set {name} already.", "Give --force to replace it.")
    names = {role: path.name for role, path in files.items()}
    try:
        with store.workspace() as folder:
            whole = {role: _joined(path, folder / f"{role}.whole") for role, path in files.items()}
            pairing = check_set(whole, names)
            _check_projector(whole, files)
            staged = {role: _inside(path, folder / role) for role, path in whole.items()}
            layers = {
                role: Layer(path.stat().st_size, file=role, source=names[role])
                for role, path in staged.items()
            }
            manifest = Manifest(
                name,
                layers,
                recipe.parameters,
                recipe.template,
                None if pairing is None else pairing.to_json(),
                recipe.system,
            )
            installed = store.register(manifest, staged, replace_existing=force)
    except OSError as error:
        raise disk_error(error, store.root) from error
    for word in recipe.ignored:
        sys.stderr.write(f"note: {word} of the Modelfile has no meaning here\n")
    if as_json:
        document = installed.manifest.to_json()
        sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    else:
        words = "target and drafter match" if pairing is not None else "no drafter in this set"
        sys.stderr.write(f"{name} is here: {words}\n")


def _check_projector(whole: Mapping[Role, Path], files: Mapping[Role, Path]) -> None:
    """Refuse a projector that llama.cpp cannot run, or one of another target."""
    from dataclasses import replace

    from gemmtp_models.geometry import read_geometry
    from gemmtp_models.header import read_header
    from gemmtp_models.projector import check_projector

    if "projector" in whole:
        header = replace(read_header(whole["projector"]), path=files["projector"])
        check_projector(header, read_geometry(read_header(whole["target"])).embedding_length)


def _joined(path: Path, output: Path) -> Path:
    """``path``, or ``output`` with its parts joined."""
    from gemmtp_models.gguf_parts import join_parts
    from gemmtp_models.hub_names import split_parts

    if split_parts(path.name) is None:
        return path
    join_parts(path, output)
    return output


def _inside(path: Path, output: Path) -> Path:
    """``path`` if it lies in the workspace already, else a copy of it there."""
    import shutil

    if path.parent == output.parent:
        return path
    shutil.copyfile(path, output)
    return output


def _files(
    recipe: Modelfile, target: Path | None, drafter: Path | None, projector: Path | None
) -> dict[Role, Path]:
    """Options over the Modelfile's files."""
    from gemmtp.errors import UsageError

    files = dict(recipe.files)
    given: dict[Role, Path | None] = {"target": target, "drafter": drafter, "projector": projector}
    files.update({role: path for role, path in given.items() if path is not None})
    if "target" not in files:
        raise UsageError("A set needs a target.", "Give --target F or --from-modelfile F.")
    return files

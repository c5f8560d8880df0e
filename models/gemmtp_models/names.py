"""What a MODEL argument means: a path, a folder with a manifest, a set, or a name elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from gemmtp.errors import (
    BadModelFileError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
    UsageError,
)
from gemmtp_models import ollama
from gemmtp_models.catalogue import full_name
from gemmtp_models.hub_names import HubName, split_parts
from gemmtp_models.manifest import Manifest, Parameters, Role, read_manifest
from gemmtp_models.store import Store

DEMO = "demo"
MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files that a MODEL argument stands for.

    ``parameters``, ``chat_template`` and ``system`` are those of the set, None for bare files.
    ``no_drafter`` is why there is no drafter, for the start line.
    """

    name: str
    target: Path
    drafter: Path | None = None
    projector: Path | None = None
    parameters: Parameters | None = None
    chat_template: str | None = None
    no_drafter: str | None = None
    system: str | None = None
    manifest: Manifest | None = field(default=None, repr=False)


def find(model: str, root: Path) -> ModelFiles:
    """The files of ``model``; ``root`` is the store's folder.

    Raises :class:`~gemmtp.errors.ModelNotFoundError` when there is no such file or set, and the
    errors of :class:`~gemmtp_models.store.Store`.
    """
    path = Path(model).expanduser()
    if (path / MANIFEST_FILE).is_file():
        return of_folder(path)
    if is_local(model):
        return _of_file(path)
    if model == DEMO:
        return demo()
    if model.startswith(ollama.PREFIX):
        found = ollama.find(model)
        return ModelFiles(
            found.name, found.target, None, found.projector, no_drafter="Ollama has no drafters"
        )
    try:
        installed = Store(root).resolve(set_name(model))
    except (UsageError, ModelNotFoundError) as error:
        raise ModelNotFoundError(
            f"There is no file and no set {model!r}.",
            f"If the catalogue has it (gemmtp list --available), gemmtp pull {model} fetches it; "
            "for a GGUF file give its path.",
        ) from error
    return _of_set(installed.manifest, dict(installed.files))


def is_local(model: str) -> bool:
    """Whether ``model`` is a file, a folder with a manifest, or looks like a path."""
    if model.startswith(("hf:", ollama.PREFIX)):
        return False
    path = Path(model).expanduser()
    looks = model.endswith(".gguf") or os.sep in model or model.startswith((".", "~"))
    return (path / MANIFEST_FILE).is_file() or path.is_file() or looks


def is_installed(model: str, root: Path) -> bool:
    """Whether a set of this name is in the store with all its files."""
    try:
        Store(root).resolve(set_name(model))
    except (UsageError, ModelError):
        return False
    return True


def set_name(model: str) -> str:
    """The name in the store of a set's name or a name on the hub; raises UsageError."""
    return HubName.parse(model).set_name if model.startswith("hf:") else full_name(model)


def _of_file(path: Path) -> ModelFiles:
    parts = split_parts(path.name)
    if parts is not None:
        raise UnsupportedModelError(
            f"{path.name} is part {parts[1]} of {parts[2]}; parts have to be joined first.",
            "gemmtp create NAME --target FIRST-PART joins them into a set.",
        )
    return ModelFiles(path.name, path, no_drafter="no drafter was given")


def demo() -> ModelFiles:
    """The set that comes with the package."""
    return of_folder(Path(str(resources.files("gemmtp_models"))) / "demo_set")


def of_folder(folder: Path) -> ModelFiles:
    """A set whose files lie beside its manifest, as ``gemmtp quantize -o DIR`` leaves them.

    Raises :class:`~gemmtp.errors.BadModelFileError` for a file that is missing or of another size.
    """
    manifest = read_manifest(folder / MANIFEST_FILE)
    files: dict[Role, Path] = {}
    for role, layer in manifest.layers.items():
        if layer.file is None:
            raise BadModelFileError(f"The manifest of {manifest.name} names no {role} file.")
        path = folder / layer.file
        if not path.is_file() or path.stat().st_size != layer.size:
            raise BadModelFileError(
                f"The {role} of {manifest.name} is missing or incomplete: {path}",
                "Build or copy the set again.",
            )
        files[role] = path
    return _of_set(manifest, files)


def _of_set(manifest: Manifest, files: dict[Role, Path]) -> ModelFiles:
    if "target" not in files:
        raise BadModelFileError(f"The set {manifest.name} has no target.")
    drafter = files.get("drafter")
    return ModelFiles(
        manifest.name,
        files["target"],
        drafter,
        files.get("projector"),
        manifest.parameters,
        manifest.chat_template,
        None if drafter else "no drafter in this set",
        manifest.system,
        manifest,
    )

"""Models in an Ollama store, read in place: ``ollama:name[:tag]``.

A manifest there names its layers by media type and digest. The digest is checked to be one before
it becomes part of a path (CVE-2024-37032 came from not doing so). Ollama converts Gemma 4 into one
file with the projector inside, which llama.cpp does not load; such a file is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmtp.errors import BadModelFileError, ModelNotFoundError, UnsupportedModelError, UsageError
from gemmtp_models.elsewhere import ollama_stores
from gemmtp_models.header import read_header
from gemmtp_models.hub_names import is_sha256

PREFIX = "ollama:"
MAX_MANIFEST_BYTES = 1 << 20
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")
_MODEL = "application/vnd.ollama.image.model"
_PROJECTOR = "application/vnd.ollama.image.projector"
# Tensors of a projector in front of which a target's own (blk., token_embd ...) never stand.
_PROJECTOR_TENSORS = ("v.", "a.", "mm.")


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """The files of a model; templates there are Go's, so the file's own is used."""

    name: str
    target: Path
    projector: Path | None


def find(model: str) -> OllamaModel:
    """The files of ``ollama:name[:tag]``.

    Raises ModelNotFoundError, UsageError for a name that is none, BadModelFileError for a broken
    manifest and UnsupportedModelError for a file that llama.cpp cannot load.
    """
    name, _, tag = model.removeprefix(PREFIX).partition(":")
    parts = [*name.split("/"), tag or "latest"]
    if len(parts) > 3 or not all(_PART.fullmatch(part) and ".." not in part for part in parts):
        raise UsageError(f"{model!r} names no model of Ollama.", "Write ollama:name:tag.")
    if len(parts) == 2:
        parts.insert(0, "library")
    for store in ollama_stores():
        for path in sorted(store.glob("manifests/*/" + "/".join(parts))):
            return _read(store, path, model)
    raise ModelNotFoundError(
        f"Ollama has no model {model.removeprefix(PREFIX)!r} here.", "ollama list shows its models."
    )


def _read(store: Path, path: Path, model: str) -> OllamaModel:
    layers = dict(_layers(path))
    if _MODEL not in layers:
        raise BadModelFileError(f"Ollama's manifest {path} names no model.")
    target = _blob(store, layers[_MODEL], path)
    projector = _blob(store, layers[_PROJECTOR], path) if _PROJECTOR in layers else None
    names = read_header(target).tensors
    if any(name.startswith(_PROJECTOR_TENSORS) for name in names):
        raise UnsupportedModelError(
            f"Ollama's {model.removeprefix(PREFIX)} has the projector inside the model's file, "
            "which llama.cpp does not load.",
            "Pull a set instead; gemmtp list --available names them.",
        )
    return OllamaModel(model, target, projector)


def _layers(path: Path) -> Iterator[tuple[str, str]]:
    """(media type, digest) of each layer."""
    try:
        with path.open("rb") as file:
            document: Any = json.loads(file.read(MAX_MANIFEST_BYTES + 1))
        for layer in document["layers"]:
            yield str(layer["mediaType"]), str(layer["digest"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise BadModelFileError(f"Ollama's manifest {path} cannot be read.") from None


def _blob(store: Path, digest: str, manifest: Path) -> Path:
    sha256 = digest.removeprefix("sha256:")
    if not is_sha256(sha256):
        raise BadModelFileError(f"Ollama's manifest {manifest} has a digest that is none.")
    path = store / "blobs" / f"sha256-{sha256}"
    if not path.is_file():
        raise BadModelFileError(f"Ollama's file {path} is missing.", "Pull the model with ollama.")
    return path

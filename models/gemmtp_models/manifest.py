"""The manifest of a matched set: which files, how to sample, and that the pair was checked."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gemmtp.errors import BadModelFileError, ModelNotFoundError, UsageError

SCHEMA = 1
MAX_BYTES = 4 << 20
MAX_TEMPLATE_CHARACTERS = 1 << 20
MAX_SIZE = 1 << 50

Role = Literal["target", "drafter", "projector"]
ROLES: tuple[Role, ...] = ("target", "drafter", "projector")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,159}:[a-z0-9][a-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A plain name: no separator, no drive, no leading dot, so it stays inside its folder.
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]{0,199}")


@dataclass(frozen=True, slots=True)
class Layer:
    """One file of a set: ``size`` bytes, by content (``sha256``), by ``file`` name, or both.

    ``file`` lies beside the manifest; ``source`` says where the file came from.
    """

    size: int
    sha256: str | None = None
    file: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to sample from the set, and how many tokens to draft at the start."""

    temperature: float = 1.0
    top_k: int = 64
    top_p: float = 0.95
    min_p: float = 0.0
    draft_depth: int = 3


@dataclass(frozen=True, slots=True)
class Manifest:
    """A matched set; ``pairing`` is the JSON form of the check of target and drafter.

    ``system`` is the system message of a chat that brings none of its own.
    """

    name: str
    layers: Mapping[Role, Layer]
    parameters: Parameters = field(default_factory=Parameters)
    chat_template: str | None = None
    pairing: Mapping[str, Any] | None = None
    system: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON object that ``read_manifest`` reads back to an equal manifest."""
        layers = {}
        for role, layer in self.layers.items():
            values = asdict(layer)
            layers[role] = {key: value for key, value in values.items() if value is not None}
        return {
            "schema": SCHEMA,
            "name": self.name,
            "layers": layers,
            "parameters": asdict(self.parameters),
            "chat_template": self.chat_template,
            "pairing": None if self.pairing is None else dict(self.pairing),
            "system": self.system,
        }


def is_name(name: str) -> bool:
    """Whether ``name`` is ``family:tag`` as sets are called."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> tuple[str, str]:
    """(family, tag) of ``family:tag``; raises UsageError for anything else."""
    if not is_name(name):
        raise UsageError(
            f"{name!r} is no set name.",
            "Write family:tag in small letters, digits, dots and dashes, such as gemma4:31b-mtp.",
        )
    family, tag = name.split(":")
    return family, tag


def read_manifest(path: Path) -> Manifest:
    """The manifest in ``path``.

    Raises ModelNotFoundError when there is no such file and BadModelFileError for anything that is
    not exactly a manifest of this schema.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no manifest {path}.") from None
    except OSError as error:
        raise BadModelFileError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise BadModelFileError(f"The manifest {path} is larger than {MAX_BYTES} bytes.")
    return _Reader(path).manifest(data)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write ``manifest`` under ``path`` whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(manifest.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class _Reader:
    """Checks one manifest, field by field."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _bad(self, problem: str, hint: str | None = None) -> BadModelFileError:
        return BadModelFileError(f"The manifest {self._path} {problem}.", hint)

    def manifest(self, data: bytes) -> Manifest:
        try:
            document = json.loads(data.decode("utf-8"), parse_constant=self._constant)
        except (ValueError, RecursionError):
            raise self._bad("is not valid JSON") from None
        if not isinstance(document, dict):
            raise self._bad("holds no JSON object")
        if document.get("schema") != SCHEMA:
            raise self._bad(
                f"has the schema {document.get('schema')!r}, expected {SCHEMA}",
                "It was written by another version of gemmtp.",
            )
        known = {"schema", "name", "layers", "parameters", "chat_template", "pairing", "system"}
        self._only(document, known)
        name, template, pairing, system = (
            document.get(key) for key in ("name", "chat_template", "pairing", "system")
        )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self._bad(f"has the name {name!r}")
        for key, text in (("chat_template", template), ("system", system)):
            if text is not None and (
                not isinstance(text, str) or len(text) > MAX_TEMPLATE_CHARACTERS
            ):
                raise self._bad(f"has a {key} that is no text or too long")
        if pairing is not None and not isinstance(pairing, dict):
            raise self._bad("has a pairing report that is no object")
        layers = self._layers(document.get("layers"))
        parameters = self._parameters(document.get("parameters"))
        return Manifest(name, layers, parameters, template, pairing, system)

    def _constant(self, value: str) -> None:
        raise ValueError(f"{value} is no JSON")

    def _only(self, found: Mapping[str, Any], known: set[str]) -> None:
        if not set(found) <= known:
            raise self._bad(f"has the unknown key {min(set(found) - known)}")

    def _layers(self, value: Any) -> dict[Role, Layer]:
        if not isinstance(value, dict) or "target" not in value:
            raise self._bad("names no target")
        self._only(value, set(ROLES))
        return {role: self._layer(role, value[role]) for role in ROLES if role in value}

    def _layer(self, role: Role, value: Any) -> Layer:
        if not isinstance(value, dict):
            raise self._bad(f"describes the {role} by no object")
        self._only(value, {"size", "sha256", "file", "source"})
        size, sha256, file = value.get("size"), value.get("sha256"), value.get("file")
        source = value.get("source", "")
        if type(size) is not int or not 0 < size <= MAX_SIZE:
            raise self._bad(f"gives the {role} the size {size!r}")
        if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
            raise self._bad(f"gives the {role} a sha256 that is none")
        if file is not None and not (isinstance(file, str) and _FILE.fullmatch(file)):
            raise self._bad(f"gives the {role} the file {file!r}, which is no plain name")
        if sha256 is None and file is None:
            raise self._bad(f"names no file of the {role}")
        if not isinstance(source, str):
            raise self._bad(f"gives the {role} a source that is no text")
        return Layer(size, sha256, file, source)

    def _parameters(self, value: Any) -> Parameters:
        if not isinstance(value, dict):
            raise self._bad("has no parameters")
        limits = {
            "temperature": 10.0,
            "top_k": 2**31,
            "top_p": 1.0,
            "min_p": 1.0,
            "draft_depth": 64,
        }
        self._only(value, set(limits))
        for key, given in value.items():
            whole = key in ("top_k", "draft_depth")
            right = type(given) is int if whole else type(given) in (int, float)
            if not right or not math.isfinite(given) or not 0 <= given <= limits[key]:
                raise self._bad(f"gives {key} the value {given!r}")
        return Parameters(**value)

"""A Modelfile: which files make a set, and how to sample. Ollama's format with a DRAFT of ours.

    FROM target.gguf
    DRAFT drafter.gguf
    PROJECTOR mmproj.gguf
    PARAMETER temperature 0.7
    SYSTEM You are brief.
    TEMPLATE \"\"\"...\"\"\"

Paths lie beside the Modelfile or below it: one that was downloaded must not reach for other files.
TEMPLATE is Jinja, as in GGUF files; Ollama's own Go templates are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemmtp.errors import ModelNotFoundError, UnsupportedModelError, UsageError
from gemmtp_models.manifest import MAX_TEMPLATE_CHARACTERS, Parameters, Role

MAX_BYTES = 4 << 20
_QUOTES = '"""'
_ROLES: dict[str, Role] = {"FROM": "target", "DRAFT": "drafter", "PROJECTOR": "projector"}
_NUMBERS: dict[str, tuple[str, Callable[[str], Any], float]] = {
    "temperature": ("temperature", float, 10.0),
    "top_k": ("top_k", int, 2.0**31),
    "top_p": ("top_p", float, 1.0),
    "min_p": ("min_p", float, 1.0),
    "draft_num_predict": ("draft_depth", int, 64),
}
# What only Go's text/template has: a dot or a variable first, or one of its keywords.
_GO = re.compile(r"\{\{-?\s*(\.|\$|(if|range|else|end|with|define|template|block)\b)")


@dataclass(frozen=True, slots=True)
class Modelfile:
    """What a Modelfile says; ``ignored`` are its parameters that have no meaning here."""

    files: dict[Role, Path] = field(default_factory=dict)
    parameters: Parameters = field(default_factory=Parameters)
    template: str | None = None
    system: str | None = None
    ignored: tuple[str, ...] = ()


def read_modelfile(path: Path) -> Modelfile:
    """Read a Modelfile; raises UsageError, ModelNotFoundError and UnsupportedModelError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no Modelfile {path}.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8.") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES:,} bytes.")
    found = Modelfile()
    for word, value in _instructions(text, path):
        found = _taken(found, word, value, path.parent)
    if "target" not in found.files:
        raise UsageError(f"{path} has no FROM.", "FROM names the target's GGUF file.")
    return found


def _instructions(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """(WORD, value) of each instruction; a value in triple quotes may have many lines."""
    lines = iter(text.splitlines())
    for line in lines:
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        word, _, value = stripped.partition(" ")
        value = value.strip()
        if value.startswith(_QUOTES):
            value = value[len(_QUOTES) :]
            while _QUOTES not in value:
                following = next(lines, None)
                if following is None:
                    raise UsageError(f'{path} has {word.upper()} with """ and no end.')
                value += "\n" + following
            value = value[: value.index(_QUOTES)]
        elif len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        yield word.upper(), value


def _taken(found: Modelfile, word: str, value: str, folder: Path) -> Modelfile:
    if word in _ROLES:
        role = _ROLES[word]
        if role in found.files:
            raise UsageError(f"The Modelfile has {word} twice.")
        return replace(found, files={**found.files, role: _inside(folder, value, word)})
    if word in ("TEMPLATE", "SYSTEM") and len(value) > MAX_TEMPLATE_CHARACTERS:
        raise UsageError(f"The Modelfile's {word} is too long.")
    if word == "TEMPLATE":
        if _GO.search(value):
            raise UnsupportedModelError(
                "The Modelfile's TEMPLATE is a Go template, which only Ollama reads.",
                "Leave TEMPLATE out: the target's own chat template is used then.",
            )
        return replace(found, template=value)
    if word == "SYSTEM":
        return replace(found, system=value)
    if word == "PARAMETER":
        return _with_parameter(found, value)
    if word == "ADAPTER":
        raise UnsupportedModelError(
            "The Modelfile has an ADAPTER, and adapters are not supported.",
            "Merge the adapter into the target first.",
        )
    if word in ("LICENSE", "MESSAGE"):
        return replace(found, ignored=(*found.ignored, word))
    raise UsageError(f"The Modelfile has the unknown instruction {word[:40]!r}.")


def _with_parameter(found: Modelfile, text: str) -> Modelfile:
    name, _, value = text.partition(" ")
    if name not in _NUMBERS:
        return replace(found, ignored=(*found.ignored, f"PARAMETER {name}"))
    key, kind, limit = _NUMBERS[name]
    try:
        number = kind(value.strip().strip('"'))
    except ValueError:
        raise UsageError(f"The Modelfile gives {name} the value {value!r}.") from None
    if not 0 <= number <= limit:
        raise UsageError(f"The Modelfile gives {name} the value {value}.")
    return replace(found, parameters=replace(found.parameters, **{key: number}))


def _inside(folder: Path, value: str, word: str) -> Path:
    """The file that ``value`` names beside the Modelfile; raises for one that lies elsewhere."""
    if not value or "\0" in value:
        raise UsageError(f"The Modelfile's {word} names no file.")
    path = (folder / value).resolve()
    if Path(value).is_absolute() or not path.is_relative_to(folder.resolve()):
        raise UsageError(
            f"The Modelfile's {word} {value!r} leaves the folder of the Modelfile.",
            "Give the file with --target, --drafter or --projector instead.",
        )
    if not path.is_file():
        raise ModelNotFoundError(f"The Modelfile's {word} names {value}, which is not there.")
    return path

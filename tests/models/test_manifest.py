"""Manifests: written whole, read back equal, and refused when anything is odd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemmtp.errors import BadModelFileError, ModelNotFoundError, UsageError
from gemmtp_models.manifest import (
    MAX_BYTES,
    Layer,
    Manifest,
    Parameters,
    check_name,
    read_manifest,
    write_manifest,
)

SHA = "0123456789abcdef" * 4
MANIFEST = Manifest(
    "gemma4:31b-mtp",
    {"target": Layer(10, SHA, "target.gguf", "hub"), "drafter": Layer(5, None, "d.gguf")},
    Parameters(0.7, 40, 0.9, 0.05, 4),
    "{{ bos_token }}é",
    {"matches": True},
)


def _written(path: Path, **changes: Any) -> Path:
    document = json.loads(json.dumps(MANIFEST.to_json()))
    for key, value in changes.items():
        document[key] = value
    path.write_text(json.dumps(document))
    return path


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "set.json"
    write_manifest(path, MANIFEST)
    assert read_manifest(path) == MANIFEST
    assert [file.name for file in path.parent.iterdir()] == ["set.json"]


def test_writing_replaces_and_a_failed_write_keeps_the_old(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    write_manifest(path, MANIFEST)
    broken = Manifest("a:b", MANIFEST.layers, Parameters(temperature=float("nan")))
    with pytest.raises(ValueError, match="JSON"):
        write_manifest(path, broken)
    assert read_manifest(path) == MANIFEST
    assert [file.name for file in tmp_path.iterdir()] == ["set.json"]


def _layer(**changes: Any) -> dict[str, Any]:
    return {"target": {"size": 10, "sha256": SHA, "file": "t.gguf"} | changes}


BAD: dict[str, dict[str, Any]] = {
    "another schema": {"schema": 2},
    "no schema": {"schema": None},
    "unknown key": {"extra": 1},
    "bad name": {"name": "../x:y"},
    "no target": {"layers": {"drafter": {"size": 1, "file": "d.gguf"}}},
    "unknown role": {"layers": _layer() | {"adapter": {"size": 1, "file": "a"}}},
    "no size": {"layers": _layer(size=None)},
    "size true": {"layers": _layer(size=True)},
    "size negative": {"layers": _layer(size=-1)},
    "short hash": {"layers": _layer(sha256="abc")},
    "neither hash nor file": {"layers": _layer(sha256=None, file=None)},
    "path up": {"layers": _layer(file="../t.gguf")},
    "path absolute": {"layers": _layer(file="/etc/passwd")},
    "path backslash": {"layers": _layer(file="..\\t.gguf")},
    "path below": {"layers": _layer(file="a/t.gguf")},
    "path hidden": {"layers": _layer(file=".t.gguf")},
    "path with NUL": {"layers": _layer(file="t\0.gguf")},
    "path with newline": {"layers": _layer(file="t.gguf\n")},
    "source a number": {"layers": _layer(source=1)},
    "unknown layer key": {"layers": _layer(url="x")},
    "layers a list": {"layers": []},
    "template a number": {"chat_template": 1},
    "template endless": {"chat_template": "x" * (1 << 21)},
    "pairing a list": {"pairing": []},
    "parameters missing": {"parameters": None},
    "parameter unknown": {"parameters": {"heat": 1}},
    "parameter text": {"parameters": {"temperature": "1"}},
    "parameter true": {"parameters": {"top_k": True}},
    "parameter broken": {"parameters": {"top_k": 1.5}},
    "parameter out of range": {"parameters": {"top_p": 1.5}},
}


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD.keys())
def test_an_odd_manifest_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BadModelFileError) as caught:
        read_manifest(_written(tmp_path / "set.json", **changes))
    assert caught.value.message.startswith("The manifest ")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"schema": NaN}'])
def test_what_is_no_json_object_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "set.json").write_bytes(data)
    with pytest.raises(BadModelFileError):
        read_manifest(tmp_path / "set.json")


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "set.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(BadModelFileError, match="larger than"):
        read_manifest(tmp_path / "set.json")


def test_a_missing_manifest_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        read_manifest(tmp_path / "set.json")


def test_names_are_family_and_tag() -> None:
    assert check_name("gemma4:31b-mtp") == ("gemma4", "31b-mtp")
    assert check_name("a:1.0_x") == ("a", "1.0_x")


@pytest.mark.parametrize(
    "name", ["", "gemma4", "a:b:c", ":b", "a:", "A:b", "../a:b", "a:../b", "a/b:c", ".a:b", "a:b\n"]
)
def test_other_names_are_wrong_use(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)

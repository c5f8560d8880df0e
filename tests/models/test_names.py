"""What a MODEL argument may be, and that no name of any kind leaves its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmtp.errors import GemmtpError, ModelNotFoundError, UnsupportedModelError, UsageError
from gemmtp_models import names
from gemmtp_models.hub_names import check_path, check_repo, check_revision

CLIMBING = (
    "..",
    "../x",
    "a/../../x",
    "/etc/passwd",
    "a//b",
    "a/./b",
    "a\\..\\b",
    "C:\\x",
    "a\0b",
    "a\nb",
    "~root/x",
    "%2e%2e/x",
    "a?b",
    "a#b",
    "",
    ".hidden",
    "a" * 300,
    "a/b/c/d/e",
)


@pytest.mark.parametrize("text", CLIMBING)
def test_no_name_of_the_hub_climbs(text: str) -> None:
    for check in (check_repo, check_revision, check_path):
        with pytest.raises(UsageError):
            check(text)


def test_plain_names_of_the_hub_pass() -> None:
    assert check_repo("unsloth/gemma-4-31B-it-qat-GGUF")
    assert check_path("MTP/mtp-gemma-4-31B-it-Q8_0.gguf")
    assert check_revision("43cc1aeb31adf47ec06a854507ce552cd9862e6f")


@pytest.mark.parametrize("text", ["x:..", "a:b:c", "A:b", ":", "a:", "a:b\0"])
def test_no_name_of_a_set_climbs(text: str, tmp_path: Path) -> None:
    with pytest.raises(GemmtpError):
        names.find(text, tmp_path)
    assert names.is_installed(text, tmp_path) is False
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_parts_is_refused_by_its_name(tmp_path: Path) -> None:
    part = tmp_path / "big-00001-of-00002.gguf"
    part.write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModelError, match="part 1 of 2") as caught:
        names.find(str(part), tmp_path)
    assert "gemmtp create" in (caught.value.hint or "")


def test_a_folders_manifest_names_only_files_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (tmp_path / "outside.gguf").write_bytes(b"x")
    for file in ("../outside.gguf", str(tmp_path / "outside.gguf"), "a/b.gguf"):
        document = {
            "schema": 1,
            "name": "a:b",
            "layers": {"target": {"size": 1, "file": file}},
            "parameters": {},
        }
        (folder / "manifest.json").write_text(json.dumps(document))
        with pytest.raises(GemmtpError, match="no plain name"):
            names.find(str(folder), tmp_path)


def test_a_name_without_a_tag_is_the_latest(tmp_path: Path) -> None:
    assert names.set_name("gemma4") == "gemma4:latest"
    assert names.set_name("hf:Me/Model:Q8_0") == "hf.me.model:q8_0"
    assert names.is_local("./x") is True
    assert names.is_local("hf:me/model") is False
    assert names.is_local("gemma4:31b-mtp") is False
    with pytest.raises(ModelNotFoundError, match="no file and no set 'gemma4'"):
        names.find("gemma4", tmp_path)

"""Modelfiles: what they may say, and which files they may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmtp.errors import GemmtpError, ModelNotFoundError, UnsupportedModelError, UsageError
from gemmtp_models.manifest import Parameters
from gemmtp_models.modelfile import Modelfile, read_modelfile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside.gguf").write_bytes(b"x")
    inner = tmp_path / "inner"
    (inner / "sub").mkdir(parents=True)
    for name in ("t.gguf", "sub/d.gguf"):
        (inner / name).write_bytes(b"x")
    (inner / "link.gguf").symlink_to(tmp_path / "outside.gguf")
    return inner


def _read(folder: Path, text: str) -> Modelfile:
    path = folder / "Modelfile"
    path.write_text(text)
    return read_modelfile(path)


def test_files_settings_and_texts_are_read(folder: Path) -> None:
    found = _read(
        folder,
        "# a comment\nfrom ./t.gguf\nDRAFT sub/d.gguf\n\n"
        "PARAMETER temperature 0.5\nPARAMETER top_k 10\nPARAMETER draft_num_predict 6\n"
        'PARAMETER stop "<end>"\nSYSTEM "Be brief."\n'
        'TEMPLATE """{% for message in messages %}\n{{ message.content }}{% endfor %}"""\n'
        "LICENSE Apache-2.0\n",
    )
    assert found.files == {"target": folder / "t.gguf", "drafter": folder / "sub/d.gguf"}
    assert found.parameters == Parameters(temperature=0.5, top_k=10, draft_depth=6)
    assert found.system == "Be brief."
    assert found.template == "{% for message in messages %}\n{{ message.content }}{% endfor %}"
    assert found.ignored == ("PARAMETER stop", "LICENSE")


@pytest.mark.parametrize(
    "path", ["../outside.gguf", "sub/../../outside.gguf", "/etc/passwd", "link.gguf", "~/x.gguf"]
)
@pytest.mark.parametrize("word", ["FROM", "DRAFT", "PROJECTOR"])
def test_files_outside_its_folder_are_refused(folder: Path, word: str, path: str) -> None:
    with pytest.raises(GemmtpError) as caught:
        _read(folder, f"{word} {path}\n")
    expected = ModelNotFoundError if path.startswith("~") else UsageError
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", UsageError, "no FROM"),
        ("FROM t.gguf\nFROM t.gguf", UsageError, "FROM twice"),
        ("FROM", UsageError, "names no file"),
        ("FROM t.gguf\nADAPTER a.gguf", UnsupportedModelError, "adapters are not supported"),
        ("FROM t.gguf\nTEMPLATE {{ .Prompt }}", UnsupportedModelError, "Go template"),
        ("FROM t.gguf\nTEMPLATE {{- if .System }}x", UnsupportedModelError, "Go template"),
        ("FROM t.gguf\nPARAMETER temperature hot", UsageError, "temperature the value 'hot'"),
        ("FROM t.gguf\nPARAMETER top_p 7", UsageError, "top_p the value 7"),
        ("FROM t.gguf\nPARAMETER temperature nan", UsageError, "the value nan"),
        ('FROM t.gguf\nSYSTEM """no end', UsageError, "and no end"),
        ("FROM t.gguf\nRUN rm -rf /", UsageError, "unknown instruction 'RUN'"),
        ("FROM gemma4:31b", ModelNotFoundError, "is not there"),
        ("FROM t\0.gguf", UsageError, "names no file"),
    ],
)
def test_what_cannot_be_used_is_said(
    folder: Path, text: str, error: type[GemmtpError], words: str
) -> None:
    with pytest.raises(error, match=words):
        _read(folder, text)


def test_a_modelfile_that_is_none(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        read_modelfile(folder / "nosuch")
    (folder / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read_modelfile(folder / "binary")
    with pytest.raises(UsageError, match="cannot be read"):
        read_modelfile(folder)

"""Parts as gguf-py writes them are joined into the file that they were cut from."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmtp.errors import BadModelFileError, ModelNotFoundError, UsageError
from gemmtp_models.gguf_parts import join_parts
from gemmtp_models.header import read_header
from tests.support.parts import write_parts
from tests.support.tiny_pair import write_target


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    return write_parts(tmp_path, monkeypatch)


def test_joined_parts_are_the_file_they_were_cut_from(parts: list[Path], tmp_path: Path) -> None:
    whole = write_target(tmp_path / "whole.gguf")
    join_parts(parts[0], tmp_path / "joined.gguf")
    joined, expected = read_header(tmp_path / "joined.gguf"), read_header(whole)
    assert list(joined.tensors) == list(expected.tensors)
    assert set(joined.metadata) == set(expected.metadata)
    data, original = joined.path.read_bytes(), whole.read_bytes()
    for name, tensor in expected.tensors.items():
        got = joined.tensors[name]
        assert (got.shape, got.type) == (tensor.shape, tensor.type)
        assert (
            data[got.offset : got.offset + got.nbytes]
            == original[tensor.offset : tensor.offset + tensor.nbytes]
        )


def test_parts_that_do_not_make_a_file_are_refused(parts: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "joined.gguf"
    with pytest.raises(UsageError, match="first part"):
        join_parts(parts[1], output)
    second = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(BadModelFileError, match="says it is part 3 of 3"):
        join_parts(parts[0], output)
    parts[1].write_bytes(write_target(tmp_path / "whole.gguf").read_bytes())
    with pytest.raises(BadModelFileError, match="does not say which part"):
        join_parts(parts[0], output)
    parts[1].write_bytes(second)
    parts[2].unlink()
    with pytest.raises(ModelNotFoundError, match=r"part big-00003-of-00003\.gguf is missing"):
        join_parts(parts[0], output)
    assert not output.exists()

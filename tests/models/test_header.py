"""Reading a GGUF header: the right values, nothing of the tensor data, and every kind of damage."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gemmtp.errors import BadModelFileError, ModelError, ModelNotFoundError
from gemmtp_models.ggml_types import GGML_TYPES
from gemmtp_models.header import Header, read_header
from gemmtp_models.header_stream import CHUNK_BYTES, HeaderStream
from gemmtp_models.metadata import ArraySlice, ValueType
from tests.support.raw_gguf import key, raw_gguf, tensor, text
from tests.support.tiny_pair import tokens, write_target


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("tiny") / "target.gguf", chat_template="{{ x }}")


def _token_list(header: Header) -> ArraySlice:
    return header.metadata.array("tokenizer.ggml.tokens", ValueType.STRING)


def test_metadata_and_tensors_are_those_that_were_written(tiny: Path) -> None:
    header = read_header(tiny)
    assert (header.version, header.architecture, header.name) == (3, "gemma4", "Tiny")
    assert header.chat_template == "{{ x }}"
    assert header.metadata.uint32("gemma4.embedding_length") == 32
    assert header.metadata.float32("gemma4.rope.freq_base") == 1_000_000.0
    assert header.metadata.boolean("tokenizer.ggml.add_bos_token") is True
    pattern = header.metadata.flags("gemma4.attention.sliding_window_pattern", 4)
    assert pattern == (True, False, True, False)
    assert header.type_counts() == {"F32": len(header.tensors)}
    embedding = header.tensors["token_embd.weight"]
    assert (embedding.shape, embedding.nbytes) == ((32, 384), 32 * 384 * 4)
    assert header.parameters == sum(tensor.nbytes for tensor in header.tensors.values()) // 4


def test_offsets_point_at_the_data(tmp_path: Path) -> None:
    data = np.arange(32, dtype=np.float32)
    path = write_target(tmp_path / "t.gguf", tensors={"blk.1.attn_norm.weight": data})
    info = read_header(path).tensors["blk.1.attn_norm.weight"]
    assert path.read_bytes()[info.offset : info.offset + info.nbytes] == data.tobytes()


def test_the_token_list_is_walked_over_and_still_comparable(tiny: Path, tmp_path: Path) -> None:
    first = _token_list(read_header(tiny))
    assert first.count == 384
    assert [token.decode() for token in first.strings()] == tokens(384)
    other = write_target(tmp_path / "other.gguf", hidden=48)
    assert _token_list(read_header(other)).sha256() == first.sha256()
    shorter = write_target(tmp_path / "shorter.gguf", vocabulary=383)
    assert _token_list(read_header(shorter)).sha256() != first.sha256()


def test_a_long_array_is_not_built(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    numbers = struct.pack("<IIQ", 9, 4, 5_000) + bytes(20_000)
    path.write_bytes(raw_gguf(keys=[text("long") + numbers, key("after", 7)]))
    metadata = read_header(path).metadata
    assert isinstance(metadata["long"].value, ArraySlice)
    assert metadata.uint32("after") == 7


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    path = tmp_path / "v2.gguf"
    path.write_bytes(raw_gguf(version=2, keys=[key("a", 5)]))
    assert read_header(path).metadata.uint32("a") == 5


def test_quantised_sizes_follow_the_block_size(tmp_path: Path) -> None:
    path = tmp_path / "q.gguf"
    path.write_bytes(
        raw_gguf(tensors=[tensor("q", (64, 3), kind=2)], data=bytes(64 // 32 * 18 * 3))
    )
    info = read_header(path).tensors["q"]
    assert (info.type.name, info.nbytes) == ("Q4_0", 108)


def test_the_type_table_agrees_with_the_gguf_package() -> None:
    import gguf

    # gguf 0.19 gives Q8_1 40 bytes; ggml-common.h asserts 2 halves and 32 bytes.
    expected = {
        int(kind): (kind.name, *sizes)
        for kind, sizes in gguf.GGML_QUANT_SIZES.items()
        if kind.name != "Q8_1"
    }
    ours = {
        number: (kind.name, kind.block_size, kind.block_bytes)
        for number, kind in GGML_TYPES.items()
        if number in expected
    }
    assert ours == expected


def test_tensor_data_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse gigabyte behind the header: reads stay within one chunk of the header."""
    path = tmp_path / "sparse.gguf"
    rows = 1 << 18
    front = raw_gguf(keys=[key("a", 1)], tensors=[tensor("w", (1024, rows))])
    with path.open("wb") as file:
        file.write(front)
        file.truncate(len(front) + 4 * 1024 * rows + 64)
    furthest = _furthest_read(monkeypatch)
    header = read_header(path)
    assert header.tensors["w"].nbytes == 4 * 1024 * rows
    assert furthest() <= header.data_offset + CHUNK_BYTES


def _furthest_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Watch where in the file reading ended, at most."""
    seen = [0]
    fill = HeaderStream._fill

    def watched(stream: HeaderStream, count: int) -> None:
        fill(stream, count)
        seen[0] = max(seen[0], stream._file.tell())

    monkeypatch.setattr(HeaderStream, "_fill", watched)
    return lambda: seen[0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_real_vocabulary_takes_little_memory(tmp_path: Path) -> None:
    """262,144 tokens and 514,906 merges: below 50 MB more, telling its tokens apart included."""
    path = tmp_path / "big.gguf"
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.support.raw_gguf import write_vocabulary\n"
        "write_vocabulary(Path(sys.argv[1]), 262_144, 514_906)"
    )
    subprocess.run([sys.executable, "-c", script, path], check=True, cwd=_ROOT)
    measure = (
        "import sys; from pathlib import Path\n"
        "from gemmtp_models.header import read_header\n"
        "def status(name):\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return next(int(line.split()[1]) for line in lines if line.startswith(name))\n"
        "Path('/proc/self/clear_refs').write_text('5')  # the peak counts from here\n"
        "before = status('VmRSS')\n"
        "tokens = read_header(Path(sys.argv[1])).metadata['tokenizer.ggml.tokens'].value\n"
        "tokens.sha256(); distinct = len(set(tokens.strings()))\n"
        "print(status('VmHWM') - before, distinct)"
    )
    done = subprocess.run(
        [sys.executable, "-c", measure, path], capture_output=True, text=True, check=True, cwd=_ROOT
    )
    kibibytes, distinct = map(int, done.stdout.split())
    assert distinct == 262_144
    # The set of all tokens alone takes some 20 MB, so less would be no measurement.
    assert 15e6 < kibibytes * 1024 < 50e6


_ROOT = Path(__file__).parents[2]


def test_a_file_cut_anywhere_says_how_much_is_missing(tiny: Path, tmp_path: Path) -> None:
    whole = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(4096, len(whole), 4096):
        cut.write_bytes(whole[:length])
        with pytest.raises(BadModelFileError, match=r"cut short: at least [\d,]+ bytes") as caught:
            read_header(cut)
        missing = int(caught.value.message.split("least ")[1].split(" ")[0].replace(",", ""))
        if length >= read_header(tiny).data_offset:
            last = max(info.offset + info.nbytes for info in read_header(tiny).tensors.values())
            assert missing == last - length
        else:
            assert 0 < missing <= len(whole) - length


BAD_FILES = {
    "is empty": b"",
    "is not a GGUF file": b"PK\x03\x04 and so on, long enough for a header",
    "GGUF version 1": raw_gguf(version=1),
    "GGUF version 9": raw_gguf(version=9),
    "big-endian": b"GGUF\x00\x00\x00\x03" + bytes(16),
    "cut short": b"GGUF\x03\x00",
    "claims 1,152,921,504,606,846,976 tensors": raw_gguf(tensor_count=1 << 60),
    "claims 1,152,921,504,606,846,976 metadata keys": raw_gguf(key_count=1 << 60),
    "at least 699,[0-9]+ bytes": raw_gguf(key_count=50_000),
    "a key of 1,099,511,627,776 bytes": raw_gguf(keys=[struct.pack("<Q", 1 << 40) + bytes(40)]),
    "a key of 0 bytes": raw_gguf(keys=[struct.pack("<Q", 0) + bytes(40)]),
    "a key that is not UTF-8": raw_gguf(keys=[text(b"\xff\xfe") + bytes(8)]),
    "a key with a NUL": raw_gguf(keys=[text("a\0b") + bytes(8)]),
    "the key 'a' twice": raw_gguf(keys=[key("a", 1), key("a", 1)]),
    "unknown value type 13": raw_gguf(keys=[text("a") + struct.pack("<II", 13, 0) + bytes(8)]),
    "an array of arrays": raw_gguf(keys=[text("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(20)]),
    "claims 18,446,744,073,709,551,601 bytes": raw_gguf(
        keys=[text("a") + struct.pack("<IIQ", 9, 4, 1 << 62)]
    ),
    "claims 9,223,372,036,854,775,793 bytes": raw_gguf(
        keys=[text("a") + struct.pack("<IIQ", 9, 8, 1 << 60)]
    ),
    "a text of 2,097,152 bytes": raw_gguf(
        keys=[text("a") + struct.pack("<IQ", 8, 2 << 20)], data=bytes(3 << 20)
    ),
    "general.alignment is of type string": raw_gguf(
        keys=[text("general.alignment") + struct.pack("<I", 8) + text("x")]
    ),
    "general.alignment is 8,": raw_gguf(keys=[key("general.alignment", 8)]),
    "general.alignment is 48,": raw_gguf(keys=[key("general.alignment", 48)]),
    "a tensor name of 64 bytes": raw_gguf(tensors=[tensor("n" * 64, (1,))], data=bytes(64)),
    "5 dimensions": raw_gguf(tensors=[tensor("w", (1, 1, 1, 1, 1))], data=bytes(64)),
    "0 dimensions": raw_gguf(tensors=[tensor("w", ())], data=bytes(64)),
    "the impossible shape \\(0,": raw_gguf(tensors=[tensor("w", (0, 4))], data=bytes(64)),
    "the impossible shape \\(4294967296,": raw_gguf(
        tensors=[tensor("w", (1 << 32, 1 << 32))], data=bytes(64)
    ),
    "of the unknown type 4": raw_gguf(tensors=[tensor("w", (32,), kind=4)], data=bytes(64)),
    "rows of 33 elements": raw_gguf(tensors=[tensor("w", (33,), kind=2)], data=bytes(64)),
    "off its alignment of 32": raw_gguf(tensors=[tensor("w", (8,), offset=4)], data=bytes(64)),
    "a gap in front of": raw_gguf(tensors=[tensor("w", (8,), offset=1 << 50)], data=bytes(64)),
    "the tensor 'w' twice": raw_gguf(
        tensors=[tensor("w", (8,)), tensor("w", (8,), offset=32)], data=bytes(64)
    ),
    "the tensor 'v' overlapping": raw_gguf(
        tensors=[tensor("w", (16,)), tensor("v", (8,), offset=32)], data=bytes(128)
    ),
    "cut short: at least 5,": raw_gguf(
        tensors=[tensor("w", (8,)), tensor("v", (2048,), offset=32)], data=bytes(3_000)
    ),
}


@pytest.mark.parametrize("problem", BAD_FILES)
def test_damage_is_named(problem: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(BAD_FILES[problem])
    with pytest.raises(BadModelFileError, match=problem) as caught:
        read_header(path)
    assert caught.value.message.startswith("bad.gguf")
    assert caught.value.exit_code == 3


def test_a_wrong_type_names_the_key(tiny: Path) -> None:
    metadata = read_header(tiny).metadata
    with pytest.raises(BadModelFileError, match=r"general\.name is of type string, expected uint"):
        metadata.uint32("general.name")
    with pytest.raises(BadModelFileError, match=r"array of bool, expected float32"):
        metadata.float32("gemma4.attention.sliding_window_pattern")
    with pytest.raises(BadModelFileError, match=r"pattern has 4 elements, expected 5"):
        metadata.flags("gemma4.attention.sliding_window_pattern", 5)
    with pytest.raises(BadModelFileError, match=r"the key nowhere is missing"):
        metadata.string("nowhere")


def test_a_missing_file_and_a_directory_are_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="There is no file") as caught:
        read_header(tmp_path / "none.gguf")
    assert caught.value.hint is not None
    with pytest.raises(ModelNotFoundError, match="is a directory"):
        read_header(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelNotFoundError, match="not a regular file"):
        read_header(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(PermissionError(13, "no"), "may not be read"), (OSError(5, "io"), "Input/output error")],
)
def test_a_file_that_cannot_be_read_is_a_model_error(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, sentence: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelError, match=sentence):
        read_header(tiny)


def test_a_path_that_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="File name too long"):
        read_header(tmp_path / ("x" * 5000))
    with pytest.raises(ModelNotFoundError, match="NUL"):
        read_header(Path("a\0b"))

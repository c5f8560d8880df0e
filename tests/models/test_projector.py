"""Projectors: what passes loads in llama.cpp, what would make it abort is refused before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemmtp.errors import (
    BadModelFileError,
    GemmtpError,
    PairMismatchError,
    UnsupportedModelError,
)
from gemmtp.prompt.media import CheckedProjector
from gemmtp_models.header import read_header
from gemmtp_models.memory_sets import projector_of_header
from gemmtp_models.projector import check_projector
from tests.support.tiny_pair import TINY_TARGET, write_target
from tests.support.tiny_projector import write_projector

V = "clip.vision."


def test_a_tower_says_which_pictures_it_takes(tmp_path: Path) -> None:
    geometry = check_projector(read_header(write_projector(tmp_path / "p.gguf")))
    assert (geometry.side, geometry.longest, geometry.out) == (48, 341, TINY_TARGET.hidden)
    assert not geometry.audio


@pytest.mark.parametrize(("said", "tokens"), [({}, 280), ({"gemmtp.image_tokens": 70}, 70)])
def test_a_file_says_what_an_image_may_take(
    tmp_path: Path, said: dict[str, object], tokens: int
) -> None:
    header = read_header(write_projector(tmp_path / "p.gguf", metadata=said))
    assert check_projector(header).image_tokens == tokens
    assert projector_of_header(header).image_tokens == tokens
    assert CheckedProjector.read(header.path, TINY_TARGET.hidden).frame.tokens == tokens
    assert CheckedProjector.read(header.path, TINY_TARGET.hidden, 560).frame.tokens == 560


def test_a_direct_projection_counts_positions_by_token(tmp_path: Path) -> None:
    header = read_header(direct(tmp_path))
    geometry = check_projector(header)
    assert (geometry.kind, geometry.side, geometry.longest) == ("gemma4uv", 48, 1024)
    assert projector_of_header(header).blocks == 0


def direct(folder: Path) -> Path:
    """A projector without a tower, as 12B's."""
    sizes = {"blocks": 0, "heads": 0, "feed_forward": 0}
    return write_projector(folder / "direct.gguf", kind="gemma4uv", **sizes)


def test_the_projector_of_another_target_is_no_match(tmp_path: Path) -> None:
    header = read_header(write_projector(tmp_path / "p.gguf", out=48))
    with pytest.raises(PairMismatchError, match="its rows have 48 values, the target takes 32"):
        check_projector(header, TINY_TARGET.hidden)


def test_a_target_is_no_projector(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="architecture 'gemma4', expected clip"):
        check_projector(read_header(write_target(tmp_path / "t.gguf")))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"clip.has_vision_encoder": False, "clip.has_audio_encoder": True}, "sound alone"),
        ({"clip.has_vision_encoder": False}, "has no vision tower"),
        ({"clip.has_gen_audio_encoder": True}, "for making sound"),
        ({V + "projector_type": "gemma3"}, "kind 'gemma3'"),
        ({V + "feature_layer": [1]}, "has the key clip.vision.feature_layer"),
    ],
)
def test_other_kinds_are_unsupported(
    tmp_path: Path, metadata: dict[str, object], words: str
) -> None:
    header = read_header(write_projector(tmp_path / "p.gguf", metadata=metadata))
    with pytest.raises(UnsupportedModelError, match=words):
        check_projector(header)


BAD_METADATA: list[tuple[str, object]] = [
    ("clip.use_gelu", 1),
    ("clip.use_silu", True),
    ("clip.has_audio_encoder", 1),
    ("general.description", 5),
    ("clip.minicpmv_version", "2"),
    ("clip.audio.num_mel_bins", 1.0),
    (V + "image_mean", None),
    (V + "image_std", [0.0, 0.0, 0.0]),
    (V + "image_std", [1.0]),
    (V + "image_mean", [0, 0, 0]),
    (V + "image_size", 9000),
    (V + "patch_size", 0),
    (V + "patch_size", "16"),
    (V + "block_count", 0),
    (V + "block_count", 3),
    (V + "attention.head_count", 0),
    (V + "attention.head_count", 3),
    (V + "attention.head_count", 16),
    (V + "attention.head_count_kv", 1),
    (V + "attention.head_dim", 8),
    (V + "attention.layer_norm_epsilon", 1),
    (V + "projector.scale_factor", 0),
    (V + "projection_dim", 31),
    (V + "embedding_length", 2**31),
    (V + "feed_forward_length", 0),
    ("gemmtp.image_tokens", 0),
    ("gemmtp.image_tokens", 71),
    ("gemmtp.image_tokens", "70"),
]


@pytest.mark.parametrize(("key", "value"), BAD_METADATA)
def test_metadata_that_llama_cpp_asserts_on_is_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    header = read_header(write_projector(tmp_path / "p.gguf", metadata={key: value}))
    with pytest.raises(BadModelFileError, match=r"^p\.gguf"):
        check_projector(header)


VECTOR, MATRIX = np.zeros(32, np.float32), np.zeros((32, 32), np.float32)
BAD_TENSORS: list[tuple[str, np.ndarray | None]] = [
    ("v.position_embd.weight", None),
    ("v.position_embd.weight", VECTOR),
    ("v.patch_embd.weight", None),
    ("v.patch_embd.weight", MATRIX),
    ("mm.input_projection.weight", None),
    ("v.blk.1.attn_q_norm.weight", VECTOR),
    ("v.blk.1.ffn_down.weight", None),
    ("v.blk.0.ln1.weight", np.zeros(32, np.float16)),
    ("v.blk.0.attn_q.weight", np.zeros((32, 32), np.int32)),
    ("v.blk.0.attn_q.bias", VECTOR),
    ("v.blk.0.attn_q.input_min", np.zeros(2, np.float32)),
    ("v.std_bias", VECTOR),
    ("v.class_embd", VECTOR),
    ("v.pre_ln.weight", VECTOR),
]


@pytest.mark.parametrize(("name", "data"), BAD_TENSORS)
def test_tensors_that_llama_cpp_asserts_on_are_refused(
    tmp_path: Path, name: str, data: np.ndarray | None
) -> None:
    header = read_header(write_projector(tmp_path / "p.gguf", tensors={name: data}))
    with pytest.raises(GemmtpError, match=r"^p\.gguf"):
        check_projector(header)


def test_a_tower_has_positions_for_a_token(tmp_path: Path) -> None:
    header = read_header(write_projector(tmp_path / "p.gguf", positions=2))
    with pytest.raises(BadModelFileError, match="positions for less than one token"):
        check_projector(header)


def test_bounds_of_matrices_and_standardisation_pass(tmp_path: Path) -> None:
    one = np.ones(1, np.float32)
    tensors = {
        "v.blk.0.attn_q.input_min": -one,
        "v.blk.0.attn_q.output_max": one,
        "v.std_bias": VECTOR,
        "v.std_scale": VECTOR + 1,
        "v.blk.1.out_scale.weight": one,
    }
    check_projector(read_header(write_projector(tmp_path / "p.gguf", tensors=tensors)))

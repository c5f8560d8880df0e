"""Which files may be target or drafter, and which two belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmtp.errors import BadModelFileError, PairMismatchError, UnsupportedModelError
from gemmtp_models.header import Header, read_header
from gemmtp_models.pairing import (
    FINGERPRINT_KEY,
    PairReport,
    check_drafter,
    check_pair,
    check_target,
)
from tests.support.llama_probe import RAN, probe
from tests.support.tiny_pair import tokens, write_drafter, write_target


@pytest.fixture
def target(tmp_path: Path) -> Header:
    return read_header(write_target(tmp_path / "target.gguf"))


@pytest.fixture
def drafter(tmp_path: Path) -> Header:
    return read_header(write_drafter(tmp_path / "drafter.gguf"))


def _target(tmp_path: Path, **overrides: Any) -> Header:
    return read_header(write_target(tmp_path / "t.gguf", **overrides))


def _drafter(tmp_path: Path, **overrides: Any) -> Header:
    return read_header(write_drafter(tmp_path / "d.gguf", **overrides))


def _verdict(report: PairReport, name: str) -> str:
    return next(check.verdict for check in report.checks if check.name == name)


def test_a_matching_pair_matches(target: Header, drafter: Header) -> None:
    report = check_pair(target, drafter)
    assert report.matches
    assert report.reason is None
    assert report.notes == ()
    report.raise_for_mismatch()
    assert (report.target.block_count, report.drafter.block_count) == (4, 4)
    assert {check.verdict for check in report.checks} == {"ok"}


def test_the_geometry_is_that_of_the_file(target: Header) -> None:
    geometry = check_target(target)
    assert geometry.embedding_length == geometry.embedding_length_out == 32
    assert [geometry.head_size(layer) for layer in range(4)] == [16, 32, 16, 32]
    assert geometry.sliding == (True, False, True, False)
    assert (geometry.sliding_window, geometry.softcap) == (16, 30.0)
    assert (geometry.heads, geometry.kv_heads) == ((2,) * 4, (1,) * 4)
    assert geometry.vocabulary.size == 384
    assert geometry.vocabulary.special == {
        "bos": 2,
        "eos": 1,
        "unknown": 3,
        "padding": 0,
        "mask": 4,
    }


MISMATCHES: list[tuple[dict[str, Any], str]] = [
    ({"backbone": 48}, "hidden 48, expected 32"),
    ({"vocabulary": 380}, "vocabulary size 380, expected 384"),
    ({"head_size": 64}, "head size, full layers 64, expected 32"),
    ({"head_size_swa": 8}, "head size, sliding layers 8, expected 16"),
    ({"kv_heads": 2}, "KV heads, sliding layers 2, expected 1"),
    ({"kv_heads": (1, 1, 1, 2)}, "KV heads, full layers 2, expected 1"),
    ({"kv_heads": (1, 2, 1, 1)}, "KV heads, sliding layers 1/2, expected 1"),
    ({"window": 32}, "sliding window 32, expected 16"),
    ({"rope_base": 5e5}, "rope base, full layers 500000.0, expected 1000000.0"),
    ({"rope_base_swa": 5e3}, "rope base, sliding layers 5000.0, expected 10000.0"),
    (
        {"metadata": {"{arch}.rope.dimension_count": 16}},
        "rope dimensions, full layers 16, expected 32",
    ),
    ({"metadata": {"tokenizer.ggml.eos_token_id": 6}}, "eos token 6, expected 1"),
]


@pytest.mark.parametrize(("overrides", "reason"), MISMATCHES)
def test_a_drafter_of_another_model_does_not_match(
    overrides: dict[str, Any], reason: str, target: Header, tmp_path: Path
) -> None:
    report = check_pair(target, _drafter(tmp_path, **overrides))
    assert not report.matches
    assert report.reason == f"drafter does not match: {reason}"
    with pytest.raises(PairMismatchError, match="does not match") as caught:
        report.raise_for_mismatch()
    assert caught.value.exit_code == 3


def test_the_same_size_with_other_tokens_does_not_match(target: Header, tmp_path: Path) -> None:
    words = tokens(384)
    words[300], words[301] = words[301], words[300]
    report = check_pair(target, _drafter(tmp_path, metadata={"tokenizer.ggml.tokens": words}))
    assert report.reason is not None
    assert report.reason.startswith("drafter does not match: token list ")


def test_a_target_that_does_not_end_in_sliding_and_full_has_no_drafter(
    drafter: Header, tmp_path: Path
) -> None:
    report = check_pair(_target(tmp_path, sliding=(True, True, False, False)), drafter)
    assert _verdict(report, "last two layers") == "mismatch"
    assert not report.matches


def test_fingerprints_count_when_both_files_carry_one(drafter: Header, tmp_path: Path) -> None:
    target = _target(tmp_path, metadata={FINGERPRINT_KEY: "a"})
    assert check_pair(target, drafter).matches
    same = _drafter(tmp_path, metadata={FINGERPRINT_KEY: "a"})
    assert _verdict(check_pair(target, same), "pairing fingerprint") == "ok"
    other = _drafter(tmp_path, metadata={FINGERPRINT_KEY: "b"})
    assert check_pair(target, other).reason == (
        "drafter does not match: pairing fingerprint b, expected a"
    )


def test_quantisation_aware_training_of_one_alone_is_a_note(
    drafter: Header, tmp_path: Path
) -> None:
    report = check_pair(_target(tmp_path, metadata={"general.name": "Tiny QAT"}), drafter)
    assert report.matches
    assert [(note.name, note.target) for note in report.notes] == [("training", "QAT")]


def test_a_shorter_drafter_context_is_a_note(target: Header, tmp_path: Path) -> None:
    report = check_pair(target, _drafter(tmp_path, context_length=256))
    assert report.matches
    assert [note.name for note in report.notes] == ["context length"]


def test_another_padding_token_is_a_note(target: Header, tmp_path: Path) -> None:
    drafter = _drafter(tmp_path, metadata={"tokenizer.ggml.padding_token_id": 3})
    report = check_pair(target, drafter)
    assert report.matches
    assert [(note.name, note.drafter) for note in report.notes] == [("padding token", 3)]


def test_the_report_is_json(target: Header, tmp_path: Path) -> None:
    report = check_pair(target, _drafter(tmp_path, window=32))
    data = json.loads(json.dumps(report.to_json()))
    assert data["matches"] is False
    assert data["reason"] == report.reason
    row = {"name": "sliding window", "target": 16, "drafter": 32, "verdict": "mismatch"}
    assert row in data["checks"]


def test_a_drafter_alone_says_so(drafter: Header) -> None:
    with pytest.raises(UnsupportedModelError, match="is a drafter alone") as caught:
        check_target(drafter)
    assert caught.value.hint is not None
    assert "--drafter" in caught.value.hint


def test_a_target_is_no_drafter(target: Header) -> None:
    with pytest.raises(UnsupportedModelError, match="is a target, not a drafter"):
        check_drafter(target)


def test_a_drafter_of_a_fork_says_where_a_right_one_is(tmp_path: Path) -> None:
    fork = _drafter(tmp_path, architecture="gemma4_assistant")
    with pytest.raises(UnsupportedModelError, match="comes from a fork") as caught:
        check_drafter(fork)
    assert "gemma4-assistant" in caught.value.message
    assert caught.value.hint is not None
    assert "unsloth/gemma-4-<size>-it-qat-GGUF" in caught.value.hint


def test_a_centroid_head_is_refused_before_llama_cpp_fails_on_it(tmp_path: Path) -> None:
    centroids = np.zeros((8, 64), np.float32)
    header = _drafter(tmp_path, tensors={"masked_embd_centroids.weight": centroids})
    with pytest.raises(UnsupportedModelError, match="centroid head") as caught:
        check_drafter(header)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("Fetch a drafter without it: made with llama.cpp")


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "clip"])
def test_other_architectures_are_named(architecture: str, tmp_path: Path) -> None:
    header = _target(tmp_path, architecture=architecture)
    with pytest.raises(UnsupportedModelError, match=r"expected gemma4|projector"):
        check_target(header)
    with pytest.raises(UnsupportedModelError, match=f"'{architecture}', expected gemma4-assist"):
        check_drafter(header)


def _twice(words: list[str]) -> list[str]:
    return [*words[:-1], words[9]]


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"metadata": {"{arch}.block_count": 0}}, "block_count is 0, expected 1 to 512"),
    ({"metadata": {"{arch}.block_count": None}}, "block_count is missing"),
    ({"metadata": {"{arch}.block_count": 4.0}}, "block_count is of type float32"),
    ({"metadata": {"{arch}.attention.head_count": 0}}, "head_count has 0, expected 1 to"),
    ({"kv_heads": 3}, "head_count_kv has 3 for the 2 heads of layer 0"),
    ({"head_size_swa": 15}, "key_length_swa is 15, expected an even number"),
    ({"metadata": {"{arch}.attention.value_length": 16}}, "value_length is 16, expected the key"),
    ({"metadata": {"{arch}.rope.dimension_count": 64}}, "rope.dimension_count is 64, expected"),
    ({"metadata": {"{arch}.attention.layer_norm_rms_epsilon": -1.0}}, "epsilon is -1.0"),
    ({"metadata": {"{arch}.rope.freq_base": float("nan")}}, "freq_base is nan"),
    ({"metadata": {"{arch}.rope.scaling.type": "odd"}}, "scaling.type is 'odd', expected one of"),
    ({"sliding": (False,) * 4}, "has no sliding layer"),
    ({"sliding": (True,) * 4}, "has no full layer"),
    ({"window": 0}, "sliding_window is 0"),
    ({"shared_kv_layers": 3}, "leaves fewer than 2 layers"),
    ({"shared_kv_layers": 1}, "do not end in sliding, full"),
    ({"shared_kv_layers": 2, "kv_heads": (1, 1, 2, 1)}, "which reads the cache of layer 0"),
    ({"metadata": {"{arch}.expert_used_count": 2}}, "expert_used_count is 2 of 0 experts"),
    ({"metadata": {"{arch}.embedding_length_out": 48}}, "embedding_length_out is 48"),
    ({"metadata": {"tokenizer.ggml.bos_token_id": 384}}, "bos_token_id is missing or outside"),
    ({"metadata": {"tokenizer.ggml.eos_token_id": None}}, "eos_token_id is missing or outside"),
    ({"metadata": {"tokenizer.ggml.token_type": [1, 1]}}, "token_type has 2 values for 384"),
    ({"metadata": {"tokenizer.ggml.tokens": _twice(tokens(384))}}, "'<0x00>' twice"),
    ({"tensors": {"blk.1.ffn_up.weight": None}}, r"lacks the tensor blk\.1\.ffn_up\.weight"),
    (
        {"tensors": {"blk.0.attn_q.weight": np.zeros((48, 32), np.float32)}},
        r"attn_q.weight in the shape 32 x 48, expected 32 x 32",
    ),
]


@pytest.mark.parametrize(("overrides", "problem"), BROKEN)
def test_what_would_abort_llama_cpp_is_refused(
    overrides: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(BadModelFileError, match=problem):
        check_target(_target(tmp_path, **overrides))


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"metadata": {"split.count": 3}}, "one part of a split model"),
    ({"metadata": {"{arch}.attention.causal": False}}, "not a causal decoder"),
    ({"metadata": {"{arch}.pooling_type": 1}}, "an embedding model"),
    ({"metadata": {"{arch}.nextn_predict_layers": 1}}, "draft layers inside the target"),
    ({"metadata": {"tokenizer.ggml.model": "llama"}}, "a tokenizer of type 'llama'"),
    (
        {"tensors": {"rope_freqs.weight": np.ones(16, np.float16)}},
        r"rope_freqs\.weight in F16, expected F32",
    ),
    (
        {"tensors": {"blk.0.attn_q.weight": np.ones((32, 32), np.int32)}},
        r"attn_q\.weight in I32, which no weight can be",
    ),
]


@pytest.mark.parametrize(("overrides", "problem"), UNSUPPORTED)
def test_sound_files_of_another_kind_are_refused(
    overrides: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=problem):
        check_target(_target(tmp_path, **overrides))


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"metadata": {"{arch}.nextn_predict_layers": 3}}, "is 3, expected all 4 blocks"),
        ({"metadata": {"{arch}.embedding_length_out": None}}, "has to carry the target's width"),
        (
            {"tensors": {"nextn.pre_projection.weight": None}},
            r"lacks the tensor nextn\.pre_projection\.weight",
        ),
    ],
)
def test_a_broken_drafter_is_refused(
    overrides: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(BadModelFileError, match=problem):
        check_drafter(_drafter(tmp_path, **overrides))


ACCEPTED: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {"experts": 4},
    "per-layer embeddings, shared KV, double-wide FFN": {
        "per_layer_embedding": 8,
        "shared_kv_layers": 2,
        "feed_forward": (48, 48, 96, 96),
    },
    "untied head": {"tensors": {"output.weight": np.zeros((384, 32), np.float32)}},
    "fused attention": {
        "tensors": {
            "blk.0.attn_qkv.weight": np.zeros((64, 32), np.float32),
            "blk.0.attn_q.weight": None,
            "blk.0.attn_k.weight": None,
            "blk.0.attn_v.weight": None,
        }
    },
    "several KV heads": {"heads": 4, "kv_heads": (2, 1, 2, 1)},
}


def test_every_variant_of_gemma_4_is_accepted_and_runs(tmp_path: Path) -> None:
    pairs: list[tuple[Path, Path | None]] = []
    for index, overrides in enumerate(ACCEPTED.values()):
        path = write_target(tmp_path / f"{index}.gguf", **overrides)
        heads = {key: value for key, value in overrides.items() if key == "heads"}
        kv_heads = {"kv_heads": (2, 2, 2, 1)} if heads else {}
        drafter = write_drafter(tmp_path / f"{index}-drafter.gguf", **heads, **kv_heads)
        assert check_pair(read_header(path), read_header(drafter)).reason is None
        pairs.append((path, drafter))
    assert dict(zip(ACCEPTED, probe(pairs), strict=True)) == dict.fromkeys(ACCEPTED, RAN)

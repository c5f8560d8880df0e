"""Checkpoints in all their forms are read, and broken ones are named by what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gemmtp.errors import (
    BadModelFileError,
    GemmtpError,
    ModelNotFoundError,
    PairMismatchError,
    UnsupportedModelError,
)
from gemmtp_quantize.plan import SetPlan, plan_set
from gemmtp_quantize.recipe import load_recipe
from gemmtp_quantize.safetensors import StoredTensor
from gemmtp_quantize.weights import stream
from tests.quantize.tiny_checkpoint import (
    Shape,
    edit_json,
    safetensors_bytes,
    tokenizer_json,
    write_pair,
)

Pair = tuple[Path, Path]
FORMS = ("first", "per_layer", "both", "conditional")


def _plan(pair: Pair) -> SetPlan:
    return plan_set(*pair, load_recipe("f16"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k_eq_v", [True, False])
def test_every_form_of_config_gives_the_same_metadata(
    tmp_path: Path, form: str, k_eq_v: bool
) -> None:
    plan = _plan(write_pair(tmp_path, Shape(form=form, k_eq_v=k_eq_v)))  # type: ignore[arg-type]
    fields = {key: field.value for key, field in plan.target.fields.items()}
    kv_full = 1 if k_eq_v else 2
    assert fields["gemma4.attention.head_count_kv"] == [2, kv_full, 2, kv_full]
    assert fields["gemma4.attention.key_length"] == 32
    assert fields["gemma4.attention.key_length_swa"] == 16
    assert fields["gemma4.rope.dimension_count"] == 32
    assert fields["gemma4.attention.sliding_window_pattern"] == [True, False, True, False]
    names = [tensor.spec.name for tensor in plan.target.tensors]
    assert ("blk.1.attn_v.weight" in names) is not k_eq_v
    assert "blk.0.attn_v.weight" in names


def test_an_empty_per_layer_config_means_that_full_layers_are_like_sliding_ones(
    tmp_path: Path,
) -> None:
    target, drafter = write_pair(tmp_path, Shape(head_dim_full=16, kv_heads_full=2))
    edit_json(target / "config.json", per_layer_config={}, global_head_dim=None)
    plan = _plan((target, drafter))
    assert plan.target.fields["gemma4.attention.key_length"].value == 16


def test_without_a_softcap_the_file_says_zero(tmp_path: Path) -> None:
    """llama.cpp caps at 30 when the key is missing."""
    plan = _plan(write_pair(tmp_path, Shape(softcap=None)))
    assert plan.target.fields["gemma4.final_logit_softcapping"].value == 0.0


def test_sampling_defaults_template_and_special_tokens_are_carried_over(pair: Pair) -> None:
    plan = _plan(pair)
    fields = {key: field.value for key, field in plan.target.fields.items()}
    assert fields["general.sampling.temp"] == 0.7
    assert fields["general.sampling.top_k"] == 40
    assert fields["general.sampling.top_p"] == 0.9
    assert (plan.parameters.temperature, plan.parameters.top_k) == (0.7, 40)
    assert "<|turn>" in str(fields["tokenizer.chat_template"])
    assert fields["tokenizer.ggml.bos_token_id"] == 2
    assert fields["tokenizer.ggml.eos_token_id"] == 1
    assert fields["tokenizer.ggml.eot_token_id"] == 6


def test_gemma_4_own_sampling_stands_in_for_a_missing_generation_config(pair: Pair) -> None:
    (pair[0] / "generation_config.json").unlink()
    parameters = _plan(pair).parameters
    assert (parameters.temperature, parameters.top_k, parameters.top_p) == (1.0, 64, 0.95)


def test_the_model_card_gives_the_licence(pair: Pair) -> None:
    card = "---\nlicense: apache-2.0\nlicense_link: https://example.org/l\n---\n# Tiny\n"
    (pair[0] / "README.md").write_text(card)
    fields = _plan(pair).target.fields
    assert fields["general.license"].value == "apache-2.0"
    assert fields["general.license.link"].value == "https://example.org/l"


def test_both_files_carry_one_fingerprint_and_it_depends_on_the_weights(tmp_path: Path) -> None:
    first = _plan(write_pair(tmp_path / "a"))
    key = "gemmtp.pairing.fingerprint"
    assert first.target.fields[key] == first.drafter.fields[key]
    assert _plan(write_pair(tmp_path / "b")).fingerprint == first.fingerprint
    target, drafter = write_pair(tmp_path / "c")
    data = bytearray((target / "model.safetensors").read_bytes())
    data[-4:] = np.float32(0.125).tobytes()
    (target / "model.safetensors").write_bytes(data)
    assert _plan((target, drafter)).fingerprint != first.fingerprint


def test_an_assistant_without_a_tokenizer_shares_the_targets(pair: Pair) -> None:
    (pair[1] / "tokenizer.json").unlink()
    plan = _plan(pair)
    key = "tokenizer.ggml.tokens"
    assert plan.drafter.fields[key] == plan.target.fields[key]


def _shards(pair: Pair) -> Path:
    """The target in three shards, whatever it was."""
    root = pair[0].parent.parent / "sharded"
    return write_pair(root, Shape(shards=3))[0]


def _cut(pair: Pair) -> Pair:
    path = pair[0] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return pair


def _spare(pair: Pair) -> Pair:
    path = pair[0] / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    return pair


def _header_length(pair: Pair) -> Pair:
    path = pair[0] / "model.safetensors"
    path.write_bytes((10**15).to_bytes(8, "little") + path.read_bytes()[8:])
    return pair


def _large_header(pair: Pair) -> Pair:
    path = pair[0] / "model.safetensors"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    return pair


def _header_text(pair: Pair) -> Pair:
    path = pair[0] / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"[" + data[9:])
    return pair


def _overlap(pair: Pair) -> Pair:
    path = pair[0] / "model.safetensors"
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    return pair


def _missing_shard(pair: Pair) -> Pair:
    target = _shards(pair)
    (target / "model-00002-of-00003.safetensors").unlink()
    return target, pair[1]


def _wrong_index(pair: Pair) -> Pair:
    target = _shards(pair)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "model-00001-of-00003.safetensors"
    index["weight_map"]["model.embed_tokens.weight"] = "model-00002-of-00003.safetensors"
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    return target, pair[1]


def _index_outside(pair: Pair) -> Pair:
    target = _shards(pair)
    edit_json(target / "model.safetensors.index.json", weight_map={"x": "../model.safetensors"})
    return target, pair[1]


def _no_weights(pair: Pair) -> Pair:
    (pair[0] / "model.safetensors").unlink()
    return pair


def _no_config(pair: Pair) -> Pair:
    (pair[0] / "config.json").unlink()
    return pair


def _config(**changes: object) -> Callable[[Pair], Pair]:
    def change(pair: Pair) -> Pair:
        edit_json(pair[0] / "config.json", **changes)
        return pair

    return change


def _assistant(**changes: object) -> Callable[[Pair], Pair]:
    def change(pair: Pair) -> Pair:
        edit_json(pair[1] / "config.json", **changes)
        return pair

    return change


def _tokenizer(pair: Pair) -> Pair:
    document = tokenizer_json()
    vocabulary = document["model"]["vocab"]
    vocabulary["extra"] = len(vocabulary)
    (pair[0] / "tokenizer.json").write_text(json.dumps(document))
    return pair


def _assistant_tokenizer(pair: Pair) -> Pair:
    text = json.dumps(tokenizer_json()).replace('"<|think|>"', '"<|other|>"')
    (pair[1] / "tokenizer.json").write_text(text)
    return pair


def _surrogate(pair: Pair) -> Pair:
    text = json.dumps(tokenizer_json()).replace('"\\u4e2d"', '"\\ud800"')
    (pair[0] / "tokenizer.json").write_text(text)
    return pair


def _template(pair: Pair) -> Pair:
    (pair[0] / "chat_template.jinja").write_bytes(b"\xff\xfe")
    return pair


def _other_tokenizer(pair: Pair) -> Pair:
    document = tokenizer_json()
    document["normalizer"] = None
    (pair[0] / "tokenizer.json").write_text(json.dumps(document))
    return pair


def _swapped(pair: Pair) -> Pair:
    return pair[1], pair[0]


def _two_targets(pair: Pair) -> Pair:
    return pair[0], pair[0]


def _other_backbone(pair: Pair) -> Pair:
    other = write_pair(pair[0].parent.parent / "other", Shape(hidden=96, drafter_hidden=32))
    return pair[0], other[1]


def _other_heads(pair: Pair) -> Pair:
    other = write_pair(pair[0].parent.parent / "other", Shape(head_dim_full=64))
    return pair[0], other[1]


def _extra_tensor(pair: Pair) -> Pair:
    from tests.quantize.tiny_checkpoint import target_tensors

    tensors = target_tensors(Shape(), len(tokenizer_json()["model"]["vocab"]))
    tensors["model.layers.0.surprise.weight"] = np.zeros((2, 2), np.float32)
    (pair[0] / "model.safetensors").write_bytes(safetensors_bytes(tensors, "F32"))
    return pair


BROKEN: dict[str, tuple[Callable[[Pair], Pair], type[GemmtpError], str]] = {
    "file cut short": (_cut, BadModelFileError, "cut short"),
    "bytes to spare": (_spare, BadModelFileError, "belong to no tensor"),
    "header longer than the file": (_header_length, BadModelFileError, "its header claims"),
    "header beyond the limit": (_large_header, BadModelFileError, "100000000 are allowed"),
    "header no JSON": (_header_text, BadModelFileError, "not valid JSON"),
    "tensors overlap": (_overlap, BadModelFileError, "overlap or leave a gap at b"),
    "shard missing": (_missing_shard, BadModelFileError, "model-00002-of-00003"),
    "index wrong": (_wrong_index, BadModelFileError, "does not say that tensor"),
    "index leaves the folder": (_index_outside, BadModelFileError, "no plain file name"),
    "no weights": (_no_weights, ModelNotFoundError, "holds neither"),
    "no config": (_no_config, ModelNotFoundError, "config.json"),
    "shape and config differ": (
        _config(intermediate_size=95), BadModelFileError, "by the config of tiny it is"
    ),
    "tensor missing": (_config(tie_word_embeddings=False), BadModelFileError, "lm_head.weight"),
    "tensor of no use": (_extra_tensor, BadModelFileError, "surprise"),
    "size no number": (_config(hidden_size="64"), BadModelFileError, "hidden_size"),
    "number infinite": (_config(rms_norm_eps=1e999), BadModelFileError, "rms_norm_eps"),
    "size absurd": (_config(num_hidden_layers=10**9), BadModelFileError, "num_hidden_layers"),
    "tokenizer of another size": (_tokenizer, PairMismatchError, "tokens, the model"),
    "tokenizer of another kind": (_other_tokenizer, UnsupportedModelError, "kind of tokenizer"),
    "half a surrogate": (_surrogate, BadModelFileError, "half a surrogate"),
    "template no text": (_template, BadModelFileError, "not UTF-8"),
    "assistant's tokenizer differs": (_assistant_tokenizer, PairMismatchError, "other tokens"),
    "assistant of another backbone": (_other_backbone, PairMismatchError, "hidden size 96"),
    "assistant of other heads": (_other_heads, PairMismatchError, "head size of the full layers"),
    "swapped": (_swapped, UnsupportedModelError, "swapped"),
    "two targets": (_two_targets, UnsupportedModelError, "not an assistant"),
    "another family": (_config(model_type="llama"), UnsupportedModelError, "llama, not Gemma 4"),
    "12B": (_config(model_type="gemma4_unified"), UnsupportedModelError, "not converted yet"),
    "experts": (_config(enable_moe_block=True), UnsupportedModelError, "Mixture-of-experts"),
    "per-layer embeddings": (
        _config(hidden_size_per_layer_input=256), UnsupportedModelError, "per-layer embeddings"
    ),
    "shared layers": (_config(num_kv_shared_layers=2), UnsupportedModelError, "share KV"),
    "both directions": (
        _config(use_bidirectional_attention="all"), UnsupportedModelError, "both directions"
    ),
    "assistant as wide as the target": (
        _assistant(backbone_hidden_size=32), UnsupportedModelError, "as wide as its target"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("breaking", "error", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_input_is_one_clear_sentence(
    pair: Pair, breaking: Callable[[Pair], Pair], error: type[GemmtpError], words: str
) -> None:
    with pytest.raises(error) as caught:
        _plan(breaking(pair))
    assert words in caught.value.message
    assert caught.value.message.endswith(".")
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 3


def _stored(tmp_path: Path, values: np.ndarray, dtype: str) -> StoredTensor:
    path = tmp_path / "one"
    path.write_bytes(values.tobytes())
    return StoredTensor("blk.w", dtype, values.shape, path, 0, values.nbytes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("target", ["F32", "F16", "BF16"])
def test_nan_and_infinity_are_refused_by_name(tmp_path: Path, bad: float, target: str) -> None:
    values = np.ones(300_000, np.float32)
    values[-3] = bad
    with pytest.raises(BadModelFileError, match=r"blk\.w in one holds NaN or infinity"):
        list(stream(_stored(tmp_path, values, "F32"), target))
    half = values.view(np.uint32) >> 16
    with pytest.raises(BadModelFileError, match=r"blk\.w"):
        list(stream(_stored(tmp_path, half.astype(np.uint16), "BF16"), target))


def test_a_value_beyond_float16_is_not_turned_into_infinity(tmp_path: Path) -> None:
    tensor = _stored(tmp_path, np.array([1.0, 70_000.0], np.float32), "F32")
    with pytest.raises(UnsupportedModelError, match="too large for F16"):
        list(stream(tensor, "F16"))


def test_conversion_rounds_as_numpy_and_ggml_do(tmp_path: Path) -> None:
    import gguf

    values = np.random.default_rng(3).standard_normal(200_001).astype(np.float32)
    tensor = _stored(tmp_path, values, "F32")
    assert b"".join(map(bytes, stream(tensor, "F16"))) == values.astype(np.float16).tobytes()
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16).tobytes()
    assert b"".join(map(bytes, stream(tensor, "BF16"))) == expected
    half = _stored(tmp_path, (values.view(np.uint32) >> 16).astype(np.uint16), "BF16")
    widened = (values.view(np.uint32) & 0xFFFF0000).tobytes()
    assert b"".join(map(bytes, stream(half, "F32"))) == widened

"""A checkpoint with eyes becomes a set of three files, and what a file cannot say is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gemmtp.errors import BadModelFileError, GemmtpError, UnsupportedModelError, UsageError
from gemmtp_models.header import read_header
from gemmtp_models.names import find
from gemmtp_quantize.pipeline import build_folder, build_set
from gemmtp_quantize.plan import SetPlan, plan_set
from gemmtp_quantize.recipe import load_recipe
from tests.quantize.tiny_checkpoint import (
    Shape,
    edit_json,
    safetensors_bytes,
    target_tensors,
    tokenizer_json,
    write_pair,
)
from tests.quantize.tiny_tower import BOUNDS, Tower

Pair = tuple[Path, Path]
SEEING = Shape(form="conditional")
TOWER_OF_12B = "gemma4_unified_vision"


@pytest.fixture
def seeing_pair(tmp_path: Path) -> Pair:
    return write_pair(tmp_path / "checkpoints", SEEING)


def _plan(pair: Pair, vision: str | None = "f16") -> SetPlan:
    return plan_set(*pair, load_recipe("f16"), vision=vision)


def _weights(shape: Shape = SEEING) -> dict[str, np.ndarray]:
    return target_tensors(shape, len(tokenizer_json()["model"]["vocab"]))


def _written(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def test_a_set_holds_three_files_of_one_fingerprint(tmp_path: Path, seeing_pair: Pair) -> None:
    finished = build_folder(_plan(seeing_pair), tmp_path / "out", force=False, threads=1)
    assert list(finished.manifest.layers) == ["target", "drafter", "projector"]
    marks = {
        read_header(path).metadata["gemmtp.pairing.fingerprint"].value
        for path in finished.files.values()
    }
    assert len(marks) == 1
    assert find(str(tmp_path / "out"), tmp_path).projector == tmp_path / "out" / "projector.gguf"


def test_the_store_takes_three_files(tmp_path: Path, seeing_pair: Pair) -> None:
    from gemmtp_models.store import Store

    store = Store(tmp_path / "store")
    build_set(_plan(seeing_pair, "q8_0"), store, "tiny:eyes", force=False, threads=1)
    header = read_header(store.resolve("tiny:eyes").files["projector"])
    assert header.architecture == "clip"


def test_the_file_says_everything_that_mtmd_reads(tmp_path: Path) -> None:
    tower = Tower(pooling=2, norm_eps=1e-5)
    plan = _plan(write_pair(tmp_path, replace(SEEING, tower=tower)))
    assert plan.projector is not None
    fields = {key: field.value for key, field in plan.projector.fields.items()}
    vision = {
        key.removeprefix("clip.vision."): value
        for key, value in fields.items()
        if key.startswith("clip.vision.")
    }
    assert vision == {
        "projector_type": "gemma4v", "projection_dim": 64, "image_size": 224, "patch_size": 16,
        "projector.scale_factor": 2, "embedding_length": 64, "feed_forward_length": 96,
        "block_count": 2, "attention.head_count": 4, "attention.layer_norm_epsilon": 1e-5,
        "image_mean": (0.0, 0.0, 0.0), "image_std": (1.0, 1.0, 1.0),
    }  # fmt: skip
    assert fields["clip.use_gelu"] is True
    assert fields["clip.has_vision_encoder"] is True


@pytest.mark.parametrize("vision", ["f32", "bf16", "f16", "q8_0"])
def test_a_patch_becomes_colour_planes_and_every_weight_its_type(
    tmp_path: Path, seeing_pair: Pair, vision: str
) -> None:
    files = build_folder(_plan(seeing_pair, vision), tmp_path / "o", force=False, threads=1).files
    tensors, weights = _written(files["projector"]), _weights()
    kernel = weights["model.vision_tower.patch_embedder.input_proj.weight"].reshape(64, 16, 16, 3)
    planes = kernel.transpose(0, 3, 1, 2)
    exact = planes.astype(np.float16) if vision == "f16" else planes
    assert np.array_equal(tensors["v.patch_embd.weight"].data, exact)
    table = weights["model.vision_tower.patch_embedder.position_embedding_table"]
    assert np.array_equal(tensors["v.position_embd.weight"].data, table)
    matrices = [n for n, t in tensors.items() if len(t.shape) == 2 and "embd" not in n]
    assert len(matrices) == 15
    assert {tensors[name].tensor_type.name for name in matrices} == {vision.upper()}
    vectors = {t.tensor_type.name for t in tensors.values() if len(t.shape) == 1}
    assert vectors == {"F32"}


def test_rows_that_fill_no_block_stay_f16_under_q8_0(tmp_path: Path) -> None:
    """As in the tower of 31B, whose feed-forward length 4304 is no multiple of 32."""
    plan = _plan(write_pair(tmp_path, replace(SEEING, tower=Tower(inner=72))), "q8_0")
    assert plan.projector is not None
    types = {tensor.spec.name: tensor.final for tensor in plan.projector.tensors}
    assert types["v.blk.0.ffn_down.weight"] == "F16"
    assert types["v.blk.0.ffn_up.weight"] == "Q8_0"


def test_bounds_of_clipped_linears_are_kept_unless_they_bound_nothing(tmp_path: Path) -> None:
    shape = replace(SEEING, tower=Tower(clipped=True))
    pair = write_pair(tmp_path, shape)
    weights, layer = _weights(shape), "model.vision_tower.encoder.layers."
    weights[layer + "1.mlp.up_proj.input_max"] = np.asarray(np.inf)
    (pair[0] / "model.safetensors").write_bytes(safetensors_bytes(weights, "F32"))
    files = build_folder(_plan(pair, "q8_0"), tmp_path / "out", force=False, threads=1).files
    tensors = _written(files["projector"])
    bounds = {name: tensors[f"v.blk.0.attn_out.{name}"].data.tolist() for name in BOUNDS}
    assert bounds == {name: [value] for name, value in BOUNDS.items()}
    assert "v.blk.1.ffn_up.input_max" not in tensors
    assert "v.blk.1.ffn_up.input_min" in tensors
    weights[layer + "1.mlp.up_proj.input_max"] = np.asarray(np.nan)
    (pair[0] / "model.safetensors").write_bytes(safetensors_bytes(weights, "F32"))
    with pytest.raises(BadModelFileError, match=r"mlp\.up_proj\.input_max .* holds NaN"):
        _plan(pair)


def test_standardised_towers_bring_their_bias_and_scale(tmp_path: Path) -> None:
    plan = _plan(write_pair(tmp_path, replace(SEEING, tower=Tower(standardize=True))))
    assert plan.projector is not None
    assert {"v.std_bias", "v.std_scale"} <= {t.spec.name for t in plan.projector.tensors}


def test_a_text_model_stays_a_pair(tmp_path: Path, seeing_pair: Pair) -> None:
    blind = write_pair(tmp_path / "blind")
    assert list(_plan(blind).files) == ["target", "drafter"]
    without = _plan(seeing_pair, None)
    assert list(without.files) == ["target", "drafter"]
    assert without.fingerprint == _plan(seeing_pair).fingerprint


def test_where_nothing_is_normalised_the_means_say_nothing(seeing_pair: Pair) -> None:
    _processor(do_normalize=False, image_mean=[0.5] * 3)(seeing_pair[0])
    plan = _plan(seeing_pair)
    assert plan.projector is not None
    assert plan.projector.fields["clip.vision.image_mean"].value == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("tokens", "key"), [(70, 70), (1120, 1120), (280, None), (None, None)])
def test_the_file_says_what_the_processor_lets_an_image_take(
    seeing_pair: Pair, tokens: int | None, key: int | None
) -> None:
    _processor(max_soft_tokens=tokens)(seeing_pair[0])
    plan = _plan(seeing_pair)
    assert plan.projector is not None
    field = plan.projector.fields.get("gemmtp.image_tokens")
    assert (field.value if field else None) == key


def test_an_older_preprocessor_config_is_read_and_a_missing_one_is_gemma_s_own(
    seeing_pair: Pair,
) -> None:
    folder = seeing_pair[0]
    (folder / "processor_config.json").unlink()
    assert _plan(seeing_pair).projector is not None
    (folder / "preprocessor_config.json").write_text('{"patch_size": 14}')
    with pytest.raises(UnsupportedModelError, match="patch_size is 14; 16 is"):
        _plan(seeing_pair)


def test_what_is_not_converted_is_said_and_the_text_goes_on(seeing_pair: Pair) -> None:
    config = seeing_pair[0] / "config.json"
    edit_json(config, audio_config={"model_type": "gemma4_audio"})
    plan = _plan(seeing_pair)
    assert plan.projector is not None
    assert "the audio tower is left out: the set will not hear" in plan.notes
    edit_json(config, audio_config=None, vision_config={"model_type": TOWER_OF_12B})
    plan = _plan(seeing_pair)
    assert list(plan.files) == ["target", "drafter"]
    assert any("will have no eyes" in note for note in plan.notes)


def _vision(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        vision = json.loads((folder / "config.json").read_text())["vision_config"]
        edit_json(folder / "config.json", vision_config=vision | changes)

    return change


def _processor(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "processor_config.json", image_processor=changes)


def _no_weights(folder: Path) -> None:
    weights = {n: w for n, w in _weights().items() if "vision" not in n}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights, "F32"))


def _surprise(folder: Path) -> None:
    weights = _weights() | {"model.vision_tower.surprise": np.ones(3, np.float32)}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights, "F32"))


REFUSED: dict[str, tuple[Callable[[Path], None], type[GemmtpError], str]] = {
    "positions of another base": (
        _vision(rope_parameters={"rope_type": "axial", "rope_theta": 200.0}),
        UnsupportedModelError, "by base 200.0, and llama.cpp by 100",
    ),
    "another activation": (
        _vision(hidden_activation="silu"), UnsupportedModelError, "activation silu"
    ),
    "biases": (_vision(attention_bias=True), UnsupportedModelError, "attention biases"),
    "another pooling in the processor": (
        _processor(pooling_kernel_size=4), UnsupportedModelError, "pooling_kernel_size is 4; 3 is"
    ),
    "another filter": (_processor(resample=2), UnsupportedModelError, "resample is 2; 3 is"),
    "another scale": (_processor(rescale_factor=1.0), UnsupportedModelError, "rescale_factor"),
    "colours that are normalised": (
        _processor(do_normalize=True, image_mean=[0.5] * 3), UnsupportedModelError, "image_mean"
    ),
    "pictures of another size": (
        _processor(max_soft_tokens=100), UnsupportedModelError,
        "max_soft_tokens is 100; 70, 140, 280, 560 or 1120 can be done",
    ),
    "pictures of no size": (
        _processor(max_soft_tokens="70"), UnsupportedModelError, "max_soft_tokens is '70'"
    ),
    "shared keys": (_vision(num_key_value_heads=2), UnsupportedModelError, ", with shared keys,"),
    "heads of another size": (
        _vision(head_dim=18), UnsupportedModelError, "4 heads of 18 in a width of 64 are not"
    ),
    "shape and config differ": (_vision(intermediate_size=64), BadModelFileError, "gate_proj"),
    "a layer too many": (_vision(num_hidden_layers=3), BadModelFileError, "layers.2"),
    "no weights": (_no_weights, BadModelFileError, "has no weights"),
    "a tensor of no use": (_surprise, BadModelFileError, "surprise"),
}  # fmt: skip


@pytest.mark.parametrize(("breaking", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_tower_that_would_see_wrongly_is_refused_in_one_sentence(
    seeing_pair: Pair, breaking: Callable[[Path], None], error: type[GemmtpError], words: str
) -> None:
    breaking(seeing_pair[0])
    with pytest.raises(error) as caught:
        _plan(seeing_pair)
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 3


def test_the_text_of_a_refused_tower_is_still_to_be_had(seeing_pair: Pair) -> None:
    _vision(hidden_activation="silu")(seeing_pair[0])
    with pytest.raises(UnsupportedModelError) as caught:
        _plan(seeing_pair)
    assert caught.value.hint == "Give --vision none to convert the text model alone."
    assert list(_plan(seeing_pair, None).files) == ["target", "drafter"]


def test_a_type_there_is_not_is_said(seeing_pair: Pair) -> None:
    with pytest.raises(UsageError, match="cannot be written as q4_0"):
        _plan(seeing_pair, "q4_0")

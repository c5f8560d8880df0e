"""From the image file to the rows that the text model is given: as in transformers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Finished, Request, Token
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import Pair, check_files
from gemmtp.prompt.attachments import read_picture
from gemmtp.prompt.media import CheckedProjector, Eyes
from gemmtp_quantize.answer_parity import compare_answer
from gemmtp_quantize.image_parity import ImageFile, Reference, compare_images, image_table
from gemmtp_quantize.parity import ParityReport
from gemmtp_quantize.pipeline import build_folder
from gemmtp_quantize.plan import plan_set
from gemmtp_quantize.recipe import load_recipe
from tests.quantize.images import images
from tests.quantize.tiny_checkpoint import Shape, write_pair
from tests.quantize.tiny_tower import Tower

pytestmark = pytest.mark.train
pytest.importorskip("transformers", reason="needs the extra [train]")

SEEING = Shape(form="conditional")
TOKENS, ANSWER = 70, 32
# A row's cosine at least, by the type of the weights; the rest is ggml's GELU table in float16.
LEAST = {"f32": 0.999999, "f16": 0.999998, "bf16": 0.9999, "q8_0": 0.999}
SOME = ("17x31", "alpha", "grey, 16 bits", "JPEG turned by EXIF", "right size already")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch and transformers warn of their own future, and of images one pixel wide."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check(
    folder: Path, tower: Tower, vision: str, chosen: list[ImageFile], tokens: int = TOKENS
) -> None:
    pair = write_pair(folder / "c", replace(SEEING, tower=tower))
    plan = plan_set(*pair, load_recipe("f16"), vision=vision)
    files = build_folder(plan, folder / "out", force=False, threads=1).files
    compared = compare_images(
        pair[0], files["target"], files["projector"], chosen, tokens=tokens, threads=1
    )
    assert len(compared) == len(chosen)
    assert {c.pixels for c in compared} == {0}, image_table(compared)
    assert min(c.cosine for c in compared) >= LEAST[vision], image_table(compared)


@pytest.mark.parametrize("vision", LEAST)
def test_every_type_of_weights_sees_what_the_checkpoint_sees(tmp_path: Path, vision: str) -> None:
    _check(tmp_path, Tower(), vision, [i for i in images() if i.name in SOME])


@pytest.mark.slow
def test_all_twenty_kinds_of_image_file_are_seen_alike(tmp_path: Path) -> None:
    _check(tmp_path, Tower(), "f16", list(images()))


TOWERS = {
    "clipped and standardised": Tower(clipped=True, standardize=True, norm_eps=1e-5),
    "pooled by two": Tower(pooling=2),
    "patches of eight": Tower(patch=8),
}


@pytest.mark.parametrize("tower", TOWERS.values(), ids=TOWERS.keys())
def test_every_shape_of_tower_sees_what_the_checkpoint_sees(tmp_path: Path, tower: Tower) -> None:
    _check(tmp_path, tower, "f32", [i for i in images() if i.name in SOME[:2]])


def test_another_tower_is_noticed(tmp_path: Path) -> None:
    ours = write_pair(tmp_path / "a", SEEING)
    files = build_folder(
        plan_set(*ours, load_recipe("f16")), tmp_path / "out", force=False, threads=1
    ).files
    other = write_pair(tmp_path / "b", replace(SEEING, tower=Tower(standardize=True)))
    chosen = [i for i in images() if i.name == "17x31"]
    compared = compare_images(
        other[0], files["target"], files["projector"], chosen, tokens=TOKENS, threads=1
    )
    assert compared[0].cosine < 0.9


def _answer(folder: Path, tokens: int) -> ParityReport:
    pair = write_pair(folder / "c", SEEING)
    plan = plan_set(*pair, load_recipe("f32"), vision="f32")
    files = build_folder(plan, folder / "out", force=False, threads=1).files
    image = next(i for i in images() if i.name == "alpha")
    return compare_answer(
        *pair, files, image, tokens=tokens, kv="f32", flash_attention="off", threads=1
    )


@pytest.mark.parametrize("tokens", [70, 280])
def test_target_and_drafter_go_on_after_an_image_longer_than_the_window(
    tmp_path: Path, tokens: int
) -> None:
    report = _answer(tmp_path, tokens)
    assert report.worst <= 1e-3, report.text()
    assert report.same_argmax == 1.0, report.text()


def test_image_rows_that_cannot_see_each_other_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemmtp_quantize.answer_parity.images_see_all", lambda width: False)
    assert _answer(tmp_path, 70).worst > 1e-2


def test_a_drafted_answer_about_an_image_is_the_checkpoint_s_own(tmp_path: Path) -> None:
    """Every token that the engine says is what transformers would say there."""
    import torch

    pair = write_pair(tmp_path / "c", SEEING)
    plan = plan_set(*pair, load_recipe("f32"), vision="f32")
    files = build_folder(plan, tmp_path / "out", force=False, threads=1).files
    image = next(i for i in images() if i.name == "alpha")
    options = ContextOptions(n_ctx=512, kv="f32", flash_attention="off", threads=1)
    checked = check_files(files["target"], files["drafter"])
    seen = CheckedProjector.read(files["projector"], SEEING.hidden, TOKENS)
    with (
        Pair.open(checked, FixedDepth(3), options) as opened,
        Eyes(seen, opened.model, threads=1) as eyes,
    ):
        words = opened.model.tokenize("the model<|image|>and the token", special=True, bos=True)
        picture = read_picture(image.data, image.name, eyes.frame)
        prompt, media = eyes.prompt(words, [picture])
        request = Request(prompt, max_tokens=ANSWER, media=media)
        events = list(opened.engine.generate(request))
    answer = [event.token for event in events if isinstance(event, Token)]
    assert len(answer) == ANSWER
    end = next(event for event in events if isinstance(event, Finished))
    assert sum(end.statistics.drafted_at) > ANSWER

    reference = Reference.open(pair[0])
    placeholder = reference.model.config.image_token_id
    ids = torch.tensor([[placeholder if token < 0 else token for token in prompt]])
    ids = torch.cat([ids, torch.tensor([answer])], dim=1)
    inputs = reference.inputs(image, TOKENS)
    with torch.no_grad():
        logits = reference.model(
            input_ids=ids,
            pixel_values=inputs["pixel_values"],
            image_position_ids=inputs["image_position_ids"],
            mm_token_type_ids=(ids == placeholder).long(),
        ).logits[0]
    assert logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist() == answer

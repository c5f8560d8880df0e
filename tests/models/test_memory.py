"""The memory plan: what llama.cpp reserves, where it lies, and what is given up first."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import check_files
from gemmtp.llama.plan import Rehearsal, confirm, context_of, models_of
from gemmtp_models.header import read_header
from gemmtp_models.memory import (
    DESKTOP,
    GIB,
    MIB,
    Device,
    Estimate,
    ModelSet,
    Wish,
    cells,
    estimate,
    kv_bytes,
    output_bytes,
    place,
    runtime_bytes,
    weight_places,
)
from gemmtp_models.memory_choice import FLOOR, STEP, choose, largest_context
from gemmtp_models.memory_graph import Graph, Node
from gemmtp_models.memory_projector import Projector, projector_of
from gemmtp_models.memory_sets import closest_target, projector_of_header
from gemmtp_models.memory_words import memory_words, server_line, vision_words, wish_options
from gemmtp_models.shapes import HEADER_BYTES, RECIPES, SIZES, drafter_shape, target_shape
from tests.perf.cards import CARDS
from tests.perf.zero_files import zero_projector
from tests.support.tiny_pair import write_drafter, write_target

RAM = Device("RAM", 64 * GIB, 64 * GIB, gpu=False)

# Bytes of published files: Google's Q4_0, Unsloth's UD-Q4_K_XL, drafters in Q4_0 and Q8_0.
PUBLISHED = {
    "31b": (17_651_001_568, 17_287_670_048, 279_955_968, 514_705_920),
    "26b": (14_439_363_584, 14_249_047_104, 251_939_328, 461_785_600),
    "12b": (6_975_879_296, 6_716_356_800, 253_708_800, 465_109_248),
    "e4b": (5_154_941_280, 4_215_695_776, 59_678_016, 98_653_248),
    "e2b": (3_349_516_256, 2_620_370_976, 59_235_648, 97_817_664),
}

SHAPES = {
    "plain": {},
    "heads that rotate": {"head_size": 128, "head_size_swa": 64},
    "shared KV": {"shared_kv_layers": 2},
    "per-layer embeddings": {"per_layer_embedding": 16},
    "experts": {"experts": 4},
}


def gpu(gib: float) -> Device:
    return Device("GPU", round(gib * GIB), round(gib * GIB), gpu=True)


def published(size: str, *, images: bool = False) -> ModelSet:
    projector = projector_of(size) if images else None
    return ModelSet(size, target_shape(size), drafter_shape(size), projector)


@pytest.mark.parametrize("size", SIZES)
def test_the_tensor_lists_are_those_of_the_published_files(size: str) -> None:
    ours = (
        target_shape(size, RECIPES["google-q4_0"]).nbytes,
        target_shape(size).nbytes,
        drafter_shape(size).nbytes,
        drafter_shape(size, RECIPES["q8_0"]).nbytes,
    )
    for mine, file in zip(ours, PUBLISHED[size], strict=True):
        # What is left is the header: vocabulary, merges and a chat template.
        assert abs(file - mine - HEADER_BYTES) < 64 * 1024


@pytest.mark.parametrize("shape", SHAPES)
def test_every_buffer_is_what_llama_cpp_reserves(shape: str, tmp_path: Path) -> None:
    overrides = SHAPES[shape]
    target = write_target(tmp_path / "t.gguf", **overrides)
    heads = {name: size for name, size in overrides.items() if name.startswith("head")}
    files = check_files(target, write_drafter(tmp_path / "d.gguf", **heads))
    models = models_of("tiny", files)
    kinds = ("f16", "q8_0") if heads else ("f16",)
    with Rehearsal.open(files) as rehearsal:
        for kv in kinds:
            for slots, rows, flash, ctx in ((1, 64, True, 256), (3, 96, False, 700)):
                if kv != "f16" and not flash:
                    continue
                wish = Wish(ctx=ctx, kv=kv, slots=slots, ubatch=rows, flash=flash)  # type: ignore[arg-type]
                options = ContextOptions(
                    n_slots=slots,
                    max_depth=wish.depth,
                    flash_attention="on" if flash else "off",
                    threads=1,
                )
                measured = rehearsal.measure(context_of(wish, options, models.target))
                use = estimate(models, wish, [RAM]).uses[0]
                assert use.weights == measured.target_weights
                assert use.kv == pytest.approx(measured.target.kv, abs=0.02 * MIB)
                compute = use.compute - output_bytes(models.target, wish)
                assert compute == pytest.approx(measured.target.compute["CPU"], abs=0.01 * MIB)
                assert models.drafter is not None
                assert measured.drafter is not None
                draft = use.drafter - output_bytes(models.drafter, wish)
                reserved = measured.drafter_weights + measured.drafter.compute["CPU"]
                assert draft == pytest.approx(reserved, abs=0.01 * MIB)


def test_llama_cpp_confirms_an_estimate(tmp_path: Path) -> None:
    files = check_files(write_target(tmp_path / "t.gguf"), write_drafter(tmp_path / "d.gguf"))
    placed = estimate(models_of("tiny", files), Wish(ctx=512), [RAM])
    confirmed = confirm(placed, files, ContextOptions(n_ctx=512, threads=1))
    assert confirmed.uses[0].total == pytest.approx(placed.uses[0].total, abs=0.05 * MIB)
    wrong = replace(placed.uses[0], compute=7 * GIB)
    corrected = confirm(replace(placed, uses=(wrong,)), files, ContextOptions(threads=1))
    assert corrected.uses == confirmed.uses


def test_it_never_says_fits_where_llama_cpp_needs_more(tmp_path: Path) -> None:
    files = check_files(write_target(tmp_path / "t.gguf"), write_drafter(tmp_path / "d.gguf"))
    models, rng, refused = models_of("tiny", files), random.Random(3), 0
    with Rehearsal.open(files) as rehearsal:
        for _ in range(60):
            wish = Wish(ctx=rng.randrange(1, 20_000), slots=rng.choice((1, 2, 5)), depth=2)
            options = ContextOptions(n_slots=wish.slots, max_depth=wish.depth, threads=1)
            measured = rehearsal.measure(context_of(wish, options, models.target))
            free = round(measured.total * rng.uniform(0.9, 1.1))
            fits = estimate(models, wish, [Device("RAM", free, free, gpu=False)]).fits
            assert not (fits and free < measured.total)
            refused += not fits
    assert 0 < refused < 60


@pytest.mark.parametrize("card", [card for card in CARDS if card.bound], ids=lambda c: c.what)
def test_measured_cards_are_met_within_five_percent(card: object) -> None:
    assert isinstance(card, type(CARDS[0]))
    runtime = runtime_bytes(card.vram) if card.vram else 0
    assert card.plan() + runtime == pytest.approx(card.measured, rel=0.05)


def test_the_kv_cache_of_31b() -> None:
    target = target_shape("31b")
    wish = Wish(ctx=8192)
    assert cells(target, wish) == (8192, 1536)
    full, sliding = (
        sum(kv_bytes(target, wish, layer) for layer in range(60) if target.sliding[layer] is swa)
        for swa in (False, True)
    )
    assert (full, sliding) == (640 * MIB, 1200 * MIB)
    quantised = sum(kv_bytes(target, replace(wish, kv="q8_0"), layer) for layer in range(60))
    assert quantised == (full + sliding) * 34 // 64
    four = replace(wish, slots=4)
    assert cells(target, four) == (4 * 8192, 4608)


def test_tables_stay_in_ram_and_the_output_lies_beside_the_last_layer() -> None:
    target = target_shape("e2b", RECIPES["google-q4_0"])
    sizes = {weight.name: weight.nbytes for weight in target.weights}
    places = weight_places(target, place(target, Wish(), [4 * GIB]))
    assert places[0] == sizes["token_embd.weight"] + sizes["per_layer_token_embd.weight"]
    assert places[1] == target.nbytes - sizes["per_layer_token_embd.weight"]


def test_repacking_copies_what_the_cpu_multiplies_with() -> None:
    """A real load of E2B in Q4_0 made a CPU_REPACK buffer of 1222.80 MiB."""
    models = published("e2b")
    plain, repacked = (
        estimate(models, Wish(repack=repack, drafting=False), [RAM]).uses[0].weights
        for repack in (False, True)
    )
    assert repacked - plain == pytest.approx(1222.80 * MIB, abs=0.01 * MIB)


def test_layers_are_split_by_free_memory() -> None:
    placement = place(target_shape("31b"), Wish(), [8 * GIB, 24 * GIB])
    # 60 layers and the output, a quarter of them on the first card: 0 to 15.
    assert placement.layers.count(1) == 16
    assert placement.layers.count(2) == 44
    assert placement.output == 2
    partly = place(target_shape("31b"), Wish(gpu_layers=21), [8 * GIB, 24 * GIB])
    assert partly.layers[:40] == (0,) * 40
    assert partly.layers.count(1) == 6


def test_a_block_is_used_again_after_its_last_reader() -> None:
    first = Node(100, (Node(0),), ("a",))
    second = Node(100, (first,), ("b",))
    third = Node(100, (second,), ("a",))
    graph = Graph()
    graph.expand(third)
    assert graph.reserve([32]) == [2 * 128]
    in_place = Graph()
    start = Node(100, (Node(0),), ("a",))
    in_place.expand(Node(100, (start,), ("a",), in_place=True))
    assert in_place.reserve([32]) == [128]


def test_an_image_needs_a_batch_that_holds_it_where_all_see_all() -> None:
    wish = Wish(image_tokens=1120)
    assert wish.rows(target_shape("31b")) == 1120
    assert wish.rows(target_shape("e4b")) == 512
    projector = projector_of("31b")
    assert projector.compute(1120) > 3 * projector.compute(280)
    assert projector.compute(280, flash=False) > projector.compute(280)


@pytest.mark.parametrize("blocks", [0, 2])
def test_a_projector_is_read_from_its_file(blocks: int, tmp_path: Path) -> None:
    heads, inner = (4, 256) if blocks else (1, 0)
    wanted = Projector(0, blocks, 64, inner, heads, 96)
    header = read_header(zero_projector(tmp_path / "mmproj.gguf", wanted))
    projector = projector_of_header(header)
    assert replace(projector, nbytes=0) == wanted
    assert projector.nbytes == sum(tensor.nbytes for tensor in header.tensors.values())


def test_a_wish_that_fits_is_not_touched() -> None:
    choice = choose(published("31b"), Wish(), [RAM, gpu(24)])
    assert choice.estimate.fits
    assert choice.estimate.wish == Wish()
    assert not choice.steps


def test_the_order_of_giving_up() -> None:
    models = published("26b", images=True)
    expected = {
        24: [],
        16.4: ["projector"],
        15.2: ["projector", "kv"],
        15: ["projector", "kv", "ctx"],
        12: ["projector", "kv", "ctx", "layers"],
        2: ["projector", "kv", "ctx", "layers", "layers"],
    }
    given = {}
    for size in expected:
        wish = Wish(ctx=32768, image_tokens=280)
        choice = choose(models, wish, [RAM, gpu(size)])
        assert choice.estimate.fits
        assert all(step.freed > 0 for step in choice.steps)
        given[size] = [step.setting for step in choice.steps]
    assert given == expected


def test_experts_go_first_and_whole_layers_after() -> None:
    choice = choose(published("26b"), Wish(), [RAM, gpu(12)])
    assert 0 < choice.estimate.wish.host_experts < 30
    assert choice.estimate.wish.gpu_layers == -1
    dense = choose(published("31b"), Wish(), [RAM, gpu(12)])
    assert dense.estimate.wish.host_experts == 0
    assert 0 < dense.estimate.wish.gpu_layers < 61


def test_the_context_is_given_back_when_a_later_step_frees_enough() -> None:
    choice = choose(published("31b"), Wish(ctx=16384), [RAM, gpu(12)])
    wish = choice.estimate.wish
    assert FLOOR < wish.ctx < 16384
    assert choice.estimate.fits
    assert not estimate(
        choice.estimate.models, replace(wish, ctx=wish.ctx + STEP), [RAM, gpu(12)]
    ).fits
    whole = choose(published("26b"), Wish(), [RAM, gpu(12)])
    assert whole.estimate.wish.ctx == Wish().ctx
    assert "ctx" not in [step.setting for step in whole.steps]


def test_what_the_user_fixed_is_not_touched() -> None:
    fixed = frozenset({"projector", "kv", "ctx", "layers", "drafting"})
    wish = Wish(ctx=32768, image_tokens=280)
    choice = choose(published("31b", images=True), wish, [RAM, gpu(16)], fixed)  # type: ignore[arg-type]
    assert not choice.estimate.fits
    assert choice.estimate.wish == wish
    assert not choice.steps
    assert 1 <= len(choice.alternatives) <= 3
    for other in choice.alternatives:
        assert estimate(choice.estimate.models, other, [RAM, gpu(16)]).fits
        assert wish_options(other, wish)


def test_a_refused_kv_type_is_not_offered() -> None:
    choice = choose(published("31b"), Wish(ctx=65536), [RAM, gpu(22)], refused=frozenset({"q8_0"}))
    assert choice.estimate.wish.kv == "f16"


@pytest.mark.parametrize("images", [False, True])
def test_the_largest_context_is_the_largest(images: bool) -> None:
    models, wish = published("31b", images=True), Wish(image_tokens=280 if images else 0)
    most = largest_context(models, wish, [RAM, gpu(24)])
    assert most > FLOOR
    assert estimate(models, replace(wish, ctx=most), [RAM, gpu(24)]).fits
    assert not estimate(models, replace(wish, ctx=most + STEP), [RAM, gpu(24)]).fits


def test_a_set_that_was_measured_on_24_gib_fits_as_far_as_it_did() -> None:
    """65,536 loads and 69,632 does not, 49,152 with images (a public load ladder, one slot)."""
    models = ModelSet("31b", target_shape("31b", RECIPES["google-q4_0"]), None, projector_of("31b"))
    text = largest_context(models, Wish(depth=0), [RAM, gpu(24)], margin=0)
    images = largest_context(models, Wish(depth=0, image_tokens=280), [RAM, gpu(24)], margin=0)
    assert 65_536 <= text < 1.15 * 69_632
    assert 49_152 <= images < 1.15 * 53_248


def test_a_file_of_another_quantisation_counts_its_bytes() -> None:
    file = 18_323_733_440
    target = closest_target("31b", file)
    assert target.nbytes == pytest.approx(file - HEADER_BYTES, abs=64 * 1024)


def test_a_plan_in_words() -> None:
    models = published("31b", images=True)
    wish = Wish(ctx=32768, depth=4, slots=2, image_tokens=280, projector_on_gpu=False)
    placed = estimate(models, wish, [RAM, gpu(24)])
    assert vision_words(placed) == "vision: projector in RAM"
    assert memory_words(placed).endswith("/24.0 GiB")
    line = server_line(placed, {"target": "T", "drafter": "D", "projector": "P"})
    assert line == (
        "llama-server -m T -md D --spec-type draft-mtp --spec-draft-n-max 4 -c 65536 -np 2 -kvu "
        "-b 512 -ub 512 -fa on -ctk f16 -ctv f16 -fit off -ngl 999 --mmproj P "
        "--image-max-tokens 280 --no-mmproj-offload"
    )


def test_the_margin_is_kept_on_gpus_alone() -> None:
    placed = estimate(published("e2b"), Wish(), [RAM, gpu(8)])
    assert placed.spare(0) == RAM.free - placed.uses[0].total
    assert placed.spare(1) == 8 * GIB - placed.uses[1].total - DESKTOP
    assert isinstance(placed, Estimate)

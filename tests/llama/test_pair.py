"""The loop over llama.cpp: drafted equals plain, and the KV cache does what the engine thinks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gemmtp.engine.backend import ContextFullError, Row
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Engine, Event, Finished, Request, Token
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import EngineError, PairMismatchError, UsageError
from gemmtp.llama import library
from gemmtp.llama.context import ContextOptions, KvType
from gemmtp.llama.drafter import DraftContext
from gemmtp.llama.model import Model
from gemmtp.llama.pair import Pair, check_files
from gemmtp.llama.target import TargetContext
from tests.support.tiny_pair import write_drafter

WINDOW = 16
# One thread: on a busy machine two threads of so small a model only wait for each other.


def open_pair(tiny: tuple[Path, Path], depth: int = 8, **context: object) -> Pair:
    options = ContextOptions(n_ctx=256, n_batch=64, n_ubatch=32, threads=1, **context)  # type: ignore[arg-type]
    return Pair.open(check_files(*tiny), FixedDepth(depth), options)


def tokens_of(events: list[Event], slot: int = 0) -> list[int]:
    return [e.token for e in events if isinstance(e, Token) and e.slot == slot]


def answer(engine: Engine, prompt: list[int], depth: int, **request: object) -> list[int]:
    events = list(engine.generate(Request(prompt, depth=FixedDepth(depth), **request)))  # type: ignore[arg-type]
    assert isinstance(events[-1], Finished)
    return tokens_of(events)


@pytest.fixture
def target(tiny: tuple[Path, Path]) -> Iterator[TargetContext]:
    options = ContextOptions(n_ctx=256, n_slots=2, n_batch=64, n_ubatch=32, threads=1)
    with Model.open(tiny[0]) as model, TargetContext(model, options) as context:
        yield context


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_drafted_equals_plain_to_the_last_cell(tiny: tuple[Path, Path], kv: KvType) -> None:
    with open_pair(tiny, kv=kv) as pair:
        for prompt in ([5], list(range(10, 50)), [7, 8] * 60):
            plain = answer(pair.engine, prompt, 0)
            # Prompt, answer, and one last token that needs no cell.
            assert len(prompt) + len(plain) == 257
            for depth in (1, 2, 3, 4, 8):
                assert answer(pair.engine, prompt, depth) == plain


def test_a_seed_gives_the_same_text_at_every_depth(tiny: tuple[Path, Path]) -> None:
    with open_pair(tiny) as pair:
        sampling = SamplingParameters(temperature=1.0, top_k=64, top_p=0.95, seed=11)
        texts = [
            answer(pair.engine, [5, 6, 7], depth, sampling=sampling, max_tokens=60)
            for depth in (0, 1, 3, 8)
        ]
        assert texts[1:] == texts[:1] * 3
        other = SamplingParameters(temperature=1.0, seed=12)
        assert answer(pair.engine, [5, 6, 7], 0, sampling=other, max_tokens=60) != texts[0]


def test_slots_say_what_each_says_alone(tiny: tuple[Path, Path]) -> None:
    prompts = [[5, 6], list(range(10, 40)), [9] * 3]
    with open_pair(tiny) as pair:
        alone = [answer(pair.engine, prompt, 3, max_tokens=80) for prompt in prompts]
    with open_pair(tiny, depth=3, n_slots=3) as pair:
        slots = [pair.engine.submit(Request(prompt, max_tokens=80)) for prompt in prompts]
        events: list[Event] = []
        while step := pair.engine.step():
            events += step
        assert [tokens_of(events, slot) for slot in slots] == alone


def test_a_longer_prompt_reuses_the_cells_and_says_the_same(tiny: tuple[Path, Path]) -> None:
    with open_pair(tiny, depth=3) as pair:
        engine = pair.engine
        answer(engine, [5, 6, 7], 3, max_tokens=20)
        longer = [*engine.text(0), 8, 9]
        events = list(engine.generate(Request(longer, max_tokens=20)))
        end = events[-1]
        assert isinstance(end, Finished)
        assert (end.statistics.cached, end.statistics.evaluated) == (len(longer) - 3, 3)
    with open_pair(tiny, depth=3) as fresh:
        assert answer(fresh.engine, longer, 3, max_tokens=20) == tokens_of(events)


def test_a_rewind_behind_the_window_evaluates_anew(tiny: tuple[Path, Path]) -> None:
    with open_pair(tiny, depth=3) as pair:
        first = answer(pair.engine, [5, 6, 7], 3)
        *events, end = pair.engine.generate(Request([5, 6, 7], depth=FixedDepth(3)))
        assert isinstance(end, Finished)
        # The sliding layers have no more cells than their window and one batch need; in a small
        # context those may still hold everything. Either way the text is the same.
        assert end.statistics.cached + end.statistics.evaluated == 3
        assert tokens_of(events) == first


def test_rows_logits_hidden_and_held_positions(target: TargetContext) -> None:
    target.decode([Row(0, 5, 0, False), Row(0, 6, 1, True), Row(0, 7, 2, True)])
    assert target.held(0) == range(0, 3)
    assert target.held(1) == range(0, 0)
    first, second = target.logits(0).copy(), target.logits(1).copy()
    assert first.shape == (target.n_vocab,)
    assert target.hidden(0).shape == (target.n_embd,)
    assert not np.allclose(first, second)
    target.remove(0, 2)
    assert target.held(0) == range(0, 2)
    target.decode([Row(0, 7, 2, True)])
    assert np.allclose(target.logits(0), second, atol=1e-4)


def test_a_copied_slot_continues_as_its_source(target: TargetContext) -> None:
    target.decode([Row(0, token, i, False) for i, token in enumerate((5, 6, 7))])
    target.copy(0, 1)
    assert target.held(1) == range(0, 3)
    target.decode([Row(0, 8, 3, True), Row(1, 8, 3, True)])
    assert np.allclose(target.logits(0), target.logits(1), atol=1e-4)


def test_a_checkpoint_brings_the_window_back(target: TargetContext) -> None:
    target.decode([Row(0, 5 + i % 9, i, i == 39) for i in range(40)])
    expected = target.logits(0).copy()
    saved = target.checkpoint(0)
    for start in range(40, 424, 32):
        target.decode([Row(0, 7, start + i, False) for i in range(32)])
    assert target.held(0).start > 40 - WINDOW
    target.remove(0, 40)
    target.restore(0, saved)
    assert target.held(0).start <= 40 - WINDOW
    target.remove(0, 39)
    target.decode([Row(0, 5 + 39 % 9, 39, True)])
    assert np.allclose(target.logits(0), expected, atol=1e-2)


def test_a_full_context_is_told_apart(target: TargetContext) -> None:
    # 300 positions asked give whole blocks of 256 cells for both slots together.
    for start in range(0, 512, 64):
        target.decode([Row(0, 5, start + i, False) for i in range(64)])
    with pytest.raises(ContextFullError):
        target.decode([Row(0, 5, 512, True)])
    assert target.held(0).stop == 512


def test_more_rows_or_outputs_than_promised_are_refused(target: TargetContext) -> None:
    with pytest.raises(EngineError, match="65 rows"):
        target.decode([Row(0, 5, i, False) for i in range(65)])
    with pytest.raises(EngineError, match="output rows"):
        target.decode([Row(0, 5, i, True) for i in range(20)])


def test_an_image_larger_than_a_batch_never_reaches_llama_cpp(target: TargetContext) -> None:
    rows = np.zeros((40, target.n_embd), np.float32)
    with pytest.raises(UsageError, match="40 tokens"):
        target.decode_media(0, rows, 0, causal=False)
    target.decode_media(0, rows[:30], 0, causal=False)
    assert target.held(0) == range(0, 30)


def test_a_draft_context_after_a_decode_is_refused(tiny: tuple[Path, Path]) -> None:
    with Model.open(tiny[0]) as model, Model.open(tiny[1]) as drafter:  # noqa: SIM117
        with TargetContext(model, ContextOptions(n_ctx=256)) as context:
            context.decode([Row(0, 5, 0, False)])
            with pytest.raises(EngineError, match="before the target's first decode"):
                DraftContext(drafter, context)


def test_a_drafter_of_another_width_is_refused_before_loading(
    tiny: tuple[Path, Path], tmp_path: Path
) -> None:
    other = write_drafter(tmp_path / "other.gguf", backbone=48)
    with pytest.raises(PairMismatchError, match="48, expected 32"):
        check_files(tiny[0], other)


def test_everything_is_freed_when_a_late_step_fails(
    tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    for owner in (Model, TargetContext):
        original = owner.close

        def noting(self: object, original: object = original, name: str = owner.__name__) -> None:
            closed.append(name)
            original(self)  # type: ignore[operator]

        monkeypatch.setattr(owner, "close", noting)

    def refuse(*_: object) -> None:
        raise EngineError("no draft context today")

    monkeypatch.setattr(DraftContext, "__init__", refuse)
    with pytest.raises(EngineError, match="no draft context today"):
        open_pair(tiny)
    assert closed == ["TargetContext", "Model", "Model"]


def test_a_failed_load_gives_llama_cpps_own_reason(tmp_path: Path, tiny: tuple[Path, Path]) -> None:
    from gemmtp_models.header import read_header

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny[0].read_bytes()[:-4096])
    with pytest.raises(EngineError, match=r"could not load broken\.gguf: ") as caught:
        Model.open(broken, header=read_header(tiny[0]))
    assert "it gave no reason" not in caught.value.message


def test_ctrl_c_during_a_load_comes_through(tiny: tuple[Path, Path]) -> None:
    def interrupted(share: float) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Model.open(tiny[0], progress=interrupted)
    seen: list[float] = []
    Model.open(tiny[0], progress=lambda share: not seen.append(share)).close()  # type: ignore[func-returns-value]
    assert seen[-1] == 1.0
    with pytest.raises(EngineError, match="could not load"):
        Model.open(tiny[0], progress=lambda share: False)


def test_the_beginning_of_text_comes_once(tiny: tuple[Path, Path]) -> None:
    with Model.open(tiny[0]) as model:
        plain = model.tokenize("the", bos=True, special=True)
        assert plain[0] == model.bos
        assert model.tokenize("<bos>the", bos=True, special=True) == plain
        assert model.tokenize("the", special=True) == plain[1:]


def test_the_log_joins_pieces_and_survives_cut_characters() -> None:
    log = library.Log()
    seen: list[str] = []
    log.sink = seen.append
    log.write(2, b"loading ")
    log.write(5, b"\xc3")
    log.write(5, b"\xa9\nhalf \xc3\n")
    log.write(4, b"load: failed: no room\n")
    log.write(1, b"chatter\n")
    assert seen == ["loading é", "half \ufffd", "load: failed: no room"]
    assert log.cause() == "failed: no room"


def test_tokens_and_bytes_round_trip(tiny: tuple[Path, Path]) -> None:
    with Model.open(tiny[0]) as model:
        text = "the thin man\né 🙂"
        assert model.detokenize(model.tokenize(text)).decode() == text
        assert len(model.end_tokens) == 2
        marked = model.tokenize("<turn|>", special=True)
        assert set(marked) < model.end_tokens
        assert model.detokenize(marked) == b""
        assert model.detokenize(marked, special=True) == b"<turn|>"
        assert len(model.tokenize("<turn|>")) > 1
        with pytest.raises(UsageError, match="surrogate"):
            model.tokenize("\ud800")


def test_slots_share_a_beginning_without_reading_it_twice(tiny: tuple[Path, Path]) -> None:
    common = list(range(10, 90))
    prompts = [[*common, 5, i] for i in (100, 101, 102)]
    alone = []
    for prompt in prompts:
        with open_pair(tiny, kv="f32") as pair:
            alone.append(answer(pair.engine, prompt, 2, max_tokens=60))
    with open_pair(tiny, kv="f32", n_slots=3) as pair:
        engine = pair.engine
        slots = [
            engine.submit(Request(prompt, depth=FixedDepth(2), max_tokens=60))
            for prompt in prompts[:2]
        ]
        events: list[Event] = []
        while len(tokens_of(events, slots[1])) < 3:
            events += engine.step()
        slots.append(engine.submit(Request(prompts[2], depth=FixedDepth(2), max_tokens=60)))
        while step := engine.step():
            events += step
        assert [tokens_of(events, slot) for slot in slots] == alone
        cached = {e.slot: e.statistics.cached for e in events if isinstance(e, Finished)}
        assert cached == {slots[0]: 0, slots[1]: 81, slots[2]: 81}

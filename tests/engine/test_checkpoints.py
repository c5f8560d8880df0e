"""Going back behind the sliding window, on a fake target whose text shows every hole in it."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from gemmtp.engine.backend import FakeDrafter, FakeTarget
from gemmtp.engine.checkpoints import MARGIN, Checkpoints
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import MtpDrafting, NoDrafting
from gemmtp.engine.engine import Engine, Event, Finished, Request, Token
from gemmtp.engine.media import Media
from gemmtp.engine.slot import Slot
from gemmtp.errors import EngineError
from tests.engine.test_media import Picture, prompt_of
from tests.support.interruption import interrupted_at

PLENTY = 1 << 20
ENGINE = "gemmtp/engine/"


def target_of(window: int = 8, n_slots: int = 1) -> FakeTarget:
    return FakeTarget(n_ctx=2000, n_slots=n_slots, window=window, max_rows=16, max_outputs=16)


def engine_of(target: FakeTarget, budget: int = PLENTY) -> Engine:
    engine = Engine(target, MtpDrafting(FakeDrafter(target, 0.8)), FixedDepth(3))
    engine.checkpoints.budget = budget
    return engine


def said(engine: Engine, prompt: list[int], n: int = 60) -> tuple[list[int], Finished]:
    *events, end = engine.generate(Request(prompt, max_tokens=n))
    assert isinstance(end, Finished)
    return tokens_of(events), end


def tokens_of(events: list[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, Token)]


def fresh(prompt: list[int], n: int = 60) -> list[int]:
    """What plain decoding says on an empty cache that forgets nothing."""
    engine = Engine(FakeTarget(n_ctx=2000), NoDrafting("plain"))
    return said(engine, prompt, n)[0]


def words(seed: int, n: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(40) for _ in range(n)]


def test_the_fake_notices_a_hole_in_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(target_of(), budget=0)
    said(engine, words(1, 100))
    monkeypatch.setattr(Slot, "_reaches_back", lambda *_: True)
    assert said(engine, words(1, 60))[0] != fresh(words(1, 60))


def test_the_same_prompt_again_restores_the_window_and_evaluates_the_margin() -> None:
    engine, prompt = engine_of(target_of()), words(1, 100)
    first, _ = said(engine, prompt)
    again, end = said(engine, prompt)
    assert again == first == fresh(prompt)
    assert end.statistics.evaluated == MARGIN
    assert end.statistics.cached_because == f"checkpoint at {100 - MARGIN}"


def test_a_history_without_its_thought_evaluates_what_was_kept_of_the_answer() -> None:
    engine, prompt = engine_of(target_of()), words(1, 100)
    answer, _ = said(engine, prompt)
    # The last tokens of the prompt and the first 30 of the answer are left out.
    following = [*prompt[:-4], *answer[30:], *words(2, 10)]
    tokens, end = said(engine, following)
    assert tokens == fresh(following)
    assert end.statistics.cached == 100 - MARGIN
    assert end.statistics.evaluated == MARGIN - 4 + 30 + 10


def test_without_a_budget_everything_is_read_again() -> None:
    engine, prompt = engine_of(target_of(), budget=0), words(1, 100)
    first, end = said(engine, prompt)
    assert end.statistics.cached_because == "empty cache"
    again, end = said(engine, prompt)
    assert again == first
    assert end.statistics.cached == 0
    assert end.statistics.cached_because == "window rolled over, no checkpoint"


def test_earlier_turns_have_their_own() -> None:
    engine, text = engine_of(target_of()), words(1, 50)
    ends = []
    for turn in range(6):
        text = [*text, *words(turn, 30)]
        ends.append(len(text))
        text = [*text, *said(engine, text)[0]]
    for end in reversed(ends):
        tokens, finished = said(engine, text[:end])
        assert tokens == fresh(text[:end])
        assert finished.statistics.cached == end - MARGIN


def test_checkpoints_behind_a_cut_are_forgotten() -> None:
    engine, prompt = engine_of(target_of()), words(1, 100)
    said(engine, prompt)
    other = [*prompt[:50], *words(3, 80)]
    assert said(engine, other)[0] == fresh(other)
    # The place of the first prompt's checkpoint now holds other tokens.
    assert said(engine, prompt)[0] == fresh(prompt)


def test_the_budget_holds_and_the_least_needed_goes_first() -> None:
    target = target_of()
    size = target.checkpoint(0).nbytes + 8 * 8
    engine, text, ends = engine_of(target, budget=2 * size), words(1, 50), []
    for turn in range(4):
        text = [*text, *words(turn, 30)]
        ends.append(len(text))
        text = [*text, *said(engine, text)[0]]
        assert engine.checkpoints.nbytes <= 2 * size
    assert engine.checkpoints.nbytes == 2 * size
    assert engine.checkpoints.last(0, ends[1]) is None
    assert engine.checkpoints.last(0, ends[2]) is not None


def test_a_checkpoint_larger_than_the_budget_is_copied_once_at_most() -> None:
    target, copies = target_of(), []
    checkpoint = target.checkpoint
    target.checkpoint = lambda slot: (copies.append(slot), checkpoint(slot))[1]  # type: ignore
    engine = engine_of(target, budget=10)
    for seed in range(3):
        said(engine, words(seed, 50))
    assert (len(copies), engine.checkpoints.nbytes) == (1, 0)


def test_a_second_question_about_an_image_does_not_decode_it_again() -> None:
    target, picture = target_of(), Picture(1, 30)
    engine = engine_of(target)
    list(engine.generate(prompt_of(words(1, 40), picture, words(2, 40))))
    *events, end = engine.generate(prompt_of(words(1, 40), picture, words(3, 40)))
    assert isinstance(end, Finished)
    assert target.media == [30]
    assert end.statistics.cached_because == "checkpoint at 70"
    plain = Engine(FakeTarget(), NoDrafting("plain"))
    expected = plain.generate(prompt_of(words(1, 40), picture, words(3, 40)))
    assert tokens_of(events) == tokens_of(list(expected))


def test_marks_lie_behind_media_and_before_the_end() -> None:
    points = Checkpoints(PLENTY)

    def media(*places: tuple[int, int]) -> list[Media]:
        return [Media(start, n, Picture(1, n).rows, False) for start, n in places]

    assert points.marks(0, range(100), []) == [84]
    assert points.marks(90, range(100), []) == [90]
    assert points.marks(0, range(100), media((10, 20), (40, 5))) == [30, 45, 84]
    assert points.marks(35, range(100), media((10, 20), (40, 5))) == [45, 84]
    assert points.marks(0, range(100), media((60, 30))) == [90]
    assert points.marks(0, range(10), []) == []
    assert Checkpoints(0).marks(0, range(100), []) == []


def test_other_slots_keep_what_they_hold() -> None:
    target = target_of(n_slots=2)
    engine = engine_of(target)
    long, short = words(1, 60), words(2, 30)
    slots = [engine.submit(Request(p, max_tokens=80)) for p in (long, short)]
    while engine.step():
        pass
    held = target.tokens(slots[1])
    assert said(engine, long)[0] == fresh(long)
    assert target.tokens(slots[1]) == held
    assert said(engine, [*short, 7])[0] == fresh([*short, 7])


def test_a_foreign_checkpoint_is_noticed_by_the_fake() -> None:
    target = target_of()
    said(engine_of(target), words(1, 50))
    state = target.checkpoint(0)
    target.remove(0, 0)
    said(engine_of(target), words(2, 50))
    with pytest.raises(EngineError, match="another text"):
        target.restore(0, state)


def test_reading_ahead_leaves_the_last_token_to_do() -> None:
    engine, prompt = engine_of(target_of()), words(1, 100)
    answer, _ = said(engine, prompt)
    history = [*prompt[:-4], *answer]
    done = [event.done for event in engine.read(Request(history))]
    assert done[-1] == len(history)
    tokens, end = said(engine, [*history, 5, 6])
    assert tokens == fresh([*history, 5, 6])
    assert end.statistics.evaluated == 2
    # One who leaves in the middle loses nothing of what was read.
    other = words(5, 200)
    reading = engine.read(Request(other))
    next(reading)
    done_at = next(reading).done
    reading.close()
    assert said(engine, other)[1].statistics.cached == done_at


@pytest.mark.parametrize("offset", range(4))
def test_ctrl_c_at_any_line_leaves_cells_text_and_checkpoints_true(offset: int) -> None:
    target = target_of()
    engine = engine_of(target)
    prompts = [words(1, 60), words(1, 50) + words(2, 40), words(1, 45), [*words(1, 60), 3]]
    expected = {tuple(prompt): fresh(prompt, 20) for prompt in prompts}
    line = 1 + offset
    for round in range(60):
        prompt = prompts[(round + offset) % len(prompts)]
        seen: list[int] = []
        stream = engine.generate(Request(prompt, max_tokens=20))
        with suppress(KeyboardInterrupt), interrupted_at(line, ENGINE, without="backend.py"):
            seen += (event.token for event in stream if isinstance(event, Token))
        line += 61
        assert seen == expected[tuple(prompt)][: len(seen)]
        # What a Ctrl-C during the tidying of another may leave.
        engine.stop_all()
        slot = engine._slots[0]
        assert target.tokens(0)[: slot.held] == tuple(slot.text[: slot.held])
        again = prompts[round % len(prompts)]
        assert said(engine, again, 20)[0] == expected[tuple(again)]

"""Images and sounds in a prompt: decoded whole, once, and drafted after, on the fake backend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemmtp.engine.backend import FakeDrafter, FakeTarget, Floats
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import MtpDrafting, NoDrafting
from gemmtp.engine.engine import Engine, Event, Finished, Prefill, Request, Token
from gemmtp.engine.media import Media, stand_ins
from gemmtp.errors import EngineError, UsageError


class Picture:
    """Embedding rows that count how often they are asked for."""

    def __init__(self, seed: int, n: int) -> None:
        self.values = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
        self.ids = stand_ins(bytes([seed]), n)
        self.asked = 0

    def rows(self) -> Floats:
        self.asked += 1
        return self.values


def prompt_of(*parts: list[int] | Picture, causal: bool = False) -> Request:
    prompt: list[int] = []
    media = []
    for part in parts:
        if isinstance(part, Picture):
            media.append(Media(len(prompt), len(part.ids), part.rows, causal))
            prompt += part.ids
        else:
            prompt += part
    return Request(prompt, max_tokens=20, media=tuple(media))


def engine_of(target: FakeTarget, depth: int = 3) -> Engine:
    return Engine(target, MtpDrafting(FakeDrafter(target, 0.8)), FixedDepth(depth))


def said(engine: Engine, request: Request) -> tuple[list[int], Finished]:
    events = list(engine.generate(request))
    end = events[-1]
    assert isinstance(end, Finished)
    return [e.token for e in events if isinstance(e, Token)], end


def fresh(request: Request) -> list[int]:
    """What plain decoding says on an empty cache."""
    return said(Engine(FakeTarget(), NoDrafting("plain")), request)[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_drafted_equals_plain_after_images(causal: bool, depth: int) -> None:
    parts = ([1, 2], Picture(1, 20), [3], Picture(2, 7), Picture(3, 5), [4, 5])
    tokens, end = said(engine_of(FakeTarget(), depth), prompt_of(*parts, causal=causal))
    assert tokens == fresh(prompt_of(*parts, causal=causal))
    assert end.statistics.evaluated == 2 + 20 + 1 + 7 + 5 + 2
    assert end.statistics.drafted > 0 or depth == 0


def test_an_image_is_decoded_whole_and_a_sound_in_pieces() -> None:
    target = FakeTarget(max_rows=16, max_outputs=16, max_media=40)
    engine = engine_of(target)
    said(engine, prompt_of([1] * 20, Picture(1, 40), [2] * 3))
    assert target.media == [40]
    said(engine, prompt_of([9], Picture(1, 40), [2] * 3, causal=True))
    assert target.media == [40, 16, 16, 8]


def test_the_next_turn_neither_encodes_nor_decodes_the_image_again() -> None:
    target, picture = FakeTarget(), Picture(1, 30)
    engine = engine_of(target)
    said(engine, prompt_of([1], picture, [2, 3]))
    again = prompt_of([1], picture, [2, 4, 4])
    tokens, end = said(engine, again)
    assert (picture.asked, target.media) == (1, [30])
    assert (end.statistics.cached, end.statistics.evaluated) == (32, 2)
    assert tokens == fresh(again)


def test_another_image_in_its_place_is_seen() -> None:
    engine, other = engine_of(FakeTarget()), Picture(2, 30)
    said(engine, prompt_of([1], Picture(1, 30), [2]))
    request = prompt_of([1], other, [2])
    tokens, end = said(engine, request)
    assert end.statistics.cached == 1
    assert tokens == fresh(request)


def test_an_image_is_never_kept_in_part() -> None:
    # A shorter beginning of the same stand-ins, as no picture would have them.
    engine, picture = engine_of(FakeTarget()), Picture(1, 30)
    said(engine, prompt_of([1], picture, [2]))
    ids = picture.ids[:29] + stand_ins(b"other", 1)
    request = Request([1, *ids, 2], media=(Media(1, 30, picture.rows, False),), max_tokens=5)
    assert said(engine, request)[1].statistics.cached == 1


def test_stand_ins_belong_to_content_and_size() -> None:
    assert stand_ins(b"a", 5) == stand_ins(b"a", 5)
    assert len({stand_ins(b"a", 5)[0], stand_ins(b"b", 5)[0], stand_ins(b"a", 6)[0]}) == 3
    assert all(-(2**63) < i < 0 for i in stand_ins(b"a", 1000))


def test_other_answers_wait_for_no_more_than_one_image() -> None:
    target = FakeTarget(n_slots=2, max_media=32)
    engine = engine_of(target)
    speaker = engine.submit(Request([1, 2], max_tokens=60))
    engine.step()
    pictures = [Picture(i, 30) for i in range(4)]
    newcomer = engine.submit(prompt_of([5], *pictures, [6]))
    seen: list[Event] = []
    while not any(isinstance(e, Token) and e.slot == newcomer for e in seen):
        step = engine.step()
        assert any(isinstance(e, Token) and e.slot == speaker for e in step)
        seen += step
    # One step for each image; the first token shares the first image's.
    filled = [e.done for e in seen if isinstance(e, Prefill)]
    assert filled == [1, 31, 61, 91, 121, 122]


def test_an_encoder_that_fails_leaves_a_usable_slot() -> None:
    engine, picture = engine_of(FakeTarget()), Picture(1, 30)

    def broken() -> Floats:
        raise KeyboardInterrupt

    request = prompt_of([1, 2], picture, [3])
    media = (Media(2, 30, broken, False),)
    with pytest.raises(KeyboardInterrupt):
        list(engine.generate(Request(request.prompt, media=media)))
    tokens, end = said(engine, request)
    assert end.statistics.cached == 2
    assert tokens == fresh(request)


def nothing() -> Floats:
    return np.zeros((3, 4), np.float32)


Place = tuple[int, int]


@pytest.mark.parametrize(
    ("prompt", "places", "words"),
    [
        ([1, -5, -6, -7], [(1, 3)], "Words must follow"),
        ([1, -5, -6, -7, 2], [], "outside 0..39"),
        ([1, -5, -6, -7, 2], [(1, 2)], "outside 0..39"),
        ([1, -5, 3, -7, 2], [(1, 3)], "A token stands"),
        ([1, -5, -6, 2], [(1, 9)], "outside the prompt"),
        ([1, -5, -6, 2], [(1, 2), (2, 1)], "over another"),
        ([1, -5, 2], [(1, 0)], "outside the prompt"),
        ([1, *stand_ins(b"", 65), 2], [(1, 65)], "65 tokens does not fit into a batch of 64"),
        ([1, -5, 40], [(1, 1)], "outside 0..39"),
    ],
)
def test_misplaced_media_are_refused(prompt: list[int], places: list[Place], words: str) -> None:
    media = tuple(Media(start, n, nothing, False) for start, n in places)
    with pytest.raises(UsageError, match=words):
        engine_of(FakeTarget()).submit(Request(prompt, media=media))


@pytest.mark.parametrize("give", [nothing, lambda: np.zeros((5, 4), np.float32)])
def test_a_picture_of_another_size_than_promised_is_an_error(give: Callable[[], Floats]) -> None:
    request = Request([1, *stand_ins(b"", 4), 2], media=(Media(1, 4, give, False),))
    with pytest.raises(EngineError, match="rows instead of 4"):
        list(engine_of(FakeTarget()).generate(request))

"""Prompt lookup: what it proposes, what it learns, when it is preferred; no text changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtp.engine.backend import FakeDrafter, FakeTarget, Floats
from gemmtp.engine.combined import CombinedDrafting
from gemmtp.engine.depth import DepthChooser, FixedDepth, Round
from gemmtp.engine.drafting import Draft, MtpDrafting, NoDrafting, Want
from gemmtp.engine.engine import Engine, Finished, Request, Token
from gemmtp.engine.lookup import LookupText, MatchAcceptance
from gemmtp.engine.ngrams import NGrams
from gemmtp.engine.processors import SuppressTokens
from gemmtp.engine.sampling import SamplingParameters
from tests.support.interruption import interrupted_at


@settings(max_examples=80, deadline=None)
@given(
    steps=st.lists(st.tuples(st.lists(st.integers(-1, 2), max_size=12), st.integers(0, 12))),
    size=st.integers(1, 3),
)
def test_the_index_finds_every_place_however_often_the_text_is_cut(
    steps: list[tuple[list[int], int]], size: int
) -> None:
    index, text = NGrams((size, size + 1)), []
    for tokens, cut in steps:
        for token in tokens:
            index.append(token)
            text.append(token)
        cut = min(cut, len(text))
        index.rollback(cut)
        del text[len(text) - cut :]
        assert index.tokens == text
        end = text[-size:]
        places = [
            at
            for at in range(len(text) - 2, size - 2, -1)
            if text[at + 1 - size : at + 1] == end and len(end) == size and min(end) >= 0
        ]
        assert list(index.ends(size)) == places


def followed(text: Sequence[int]) -> LookupText:
    lookup = LookupText()
    lookup.follow(text)
    return lookup


def test_the_longest_match_wins_and_the_latest_of_equals() -> None:
    #                 0  1  2  3  4  5  6  7  8  9
    lookup = followed([1, 2, 3, 9, 2, 3, 8, 7, 1, 2, 3])
    match = lookup.longest()
    assert match is not None
    assert (match.at, match.length) == (2, 3)
    assert lookup.continuation(match.at, 3) == [9, 2, 3]
    lookup = followed([2, 3, 9, 2, 3, 8, 2, 3])
    match = lookup.longest()
    assert match is not None
    assert lookup.continuation(match.at, 1) == [8]


def test_a_period_goes_on_beyond_the_texts_end() -> None:
    lookup = followed([5, 1, 2, 3, 1, 2, 3])
    match = lookup.longest()
    assert match is not None
    assert lookup.continuation(match.at, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_images_are_neither_matched_nor_proposed() -> None:
    assert followed([1, -7, -8, 2, -7, -8]).longest() is None
    lookup = followed([1, 2, 3, -7, 1, 2])
    match = lookup.longest()
    assert match is not None
    assert lookup.continuation(match.at, 5) == [3]


def test_another_text_in_the_same_slot_keeps_what_both_begin_with() -> None:
    lookup = followed([1, 2, 3, 4, 5])
    assert lookup.follow([1, 2, 3, 4, 5, 6]) == [6]
    lookup.begin()
    assert lookup.follow([1, 2, 9, 1, 2]) is None
    match = lookup.longest()
    assert match is not None
    assert lookup.continuation(match.at, 1) == [9]


def test_ctrl_c_may_come_while_a_text_is_taken_in() -> None:
    for line in itertools.count(1):
        lookup = followed([1, 2, 3, 1, 2, 3])
        lookup.begin()
        with suppress(KeyboardInterrupt), interrupted_at(line, "ngrams", "lookup") as run:
            lookup.follow([1, 2, 4, 1, 2, 4, 5])
        for text in ([1, 2, 5, 6], [9, 8, 1, 9, 8]):
            lookup.begin()
            lookup.follow(text)
        assert lookup.longest() == (1, 2)
        assert lookup.continuation(1, 2) == [1, 9]
        if run[0] < line:
            break
    assert line > 50


def test_acceptance_is_learned_by_the_length_of_the_match() -> None:
    kept = MatchAcceptance()
    for _ in range(100):
        kept.learn(2, [1, 2, 3], [7])
        kept.learn(20, [1, 2, 3], [1, 2, 3, 4])
    assert kept.at(2) < 0.05
    assert kept.at(20) > 0.95
    assert kept.tokens(20, 3)[3] == pytest.approx(4, abs=0.3)


def want(history: list[int], slot: int = 0, depth: int = 3) -> Want:
    return Want(
        slot, history[-1], len(history) - 1, np.zeros(1, np.float32), depth, history, (),
        frozenset({99}), most=15,
    )  # fmt: skip


STALL_EVERY = 11


class Machine:
    """Plays rounds against a source: the text that is said, and what a row costs."""

    def __init__(
        self, said: list[int], prompt: list[int], mtp: float, a_row: float, stall: float = 1.0
    ) -> None:
        self.source = CombinedDrafting(Steady(mtp))
        self.said, self.text, self.a_row = said, list(prompt), a_row
        self.seconds, self.sources = 0.0, []  # type: float, list[str]
        self.stall = stall

    def play(self) -> float:
        """Tokens a second over the whole text."""
        self.source.begin(0)
        at = 0
        while at < len(self.said):
            (draft,) = self.source.draft([want(self.text)])
            rest = self.said[at:]
            if draft.source == "lookup":
                kept = next(
                    (i for i, t in enumerate(draft.tokens) if rest[i : i + 1] != [t]),
                    len(draft.tokens),
                )
                steps = 0
            else:
                kept, steps = draft.tokens[0], 3
            self.sources.append(draft.source)
            verify = 1.0 + self.a_row * len(draft.tokens)
            verify *= self.stall if len(self.sources) % STALL_EVERY == 0 else 1.0
            self.source.observe(Round(1, len(draft.tokens) + 1, steps, 0.1 * steps, verify))
            self.seconds += 0.1 * steps + verify
            self.text += rest[: kept + 1]
            at += kept + 1
        return at / self.seconds


class Steady(NoDrafting):
    """A drafter that keeps ``kept`` of its three tokens in every round."""

    no_drafter: str | None = None

    def __init__(self, kept: float) -> None:
        super().__init__("only its acceptance matters here")
        self.no_drafter = None
        self._kept, self._owed = kept, 0.0

    def draft(self, wants):  # type: ignore[no-untyped-def]
        if not wants[0].depth:
            return [Draft()]
        self._owed += self._kept
        kept = int(self._owed)
        self._owed -= kept
        return [Draft([kept, 0, 0])]


def random_text(n: int, seed: int, vocabulary: int = 1000) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, vocabulary, n)]


def test_a_copy_is_looked_up_and_is_faster_for_it() -> None:
    prompt = random_text(400, 1)
    copy = [*prompt[:200], 1001, *prompt[201:]]
    machine = Machine(copy, prompt, mtp=2.0, a_row=0.05)
    assert machine.play() > 1.5 * 3.0 / 1.45
    assert machine.sources.count("lookup") > machine.sources.count("mtp")


@pytest.mark.parametrize("a_row", [0.02, 0.5])
@pytest.mark.parametrize("mtp", [0.2, 2.5])
@pytest.mark.parametrize("stall", [1.0, 6.0])
def test_it_is_never_much_slower_on_misleading_texts(
    a_row: float, mtp: float, stall: float
) -> None:
    # Few tokens: matches of two or three are everywhere, and mean nothing.
    said = random_text(3000, 2, vocabulary=6)
    machine = Machine(said, random_text(400, 3, vocabulary=6), mtp, a_row, stall)
    stalls = 1 + (stall - 1) / STALL_EVERY
    assert machine.play() > 0.96 * (1 + mtp) / (0.3 + (1 + 3 * a_row) * stalls)


def test_a_short_text_after_a_long_one_is_measured_anew() -> None:
    source = CombinedDrafting(NoDrafting("none"))
    source.begin(0)
    text = [1, 2, 3] * 20
    for context in (50_000, 50_000, 50_000, 50_000, 50_000):
        source.draft([want(text)])
        source.observe(Round(1, 1, 0, 0.0, 1.0, context))
        text.append(text[-3])
    assert source.draft([want(text)])[0].tokens == []
    source.observe(Round(1, 1, 0, 0.0, 1.0, len(text)))
    text.append(text[-3])
    assert source.draft([want(text)])[0].source == "lookup"


def test_the_drafter_is_tried_again_while_a_text_is_copied() -> None:
    prompt = random_text(3000, 4)
    machine = Machine(prompt, prompt, mtp=2.0, a_row=0.05)
    machine.play()
    assert "mtp" in machine.sources[30:]


def test_a_neighbour_that_has_ended_says_nothing_of_the_text_that_goes_on() -> None:
    source = CombinedDrafting(NoDrafting("none"))
    fresh, copied = random_text(40, 6), [*random_text(20, 7)] * 2
    for slot in (0, 1):
        source.begin(slot)
    source.draft([want(fresh[:20], 0), want(copied, 1)])
    assert source._last.copying
    source.draft([want(fresh[:21], 0)])
    assert not source._last.copying


class Parrot(FakeTarget):
    """A target that likes to say what its prompt said: its text is easy to look up."""

    def next_logits(self, history: Sequence[int]) -> Floats:
        logits = super().next_logits(tuple(history[-2:]))
        logits[(history[-1] * 7 + 3) % self.n_vocab] += 4.0
        return logits


def said(request: Request, source: str, depth: DepthChooser, skill: float = 0.5) -> list[Token]:
    target = Parrot(n_vocab=12, n_ctx=250, window=5)
    drafting = NoDrafting("plain")
    if source in ("mtp", "both"):
        drafting = MtpDrafting(FakeDrafter(target, skill))  # type: ignore[assignment]
    engine = Engine(
        target, CombinedDrafting(drafting) if source in ("both", "lookup") else drafting, depth
    )
    *events, end = engine.generate(request)
    assert isinstance(end, Finished)
    return [event for event in events if isinstance(event, Token)]


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 11), min_size=1, max_size=40),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 100),
    max_tokens=st.integers(1, 150) | st.none(),
    stop_tokens=st.frozensets(st.integers(0, 11), max_size=1),
    processors=st.sampled_from([(), (SuppressTokens([3]),)]),
    source=st.sampled_from(["both", "lookup"]),
)
def test_a_text_is_the_same_with_lookup_and_without(
    prompt: list[int],
    temperature: float,
    seed: int,
    max_tokens: int | None,
    stop_tokens: frozenset[int],
    processors: tuple[SuppressTokens, ...],
    source: str,
) -> None:
    request = Request(
        prompt,
        SamplingParameters(temperature, seed=seed),
        max_tokens,
        stop_tokens,
        None,
        processors,
    )
    plain = said(request, "none", FixedDepth(0))
    drafted = said(request, source, FixedDepth(3))
    assert [t.token for t in drafted] == [t.token for t in plain]


def test_lookup_alone_drafts_and_says_so() -> None:
    target = Parrot(n_vocab=12, n_ctx=400)
    engine = Engine(target, CombinedDrafting(NoDrafting("no drafter here")), FixedDepth(3))
    *_, end = engine.generate(Request([1, 2, 3], max_tokens=300))
    assert isinstance(end, Finished)
    assert engine.drafting.reason is None
    assert engine.drafting.no_drafter == "no drafter here"
    assert set(end.statistics.by_source) == {"lookup"}
    counts = end.statistics.by_source["lookup"]
    assert 0 < counts.accepted <= counts.drafted == end.statistics.drafted
    assert end.statistics.drafted_at == []
    assert end.statistics.tokens_per_round > 1.5


def test_depth_0_means_no_lookup_either() -> None:
    target = Parrot(n_vocab=12, n_ctx=400)
    engine = Engine(target, CombinedDrafting(NoDrafting("none")), FixedDepth(3))
    *_, end = engine.generate(Request([1, 2, 3], max_tokens=200, depth=FixedDepth(0)))
    assert isinstance(end, Finished)
    assert end.statistics.drafted == 0

"""A full context: what leaves it, what stands for it, and that nothing leaves it in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.pieces import Dropped, Piece, TurnEnd, Words
from gemmtp.chat.room import SUMMARY_HEAD, SUMMARY_REQUEST, Overflow, answer_room, cut, summary_room
from gemmtp.engine.backend import Floats
from gemmtp.errors import PromptTooLongError
from gemmtp.prompt.conversation import Message
from tests.support.fake_voice import FakeVoice

FILLING = "abc " * 8


def user(text: str) -> Message:
    return Message.of("user", text)


def exchanges(n: int) -> list[Message]:
    return [m for i in range(n) for m in (user(f"{FILLING}{i}"), Message.of("assistant", FILLING))]


class Asked:
    """The hook, which remembers what it was asked."""

    def __init__(self, how: Overflow) -> None:
        self.how = how
        self.asked: list[tuple[int, int]] = []

    def __call__(self, needed: int, free: int) -> Overflow:
        self.asked.append((needed, free))
        return self.how


def dialogue_of(asked: Asked, n_ctx: int = 400, past: int = 4, **options: Any) -> Dialogue:
    dialogue = Dialogue(FakeVoice(n_ctx), overflow=asked, **options)
    dialogue.load(exchanges(past))
    return dialogue


def dropped(pieces: list[Piece]) -> list[Dropped]:
    return [piece for piece in pieces if isinstance(piece, Dropped)]


def test_nobody_is_asked_while_there_is_room() -> None:
    asked = Asked("shift")
    assert not dropped(list(dialogue_of(asked, past=2, max_tokens=9).ask(user("abc"))))
    assert not asked.asked


def test_stop_keeps_everything_and_refuses_what_does_not_fit() -> None:
    asked = Asked("stop")
    dialogue = dialogue_of(asked)
    before = list(dialogue.messages)
    with pytest.raises(PromptTooLongError, match=r"would take \d+ tokens; the context holds 400"):
        list(dialogue.ask(user(4 * FILLING)))
    assert dialogue.messages == before
    assert dialogue.last is None
    (needed, free), used = asked.asked[0], dialogue.usage().used
    assert free == 400 - used
    assert needed == len(dialogue._prompt([*before, user(4 * FILLING)])[0]) - used + 50


def test_stop_lets_an_answer_run_into_the_end() -> None:
    # The model's own end is out of reach, so that only the context ends the answer.
    dialogue = dialogue_of(Asked("stop"), past=3, processors=(NeverEnding(),))
    *_, end = dialogue.ask(user("abc"))
    assert isinstance(end, TurnEnd)
    assert end.reason == "context"
    assert not dialogue.complete
    assert dialogue.messages[-1].text


@pytest.mark.parametrize("how", ["shift", "summarise"])
def test_the_oldest_turns_go_and_are_named(how: Overflow) -> None:
    dialogue = dialogue_of(Asked(how), max_tokens=20)
    before = list(dialogue.messages)
    pieces = list(dialogue.ask(user(FILLING)))
    (gone,) = dropped(pieces)
    assert gone.turns == len(gone.messages) // 2 >= 1
    assert [*gone.messages, *dialogue.messages[:-2]] == before
    assert dialogue.messages[-2] == user(FILLING)
    assert isinstance(pieces[-1], TurnEnd)
    # A quarter of the context is free again, so that the next turn reads no gap.
    assert dialogue.usage().used < 400 - 400 // 4 + summary_room(400)


def test_a_summary_stands_where_the_turns_were() -> None:
    dialogue = dialogue_of(Asked("summarise"), max_tokens=20)
    oldest = dialogue.messages[:]
    (gone,) = dropped(list(dialogue.ask(user(FILLING))))
    assert gone.summary
    assert dialogue.summary == gone.summary
    assert dialogue.usage().summary == len(gone.summary)
    told = dialogue._told(dialogue.messages)[0]
    assert (told.role, told.text) == ("system", SUMMARY_HEAD + gone.summary)
    # It is what the model itself says when it is asked about these turns.
    alone = Dialogue(FakeVoice(2000, drafts=False), max_tokens=summary_room(400))
    alone.load(oldest[: len(gone.messages)])

    said = [p for p in alone.ask(user(SUMMARY_REQUEST)) if isinstance(p, Words)]
    text = "".join(p.text for p in said if p.channel == "answer").strip()
    assert gone.summary == text


def test_a_summary_takes_no_form() -> None:
    class OneLetter(NeverEnding):
        def apply(self, logits: Floats, history: Sequence[int]) -> None:
            logits[:] = -1e9
            logits[10] = 0.0

    free = dialogue_of(Asked("summarise"), max_tokens=20)
    held = dialogue_of(Asked("summarise"), max_tokens=20, form=lambda *given: OneLetter())
    (expected,), (gone,) = (dropped(list(d.ask(user(FILLING)))) for d in (free, held))
    assert gone.summary == expected.summary
    assert len(set(held.messages[-1].text)) == 1


def test_a_shift_keeps_an_earlier_summary() -> None:
    dialogue = dialogue_of(Asked("shift"), max_tokens=20)
    dialogue.summary = "abc"
    list(dialogue.ask(user(FILLING)))
    assert dialogue.summary == "abc"


@pytest.mark.parametrize("how", ["shift", "summarise"])
def test_one_message_that_is_too_long_is_refused_whatever_is_wished(how: Overflow) -> None:
    asked = Asked(how)
    dialogue = dialogue_of(asked, past=1)
    before = list(dialogue.messages)
    with pytest.raises(PromptTooLongError):
        list(dialogue.ask(user("abc " * 120)))
    assert dialogue.messages == before
    assert not asked.asked


def test_an_answer_goes_on_behind_dropped_turns() -> None:
    dialogue = dialogue_of(Asked("shift"), past=3, processors=(NeverEnding(),), max_tokens=150)
    pieces = list(dialogue.ask(user("abc")))
    gone = dropped(pieces)
    assert gone
    end = pieces[-1]
    assert isinstance(end, TurnEnd)
    assert (end.reason, end.statistics.generated) == ("length", 150)
    # The words before and behind the gap are one answer.
    before = [p for p in pieces[: pieces.index(gone[0])] if isinstance(p, Words)]
    assert before
    text = "".join(p.text for p in pieces if isinstance(p, Words) and p.channel == "answer")
    assert dialogue.messages[-1].text == text
    # Behind the gap the model sees the kept turns and what it had said.
    prompt, _ = dialogue._prompt(dialogue.messages[:-1])
    read = dialogue.pair.engine.text(0)
    assert (read[: len(prompt)], len(read)) == (prompt, len(prompt) + 150)


def test_a_turn_alone_in_the_context_ends_there() -> None:
    dialogue = dialogue_of(Asked("shift"), past=0, processors=(NeverEnding(),))
    pieces = list(dialogue.ask(user("abc")))
    assert isinstance(pieces[-1], TurnEnd)
    assert pieces[-1].reason == "context"
    assert not dropped(pieces)


def test_rooms_and_cuts() -> None:
    assert answer_room(8192, None) == 256
    assert answer_room(400, None) == 50
    assert answer_room(8192, 10) == 10
    assert summary_room(800) == 100
    messages = exchanges(4)
    assert cut(messages, lambda kept: len(kept) <= 4) == 4
    assert cut(messages, lambda kept: True) == 2
    assert cut(messages, lambda kept: False) == 6
    assert cut(exchanges(1), lambda kept: False) is None


def test_a_long_conversation_is_rendered_a_few_times_to_find_the_cut() -> None:
    messages, asked = exchanges(1000), []

    def fits(kept: Sequence[Message]) -> bool:
        asked.append(len(kept))
        return len(kept) <= 1234

    assert cut(messages, fits) == 2000 - 1234
    assert len(asked) < 12


class NeverEnding:
    """A processor that forbids the end of the turn and every other marker."""

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        logits[:7] = -1e9

    def accept(self, token: int) -> None:
        pass

    def rollback(self, n: int) -> None:
        pass

    def fork(self) -> NeverEnding:
        return self

"""Ctrl-C while a prompt is read, a draft made, an answer written, a summary asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.pieces import Piece, Reading, TurnEnd, Words
from gemmtp.prompt.conversation import Message
from tests.support.fake_voice import FakeVoice


def user(text: str) -> Message:
    return Message.of("user", text)


def interrupt_at_call(owner: object, name: str, n: int) -> None:
    """Let Ctrl-C come right after the ``n``-th call of a method, as it does out of native code."""
    method: Callable[..., Any] = getattr(owner, name)
    calls = [0]

    def interrupted(*arguments: Any) -> Any:
        calls[0] += 1
        result = method(*arguments)
        if calls[0] == n:
            raise KeyboardInterrupt
        return result

    setattr(owner, name, interrupted)


def answered(dialogue: Dialogue, text: str) -> list[Piece]:
    pieces = list(dialogue.ask(user(text)))
    end = pieces[-1]
    assert isinstance(end, TurnEnd)
    return pieces


@pytest.mark.parametrize("call", [1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize("place", ["decode", "logits", "remove", "step"])
def test_the_turn_ends_as_interrupted_and_the_next_one_is_right(place: str, call: int) -> None:
    voice = FakeVoice(2000, window=8)
    dialogue = Dialogue(voice, max_tokens=40)
    answered(dialogue, "abc")
    owner = voice.engine.drafting._drafter if place == "step" else voice.target  # type: ignore[attr-defined]
    method = getattr(owner, place)
    interrupt_at_call(owner, place, call)
    before = list(dialogue.messages)
    try:
        pieces = answered(dialogue, "def " * 12)
    except KeyboardInterrupt:
        # It came before anything was read.
        assert dialogue.messages == before
    else:
        assert pieces[-1] == dialogue.last
        text = "".join(p.text for p in pieces if isinstance(p, Words) and p.channel == "answer")
        assert dialogue.messages[-1].text == text
    setattr(owner, place, method)
    fresh = Dialogue(FakeVoice(2000, drafts=False), max_tokens=40)
    fresh.load(dialogue.messages)
    answered(dialogue, "ghi")
    answered(fresh, "ghi")
    assert dialogue.messages == fresh.messages


def test_most_of_those_interrupts_do_end_the_turn() -> None:
    voice = FakeVoice(2000, window=8)
    dialogue = Dialogue(voice, max_tokens=40)
    interrupt_at_call(voice.target, "decode", 2)
    *_, end = answered(dialogue, "def " * 12)
    assert isinstance(end, TurnEnd)
    assert end.reason == "interrupted"
    assert dialogue.messages == [user("def " * 12), Message("assistant")]
    # An answer without a word is not shown to the model.
    assert dialogue._told(dialogue.messages) == [user("def " * 12)]


def test_a_prompt_that_was_read_in_part_goes_on_from_there() -> None:
    voice = FakeVoice(2000)
    dialogue = Dialogue(voice, max_tokens=40)
    pieces = dialogue.ask(user("abcdefgh" * 20))
    first = next(pieces)
    assert isinstance(first, Reading)
    pieces.close()
    *_, end = dialogue.regenerate()
    assert isinstance(end, TurnEnd)
    assert end.statistics.cached == first.done


def test_ctrl_c_while_a_summary_is_written_drops_nothing() -> None:
    voice = FakeVoice(400)
    dialogue = Dialogue(voice, max_tokens=20, overflow=lambda needed, free: "summarise")
    past = [m for i in range(4) for m in (user("abc " * 8), Message.of("assistant", "abc " * 8))]
    dialogue.load(past)
    interrupt_at_call(voice.target, "decode", 4)
    *_, end = answered(dialogue, "abc " * 8)
    assert isinstance(end, TurnEnd)
    assert end.reason == "interrupted"
    assert dialogue.messages[:-2] == past
    assert dialogue.summary == ""


def test_ctrl_c_between_a_slot_and_its_number_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    voice = FakeVoice()
    dialogue = Dialogue(voice, max_tokens=40)
    submit = voice.engine.submit
    monkeypatch.setattr(voice.engine, "submit", lambda request: _raise(submit(request)))
    *_, end = answered(dialogue, "abc")
    assert isinstance(end, TurnEnd)
    assert end.reason == "interrupted"
    monkeypatch.undo()
    *_, end = dialogue.regenerate()
    assert isinstance(end, TurnEnd)
    assert end.reason != "interrupted"


def _raise(index: int) -> int:
    raise KeyboardInterrupt

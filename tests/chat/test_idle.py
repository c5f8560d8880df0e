"""The history is read while the user types, and the next turn starts at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.idle import reading_ahead
from gemmtp.chat.pieces import Piece, TurnEnd
from gemmtp.engine.backend import Row
from gemmtp.errors import EngineError
from gemmtp.prompt.conversation import Message
from tests.support.fake_voice import FakeVoice


def user(text: str) -> Message:
    return Message.of("user", text)


def talked(window: int = 0) -> Dialogue:
    dialogue = Dialogue(FakeVoice(2000, window), max_tokens=60)
    list(dialogue.ask(user("abc")))
    return dialogue


def cached(pieces: list[Piece]) -> tuple[int, int]:
    end = pieces[-1]
    assert isinstance(end, TurnEnd)
    return end.statistics.cached, end.statistics.evaluated


def settled(dialogue: Dialogue) -> None:
    with reading_ahead(dialogue):
        for thread in readers():
            thread.join()


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "reading ahead"]


@pytest.mark.parametrize("window", [0, 8])
def test_what_was_read_ahead_is_not_read_again(window: int) -> None:
    dialogue = talked(window)
    settled(dialogue)
    history = len(dialogue.history()[0])
    assert cached(list(dialogue.ask(user("de"))))[0] == history


def test_leaving_at_once_costs_nothing_but_what_was_not_read() -> None:
    dialogue = talked()
    with reading_ahead(dialogue):
        pass
    assert not readers()
    fresh = Dialogue(FakeVoice(2000, drafts=False), max_tokens=60)
    fresh.load(dialogue.messages)
    list(dialogue.ask(user("de")))
    list(fresh.ask(user("de")))
    assert dialogue.messages == fresh.messages


def test_nothing_is_read_before_anything_was_said() -> None:
    dialogue = Dialogue(FakeVoice())
    assert list(dialogue.settle()) == []
    assert dialogue.history() == ([], ())


def test_a_failure_is_left_for_the_next_turn_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    dialogue = talked()

    def broken(rows: Sequence[Row]) -> None:
        raise EngineError("The device is gone.")

    monkeypatch.setattr(dialogue.pair.engine.target, "decode", broken)
    with reading_ahead(dialogue):
        pass
    with pytest.raises(EngineError, match="device is gone"):
        list(dialogue.ask(user("de")))


def test_ctrl_c_at_the_prompt_waits_for_the_reading_to_end() -> None:
    dialogue = talked()
    with pytest.raises(KeyboardInterrupt), reading_ahead(dialogue):
        raise KeyboardInterrupt
    assert not readers()

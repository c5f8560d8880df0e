"""Any sequence of turns and interruptions keeps cache, text and messages true.

The model of the state is plain: the messages as they should be, and for every answer what a fresh
engine without a window, a drafter or a past says to the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import islice
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.pieces import Dropped, Piece, TurnEnd, Words
from gemmtp.chat.room import Overflow
from gemmtp.errors import GemmtpError
from gemmtp.prompt.conversation import Message
from tests.support.fake_voice import FakeVoice
from tests.support.interruption import interrupted_at

WINDOW = 8
LINES = ("gemmtp/engine/", "gemmtp/chat/")
MOST = 60
TEXTS = st.text("abcdefg <|>", min_size=1, max_size=12)
Turn = Literal["ask", "edit", "regenerate"]
TURNS: st.SearchStrategy[Turn] = st.sampled_from(("ask", "edit", "regenerate"))


class Turns(RuleBasedStateMachine):
    """A dialogue beside what it should hold."""

    @initialize(
        n_ctx=st.sampled_from((120, 300, 2000)),
        budget=st.sampled_from((0, 300, 1 << 20)),
        how=st.sampled_from(("stop", "shift", "summarise")),
    )
    def begin(self, n_ctx: int, budget: int, how: Overflow) -> None:
        self.n_ctx, self.how = n_ctx, how
        self.voice = FakeVoice(n_ctx, WINDOW)
        self.dialogue = self.made(self.voice)
        self.voice.engine.checkpoints.budget = budget

    def made(self, voice: FakeVoice) -> Dialogue:
        return Dialogue(
            voice,
            max_tokens=MOST,
            overflow=lambda needed, free: self.how,
            checkpoint_bytes=1 << 20,
        )

    def expected(self, turn: Turn, text: str) -> tuple[list[Piece], Dialogue]:
        """All pieces of a turn as a fresh engine gives them, and its dialogue afterwards."""
        fresh = self.made(FakeVoice(self.n_ctx, drafts=False))
        fresh.system, fresh.thinking = self.dialogue.system, self.dialogue.thinking
        fresh.load(self.dialogue.messages, self.dialogue.summary)
        return list(begun(fresh, turn, text)), fresh

    @rule(turn=TURNS, text=TEXTS)
    def a_turn(self, turn: Turn, text: str) -> None:
        try:
            pieces, fresh = self.expected(turn, text)
        except GemmtpError as error:
            before = list(self.dialogue.messages)
            with pytest.raises(type(error)):
                list(begun(self.dialogue, turn, text))
            assert self.dialogue.messages == before
            return
        mine = list(begun(self.dialogue, turn, text))
        assert words(mine) == words(pieces)
        assert [p for p in mine if isinstance(p, Dropped)] == [
            p for p in pieces if isinstance(p, Dropped)
        ]
        assert self.dialogue.messages == fresh.messages
        assert self.dialogue.summary == fresh.summary
        ends = mine[-1], pieces[-1]
        assert [e.reason for e in ends if isinstance(e, TurnEnd)] == [fresh.last.reason] * 2  # type: ignore[union-attr]

    @rule(turn=TURNS, text=TEXTS, pieces=st.integers(1, 40))
    def a_turn_that_its_consumer_leaves(self, turn: Turn, text: str, pieces: int) -> None:
        self.left(turn, text, lambda stream: list(islice(stream, pieces)))

    @rule(turn=TURNS, text=TEXTS, line=st.integers(1, 6000))
    def a_turn_with_ctrl_c(self, turn: Turn, text: str, line: int) -> None:
        def consume(stream: Iterator[Piece]) -> list[Piece]:
            taken: list[Piece] = []
            with suppress(KeyboardInterrupt), interrupted_at(line, *LINES, without="backend.py"):
                taken += stream
            return taken

        self.left(turn, text, consume)

    def left(
        self, turn: Turn, text: str, consume: Callable[[Iterator[Piece]], list[Piece]]
    ) -> None:
        """A turn of which ``consume`` takes a part: that part stays."""
        before, summary = list(self.dialogue.messages), self.dialogue.summary
        try:
            pieces, fresh = self.expected(turn, text)
        except GemmtpError:
            return
        stream = begun(self.dialogue, turn, text)
        taken = consume(stream)
        stream.close()
        said = words(taken)
        assert words(pieces)[: len(said)] == said
        if not taken and self.dialogue.messages == before:
            assert self.dialogue.summary == summary
            return
        answer = self.dialogue.messages[-1]
        assert answer.role == "assistant"
        assert answer.text == "".join(text for channel, text in said if channel == "answer")
        assert answer.thinking == "".join(text for channel, text in said if channel == "thought")
        dropped = sum(len(p.messages) for p in taken if isinstance(p, Dropped))
        every = sum(len(p.messages) for p in pieces if isinstance(p, Dropped))
        if dropped == every:
            assert self.dialogue.messages[:-1] == fresh.messages[:-1]

    @precondition(lambda self: self.dialogue.messages)
    @rule()
    def undo(self) -> None:
        users = [i for i, m in enumerate(self.dialogue.messages) if m.role == "user"]
        kept = self.dialogue.messages[: users[-1]]
        assert self.dialogue.undo()
        assert self.dialogue.messages == kept

    @rule(most=st.integers(0, 20))
    def settle(self, most: int) -> None:
        reading = self.dialogue.settle()
        list(islice(reading, most))
        reading.close()

    @rule(text=st.sampled_from(("", "be kind", "be brief")), thinking=st.booleans())
    def other_settings(self, text: str, thinking: bool) -> None:
        self.dialogue.set_system(text)
        self.dialogue.thinking = thinking

    @rule()
    def clear(self) -> None:
        self.dialogue.clear()

    @invariant()
    def cells_are_the_text(self) -> None:
        if hasattr(self, "voice"):
            slot = self.voice.engine._slots[0]
            assert self.voice.target.tokens(0)[: slot.held] == tuple(slot.text[: slot.held])


def begun(dialogue: Dialogue, turn: Turn, text: str) -> Generator[Piece, None, None]:
    message = Message.of("user", text)
    if turn == "ask" or not dialogue.messages:
        return dialogue.ask(message)
    return dialogue.regenerate() if turn == "regenerate" else dialogue.edit(message)


def words(pieces: list[Piece]) -> list[tuple[str, str]]:
    return [(p.channel, p.text) for p in pieces if isinstance(p, Words)]


TestTurns = Turns.TestCase
TestTurns.settings = settings(
    max_examples=12,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

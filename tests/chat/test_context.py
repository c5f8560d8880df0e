"""What fills the context, message by message."""

from __future__ import annotations

from collections.abc import Sequence

from gemmtp.chat.context import Share
from gemmtp.chat.dialogue import Dialogue
from gemmtp.engine.media import Media, stand_ins
from gemmtp.prompt.conversation import Image, Message, Text, ToolCall
from tests.support.fake_voice import FakeVoice


def see(tokens: Sequence[int], messages: Sequence[Message]) -> tuple[list[int], tuple[Media, ...]]:
    """Thirty rows for every picture."""
    place = FakeVoice().model.marker("<|image|>")
    ids: list[int] = []
    for token in tokens:
        ids += stand_ins(b"", 30) if token == place else [token]
    return ids, ()


def dialogue_of(*messages: Message, system: str = "") -> Dialogue:
    dialogue = Dialogue(FakeVoice(), system=system, see=see)
    dialogue.load(messages)
    return dialogue


def test_every_message_has_its_share_and_together_they_are_the_prompt() -> None:
    dialogue = dialogue_of(
        Message.of("user", "abc"), Message.of("assistant", "defg"), system="be kind"
    )
    usage = dialogue.usage()
    # <bos>, the marker, the role, two line ends and the end of the turn come with every message.
    assert usage.shares == (
        Share("system", "", 1 + 1 + 7 + 7 + 2),
        Share("user", "abc", 1 + 5 + 3 + 2),
        Share("model", "defg", 1 + 6 + 4 + 2),
        Share("model", "", 7 + 1 + 8 + 1),
    )
    assert usage.used == len(dialogue._prompt(dialogue.messages)[0])
    assert usage.free == usage.n_ctx - usage.used


def test_pictures_are_told_apart() -> None:
    message = Message("user", (Text("abc"), Image("data:,")))
    usage = dialogue_of(message, Message.of("assistant", "d")).usage()
    assert usage.shares[0].media == usage.media == 30
    assert usage.shares[0].tokens == 1 + 1 + 5 + 3 + 30 + 2


def test_thoughts_are_counted_and_take_no_share() -> None:
    answer = Message("assistant", (Text("d"),), thinking="aaaa")
    with_thought = dialogue_of(Message.of("user", "abc"), answer).usage()
    without = dialogue_of(Message.of("user", "abc"), Message.of("assistant", "d")).usage()
    assert with_thought.thoughts == 4
    assert with_thought.shares == without.shares


def test_answers_around_a_tool_are_one_turn() -> None:
    usage = dialogue_of(
        Message.of("user", "abc"),
        Message("assistant", (), tool_calls=(ToolCall("f", {}),)),
        Message("tool", (Text("x"),)),
        Message.of("assistant", "yes"),
        Message.of("user", "and"),
        Message.of("assistant", "no"),
    ).usage()
    assert [share.words for share in usage.shares] == ["abc", "yes", "and", "no", ""]


def test_long_messages_are_named_by_their_beginning() -> None:
    words = dialogue_of(Message.of("user", "abc " * 40)).usage().shares[0].words
    assert words == "abc " * 9 + "abc…"

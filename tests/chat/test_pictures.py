"""Pictures in a conversation are encoded and decoded once, whatever happens to the turns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.pieces import TurnEnd
from gemmtp.engine.backend import Floats
from gemmtp.engine.media import Media, stand_ins
from gemmtp.errors import UsageError
from gemmtp.prompt.conversation import Image, Message, Text
from tests.support.fake_voice import FakeVoice

ROWS = 30


class Eyes:
    """Every picture has thirty rows, made from its address."""

    def __init__(self) -> None:
        self.encoded: list[str] = []
        self.place = FakeVoice().model.marker("<|image|>")

    def __call__(
        self, tokens: Sequence[int], messages: Sequence[Message]
    ) -> tuple[list[int], tuple[Media, ...]]:
        pictures = iter([p.url for m in messages for p in m.media if isinstance(p, Image)])
        ids: list[int] = []
        media = []
        for token in tokens:
            if token != self.place:
                ids.append(token)
                continue
            url = next(pictures)
            media.append(Media(len(ids), ROWS, partial(self.rows, url), causal=False))
            ids += stand_ins(url.encode(), ROWS)
        return ids, tuple(media)

    def rows(self, url: str) -> Floats:
        self.encoded.append(url)
        return np.random.default_rng(len(url)).normal(size=(ROWS, 4)).astype(np.float32)


def shown(url: str, text: str) -> Message:
    return Message("user", (Image(url), Text(text)))


def dialogue_of(n_ctx: int = 2000, window: int = 8) -> tuple[Dialogue, Eyes]:
    eyes = Eyes()
    return Dialogue(FakeVoice(n_ctx, window), see=eyes, max_tokens=60), eyes


def fresh_after(dialogue: Dialogue) -> Dialogue:
    """A dialogue that forgets nothing and has the same past."""
    voice = FakeVoice(dialogue.n_ctx, drafts=False)
    fresh = Dialogue(voice, see=Eyes(), max_tokens=60, overflow=dialogue.overflow)
    fresh.load(dialogue.messages)
    return fresh


@pytest.mark.parametrize("window", [0, 8])
def test_later_turns_neither_encode_nor_decode_it_again(window: int) -> None:
    dialogue, eyes = dialogue_of(window=window)
    list(dialogue.ask(shown("data:,a", "abc")))
    for text in ("def", "ghi"):
        fresh = fresh_after(dialogue)
        list(fresh.ask(Message.of("user", text)))
        list(dialogue.ask(Message.of("user", text)))
        assert dialogue.messages == fresh.messages
    list(dialogue.regenerate())
    dialogue.undo()
    list(dialogue.settle())
    assert eyes.encoded == ["data:,a"]
    target = dialogue.pair.engine.target
    assert target.media == [ROWS]  # type: ignore[attr-defined]


def test_another_question_about_it_begins_behind_it() -> None:
    dialogue, eyes = dialogue_of()
    list(dialogue.ask(shown("data:,a", "abc " * 10)))
    fresh = fresh_after(dialogue)
    list(fresh.edit(shown("data:,a", "def " * 10)))
    *_, end = dialogue.edit(shown("data:,a", "def " * 10))
    assert dialogue.messages == fresh.messages
    assert eyes.encoded == ["data:,a"]
    assert isinstance(end, TurnEnd)
    assert end.cached_because.startswith("checkpoint at")


def test_a_second_picture_is_the_only_one_to_be_encoded() -> None:
    dialogue, eyes = dialogue_of()
    list(dialogue.ask(shown("data:,a", "abc")))
    list(dialogue.ask(shown("data:,bb", "def")))
    assert eyes.encoded == ["data:,a", "data:,bb"]


def test_a_picture_too_large_for_a_batch_changes_nothing() -> None:
    dialogue, _ = dialogue_of()
    list(dialogue.ask(Message.of("user", "abc")))
    before, last = list(dialogue.messages), dialogue.last
    dialogue.pair.engine.target.max_media = ROWS - 1
    with pytest.raises(UsageError, match="30 tokens does not fit"):
        list(dialogue.ask(shown("data:,a", "abc")))
    assert (dialogue.messages, dialogue.last) == (before, last)


def test_a_picture_leaves_with_its_turn() -> None:
    dialogue, eyes = dialogue_of(n_ctx=400)
    dialogue.overflow = lambda needed, free: "shift"
    dialogue.load([shown("data:,a", "abc " * 20), Message.of("assistant", "abc " * 30)])
    list(dialogue.ask(shown("data:,bb", "abc " * 20)))
    assert [message.media for message in dialogue.messages] == [[Image("data:,bb")], []]
    assert eyes.encoded == ["data:,bb"]
    assert dialogue.usage().media == ROWS

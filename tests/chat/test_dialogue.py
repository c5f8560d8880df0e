"""Turns of a conversation on the demo set: answers, settings, undo, interruptions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.pieces import Piece, Reading, TurnEnd, Words
from gemmtp.cli.structured import Shape, form_of
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.penalties import PenaltyParameters
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import PromptTooLongError, UsageError
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import Pair, check_files
from gemmtp.prompt.conversation import Image, Message
from gemmtp_models.names import demo

OPTIONS = ContextOptions(n_ctx=512, n_batch=64, n_ubatch=64, threads=1)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    files = demo()
    with Pair.open(check_files(files.target, files.drafter), FixedDepth(3), OPTIONS) as pair:
        yield pair


@pytest.fixture
def dialogue(pair: Pair) -> Dialogue:
    return Dialogue(pair, demo().chat_template)


def user(text: str) -> Message:
    return Message.of("user", text)


def text_of(pieces: list[Piece], channel: str = "answer") -> str:
    return "".join(p.text for p in pieces if isinstance(p, Words) and p.channel == channel)


def test_an_answer_comes_in_pieces_and_stays_in_the_messages(dialogue: Dialogue) -> None:
    pieces = list(dialogue.ask(user("What is the capital of France?")))
    assert text_of(pieces) == "The capital of France is Paris."
    assert isinstance(pieces[0], Reading)
    end = pieces[-1]
    assert isinstance(end, TurnEnd)
    assert (end.reason, dialogue.last, dialogue.complete) == ("stop", end, True)
    assert [m.text for m in dialogue.messages] == [
        "What is the capital of France?",
        "The capital of France is Paris.",
    ]
    words = [p for p in pieces if isinstance(p, Words)]
    # The token that ends the turn is no word.
    assert sum(p.tokens for p in words) == end.statistics.generated - 1
    assert 0 < sum(p.drafted for p in words) <= end.statistics.accepted


def test_the_next_turn_knows_the_last(dialogue: Dialogue) -> None:
    list(dialogue.ask(user("What is the capital of France?")))
    list(dialogue.ask(user("And of Italy?")))
    fresh = Dialogue(dialogue.pair, dialogue.template)
    fresh.load(dialogue.messages[:2])
    list(fresh.ask(user("And of Italy?")))
    assert fresh.messages == dialogue.messages


def test_undo_regenerate_and_edit(dialogue: Dialogue) -> None:
    assert not dialogue.undo()
    with pytest.raises(UsageError, match="Nothing has been said"):
        dialogue.regenerate()
    list(dialogue.ask(user("hi")))
    first = list(dialogue.messages)
    list(dialogue.regenerate())
    assert dialogue.messages == first
    list(dialogue.edit(user("Who are you?")))
    assert len(dialogue.messages) == 2
    assert dialogue.messages[1].text.startswith("I am demo, a toy model")
    assert dialogue.undo()
    assert dialogue.messages == []


def test_a_grammar_holds_answers_under_what_is_set_by_then(dialogue: Dialogue, pair: Pair) -> None:
    dialogue.form = form_of(Shape("root ::= [a-z]{12}"), pair.model)
    said = []
    for temperature, seed in ((0.0, 1), (1.0, 1), (1.0, 2)):
        dialogue.sampling = SamplingParameters(temperature, top_k=64, seed=seed)
        list(dialogue.ask(user("What is the capital of France?")))
        said.append(dialogue.messages[-1].text)
        dialogue.undo()
    assert all(text.isalpha() and len(text) == 12 for text in said)
    assert len(set(said)) == 3
    dialogue.thinking, dialogue.sampling = True, SamplingParameters()
    list(dialogue.ask(user("What is 2 plus 3?")))
    assert dialogue.messages[-1].thinking
    assert len(dialogue.messages[-1].text) == 12


def test_penalties_count_from_the_next_turn_on(dialogue: Dialogue) -> None:
    said = []
    for penalties in (PenaltyParameters(), PenaltyParameters(presence=2, frequency=2)):
        dialogue.penalties = penalties
        list(dialogue.ask(user("Count from 1 to 12.")))
        said.append(dialogue.messages[-1].text)
        dialogue.undo()
    dialogue.penalties = PenaltyParameters()
    dialogue.processors = PenaltyParameters(presence=2, frequency=2).processors()
    list(dialogue.ask(user("Count from 1 to 12.")))
    assert said[0] != said[1] == dialogue.messages[-1].text


def test_thoughts_are_kept_apart(dialogue: Dialogue) -> None:
    dialogue.thinking = True
    pieces = list(dialogue.ask(user("What is 7 + 5?")))
    assert text_of(pieces, "thought")
    assert dialogue.messages[-1].thinking == text_of(pieces, "thought")
    assert dialogue.messages[-1].text == text_of(pieces)


@pytest.mark.parametrize("taken", [0, 1, 4, 7])
def test_what_was_said_stays_when_the_consumer_leaves(dialogue: Dialogue, taken: int) -> None:
    pieces = dialogue.ask(user("Who are you?"))
    seen: list[Piece] = []
    while sum(isinstance(piece, Words) for piece in seen) < taken or not seen:
        seen.append(next(pieces))
    pieces.close()
    assert dialogue.messages[-1].text == text_of(seen)
    assert not dialogue.complete
    assert dialogue.last is not None
    assert dialogue.last.reason == "interrupted"
    list(dialogue.regenerate())
    assert dialogue.complete
    assert dialogue.messages[-1].text.startswith("I am demo, a toy model")


def test_a_message_that_does_not_fit_changes_nothing(dialogue: Dialogue) -> None:
    list(dialogue.ask(user("hi")))
    before = list(dialogue.messages)
    with pytest.raises(PromptTooLongError, match="the context holds 512"):
        list(dialogue.ask(user("fox " * 600)))
    with pytest.raises(UsageError, match="no projector"):
        list(dialogue.ask(Message("user", (Image("data:,x"),))))
    assert dialogue.messages == before
    assert dialogue.complete


def test_max_tokens_and_stop_strings_end_an_answer(dialogue: Dialogue) -> None:
    dialogue.max_tokens = 3
    *_, end = dialogue.ask(user("Who are you?"))
    assert isinstance(end, TurnEnd)
    assert (end.reason, end.statistics.generated) == ("length", 3)
    dialogue.max_tokens, dialogue.stop = None, ("toy",)
    list(dialogue.regenerate())
    assert dialogue.messages[-1].text == "I am demo, a "

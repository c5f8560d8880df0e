"""Thoughts and answer are told apart by tokens, and their texts add up to everything said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gemmtp.prompt.channels import ChannelStream

OPEN, CLOSE = 1, 2
VOCABULARY = {
    OPEN: b"<|channel>",
    CLOSE: b"<channel|>",
    3: b"thought",
    4: b"\n",
    5: b"th",
    6: b"ought",
    7: "é".encode()[:1],
    8: "é".encode()[1:],
    9: b"<|channel>thought\nliteral",
    10: b"answer ",
    11: b"\x1b[31m",
}


def said(tokens: list[int], **options: object) -> dict[str, str]:
    stream = ChannelStream(VOCABULARY.__getitem__, OPEN, CLOSE, **options)  # type: ignore[arg-type]
    texts = {"thinking": "", "answer": ""}
    for kind, text in [*map(stream.feed, tokens), *stream.finish()]:
        texts[kind] += text
    return texts


def test_the_channels_name_is_not_part_of_the_thought() -> None:
    expected = {"thinking": "answer é", "answer": "answer answer "}
    assert said([OPEN, 3, 4, 10, 7, 8, CLOSE, 10, 10]) == expected
    assert said([OPEN, 5, 6, 4, 10, 7, 8, CLOSE, 10, 10]) == expected


def test_an_empty_thought_leaves_nothing() -> None:
    assert said([OPEN, 3, 4, CLOSE, 10]) == {"thinking": "", "answer": "answer "}
    assert said([OPEN, 3, CLOSE, 10]) == {"thinking": "", "answer": "answer "}
    assert said([OPEN, CLOSE, 10]) == {"thinking": "", "answer": "answer "}


def test_a_channel_of_another_name_keeps_its_words() -> None:
    assert said([OPEN, 10, 4, 10, CLOSE])["thinking"] == "answer \nanswer "
    assert said([OPEN, 5, 10, CLOSE])["thinking"] == "thanswer "
    assert said([OPEN, 5])["thinking"] == "th"


def test_text_that_looks_like_a_marker_is_text() -> None:
    assert said([9, 10]) == {"thinking": "", "answer": "<|channel>thought\nliteralanswer "}


def test_stop_strings_and_half_characters_are_the_answers_own() -> None:
    assert said([OPEN, 3, 4, 10, CLOSE, 10, 10], stops=["wer an"]) == {
        "thinking": "answer ",
        "answer": "ans",
    }
    assert said([10, 7])["answer"] == "answer \ufffd"


@given(st.lists(st.sampled_from([4, 5, 6, 7, 8, 9, 10, 11]), max_size=20), st.integers(0, 20))
def test_nothing_is_lost(tokens: list[int], thoughts: int) -> None:
    thinking, answer = tokens[:thoughts], tokens[thoughts:]
    texts = said([OPEN, 3, 4, *thinking, CLOSE, *answer])
    for kind, part in (("thinking", thinking), ("answer", answer)):
        assert texts[kind] == b"".join(map(VOCABULARY.__getitem__, part)).decode("utf-8", "replace")


@given(st.lists(st.sampled_from(list(VOCABULARY)), max_size=20))
def test_no_escape_reaches_a_terminal(tokens: list[int]) -> None:
    assert "\x1b" not in "".join(said(tokens, terminal=True).values())

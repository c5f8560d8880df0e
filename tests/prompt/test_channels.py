"""Thoughts, answer and calls are told apart by tokens, and their texts add up to what was said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtp.prompt.calls import parse_call
from gemmtp.prompt.channels import ChannelStream, Markers, Written
from gemmtp.prompt.conversation import ToolCall

OPEN, CLOSE, CALL, CALL_END, MARK = 1, 2, 12, 13, 14
MARKERS = Markers(OPEN, CLOSE, CALL, CALL_END, MARK)
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
    CALL: b"",
    CALL_END: b"",
    MARK: b"",
    15: b"call:get_weather{city:",
    16: b"}",
    17: b"Rome",
    18: b',days:[1,-2.5,true,null],x:{"',
    19: b'<|"|>',
}


def said(tokens: list[int], **options: object) -> dict[str, str]:
    stream = ChannelStream(VOCABULARY.__getitem__, MARKERS, **options)  # type: ignore[arg-type]
    texts = {"thinking": "", "answer": "", "tool_call": ""}
    for kind, text, _ in [*map(stream.feed, tokens), *stream.finish()]:
        texts[kind] += text
    return {kind: text for kind, text in texts.items() if text or kind != "tool_call"}


def calls(tokens: list[int]) -> list[Written]:
    stream = ChannelStream(VOCABULARY.__getitem__, MARKERS)
    pieces = [*map(stream.feed, tokens), *stream.finish()]
    return [written for _, _, written in pieces if written]


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


WEATHER = [15, MARK, 17, MARK, 16]
ROME = ToolCall("get_weather", {"city": "Rome"})


def test_a_call_is_read_from_its_tokens() -> None:
    ((text, call),) = calls([10, CALL, *WEATHER, CALL_END, 10])
    assert text == 'call:get_weather{city:<|"|>Rome<|"|>}'
    assert call == ROME
    assert said([10, CALL, *WEATHER, CALL_END, 10]) == {
        "thinking": "",
        "answer": "answer answer ",
        "tool_call": text,
    }


def test_several_calls_behind_a_thought() -> None:
    tokens = [OPEN, 3, 4, 10, CLOSE, CALL, *WEATHER, CALL_END, CALL, *WEATHER, CALL_END]
    assert [written.call for written in calls(tokens)] == [ROME, ROME]
    assert said(tokens)["thinking"] == "answer "


def test_a_call_ends_a_thought_that_was_left_open() -> None:
    tokens = [OPEN, 3, 4, 10, CALL, *WEATHER, CALL_END, 10]
    assert [written.call for written in calls(tokens)] == [ROME]
    assert (said(tokens)["thinking"], said(tokens)["answer"]) == ("answer ", "answer ")


def test_a_call_that_stops_halfway_is_kept_as_text() -> None:
    assert calls([CALL, 15, MARK, 17]) == [('call:get_weather{city:<|"|>Rome', None)]


def test_only_quote_tokens_quote() -> None:
    (written,) = calls([CALL, 15, MARK, 19, 16, 9, MARK, 16, CALL_END])
    city = '<|"|>}<|channel>thought\nliteral'
    assert written.call == ToolCall("get_weather", {"city": city})


@pytest.mark.parametrize(
    ("texts", "arguments"),
    [
        (["call:f{}"], {}),
        ([" call:f { a : 1 , b : [ ] } "], {"a": 1, "b": []}),
        (["call:f{a:-2.5e3,b:true,c:False,d:null,e:None}"],
         {"a": -2500.0, "b": True, "c": False, "d": None, "e": None}),
        (["call:f{a:", "x", ",b:[", "y", ",{c:", "", "}]}"], {"a": "x", "b": ["y", {"c": ""}]}),
        (["call:f{", "a b", ":1}"], {"a b": 1}),
        (["call:f{도시:", "서울", "}"], {"도시": "서울"}),
    ],
)  # fmt: skip
def test_arguments_become_json(texts: list[str], arguments: dict[str, Any]) -> None:
    assert parse_call(texts) == ToolCall("f", arguments)


@pytest.mark.parametrize(
    "texts",
    [
        ["f{}"],
        ["call:f"],
        ["call:f{"],
        ["call:f{a:}"],
        ["call:f{a:1,}"],
        ["call:f{a:1,a:2}"],
        ["call:f{a:word}"],
        ["call:f{a:1e999}"],
        ["call:f{a:1}x"],
        ["call:f{a:[1}"],
        ["call:f{a:", "x"],
        ["call:f{a:\ue000}"],
        ["call:f{a:" + "[" * 5000 + "]" * 5000 + "}"],
    ],
)
def test_what_is_no_call_is_not_guessed_at(texts: list[str]) -> None:
    assert parse_call(texts) is None


TEXTS = [4, 5, 6, 7, 8, 9, 10, 11, 17, 19]


@given(st.lists(st.lists(st.sampled_from(TEXTS), max_size=9), min_size=3, max_size=3))
def test_nothing_is_lost(parts: list[list[int]]) -> None:
    thinking, call, answer = parts
    texts = said([OPEN, 3, 4, *thinking, CLOSE, CALL, *call, CALL_END, *answer])
    for kind, part in zip(("thinking", "tool_call", "answer"), parts, strict=True):
        whole = b"".join(map(VOCABULARY.__getitem__, part)).decode("utf-8", "replace")
        assert texts.get(kind, "") == whole


@given(st.lists(st.sampled_from(list(VOCABULARY)), max_size=20))
def test_no_escape_reaches_a_terminal(tokens: list[int]) -> None:
    assert "\x1b" not in "".join(said(tokens, terminal=True).values())

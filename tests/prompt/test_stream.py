"""Token bytes become text without losing or passing anything."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtp.errors import PromptTooLongError, UsageError
from gemmtp.prompt import source
from gemmtp.prompt.stream import TextStream


@given(st.binary(max_size=60), st.lists(st.integers(1, 5), min_size=1))
def test_pieces_add_up_to_the_whole(data: bytes, sizes: list[int]) -> None:
    stream, shown, at = TextStream(), "", 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        shown += stream.feed(data[at : at + size])
        at += size
    assert shown + stream.finish() == data.decode("utf-8", "replace")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40), st.integers(1, 4))
def test_no_control_character_reaches_a_terminal(text: str, size: int) -> None:
    data = text.encode()
    stream = TextStream(terminal=True)
    shown = "".join(stream.feed(data[i : i + size]) for i in range(0, len(data), size))
    shown += stream.finish()
    kept = [c for c in text if c >= " " and not "\x7f" <= c <= "\x9f"]
    assert [c for c in shown if c not in "\n\t\r"] == kept
    assert "\x1b" not in shown


def test_escape_sequences_lose_their_escape() -> None:
    stream = TextStream(terminal=True)
    assert stream.feed(b"a\x1b[31mred\x07\r\nb\rc\td") + stream.finish() == "a[31mred\r\nbc\td"


def test_without_a_terminal_every_byte_passes() -> None:
    stream = TextStream()
    assert stream.feed(b"a\x1b[0m\r") + stream.finish() == "a\x1b[0m\r"


def test_piped_text_comes_before_the_prompt() -> None:
    assert source.joined("a diff\n", "Review this") == "a diff\n\nReview this"
    assert source.joined("", "Hello") == "Hello"
    assert source.joined("only\n", "") == "only"


def test_a_file_stands_in_a_fence_that_its_text_lacks() -> None:
    files = [(Path("a/notes.md"), "x\n"), (Path("b.md"), "````\ny\n````\n")]
    assert source.attached(files) == ("notes.md\n```\nx\n```\n\nb.md\n`````\n````\ny\n````\n`````")


def test_input_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="binary"):
        source.read_text(io.BytesIO(b"\x7fELF\0\0"))
    with pytest.raises(UsageError, match="byte 0xff at offset 3"):
        source.read_text(io.BytesIO(b"abc\xff"))
    with pytest.raises(PromptTooLongError, match="more than"):
        source.read_text(io.BytesIO(b"y\n" * source.MAX_INPUT_BYTES))
    assert source.read_text(io.BytesIO("\ufeffüber".encode())) == "über"


def test_text_that_cannot_fit_is_refused_before_tokenizing() -> None:
    with pytest.raises(PromptTooLongError, match=r"1,000 bytes, at least 100 tokens; .* holds 99"):
        source.check_size("x" * 1000, 10, 99)
    source.check_size("x" * 1000, 10, 100)

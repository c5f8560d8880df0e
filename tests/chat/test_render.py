"""Markdown on the way through: every character once, coloured the same however it arrives."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtp.chat.highlight import highlighter
from gemmtp.chat.render import BOLD, CODE, DIM, HEADING, ITALIC, MARKER, QUOTE, Markdown

SGR = re.compile(r"\x1b\[([0-9;]*)m")
PIECES = st.sampled_from(
    [
        *"*_`~#>-+1.) |\n\n\\ab語😀",
        "**",
        "```",
        "```python\n",
        "~~~\n",
        "def f():\n",
        '"""',
        "- ",
        "# ",
    ]
)


def shown(markdown: Markdown, *pieces: str) -> str:
    return "".join(map(markdown.feed, pieces)) + markdown.finish()


def cells(text: str) -> list[tuple[str, str]]:
    """What a terminal shows: (character, SGR codes) without what cannot be seen."""
    found: list[tuple[str, str]] = []
    style = ""
    for i, part in enumerate(SGR.split(text)):
        if i % 2:
            style = "" if part == "0" else part
        else:
            found += [(character, style) for character in part if not character.isspace()]
    return found


def style_of(text: str, word: str) -> str:
    """The style of the first character of ``word`` where Markdown shows ``text``."""
    found = cells(shown(Markdown(highlighter), text))
    plain = "".join(character for character, _ in found)
    return found[plain.index(word)][1]


@given(st.lists(PIECES, max_size=40), st.data())
def test_the_text_comes_out_whole_and_alike_however_it_is_cut(
    parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    whole = shown(Markdown(), text)
    assert SGR.sub("", whole) == text
    assert cells(shown(Markdown(), *pieces)) == cells(whole)
    assert cells(shown(Markdown(), *text)) == cells(whole)


def test_every_piece_leaves_the_terminal_without_a_colour() -> None:
    markdown = Markdown(highlighter)
    for piece in ("**bo", "ld** `co", "de`\n# head", "ing\n```py\n", "x = 1\n", "y = "):
        codes = SGR.findall(markdown.feed(piece))
        assert codes[-1:] in ([], ["0"])
    assert SGR.findall(markdown.finish())[-1:] in ([], ["0"])


@pytest.mark.parametrize(
    ("text", "word", "style"),
    [
        ("some **bold** words", "bold", BOLD),
        ("some **bold** words", "words", ""),
        ("*lean* words", "lean", ITALIC),
        ("_lean_ words", "lean", ITALIC),
        ("a `piece of code` here", "piece", CODE),
        ("a `piece of code` here", "here", ""),
        ("``a ` b`` after", "b", CODE),
        ("## A heading\nand text", "heading", HEADING),
        ("## A heading\nand text", "text", ""),
        ("- an item", "-", MARKER),
        ("12. an item", "12.", MARKER),
        ("> quoted", "quoted", QUOTE),
        ("| a | b |", "|", DIM),
        ("2 * 3 * 4 and 2*3*4", "3", ""),
        ("snake_case_name", "case", ""),
        ("**open to the end\nnext", "next", ""),
        ("\\*no emphasis\\*", "no", ""),
        ("中文**粗体**中文", "粗", BOLD),
        ("```python\ndef f(): pass\n```\nafter", "def", "35"),
        ("```python\ndef f(): pass\n```\nafter", "after", ""),
        ("```nolanguage\nwords\n```", "words", CODE),
        ("1. ```sh\n   echo # note\n   ```\nafter", "#", DIM),
        ("1. ```sh\n   echo # note\n   ```\nafter", "after", ""),
        ("> ```sh\n> echo # note\n> ```\nafter", "after", ""),
        ("```c\n/* a comment\nover lines */\n```", "over", DIM),
        ("````md\n```\n````\nafter", "after", ""),
        ("```inline``` words", "words", ""),
    ],
)
def test_what_is_meant_is_coloured(text: str, word: str, style: str) -> None:
    assert style_of(text, word) == style


def test_prose_does_not_wait_for_the_end_of_its_line() -> None:
    markdown = Markdown()
    assert markdown.feed("Plain words") == "Plain words"
    assert "bold" in markdown.feed(" and **bold")
    assert markdown.feed("`") == ""
    assert "x" in markdown.feed("x")


def test_a_line_of_code_without_an_end_does_not_wait_for_ever() -> None:
    markdown = Markdown()
    markdown.feed("```\n")
    assert sum(len(markdown.feed("x" * 1000)) for _ in range(6)) > 4000


def test_a_lexer_never_changes_the_code() -> None:
    for language in (
        "python",
        "c",
        "html",
        "json",
        "bash",
        "diff",
        "no such language",
        "",
        "{.py}",
    ):
        colour = highlighter(language)
        for line in ("\tx = '1'\n", "\n", "  \u2028 é\x85\n", "</a> {{ }}\n", "unfinished"):
            assert "".join(text for _, text in colour(line)) == line

"""Code in the sixteen colours of the terminal's own theme, line by line, by pygments."""

from __future__ import annotations

from pygments.lexers import get_lexer_by_name
from pygments.token import Token
from pygments.util import ClassNotFound

from gemmtp.chat.render import DIM, Highlight, Span, plain_code

MAX_CONTEXT = 16 << 10
"""How many characters of a block are looked at again with each line, so that a string or a comment
over several lines is known for what it is."""

_COLOURS = {
    Token.Comment: DIM,
    Token.Keyword: "35",
    Token.Keyword.Constant: "36",
    Token.Literal.String: "32",
    Token.Literal.Number: "36",
    Token.Name.Builtin: "36",
    Token.Name.Function: "34",
    Token.Name.Class: "1;34",
    Token.Name.Decorator: "33",
    Token.Name.Tag: "35",
    Token.Name.Attribute: "33",
    Token.Operator.Word: "35",
    Token.Generic.Deleted: "31",
    Token.Generic.Inserted: "32",
    Token.Generic.Heading: "1",
    Token.Generic.Subheading: "1;36",
}


def highlighter(language: str) -> Highlight:
    """What colours a block of ``language``; one colour for a language that is not known."""
    name = language.split()[0].strip("{}.").lower() if language.split() else ""
    try:
        lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return plain_code
    seen = ""

    def highlight(line: str) -> list[Span]:
        nonlocal seen
        if len(seen) > MAX_CONTEXT:
            seen = ""
        begin, seen = len(seen), seen + line
        spans = []
        at = 0
        for kind, text in lexer.get_tokens(seen):
            new = text[max(0, begin - at) :]
            at += len(text)
            if new:
                spans.append((_colour(kind), new))
        # A lexer that drops or changes a character must not change what is shown.
        whole = "".join(text for _, text in spans) == line
        return spans if whole else plain_code(line)

    return highlight


def _colour(kind: object) -> str:
    while kind is not None:
        if colour := _COLOURS.get(kind):
            return colour
        kind = getattr(kind, "parent", None)
    return ""

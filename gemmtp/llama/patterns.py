r"""Regular expressions of JSON schemas, as llama-cpp-python's converter can take them.

The converter copies character classes as they are, so a class may let a quote end the string, and
it knows neither ``\d`` nor an escaped dot. Here everything is spelled out in code points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_DIGITS, _SPACE = (0x30, 0x39), (0x20, 0x20)
_CLASSES = {"d": [_DIGITS], "w": [_DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)], "s": [_SPACE]}
_LINE_ENDS = {"n": "\n", "r": "\r", "t": "\t"}
_BARRED = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)]
_PATTERN_PIECE = re.compile(
    r"(?P<escape>\\.)|\[(?P<not>\^)?(?P<inner>(?:\\.|[^\]\\])*)\]", re.DOTALL
)


def plain_pattern(pattern: str) -> str:
    r"""The pattern with classes and escapes spelled out in code points of a JSON string.

    A quote, a backslash and control characters would have to be escaped there: classes lose them,
    and a pattern that names one is refused.
    """
    return "".join(_plain_pieces(pattern))


def _plain_pieces(pattern: str) -> Iterator[str]:
    at = 0
    for piece in _PATTERN_PIECE.finditer(pattern):
        plain = pattern[at : piece.start()]
        if any(_is_barred(ord(character)) for character in plain):
            raise ValueError("its pattern names a character that JSON escapes")
        yield plain
        at = piece.end()
        if piece["escape"] is None:
            yield _class_of(list(_ranges(piece["inner"])), negated=bool(piece["not"]))
        else:
            ranges = list(_ranges(piece["escape"]))
            if all(_is_barred(low) for low, _ in ranges):
                raise ValueError("its pattern names a character that JSON escapes")
            yield _class_of(ranges)
    yield pattern[at:]


def _ranges(inner: str) -> Iterator[tuple[int, int]]:
    """The code points that the inside of a character class names."""
    at = 0
    while at < len(inner):
        if inner[at] == "\\" and inner[at + 1 : at + 2] in _CLASSES:
            yield from _CLASSES[inner[at + 1]]
            at += 2
            continue
        low, at = _one(inner, at)
        high = low
        if inner[at : at + 1] == "-" and at + 1 < len(inner):
            high, at = _one(inner, at + 1)
        yield low, high


def _one(inner: str, at: int) -> tuple[int, int]:
    """The code point at ``at``, and where the next one begins."""
    if inner[at] != "\\":
        return ord(inner[at]), at + 1
    escaped = inner[at + 1 : at + 2]
    if not escaped or (escaped.isalnum() and escaped not in _LINE_ENDS):
        raise ValueError(f"\\{escaped} in a pattern is not supported")
    return ord(_LINE_ENDS.get(escaped, escaped)), at + 2


def _class_of(ranges: Sequence[tuple[int, int]], negated: bool = False) -> str:
    """A GBNF class of ``ranges`` without what JSON escapes in a string."""
    if negated:
        return (
            "[^" + "".join(f"{_hex(low)}-{_hex(high)}" for low, high in [*ranges, *_BARRED]) + "]"
        )
    kept = []
    for low, high in ranges:
        for barred_low, barred_high in _BARRED:
            if low < barred_low <= high:
                kept.append((low, barred_low - 1))
            if barred_low <= low <= barred_high or low < barred_low <= high:
                low = barred_high + 1
        if low <= high:
            kept.append((low, high))
    if not kept:
        raise ValueError("a class of its pattern holds only characters that JSON escapes")
    return "[" + "".join(f"{_hex(low)}-{_hex(high)}" for low, high in kept) + "]"


def _is_barred(code: int) -> bool:
    return any(low <= code <= high for low, high in _BARRED)


def _hex(code: int) -> str:
    return f"\\U{code:08X}"

"""Tool calls as Gemma 4 writes them: ``call:name{key:<|"|>text<|"|>,other:[1,true]}``.

Quotes are tokens of their own, so a text may hold whatever it likes. A call therefore arrives here
as texts between quote tokens: outside, inside, outside, and so on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from gemmtp.prompt.conversation import ToolCall

MAX_DEPTH = 64

_STRING = "\ue000"
_HEAD = re.compile(r"\s*call:\s*([^{}\s:]+)\s*")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?=[\s,}\]])")
_WORD = re.compile(r"(true|false|null|True|False|None)(?=[\s,}\]])")
_KEY = re.compile(rf"[^:{{}}\[\],{_STRING}]+")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class _BrokenCallError(ValueError):
    """The text is no call."""


def parse_call(texts: Sequence[str]) -> ToolCall | None:
    """The call in ``texts``, which quote tokens separate; None when it cannot be read.

    Arguments are JSON values; ``None``, which Gemma's template writes for null, is one as well.
    """
    outside = texts[::2]
    if len(texts) % 2 == 0 or any(_STRING in text for text in outside):
        return None
    parser = _Parser(_STRING.join(outside), list(texts[1::2]))
    try:
        return parser.call()
    except _BrokenCallError:
        return None


class _Parser:
    """Recursive descent over the text outside of quotes, where a string is one character."""

    def __init__(self, text: str, strings: list[str]) -> None:
        self._text, self._strings = text, strings[::-1]
        self._at = 0

    def call(self) -> ToolCall:
        head = _HEAD.match(self._text)
        if head is None:
            raise _BrokenCallError
        self._at = head.end()
        arguments = self._mapping(0)
        if self._peek():
            raise _BrokenCallError
        return ToolCall(head.group(1), arguments)

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _BrokenCallError
        match self._peek():
            case "{":
                return self._mapping(depth)
            case "[":
                return self._sequence(depth)
            case "\ue000":
                self._at += 1
                return self._strings.pop()
        if word := _WORD.match(self._text, self._at):
            self._at = word.end()
            return _WORDS[word.group()]
        number = _NUMBER.match(self._text, self._at)
        if number is None or len(number.group()) > 300:
            raise _BrokenCallError
        self._at = number.end()
        digits = number.group()
        value = int(digits) if digits.lstrip("-").isdigit() else float(digits)
        if not math.isfinite(value):
            raise _BrokenCallError
        return value

    def _mapping(self, depth: int) -> dict[str, Any]:
        self._take("{")
        values: dict[str, Any] = {}
        while self._peek() != "}":
            if values:
                self._take(",")
            key = self._key()
            self._take(":")
            if key in values:
                raise _BrokenCallError
            values[key] = self._value(depth + 1)
        self._at += 1
        return values

    def _key(self) -> str:
        if self._peek() == _STRING:
            self._at += 1
            return self._strings.pop()
        key = _KEY.match(self._text, self._at)
        if key is None:
            raise _BrokenCallError
        self._at = key.end()
        return key.group().strip()

    def _sequence(self, depth: int) -> list[Any]:
        self._take("[")
        values: list[Any] = []
        while self._peek() != "]":
            if values:
                self._take(",")
            values.append(self._value(depth + 1))
        self._at += 1
        return values

    def _peek(self) -> str:
        """The next character that is no white space; empty at the end."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, character: str) -> None:
        if self._peek() != character:
            raise _BrokenCallError
        self._at += 1

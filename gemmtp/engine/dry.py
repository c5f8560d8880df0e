"""DRY ("don't repeat yourself"): a penalty on tokens that would continue a repetition.

By p-e-w (text-generation-webui #5677), with llama.cpp's bound of the exponent. Where the text ends
with n tokens that occurred before, the token that followed them there loses
``multiplier * base ** (n - allowed_length)``, once n is at least ``allowed_length``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Self

import numpy as np

from gemmtp.engine.backend import Floats
from gemmtp.engine.ngrams import NGrams
from gemmtp.errors import EngineError

BREAKERS = ("\n", ":", '"', "*")
"""What ends a repeated sequence where nothing else is asked for, as in llama.cpp."""

LARGEST_LOG = 88.7228391
"""The logarithm of the largest float32, which bounds the exponent as in llama.cpp."""

SMALLEST_BASE = 1.000001
"""Below it a repetition costs the same however long it is."""

KEPT_MATCHES = 80
"""How many tokens can be taken back: twice the longest draft and more."""


class DryPenalty:
    """DRY over the last ``last_n`` tokens of prompt and answer (-1: all).

    A repetition holds none of ``breakers``, and a breaker is never penalised. A row costs as much
    as its last ``allowed_length`` tokens occurred before, not as the text is long.
    """

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Collection[int] = (),
    ) -> None:
        self._multiplier, self._base = multiplier, base
        self._allowed, self._last_n = allowed_length, last_n
        self._breakers = frozenset(breakers)
        self._most = int(LARGEST_LOG / math.log(base)) if base > SMALLEST_BASE else 0
        self._longest = allowed_length + self._most
        self._begun = False
        self._text = NGrams((allowed_length,), self._breakers)
        # After every token: where its repetitions end, and how long they are.
        self._matches: list[dict[int, int]] = [{}]

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        if not self._begun:
            self._begun = True
            for token in history:
                if token >= 0:
                    self._text.append(token)
            # Only now: a text of one line a thousand times has a million repetitions on its way.
            self._matches = [{at: self._text.match(at, self._longest) for at in self._ends()}]
        penalties = self._penalties()
        if penalties:
            ids = np.fromiter(penalties, np.int64, len(penalties))
            logits[ids] -= np.fromiter(penalties.values(), np.float32, len(penalties))

    def accept(self, token: int) -> None:
        if self._begun:
            self._text.append(token)
            before = self._matches[-1]
            # A repetition of the text one token shorter grew; others begin at the allowed length.
            self._matches.append(
                {at: before.get(at - 1, self._allowed - 1) + 1 for at in self._ends()}
            )
            del self._matches[:-KEPT_MATCHES]

    def rollback(self, n: int) -> None:
        if not self._begun or not n:
            return
        if n >= len(self._matches):
            raise EngineError(f"The DRY penalty cannot go back {n} tokens.")
        self._text.rollback(n)
        del self._matches[-n:]

    def fork(self) -> Self:
        twin = type(self)(self._multiplier, self._base, self._allowed, self._last_n, self._breakers)
        twin._begun = self._begun
        twin._text = self._text.fork()
        twin._matches = [dict(matches) for matches in self._matches]
        return twin

    @property
    def _start(self) -> int:
        """Where the part of the text begins that is looked at."""
        return max(0, len(self._text.tokens) - self._last_n) if self._last_n >= 0 else 0

    def _ends(self) -> Iterable[int]:
        start = self._start
        for at in self._text.ends(self._allowed):
            if at + 1 - start < self._allowed:
                return
            yield at

    def _penalties(self) -> dict[int, float]:
        """The penalty of every token that would continue a repetition."""
        text, start = self._text, self._start
        longest: dict[int, int] = {}
        for at, length in self._matches[-1].items():
            if not text.breaks(at + 1):
                token = text.tokens[at + 1]
                longest[token] = max(longest.get(token, 0), min(length, at + 1 - start))
        return {
            token: self._multiplier * self._base ** min(length - self._allowed, self._most)
            for token, length in longest.items()
        }

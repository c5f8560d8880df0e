"""Prompt lookup: what followed the last time the text ended as it ends now.

Code that is edited, quotes, tables and summaries repeat long spans of the prompt and of themselves.
An n-gram index over prompt and answer finds where the last tokens occurred before, and proposes
what came after them (Saxena, "Prompt Lookup Decoding", 2023), at no cost but that of verifying it.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from gemmtp.engine.acceptance import Shares
from gemmtp.engine.ngrams import NGrams

SIZES = (12, 5, 2)
"""The n-grams that are looked up, the longest first: any match of at least two tokens is found."""

CANDIDATES = 4
"""How many places with the same n-gram are compared, the latest first."""

LONGEST_MATCH = 64
"""Where it stops to matter how long a match is."""

BORDERS = (3, 4, 6, 8, 12, 16, 24, 32, 48)
PRIORS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95)
"""Shares of kept tokens assumed between these lengths of the match, before anything is known."""

PRIOR_WEIGHT = 2.0
"""How many observations such a share is worth."""


class Match(NamedTuple):
    """The text's last ``length`` tokens also end at place ``at``."""

    at: int
    length: int


class LookupText:
    """The index of one slot's text; it follows the text as it grows."""

    def __init__(self) -> None:
        self._index = NGrams(SIZES)
        self._replaced = True
        self._whole = True

    def begin(self) -> None:
        """The text may be another one from here on."""
        self._replaced = True

    def follow(self, text: Sequence[int]) -> list[int] | None:
        """Take in what is new in ``text`` and return it; None where it is another text.

        Until :meth:`begin` is called, a text only grows.
        """
        if not self._whole:
            # Ctrl-C came while the text was taken in.
            self._index, self._replaced = NGrams(SIZES), True
        index, replaced = self._index, self._replaced
        self._whole = False
        if replaced:
            self._replaced = False
            shared = _shared(index.tokens, text)
            index.rollback(len(index.tokens) - shared)
        new = list(text[len(index.tokens) :])
        for token in new:
            index.append(token)
        self._whole = True
        return None if replaced else new

    def longest(self) -> Match | None:
        """The longest match of the text's end, the latest of equally long ones."""
        best: Match | None = None
        for size in SIZES:
            for at in islice(self._index.ends(size), CANDIDATES):
                length = self._index.match(at, LONGEST_MATCH)
                if best is None or length > best.length:
                    best = Match(at, length)
            if best is not None:
                break
        return best

    def continuation(self, at: int, most: int) -> list[int]:
        """Up to ``most`` tokens that followed place ``at``, as far as they are tokens.

        What followed may run into the text's end; from there on it repeats itself.
        """
        tokens = self._index.tokens
        found = tokens[at + 1 : at + 1 + most]
        period = len(tokens) - 1 - at
        while len(found) < most:
            found.append(found[-period])
        images = (i for i, token in enumerate(found) if token < 0)
        return found[: next(images, most)]


class MatchAcceptance:
    """How often the next token of a match is right, by how long the match is by then.

    It is learned from every round that had a match, whoever drafted: what the text said next shows
    whether the match would have been right.
    """

    def __init__(self) -> None:
        self._shares = Shares(len(PRIORS))

    def at(self, length: int) -> float:
        """The share of right tokens behind a match of ``length``."""
        i = bisect(BORDERS, length)
        return self._shares.share(i, PRIORS[i], PRIOR_WEIGHT)

    def tokens(self, length: int, most: int) -> list[float]:
        """For drafts of 0 to ``most`` tokens, how many a round is expected to emit."""
        expected, kept = [1.0], 1.0
        for i in range(most):
            kept *= self.at(length + i)
            expected.append(expected[-1] + kept)
        return expected

    def learn(self, length: int, proposed: Sequence[int], said: Sequence[int]) -> None:
        """Behind a match of ``length``, ``proposed`` was expected and ``said`` came."""
        for i, (token, other) in enumerate(zip(proposed, said, strict=False)):
            self._shares.add(bisect(BORDERS, length + i), token == other)
            if token != other:
                break


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two texts share."""
    low, high = 0, min(len(a), len(b))
    # Slices are compared at the speed of memory, which a loop over a long text is not.
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low

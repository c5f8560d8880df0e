"""Where the end of a growing text occurred before.

For each of a few sizes n, the last n tokens are looked up by their hash, in constant time; every
place remembers the one before it with the same n tokens. So a text grows and is cut back by one
token in constant time, however long it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Self

NOWHERE = -1


class NGrams:
    """An index of ``tokens`` by their n-grams, for every n of ``sizes``.

    No n-gram reaches over a token of ``breakers`` or over a negative one, which stands for a row of
    an image.
    """

    def __init__(self, sizes: Sequence[int], breakers: Collection[int] = ()) -> None:
        self.sizes = tuple(sizes)
        self.tokens: list[int] = []
        self._breakers = frozenset(breakers)
        self._unbroken: list[int] = []
        self._newest: list[dict[int, int]] = [{} for _ in sizes]
        self._before: list[list[int]] = [[] for _ in sizes]

    def append(self, token: int) -> None:
        """The text grows by ``token``."""
        at = len(self.tokens)
        self.tokens.append(token)
        broken = token < 0 or token in self._breakers
        unbroken = 0 if broken else 1 + (self._unbroken[-1] if at else 0)
        self._unbroken.append(unbroken)
        for size, newest, before in zip(self.sizes, self._newest, self._before, strict=True):
            if unbroken < size:
                before.append(NOWHERE)
                continue
            key = hash(tuple(self.tokens[-size:]))
            before.append(newest.get(key, NOWHERE))
            newest[key] = at

    def rollback(self, n: int) -> None:
        """The last ``n`` tokens are not part of the text after all."""
        for _ in range(n):
            unbroken = self._unbroken.pop()
            for size, newest, before in zip(self.sizes, self._newest, self._before, strict=True):
                earlier = before.pop()
                if unbroken < size:
                    continue
                key = hash(tuple(self.tokens[-size:]))
                if earlier == NOWHERE:
                    del newest[key]
                else:
                    newest[key] = earlier
            self.tokens.pop()

    def ends(self, size: int) -> Iterator[int]:
        """Where the last ``size`` tokens ended before, the latest place first."""
        if not self.tokens or self._unbroken[-1] < size:
            return
        before = self._before[self.sizes.index(size)]
        wanted = self.tokens[-size:]
        at = before[-1]
        while at != NOWHERE:
            # Two n-grams of one hash would share a chain.
            if self.tokens[at + 1 - size : at + 1] == wanted:
                yield at
            at = before[at]

    def breaks(self, at: int) -> bool:
        """Whether the token at place ``at`` is one that no n-gram reaches over."""
        return self._unbroken[at] == 0

    def match(self, at: int, most: int) -> int:
        """How many tokens before and at place ``at`` equal the text's last ones, up to ``most``."""
        most = min(most, self._unbroken[at], self._unbroken[-1])
        n = 0
        while n < most and self.tokens[at - n] == self.tokens[-1 - n]:
            n += 1
        return n

    def fork(self) -> Self:
        """A copy that goes its own way."""
        twin = type(self)(self.sizes, self._breakers)
        twin.tokens = list(self.tokens)
        twin._unbroken = list(self._unbroken)
        twin._newest = [dict(newest) for newest in self._newest]
        twin._before = [list(before) for before in self._before]
        return twin

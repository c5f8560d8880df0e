"""Penalties on what was said before: repeat, presence and frequency; DRY lies in its own module.

The repeat penalty and DRY count the prompt too, as llama.cpp and transformers do: they take in the
history at the first look. Presence and frequency count the answer alone, as OpenAI's API and vLLM
do: what was accepted, before the first look too, where an answer goes on in another request. Each
follows ``accept`` and ``rollback``, so a drafted prefix counts at the rows behind it and what was
rejected of it does not. A row costs as much as there are tokens to penalise, not as the history is
long. Negative tokens, which stand for rows of an image, are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats
from gemmtp.engine.dry import DryPenalty
from gemmtp.engine.processors import Processor
from gemmtp.errors import UsageError

MOST_REPEAT = 10.0
MOST_OFFSET = 2.0
"""The bounds of presence and frequency in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class PenaltyParameters:
    """How strongly repetition is discouraged; the defaults are all off.

    ``repeat`` divides positive and multiplies negative logits of the last ``repeat_last_n`` tokens
    (-1: all), prompt included (CTRL, arXiv 1909.05858, as llama.cpp changed it). ``presence`` is
    subtracted from the logits of tokens that the answer has, ``frequency`` once for every time. DRY
    subtracts ``dry_multiplier * dry_base ** (n - dry_allowed_length)`` from a token that would
    continue a repetition of n tokens, with n at least ``dry_allowed_length``, in the last
    ``dry_last_n`` tokens (-1: all), prompt included (p-e-w, text-generation-webui #5677). Raises
    :class:`~gemmtp.errors.UsageError` on absurd numbers.
    """

    repeat: float = 1.0
    repeat_last_n: int = 64
    presence: float = 0.0
    frequency: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = -1

    def __post_init__(self) -> None:
        if not 0.0 < self.repeat <= MOST_REPEAT:
            raise UsageError(
                f"A repeat penalty lies above 0 and up to {MOST_REPEAT:g}, not {self.repeat}.",
                "1 is off.",
            )
        for name, value in (("presence", self.presence), ("frequency", self.frequency)):
            if not -MOST_OFFSET <= value <= MOST_OFFSET:
                raise UsageError(
                    f"A {name} penalty lies between -2 and 2, not {value}.", "0 is off."
                )
        if not 0.0 <= self.dry_multiplier <= 100.0:
            raise UsageError(
                f"DRY's multiplier lies between 0 and 100, not {self.dry_multiplier}.", "0 is off."
            )
        if not 1.0 <= self.dry_base <= 100.0:
            raise UsageError(
                f"DRY's base lies between 1 and 100, not {self.dry_base}.", "1.75 is usual."
            )
        if self.dry_allowed_length < 1:
            raise UsageError(
                f"DRY's allowed length must be at least 1, not {self.dry_allowed_length}.",
                "2 is usual.",
            )
        for last_n in (self.repeat_last_n, self.dry_last_n):
            if last_n < -1:
                raise UsageError(f"A penalty cannot look at the last {last_n} tokens.", "-1: all.")

    def processors(
        self, exempt: Collection[int] = (), breakers: Collection[int] = ()
    ) -> tuple[Processor, ...]:
        """What these numbers ask for, none where all is off.

        The repeat penalty spares ``exempt``; a prompt's end-of-turn tokens would otherwise keep the
        answer from ending. ``breakers`` are the tokens that end DRY's sequences.
        """
        found: list[Processor] = []
        if self.repeat != 1.0 and self.repeat_last_n:
            found.append(RepeatPenalty(self.repeat, self.repeat_last_n, exempt))
        if self.presence or self.frequency:
            found.append(AnswerPenalty(self.presence, self.frequency))
        if self.dry_multiplier and self.dry_last_n:
            found.append(
                DryPenalty(
                    self.dry_multiplier,
                    self.dry_base,
                    self.dry_allowed_length,
                    self.dry_last_n,
                    breakers,
                )
            )
        return tuple(found)


class _Counts:
    """How often each of a few tokens was counted, with those that were in one array."""

    def __init__(self) -> None:
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)
        self._places: dict[int, int] = {}

    @property
    def ids(self) -> NDArray[np.int64]:
        """int64[m]: the tokens whose count is above 0, in no order."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Floats:
        """float32[m]: the count of each of ``ids``."""
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, self._ids])
                self._counts = np.concatenate([self._counts, self._counts])
            self._ids[place], self._counts[place] = token, 0
        self._counts[place] += 1

    def take(self, token: int) -> None:
        place = self._places[token]
        self._counts[place] -= 1
        if self._counts[place] == 0:
            # The last token moves to where this one was.
            last = len(self._places) - 1
            moved = int(self._ids[last])
            self._ids[place], self._counts[place] = moved, self._counts[last]
            self._places[moved] = place
            del self._places[token]

    def fork(self) -> _Counts:
        twin = _Counts()
        twin._ids, twin._counts = self._ids.copy(), self._counts.copy()
        twin._places = dict(self._places)
        return twin


class RepeatPenalty:
    """Makes the last ``last_n`` tokens of prompt and answer (-1: all) less likely."""

    def __init__(self, penalty: float, last_n: int, exempt: Collection[int] = ()) -> None:
        self._penalty, self._last_n = np.float32(penalty), last_n
        self._exempt = frozenset(exempt)
        self._text: list[int] | None = None
        self._counts = _Counts()

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        if self._text is None:
            self._text = []
            for token in history:
                if token >= 0:
                    self.accept(token)
        ids = self._counts.ids
        values = logits[ids]
        logits[ids] = np.where(values > 0, values / self._penalty, values * self._penalty)

    def accept(self, token: int) -> None:
        if self._text is not None:
            self._text.append(token)
            self._count(token)
            if 0 <= self._last_n < len(self._text):
                self._uncount(self._text[-1 - self._last_n])

    def rollback(self, n: int) -> None:
        if self._text is None:
            return
        for _ in range(n):
            if 0 <= self._last_n < len(self._text):
                self._count(self._text[-1 - self._last_n])
            self._uncount(self._text.pop())

    def fork(self) -> Self:
        twin = type(self)(float(self._penalty), self._last_n, self._exempt)
        twin._text = None if self._text is None else list(self._text)
        twin._counts = self._counts.fork()
        return twin

    def _count(self, token: int) -> None:
        if token not in self._exempt:
            self._counts.add(token)

    def _uncount(self, token: int) -> None:
        if token not in self._exempt:
            self._counts.take(token)


class AnswerPenalty:
    """Subtracts ``presence``, and ``frequency`` times its count, for every token of the answer."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = np.float32(presence), np.float32(frequency)
        self._answer: list[int] = []
        self._counts = _Counts()

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        counts = self._counts
        logits[counts.ids] -= self._presence + self._frequency * counts.counts

    def accept(self, token: int) -> None:
        self._answer.append(token)
        self._counts.add(token)

    def rollback(self, n: int) -> None:
        for _ in range(n):
            self._counts.take(self._answer.pop())

    def fork(self) -> Self:
        twin = type(self)(float(self._presence), float(self._frequency))
        twin._answer = list(self._answer)
        twin._counts = self._counts.fork()
        return twin

"""How many tokens to draft next."""

from __future__ import annotations

from typing import Protocol

from gemmtp.errors import UsageError

MAX_DEPTH = 16
"""The deepest draft the loop makes; public runs of Gemma 4 gain nothing past 8."""

HEURISTIC_START = 3
"""Where the heuristic begins: the depth that llama.cpp's MTP drafting uses throughout."""


class DepthChooser(Protocol):
    """Says how deep the next draft is and learns from what came of it."""

    @property
    def most(self) -> int:
        """The deepest draft it can ask for."""

    def choose(self, slots: int = 1) -> int:
        """The depth of the next draft beside ``slots - 1`` others; 0 decodes plainly."""

    def learn(self, drafted: int, accepted: int) -> None:
        """``accepted`` of ``drafted`` tokens were kept."""

    def observe(self, slots: int, depth: int, seconds: float) -> None:
        """A round of ``slots`` answers, each drafted ``depth`` deep, took ``seconds``."""

    def describe(self) -> str:
        """A few words for the start line."""


def checked_depth(depth: int) -> int:
    """``depth``; raises :class:`~gemmtp.errors.UsageError` outside 0 to :data:`MAX_DEPTH`."""
    if not 0 <= depth <= MAX_DEPTH:
        raise UsageError(f"A draft depth lies between 0 and {MAX_DEPTH}, not {depth}.")
    return depth


class _Unclocked:
    """The part of a chooser that does not look at the clock."""

    def observe(self, slots: int, depth: int, seconds: float) -> None:
        """The clock does not matter here."""


class FixedDepth(_Unclocked):
    """Always the same depth."""

    def __init__(self, depth: int) -> None:
        self._depth = checked_depth(depth)

    @property
    def most(self) -> int:
        return self._depth

    def choose(self, slots: int = 1) -> int:
        return self._depth

    def learn(self, drafted: int, accepted: int) -> None:
        """A fixed depth does not learn."""

    def describe(self) -> str:
        return f"{self._depth}"


class HeuristicDepth(_Unclocked):
    """Two more after a draft that was kept whole, one less otherwise, never below one.

    This is the ``heuristic`` schedule of assisted generation in transformers.
    """

    def __init__(self, start: int = HEURISTIC_START, most: int = MAX_DEPTH) -> None:
        self._most = checked_depth(most)
        self._depth = min(max(1, checked_depth(start)), self._most)

    @property
    def most(self) -> int:
        return self._most

    def choose(self, slots: int = 1) -> int:
        return self._depth

    def learn(self, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        if accepted == drafted:
            self._depth = min(self._depth + 2, self._most)
        else:
            self._depth = max(self._depth - 1, 1)

    def describe(self) -> str:
        return f"heuristic, up to {self._most}"

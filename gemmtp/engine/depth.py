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

    def choose(self) -> int:
        """The depth of the next draft; 0 decodes plainly."""

    def learn(self, drafted: int, accepted: int) -> None:
        """``accepted`` of ``drafted`` tokens were kept."""

    def describe(self) -> str:
        """A few words for the start line."""


def _checked(depth: int) -> int:
    if not 0 <= depth <= MAX_DEPTH:
        raise UsageError(f"A draft depth lies between 0 and {MAX_DEPTH}, not {depth}.")
    return depth


class FixedDepth:
    """Always the same depth."""

    def __init__(self, depth: int) -> None:
        self._depth = _checked(depth)

    @property
    def most(self) -> int:
        return self._depth

    def choose(self) -> int:
        return self._depth

    def learn(self, drafted: int, accepted: int) -> None:
        """A fixed depth does not learn."""

    def describe(self) -> str:
        return f"{self._depth}"


class HeuristicDepth:
    """Two more after a draft that was kept whole, one less otherwise, never below one.

    This is the ``heuristic`` schedule of assisted generation in transformers.
    """

    def __init__(self, start: int = HEURISTIC_START, most: int = MAX_DEPTH) -> None:
        self._most = _checked(most)
        self._depth = min(max(1, _checked(start)), self._most)

    @property
    def most(self) -> int:
        return self._most

    def choose(self) -> int:
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

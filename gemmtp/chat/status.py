"""The line below the prompt: model, drafting, context, speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prompt_toolkit.utils import get_cwidth

SEPARATOR = " · "


@dataclass(frozen=True, slots=True)
class Status:
    """``depth`` is the last answer's most frequent one, None before there is one."""

    model: str
    off: str | None
    policy: str
    depth: int | None
    used: int
    n_ctx: int
    rate: str = ""
    staged: Sequence[str] = ()

    def line(self, columns: int) -> str:
        """As much as fits; what can be looked up elsewhere goes first."""
        share = round(100 * self.used / self.n_ctx) if self.n_ctx else 0
        context = f"context {self.used:,} of {self.n_ctx:,} ({share}%)"
        rate = [self.rate] if self.rate else []
        short = [self.rate.partition(" (")[0]] if self.rate else []
        staged = [f"{len(self.staged)} attached"] if self.staged else []
        full, on = self._drafting(), "drafting off" if self.off else f"drafting {self._depth()}"
        for parts in (
            [self.model, *staged, full, context, *rate],
            [self.model, *staged, on, context, *rate],
            [*staged, on, context, *rate],
            [*staged, on, context, *short],
            [*staged, on, f"{share}%", *short],
        ):
            line = SEPARATOR.join(parts)
            if get_cwidth(line) <= columns:
                return line
        return f"{share}%"

    def _drafting(self) -> str:
        if self.off:
            return f"drafting off: {self.off}"
        known = self.depth is None or self.policy == f"{self.depth}"
        last = "" if known else f", last {self.depth}"
        return f"drafting {self.policy}{last}"

    def _depth(self) -> str:
        return "on" if self.depth is None else f"{self.depth}"

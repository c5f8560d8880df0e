"""What a chat's answers cost: the words of ``/stats``, and the rate on the status line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gemmtp.engine.stats import SourceCounts, Statistics


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: its counts, and what they were made under.

    ``off`` is why nothing was drafted, None where drafting was on; ``because`` says why no more of
    the prompt was in the cache.
    """

    statistics: Statistics
    temperature: float
    off: str | None = None
    because: str = ""

    @property
    def depth(self) -> int:
        """The number of tokens that most of its rounds drafted."""
        rounds = self.statistics.rounds_at
        return max(rounds, key=lambda depth: rounds[depth], default=0)

    @property
    def rate(self) -> str:
        """Tokens a second, with the conditions that every rate is quoted with."""
        return (
            f"{self.statistics.decode_rate:.1f} tok/s "
            f"(1 slot, draft {self.depth}, T {self.temperature:g})"
        )


_SOURCES = {"mtp": "drafted"}
"""What the tokens of a source are called; others go by their own names."""


@dataclass(slots=True)
class Tally:
    """The answers of a chat, in order."""

    turns: list[Turn] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The last answer, and all of them."""
        if not self.turns:
            return ["Nothing was answered yet."]
        lines = [f"last answer (turn {len(self.turns)})", *_lines(self.turns[-1:])]
        if len(self.turns) > 1:
            lines += [f"all {len(self.turns)} answers", *_lines(self.turns)]
        return lines


def _lines(turns: Sequence[Turn]) -> list[str]:
    total = summed([turn.statistics for turn in turns])
    last = turns[-1]
    because = f"; {last.because}" if len(turns) == 1 and last.because else ""
    temperatures = "/".join(dict.fromkeys(f"{turn.temperature:g}" for turn in turns))
    lines = [
        f"  prompt    {total.cached:,} tokens cached, {total.evaluated:,} evaluated"
        f" at {total.prompt_rate:.1f}/s{because}",
        f"  answer    {total.generated:,} tokens at {total.decode_rate:.1f}/s"
        f" (1 slot, T {temperatures}, rule {total.rule})",
    ]
    choice = f"; {total.choice}" if len(turns) == 1 and total.choice else ""
    if not total.drafted:
        off = f"off: {last.off}" if last.off else f"none was made{choice}"
        return [*lines, f"  drafting  {off}"]
    kept = ", ".join(
        f"{counts.accepted:,} of {counts.drafted:,} {_SOURCES.get(source, source)} tokens kept"
        for source, counts in total.by_source.items()
    )
    lines.append(f"  drafting  {total.tokens_per_round:.2f} tokens a round; {kept}")
    if total.drafted_at:
        shares = " ".join(f"{share:.2f}" for share in total.per_position)
        lines.append(f"            kept at draft position 1, 2, ...: {shares}")
    depths = ", ".join(f"{depth}: {n:,}" for depth, n in sorted(total.rounds_at.items()))
    lines.append(f"            rounds by tokens drafted: {depths}{choice}")
    return lines


def summed(parts: Sequence[Statistics]) -> Statistics:
    """The counts and seconds of several requests added up; rule and seed are the last one's."""
    total = replace(
        parts[-1], drafted_at=[], accepted_at=[], rounds_at={}, by_source={}, overlap=None
    )
    for name in (
        "cached",
        "evaluated",
        "generated",
        "rounds",
        "round_tokens",
        "drafted",
        "accepted",
        "prompt_seconds",
        "decode_seconds",
        "native_seconds",
    ):
        setattr(total, name, sum(getattr(part, name) for part in parts))
    for part in parts:
        total.drafted_at = _added(total.drafted_at, part.drafted_at)
        total.accepted_at = _added(total.accepted_at, part.accepted_at)
        for depth, n in part.rounds_at.items():
            total.rounds_at[depth] = total.rounds_at.get(depth, 0) + n
        for source, counts in part.by_source.items():
            both = total.by_source.setdefault(source, SourceCounts())
            both.drafted += counts.drafted
            both.accepted += counts.accepted
    return total


def _added(a: Sequence[int], b: Sequence[int]) -> list[int]:
    longest = max(len(a), len(b))
    padded = ([*counts, *[0] * (longest - len(counts))] for counts in (a, b))
    return [x + y for x, y in zip(*padded, strict=True)]

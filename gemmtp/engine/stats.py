"""What happened, under the names the field uses.

A *round* is one draft and the target decode that verifies it. *Acceptance* at draft position i is
the share of drafts that reached position i whose i-th token was kept, given nothing about earlier
positions (as vLLM counts it). *Tokens a round* is what a round emits, the target's own token
included: 1 for plain decoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SourceCounts:
    """Tokens that one source of drafts proposed, and those of them that were kept."""

    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Statistics:
    """Counts and seconds of one request.

    ``decode_seconds`` is the wall time of the steps in which the request decoded, shared by all
    slots that decoded beside it; ``native_seconds`` is the part of it spent in forward passes.
    """

    cached: int = 0
    """Prompt tokens whose KV cells were reused."""
    evaluated: int = 0
    """Prompt tokens decoded for this request."""
    cached_because: str = ""
    """Why so many were reused and no more."""
    generated: int = 0
    """Emitted tokens, the token that ended the text included."""
    rounds: int = 0
    round_tokens: int = 0
    """Tokens emitted by rounds; the first token of all comes from the prompt's last row."""
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    by_source: dict[str, SourceCounts] = field(default_factory=dict)
    """The same by who drafted; ``drafted_at`` and ``accepted_at`` are the drafter's alone."""
    rounds_at: dict[int, int] = field(default_factory=dict)
    """Rounds by the number of tokens drafted."""
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    native_seconds: float = 0.0
    rule: str = "compare"
    """The acceptance rule: compare, reject or block."""
    seed: int = 0
    """The seed in use, given or fresh."""
    choice: str = ""
    """What decided about the depth of drafts at the end, and why; empty without drafting."""
    overlap: float | None = None
    """The mean sum of min(p, q) over verified drafts, where drafts were drawn."""

    def count_round(self, drafted: int, accepted: int, emitted: int, source: str = "mtp") -> None:
        """One verified draft: ``accepted`` of ``drafted`` tokens kept, ``emitted`` in all."""
        self.rounds += 1
        self.rounds_at[drafted] = self.rounds_at.get(drafted, 0) + 1
        self.round_tokens += emitted
        self.drafted += drafted
        self.accepted += accepted
        if not drafted:
            return
        counts = self.by_source.setdefault(source, SourceCounts())
        counts.drafted += drafted
        counts.accepted += accepted
        if source != "mtp":
            return
        missing = drafted - len(self.drafted_at)
        self.drafted_at += [0] * missing
        self.accepted_at += [0] * missing
        for i in range(drafted):
            self.drafted_at[i] += 1
            self.accepted_at[i] += i < accepted

    @property
    def per_position(self) -> list[float]:
        """Acceptance at draft positions 1, 2, ..."""
        return [a / d for a, d in zip(self.accepted_at, self.drafted_at, strict=True)]

    @property
    def acceptance(self) -> float:
        """Accepted over drafted tokens; 0 without a draft."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        return self.round_tokens / self.rounds if self.rounds else 0.0

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens evaluated a second."""
        return self.evaluated / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        return self.round_tokens / self.decode_seconds if self.decode_seconds else 0.0

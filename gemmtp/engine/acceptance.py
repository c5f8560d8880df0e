"""How often drafted tokens are kept: by position, by the drafter's certainty, and by text.

Older rounds count less. One table holds what all answers under a rule have shown; each answer adds
its own, which begins at that table's estimate and soon outweighs it, because code and prose differ.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from typing import Any

PRIOR_KEPT = 0.75
"""Acceptance assumed before anything is known, worth one observation."""

FORGET = 0.98
"""What an observation is worth one round later."""

IDLE_FORGET = 0.98
"""The same for a round without a draft: what was known grows stale, and drafting is tried again."""

SHARED_WEIGHT = 2.0
"""How many of an answer's own observations the shared estimate is worth."""

MARGINS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 9.0)
"""Borders, in logits, between the classes of a drafter's certainty."""

REMEMBERED = 12.0
"""At most so many observations are made of what an earlier process learned."""


class Shares:
    """Decaying counts of trials and successes, one pair for each of ``n`` cases."""

    def __init__(self, n: int) -> None:
        self.hits = [0.0] * n
        self.tries = [0.0] * n

    def add(self, i: int, hit: bool) -> None:
        self.hits[i] = FORGET * self.hits[i] + hit
        self.tries[i] = FORGET * self.tries[i] + 1

    def fade(self) -> None:
        """A round without a trial."""
        self.hits = [IDLE_FORGET * hits for hits in self.hits]
        self.tries = [IDLE_FORGET * tries for tries in self.tries]

    def share(self, i: int, prior: float, weight: float) -> float:
        """The share of successes, where the prior counts as ``weight`` trials."""
        return (self.hits[i] + weight * prior) / (self.tries[i] + weight)

    def state(self) -> list[list[float]]:
        """What :meth:`restore` takes."""
        return [[round(h, 3), round(t, 3)] for h, t in zip(self.hits, self.tries, strict=True)]

    def restore(self, state: Sequence[Sequence[float]]) -> None:
        """Take over what an earlier process had learned, as a few observations.

        Raises ValueError on numbers that are no shares.
        """
        for i, (hits, tries) in enumerate(state[: len(self.hits)]):
            if not 0 <= hits <= tries < 1e6:
                raise ValueError(f"{hits} of {tries} is no share")
            scale = min(1.0, REMEMBERED / tries) if tries else 0.0
            self.hits[i], self.tries[i] = scale * hits, scale * tries


class SharedAcceptance:
    """What all answers under one rule have shown."""

    def __init__(self, most: int) -> None:
        self.positions = Shares(most)
        self.certainty = Shares(len(MARGINS) + 1)

    def at(self, i: int) -> float:
        """Acceptance of the draft's token ``i`` once those before it were kept."""
        return self.positions.share(i, PRIOR_KEPT, 1.0)

    def given(self, i: int, margin: float) -> float:
        """The same for a token whose best logit surpassed the second by ``margin``."""
        return self.certainty.share(bisect(MARGINS, margin), self.at(i), SHARED_WEIGHT)

    def learn(self, drafted: int, accepted: int, margins: Sequence[float]) -> None:
        if not drafted:
            self.positions.fade()
            self.certainty.fade()
        for i in range(min(accepted + 1, drafted)):
            self.positions.add(i, i < accepted)
            if i < len(margins):
                self.certainty.add(bisect(MARGINS, margins[i]), i < accepted)

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` takes, fit for JSON."""
        return {"positions": self.positions.state(), "certainty": self.certainty.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Begin with what an earlier process had learned. Raises ValueError on nonsense."""
        self.positions.restore(state["positions"])
        self.certainty.restore(state["certainty"])


class Acceptance:
    """What one answer has shown, beside what all have."""

    def __init__(self, shared: SharedAcceptance, most: int) -> None:
        self.shared = shared
        self._own = Shares(most)

    def at(self, i: int) -> float:
        """Acceptance of the draft's token ``i`` once those before it were kept."""
        return self._own.share(i, self.shared.at(i), SHARED_WEIGHT)

    def given(self, i: int, margin: float) -> float:
        """The same, knowing how sure the drafter was of it."""
        return self.shared.given(i, margin)

    def learn(self, drafted: int, accepted: int, margins: Sequence[float]) -> None:
        self.shared.learn(drafted, accepted, margins)
        if not drafted:
            self._own.fade()
        for i in range(min(accepted + 1, drafted)):
            self._own.add(i, i < accepted)

    def tokens(self, depth: int) -> float:
        """Tokens that a round of this depth is expected to emit, the target's own included."""
        tokens = kept = 1.0
        for i in range(depth):
            kept *= self.at(i)
            tokens += kept
        return tokens

"""How often drafted tokens are kept: by position, by the drafter's certainty, and by text.

Older rounds count less. One table holds what all answers under a rule have shown; each answer adds
its own, which begins at that table's estimate and soon outweighs it, because code and prose differ.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from typing import Any

PRIOR_KEPT = 0.75
"""Acceptance of a first token assumed before anything is known; of a later one, that before it."""

PRIOR_WEIGHT = 1.0
"""How many observations that is worth."""

FORGET = 0.98
"""What an observation is worth one round later."""

IDLE_FORGET = 0.98
"""The same for a round without a draft: what was known grows stale, and drafting is tried again."""

SHARED_WEIGHT = 2.0
"""How many of an answer's own observations the shared estimate is worth."""

MARGINS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 9.0)
"""Borders, in logits, between the classes of a drafter's certainty."""

_CALIBRATED = (0.56, 0.68, 0.82, 0.92, 0.97, 0.993, 0.999, 1.0)
"""How probable the better of two tokens is, by class, where their logits are all there is: what a
drafter that knows itself is kept at most, assumed before anything is known of the class."""

LEAST_SHARE = 0.01
"""Nothing is taken to be surer than one in a hundred, or ninety-nine."""

REMEMBERED = 12.0
"""At most so many observations are made of what an earlier process learned."""


class Shares:
    """Decaying counts of trials and successes, one pair for each of ``n`` cases."""

    def __init__(self, n: int) -> None:
        self.hits = [0.0] * n
        self.tries = [0.0] * n

    def add(self, i: int, hit: float) -> None:
        self.hits[i] = FORGET * self.hits[i] + hit
        self.tries[i] = FORGET * self.tries[i] + 1

    def fade(self, case: int | None = None, rounds: int = 1) -> None:
        """``rounds`` without a trial of ``case``, or of any."""
        left = IDLE_FORGET**rounds
        for i in range(len(self.tries)) if case is None else (case,):
            self.hits[i] *= left
            self.tries[i] *= left

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
        self.seen = [0.0] * (len(MARGINS) + 1)

    def by_position(self) -> list[float]:
        """Acceptance of every token of a draft once those before it were kept."""
        found, kept = [], PRIOR_KEPT
        for i in range(len(self.positions.tries)):
            kept = self.positions.share(i, kept, PRIOR_WEIGHT)
            found.append(kept)
        return found

    def of_class(self, c: int, at: float) -> float:
        """The same by class of certainty, at a position of which ``at`` are kept."""
        return self.certainty.share(c, min(at, _CALIBRATED[c]), SHARED_WEIGHT)

    def learn(self, drafted: int, accepted: int, margins: Sequence[float]) -> None:
        if drafted:
            for i in range(drafted, len(self.positions.tries)):
                self.positions.fade(i)
        for i in range(min(accepted + 1, drafted)):
            self.positions.add(i, i < accepted)
            if i < len(margins):
                self.certainty.add(bisect(MARGINS, margins[i]), i < accepted)
        for margin in margins:
            self.seen = [FORGET * seen for seen in self.seen]
            self.seen[bisect(MARGINS, margin)] += 1

    def rest(self, rounds: int) -> None:
        """``rounds`` in which nothing is drafted."""
        self.positions.fade(rounds=rounds)
        self.certainty.fade(rounds=rounds)

    def left(self, margin: float) -> None:
        """A token that sure was not taken: what is known of its like grows stale."""
        self.certainty.fade(bisect(MARGINS, margin))

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` takes, fit for JSON."""
        return {"positions": self.positions.state(), "certainty": self.certainty.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Begin with what an earlier process had learned. Raises ValueError on nonsense."""
        self.positions.restore(state["positions"])
        self.certainty.restore(state["certainty"])


class Acceptance:
    """What one answer has shown, beside what all have, up to the last :meth:`refresh`."""

    def __init__(self, shared: SharedAcceptance, most: int) -> None:
        self.shared = shared
        self._own = Shares(most)
        self.refresh()

    def refresh(self) -> None:
        """Take in what was learned since; a round asks often."""
        self._shared_at = self.shared.by_position()
        self._at = [
            self._own.share(i, shared, SHARED_WEIGHT) for i, shared in enumerate(self._shared_at)
        ]
        self._shifts = [
            _odds(own) / _odds(shared)
            for own, shared in zip(self._at, self._shared_at, strict=True)
        ]

    def at(self, i: int) -> float:
        """Acceptance of the draft's token ``i`` once those before it were kept."""
        return self._at[i]

    def given(self, i: int, margin: float) -> float:
        """The same, knowing how sure the drafter was of it.

        What all answers have shown, shifted by how this one differs from them: a drafter may be as
        sure of prose as of code and be right less often.
        """
        return self._of_class(i, bisect(MARGINS, margin))

    def _of_class(self, i: int, c: int) -> float:
        return _shifted(self.shared.of_class(c, self._shared_at[i]), self._shifts[i])

    def pass_worth(self, i: int, survival: float, price: float) -> float:
        """Tokens to be gained by looking at draft token ``i`` and taking it where that pays.

        ``survival`` is the probability that those before it are kept, ``price`` what taking it
        costs, in tokens.
        """
        classes = self.shared.seen
        seen = sum(classes)
        if not seen:
            return max(0.0, survival * self.at(i) - price)
        return sum(
            share / seen * max(0.0, survival * self._of_class(i, c) - price)
            for c, share in enumerate(classes)
            if share
        )

    def survival(self, margins: Sequence[float]) -> float:
        """How probable it is that all tokens drafted so surely are kept."""
        survival = 1.0
        for i, margin in enumerate(margins):
            survival *= self.given(i, margin)
        return survival

    def learn(self, drafted: int, accepted: int, margins: Sequence[float]) -> None:
        """``accepted`` of the ``drafted`` tokens were kept.

        A further margin is that of a token that was not taken. It counts by what it was expected
        to bring, or the estimate by position would see the surest tokens alone.
        """
        if not drafted and not margins:
            self.rest(1)
        self.shared.learn(drafted, accepted, margins)
        for i in range(min(accepted + 1, drafted)):
            self._own.add(i, i < accepted)
        if len(margins) > drafted == accepted:
            expected = self.given(drafted, margins[drafted])
            self.shared.positions.add(drafted, expected)
            self._own.add(drafted, expected)
            self.shared.left(margins[drafted])

    def rest(self, rounds: int) -> None:
        """``rounds`` in which nothing is drafted: what was known grows stale."""
        self.shared.rest(rounds)
        self._own.fade(rounds=rounds)

    def tokens(self) -> list[float]:
        """By depth from 0 on, tokens a round is expected to emit, the target's included."""
        tokens, kept = [1.0], 1.0
        for at in self._at:
            kept *= at
            tokens.append(tokens[-1] + kept)
        return tokens


def _odds(share: float) -> float:
    share = min(max(share, LEAST_SHARE), 1 - LEAST_SHARE)
    return share / (1 - share)


def _shifted(share: float, shift: float) -> float:
    """A share whose odds were multiplied by ``shift``."""
    odds = _odds(share) * shift
    return odds / (1 + odds)

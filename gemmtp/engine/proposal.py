"""Where sampled drafts are drawn from: the drafter's distribution, as sharp as pays best.

Rejection sampling is exact for any proposal that is fixed before the draw. How often it keeps a
draft is the sum of min(p, q), so the proposal's temperature is chosen from what earlier rounds
showed: a drafter less sure of itself than the target is sharpened, down to its single best token,
whose acceptance is the target's probability of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gemmtp.engine.backend import Floats
from gemmtp.engine.rejection import overlap
from gemmtp.engine.sampling import Distribution, Noise, SamplingParameters, Shaper

FACTORS = (0.0, 0.5, 0.75, 1.0, 1.25)
"""Proposal temperatures over the request's; 0 is the drafter's single best token."""

MEMORY = 0.95
"""How much of its estimate of a factor is kept from one look to the next."""

LOOK_EVERY = 4
"""Rounds between two looks, since each costs about a third of a millisecond."""

_DRAFT = 1
_CANDIDATES = 256


class Proposed(NamedTuple):
    """A drafted token and the distribution it was drawn from."""

    token: int
    q: Distribution


class Proposal:
    """Draws drafts for one request and learns how sharp they should be."""

    def __init__(self, parameters: SamplingParameters, seed: int) -> None:
        self._seed = seed
        self._shapers = {
            factor: Shaper(replace(parameters, temperature=factor * parameters.temperature))
            for factor in FACTORS
        }
        self._kept = dict.fromkeys(FACTORS, 0.0)
        self._looks = 0
        self._round = 0
        self._first: Floats | None = None
        self.factor = 1.0

    def begin(self, round: int) -> None:
        """A new draft; its draws are independent of those of other rounds."""
        self._round = round
        self._first = None

    def draw(self, logits: Floats, position: int) -> Proposed:
        """A token for ``position`` from the drafter's ``logits`` float32[n_vocab]."""
        if self._first is None and self._round % LOOK_EVERY == 0:
            self._first = logits.copy()
        q = self._shaped(logits, self.factor)
        return Proposed(q.draw(Noise(self._seed, position, _DRAFT, self._round)), q)

    def learn(self, p: Distribution) -> None:
        """``p`` is the target's distribution at the position of the draft's first token."""
        if self._first is None:
            return
        self._looks += 1
        for factor in FACTORS:
            kept = overlap(p, self._shaped(self._first, factor))
            memory = min(MEMORY, 1 - 1 / self._looks)
            self._kept[factor] = memory * self._kept[factor] + (1 - memory) * kept
        self._first = None
        self.factor = max(FACTORS, key=self._kept.__getitem__)

    def _shaped(self, logits: Floats, factor: float) -> Distribution:
        if factor == 0.0:
            return Distribution.certain(int(logits.argmax()))
        return self._shapers[factor](logits)

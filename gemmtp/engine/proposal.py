"""Where sampled drafts are drawn from: the drafter's distribution, as sharp as pays best.

Rejection sampling is exact for any proposal that is fixed before the draw. How often it keeps a
draft is the sum of min(p, q), so the proposal's temperature is chosen from what earlier rounds
showed: a drafter less sure of itself than the target is sharpened, down to its single best token,
whose acceptance is the target's probability of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats
from gemmtp.engine.noise import Noise
from gemmtp.engine.rejection import overlap
from gemmtp.engine.sampling import Distribution, SamplingParameters, Shaper

FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
"""Proposal temperatures over the request's; 0 is the drafter's single best token."""

MEMORY = 0.98
"""How much of its estimate of a factor is kept from one look to the next."""

FIRST_LOOKS, LOOK_EVERY = 24, 4
"""Every round is looked at first, then one in four: a look takes about a quarter millisecond."""

NEAR = 14.0
"""A look takes in tokens whose probability is at least exp(-14) of the best one's."""

WORTH = 1.01
"""How much more a drawn draft must keep than the single best token, which costs no drawing."""

_DRAFT = 1


class Proposed(NamedTuple):
    """A drafted token and the distribution it was drawn from."""

    token: int
    q: Distribution


class _Near(NamedTuple):
    """The likelier part of a drafter's row: ids ascending, and their logits."""

    ids: NDArray[np.int64]
    logits: Floats


class Sharpness:
    """Learns how sharp proposals should be for one set of parameters, over many answers."""

    def __init__(self, parameters: SamplingParameters) -> None:
        self._temperature = parameters.temperature
        self._shapers = {
            factor: Shaper(replace(parameters, temperature=factor * parameters.temperature))
            for factor in FACTORS
            if factor
        }
        self._kept = dict.fromkeys(FACTORS, 0.0)
        self.looks = 0
        self.factor = 1.0

    def shaped(self, logits: Floats, factor: float) -> Distribution:
        """The proposal that a drafter's row gives at ``factor``."""
        if factor == 0.0:
            return Distribution.certain(int(logits.argmax()))
        return self._shapers[factor](logits)

    def near(self, logits: Floats) -> _Near:
        """A copy of what matters of a row."""
        ids = np.flatnonzero(logits >= logits.max() - np.float32(NEAR * self._temperature))
        return _Near(ids, logits[ids])

    def learn(self, p: Distribution, row: _Near) -> None:
        """``p`` is the target's distribution where the drafter had ``row``."""
        self.looks += 1
        memory = min(MEMORY, 1 - 1 / self.looks)
        for factor in FACTORS:
            near = self.shaped(row.logits, factor)
            q = Distribution(row.ids[near.ids], near.p)
            self._kept[factor] = memory * self._kept[factor] + (1 - memory) * overlap(p, q)
        best = max(FACTORS, key=self._kept.__getitem__)
        self.factor = best if self._kept[best] > WORTH * self._kept[0.0] else 0.0


class Proposal:
    """Draws drafts for one request."""

    def __init__(self, sharpness: Sharpness, seed: int) -> None:
        self._sharpness, self._seed = sharpness, seed
        self._round = 0
        self._rows: list[_Near] = []
        self._looking = True
        self.factor = sharpness.factor

    def begin(self, round: int) -> None:
        """A new draft; its draws are independent of those of other rounds."""
        sharpness = self._sharpness
        self._round, self._rows = round, []
        self._looking = sharpness.looks < FIRST_LOOKS or round % LOOK_EVERY == 0
        # From here to the next draft the factor stands, whatever other answers teach.
        self.factor = sharpness.factor

    def draw(self, logits: Floats, position: int) -> Proposed:
        """A token for ``position`` from the drafter's ``logits`` float32[n_vocab]."""
        if self._looking:
            self._rows.append(self._sharpness.near(logits))
        q = self._sharpness.shaped(logits, self.factor)
        return Proposed(q.draw(Noise(self._seed, position, _DRAFT, self._round)), q)

    def learn(self, i: int, p: Distribution) -> None:
        """``p`` is the target's distribution where the draft's token ``i`` was drawn."""
        if i < len(self._rows):
            self._sharpness.learn(p, self._rows[i])

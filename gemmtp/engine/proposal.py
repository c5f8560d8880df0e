"""Where sampled drafts are drawn from: the drafter's distribution, as sharp as pays best.

Rejection sampling is exact for any proposal that is fixed before the draw. How often it keeps a
draft is the sum of min(p, q), so the proposal's temperature is chosen from what earlier rounds
showed: a drafter less sure of itself than the target is sharpened, down to its single best token,
whose acceptance is the target's probability of it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats
from gemmtp.engine.noise import Noise
from gemmtp.engine.rejection import overlap
from gemmtp.engine.sampling import MOST_TEMPERATURE, Distribution, SamplingParameters, Shaper
from gemmtp.engine.topk import top_k

FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
"""Proposal temperatures over the request's; 0 is the drafter's single best token."""

MEMORY = 0.98
"""How much of its estimate of a factor is kept from one look to the next."""

FIRST_LOOKS, LOOK_EVERY = 24, 4
"""Every round is looked at first, then one in four: a look takes about a third of a millisecond."""

SURE = 0.05
"""Where all other tokens together may not have more than this, the best is proposed undrawn."""

MOST_LOOKED_AT = 1024
"""A look takes in so many of the likeliest tokens where top-k lets more through."""

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
        # Where top-k lets through no more than is looked at, a look has all that a draw needs.
        self._looks_whole = 0 < parameters.top_k <= MOST_LOOKED_AT
        self._looked_at = parameters.top_k if self._looks_whole else MOST_LOOKED_AT
        temperatures = {f: min(f * parameters.temperature, MOST_TEMPERATURE) for f in FACTORS if f}
        self.sure_margin = float("inf")
        """By how much a row's best logit must surpass the second for it to be proposed undrawn."""
        if self._looks_whole:
            hottest = max(temperatures.values())
            self.sure_margin = hottest * math.log(max(parameters.top_k - 1, 1) / SURE)
        self._shapers = {
            factor: Shaper(replace(parameters, temperature=temperature))
            for factor, temperature in temperatures.items()
        }
        self._kept = dict.fromkeys(FACTORS, 0.0)
        self.looks = 0
        self.factor = 1.0

    def shaped(self, logits: Floats, factor: float, near: _Near | None) -> Distribution:
        """The proposal that a drafter's row gives at ``factor``, of which ``near`` is known."""
        if near is not None and self._looks_whole:
            return self.among(near, factor)
        return self._shapers[factor](logits)

    def near(self, logits: Floats) -> _Near:
        """A copy of what matters of a row."""
        ids = top_k(logits, self._looked_at)
        return _Near(ids, logits[ids])

    def among(self, row: _Near, factor: float) -> Distribution:
        """The proposal that the likelier part of a row gives at ``factor``."""
        if factor == 0.0:
            return Distribution.certain(int(row.ids[row.logits.argmax()]))
        return self._shapers[factor].among(row.ids, row.logits)

    def learn(self, p: Distribution, row: _Near) -> None:
        """``p`` is the target's distribution where the drafter had ``row``."""
        self.looks += 1
        memory = min(MEMORY, 1 - 1 / self.looks)
        for factor in FACTORS:
            kept = overlap(p, self.among(row, factor))
            self._kept[factor] = memory * self._kept[factor] + (1 - memory) * kept
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

    def draw(
        self, logits: Floats, position: int, best: int, margin: float | None = None
    ) -> Proposed:
        """A token for ``position`` from the drafter's ``logits`` float32[n_vocab].

        ``best`` is its likeliest token, which surpasses the second by ``margin``, if that is known.
        """
        near, sure = None, margin is not None and margin >= self._sharpness.sure_margin
        if self._looking:
            if sure:
                near = _Near(np.array([best]), np.zeros(1, np.float32))
            else:
                near = self._sharpness.near(logits)
            self._rows.append(near)
        if sure or self.factor == 0.0:
            return Proposed(best, Distribution.certain(best))
        q = self._sharpness.shaped(logits, self.factor, near)
        return Proposed(q.draw(Noise(self._seed, position, _DRAFT, self._round)), q)

    def learn(self, i: int, p: Distribution) -> None:
        """``p`` is the target's distribution where the draft's token ``i`` was drawn."""
        if i < len(self._rows):
            self._sharpness.learn(p, self._rows[i])

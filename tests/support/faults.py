"""Faults of drafting and verification, planted to see that a check fails on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from gemmtp.engine import rejection
from gemmtp.engine.backend import Floats
from gemmtp.engine.drafting import Draft, MtpDrafting, Want
from gemmtp.engine.sampling import Distribution
from gemmtp.engine.verify import Rows, Rule
from tests.support.law import Mixed, Source

LOW = 0.35
"""A drawn token less likely than this is dropped by one of the faults."""


def by_index(p: Distribution, q: Distribution, weight: float = 1) -> Distribution:
    """The excess, subtracted by place instead of by token id."""
    zero = 0 * p.p[:1]
    aligned = np.concatenate([q.p, *[zero] * len(p.p)])[: len(p.p)]
    return Distribution(p.ids, np.maximum(weight * p.p - aligned, 0))


class Dropping(MtpDrafting):
    """Looks at the last drawn token and drops it where it was unlikely."""

    def draft(self, wants: Sequence[Want]) -> list[Draft]:
        drafts = super().draft(wants)
        for draft in drafts:
            if draft.q and draft.q[-1].of(draft.tokens[-1]) < LOW:
                del draft.tokens[-1], draft.q[-1]
        return drafts


def _misaligned(patch: pytest.MonkeyPatch) -> Source:
    patch.setattr(rejection, "excess", by_index)
    return Mixed


def _dropped(patch: pytest.MonkeyPatch) -> Source:
    return Dropping


def _blind(patch: pytest.MonkeyPatch) -> Source:
    seen = Rows.logits

    def blind(rows: Rows, i: int) -> Floats:
        """Row i is processed as if nothing had been drafted."""
        tail = rows.history[len(rows.history) - i :]
        for processor in rows._processors:
            processor.rollback(i)
        logits = seen(rows, i)
        for processor in rows._processors:
            for token in tail:
                processor.accept(token)
        return logits

    patch.setattr(Rows, "logits", blind)
    return Mixed


PLANTED: dict[str, tuple[Rule, Callable[[pytest.MonkeyPatch], Source]]] = {
    "p and q misaligned": ("reject", _misaligned),
    "a drawn token dropped": ("block", _dropped),
    "penalties blind to the draft": ("block", _blind),
}
"""By name: the rule under which it shows, and what plants it and gives the source of drafts."""

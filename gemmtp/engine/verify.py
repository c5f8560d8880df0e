"""Which drafted tokens are kept.

*Sample and compare*: the target's own choice is made at each row, greedily or by the race that
belongs to the position, and the draft is kept as long as it equals that choice. With the same seed
the text is the same with any drafter and with none.

*Rejection sampling* (Leviathan et al., arXiv 2211.17192) keeps a token x drawn from q with
probability min(1, p(x) / q(x)) and otherwise draws from what p has more than q. *Block
verification* (Sun et al., arXiv 2403.10444) decides about prefixes of the draft as a whole and
keeps at least as much. Both emit tokens of exactly the target's distribution; which ones depends on
the draft, so a seed repeats a text only at the same depths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from gemmtp.engine.backend import Floats, Target
from gemmtp.engine.drafting import MTP, Draft
from gemmtp.engine.noise import Noise
from gemmtp.engine.processors import Processor
from gemmtp.engine.proposal import Proposal, Sharpness
from gemmtp.engine.rejection import block_steps, overlap, residual
from gemmtp.engine.sampling import NOTHING_LEFT, Distribution, SamplingParameters, Shaper
from gemmtp.errors import EngineError, UsageError

Rule = Literal["compare", "reject", "block"]
Ends = Callable[[int], bool]
_ACCEPT, _EMIT = 2, 3


class Rows:
    """The output rows of one slot after a target decode, with the slot's processors.

    Row i follows ``history`` and the first i tokens of the draft; there are ``n``, one more than
    drafted tokens or, behind a drafted end, as many. Each row is read once.
    """

    def __init__(
        self,
        target: Target,
        first: int,
        n: int,
        history: list[int],
        processors: Sequence[Processor],
    ) -> None:
        self._target, self._first, self._n = target, first, n
        self._processors = processors
        self.history = history

    def logits(self, i: int) -> Floats:
        """float32[n_vocab] of row i, with the processors' changes.

        Raises :class:`~gemmtp.errors.UsageError` when no token is left and
        :class:`~gemmtp.errors.EngineError` on logits that are no numbers.
        """
        logits = self._target.logits(self._first + i)
        for processor in self._processors:
            processor.apply(logits, self.history)
        best = logits.max()
        if best == -np.inf:
            raise UsageError(*NOTHING_LEFT)
        if not np.isfinite(best):
            raise EngineError(
                "The model's logits are not numbers.",
                "The file may be damaged; compare its checksum with the publisher's.",
            )
        return logits

    def behind_draft(self, i: int) -> Floats | None:
        """The same; None where nothing follows: behind an end, and where no token is left.

        What leads there is not said yet, and may never be. Nothing is drafted before row 0, so that
        raises.
        """
        if i == self._n:
            return None
        try:
            return self.logits(i)
        except UsageError:
            if not i:
                raise
            return None

    def accept(self, token: int) -> None:
        """The history goes on with ``token``."""
        self.history.append(token)
        for processor in self._processors:
            processor.accept(token)

    def rollback(self, n: int) -> None:
        """The history's last ``n`` tokens were only looked at."""
        if n:
            del self.history[-n:]
            for processor in self._processors:
                processor.rollback(n)


class Verifier(Protocol):
    """Decides about the drafts of one request."""

    rule: Rule
    proposal: Proposal | None
    """Draws the drafts; None where the drafter's best token is the best draft."""

    def verify(self, rows: Rows, draft: Draft, ends: Ends) -> list[int]:
        """The tokens to emit: the accepted part of ``draft`` and one more of the target's own.

        They are appended to the rows' history and accepted by the processors. Emission stops early
        after a token that ``ends`` the text.
        """

    @property
    def overlap(self) -> float | None:
        """The mean sum of min(p, q) of verified drafts; None where it is not looked at."""


class SampleAndCompare:
    """The target's own choice at each row; the draft only has to guess it."""

    rule: Rule = "compare"
    proposal: Proposal | None = None
    overlap: float | None = None

    def __init__(
        self, parameters: SamplingParameters, seed: int, sharpness: Sharpness | None = None
    ) -> None:
        self._shaper = None if parameters.greedy else Shaper(parameters)
        self._seed = seed

    def verify(self, rows: Rows, draft: Draft, ends: Ends) -> list[int]:
        emitted: list[int] = []
        for i in range(len(draft.tokens) + 1):
            logits = rows.behind_draft(i)
            if logits is None:
                break
            token = self._choose(logits, len(rows.history))
            rows.accept(token)
            emitted.append(token)
            if ends(token) or i == len(draft.tokens) or token != draft.tokens[i]:
                break
        return emitted

    def _choose(self, logits: Floats, position: int) -> int:
        if self._shaper is None:
            return int(logits.argmax())
        return self._shaper.choose(logits, Noise(self._seed, position))


class _Sampled:
    """What rejection sampling and block verification have in common."""

    def __init__(
        self, parameters: SamplingParameters, seed: int, sharpness: Sharpness | None = None
    ) -> None:
        self.proposal: Proposal | None = Proposal(sharpness or Sharpness(parameters), seed)
        self._shaper = Shaper(parameters)
        self._seed = seed
        self._round = 0
        self._overlaps, self._looked = 0.0, 0

    @property
    def overlap(self) -> float | None:
        return self._overlaps / self._looked if self._looked else None

    def _next_round(self) -> None:
        self._round += 1
        if self.proposal is not None:
            self.proposal.begin(self._round)

    def _noise(self, position: int, purpose: int) -> Noise:
        return Noise(self._seed, position, purpose, self._round)

    def _look(self, i: int, p: Distribution, draft: Draft) -> None:
        if draft.source != MTP:
            return
        self._overlaps += overlap(p, draft.q[i])
        self._looked += 1
        if self.proposal is not None:
            self.proposal.learn(i, p)


class Reject(_Sampled):
    """Rejection sampling, token by token."""

    rule: Rule = "reject"

    def verify(self, rows: Rows, draft: Draft, ends: Ends) -> list[int]:
        emitted: list[int] = []
        for i in range(len(draft.tokens) + 1):
            position = len(rows.history)
            logits = rows.behind_draft(i)
            if logits is None:
                break
            p = self._shaper(logits)
            drafted = draft.tokens[i] if i < len(draft.tokens) else None
            if drafted is None:
                token = p.draw(self._noise(position, _EMIT))
            else:
                q = draft.q[i]
                self._look(i, p, draft)
                token = drafted
                if self._noise(position, _ACCEPT).uniform() * q.of(drafted) >= p.of(drafted):
                    token = residual(p, q).draw(self._noise(position, _EMIT))
                    drafted = None
            rows.accept(token)
            emitted.append(token)
            if ends(token) or drafted is None:
                break
        self._next_round()
        return emitted


class Block(_Sampled):
    """Block verification: the longest prefix of the draft that may be kept as a whole."""

    rule: Rule = "block"

    def verify(self, rows: Rows, draft: Draft, ends: Ends) -> list[int]:
        start = len(rows.history)
        p = self._along(rows, draft.tokens)
        tokens = draft.tokens[: len(p)]
        kept, weight = 0, 1.0
        for i, step in enumerate(block_steps(p, draft.q, tokens), 1):
            if self._noise(start + i, _ACCEPT).uniform() < step.keep:
                kept, weight = i, step.weight
        for i in range(min(kept + 1, len(tokens))):
            self._look(i, p[i], draft)
        said = tokens[:kept]
        if kept < len(p):
            last = residual(p[kept], draft.q[kept], weight) if kept < len(tokens) else p[kept]
            said.append(last.draw(self._noise(start + kept, _EMIT)))
        emitted: list[int] = []
        for token in said:
            rows.accept(token)
            emitted.append(token)
            if ends(token):
                break
        self._next_round()
        return emitted

    def _along(self, rows: Rows, drafted: Sequence[int]) -> list[Distribution]:
        """The target's distributions along the draft, as far as one leads on."""
        p: list[Distribution] = []
        while len(p) <= len(drafted) and (logits := rows.behind_draft(len(p))) is not None:
            p.append(self._shaper(logits))
            if len(p) <= len(drafted):
                rows.accept(drafted[len(p) - 1])
        rows.rollback(min(len(p), len(drafted)))
        return p


RULES: dict[Rule, Callable[[SamplingParameters, int, Sharpness | None], Verifier]] = {
    "compare": SampleAndCompare,
    "reject": Reject,
    "block": Block,
}
"""By name: made for a request's parameters, its seed, and what earlier answers have taught about
proposals; without that, the text of a seed does not depend on earlier answers."""

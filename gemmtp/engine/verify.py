"""Which drafted tokens are kept.

*Sample and compare*: the target's own choice is made at each row, greedily or by the draw that
belongs to the position, and the draft is kept as long as it equals that choice. With the same seed
the text is the same with any drafter and with none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemmtp.engine.backend import Floats, Target
from gemmtp.engine.processors import Processor
from gemmtp.engine.sampling import NOTHING_LEFT, SamplingParameters, processed
from gemmtp.errors import EngineError, UsageError


class Chooser:
    """Chooses the target's token at a row of logits."""

    def __init__(self, parameters: SamplingParameters, seed: int) -> None:
        self.parameters, self.seed = parameters, seed

    def choose(self, logits: Floats, position: int) -> int:
        """The token at ``position`` given its processed ``logits`` float32[n_vocab].

        Raises :class:`~gemmtp.errors.UsageError` when no token is left and
        :class:`~gemmtp.errors.EngineError` on logits that are no numbers.
        """
        if self.parameters.greedy:
            token = int(logits.argmax())
            best = logits[token]
            if best == -np.inf:
                raise UsageError(*NOTHING_LEFT)
        else:
            best = logits.max()
            token = -1
        if not np.isfinite(best):
            raise EngineError(
                "The model's logits are not numbers.",
                "The file may be damaged; compare its checksum with the publisher's.",
            )
        if token < 0:
            token = processed(logits, self.parameters).draw(self.seed, position)
        return token


def sample_and_compare(
    chooser: Chooser,
    target: Target,
    output: int,
    draft: Sequence[int],
    history: list[int],
    processors: Sequence[Processor],
    ends: Callable[[int], bool],
) -> list[int]:
    """The tokens to emit: the accepted part of ``draft`` and one more of the target's own.

    Row ``output`` follows ``history``, row ``output + i`` follows its first ``i`` drafted tokens
    too. The emitted tokens are appended to ``history`` and accepted by the processors. Emission
    stops early after a token that ``ends`` the text.
    """
    emitted: list[int] = []
    for i in range(len(draft) + 1):
        logits = target.logits(output + i)
        for processor in processors:
            processor.apply(logits, history)
        token = chooser.choose(logits, len(history))
        history.append(token)
        emitted.append(token)
        for processor in processors:
            processor.accept(token)
        if ends(token) or i == len(draft) or token != draft[i]:
            break
    return emitted

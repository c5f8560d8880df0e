"""The drafter's context: one shared-KV draft step for B rows.

The context is made on the target's and reads the target's cells; it holds none of its own. Two
traps of llama.cpp shape this file: making a draft context resets the shared cell map, so it must
happen before the target's first decode, and clearing its memory would wipe the target's.
"""

from __future__ import annotations

from typing import Self

from gemmtp.engine.backend import Floats, Tokens
from gemmtp.errors import EngineError
from gemmtp.llama.batch import Batch
from gemmtp.llama.context import Context
from gemmtp.llama.library import api
from gemmtp.llama.model import Model
from gemmtp.llama.target import TargetContext

MIN_UBATCH = 8
"""A draft context reserves compute memory by its rows: 1.3 MiB at 8 on 31B shapes, 524 at 512."""


class DraftContext:
    """Implements :class:`gemmtp.engine.backend.Drafter` over a context of type MTP.

    Raises :class:`~gemmtp.errors.EngineError` when the target has decoded already or llama.cpp
    refuses the drafter.
    """

    def __init__(self, model: Model, target: TargetContext) -> None:
        if any(target.held(slot) for slot in range(target.n_slots)):
            raise EngineError("A draft context must be made before the target's first decode.")
        c = api()
        parameters = c.llama_context_default_params()
        parameters.ctx_type = c.LLAMA_CONTEXT_TYPE_MTP
        parameters.ctx_other = target.handle
        parameters.n_ctx = c.llama_n_ctx(target.handle)
        parameters.n_batch = parameters.n_ubatch = max(MIN_UBATCH, target.n_slots)
        parameters.n_outputs_max = target.n_slots
        parameters.swa_full = False
        self._context = Context(model, target.options, parameters)
        self._batch = Batch(max(MIN_UBATCH, target.n_slots), target.n_embd)

    @property
    def native_seconds(self) -> float:
        return self._context.native_seconds

    @native_seconds.setter
    def native_seconds(self, seconds: float) -> None:
        self._context.native_seconds = seconds

    def close(self) -> None:
        """Free the context, before the target's; safe to call twice."""
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def step(
        self, tokens: Tokens, hidden: Floats, positions: Tokens, slots: Tokens
    ) -> tuple[Floats, Floats]:
        self._batch.draft(tokens, hidden, positions, slots)
        self._context.run(self._batch, len(tokens))
        return self._context.logits, self._context.hidden

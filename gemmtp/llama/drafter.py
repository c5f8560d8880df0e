"""The drafter's context: one shared-KV draft step for B rows.

The context is made on the target's and reads the target's cells; it holds none of its own. Two
traps of llama.cpp shape this file: making a draft context resets the shared cell map, so it must
happen before the target's first decode, and clearing its memory would wipe the target's.
"""

from __future__ import annotations

from gemmtp.engine.backend import Floats, Tokens
from gemmtp.errors import EngineError
from gemmtp.llama.batch import Batch
from gemmtp.llama.context import Context
from gemmtp.llama.library import api
from gemmtp.llama.model import Model
from gemmtp.llama.target import TargetContext

MIN_UBATCH = 8
"""A draft context reserves compute memory by its rows: 1.3 MiB at 8 on 31B shapes, 524 at 512."""


class DraftContext(Context):
    """Implements :class:`gemmtp.engine.backend.Drafter` over a context of type MTP.

    Close it before the target's. Raises :class:`~gemmtp.errors.EngineError` when the target has
    decoded already or llama.cpp refuses the drafter.
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
        super().__init__(model, target.options, parameters)
        self._batch = Batch(max(MIN_UBATCH, target.n_slots), target.n_embd)

    def step(
        self, tokens: Tokens, hidden: Floats, positions: Tokens, slots: Tokens
    ) -> tuple[Floats, Floats]:
        self._batch.draft(tokens, hidden, positions, slots)
        self.run(self._batch, len(tokens))
        return self.output_logits, self.output_hidden

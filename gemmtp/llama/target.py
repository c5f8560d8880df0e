"""The target's context: rows in, logits and hidden rows out, and its KV cache."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from gemmtp.engine.backend import Floats, Row, SlotCells, WindowState
from gemmtp.errors import EngineError, UsageError
from gemmtp.llama.batch import Batch
from gemmtp.llama.context import Context, ContextOptions
from gemmtp.llama.library import api
from gemmtp.llama.model import Model

CELL_PADDING = 256
"""llama.cpp rounds a context up to whole blocks of cells."""

_SWA_ONLY = 1


class TargetContext(Context):
    """Implements :class:`gemmtp.engine.backend.Target` over one ``llama_context``.

    ``swa_full`` is off: the sliding layers hold their window and one batch, not the whole context.
    Output rows are bounded by what verification can ask for, which keeps llama.cpp from reserving
    logits for every row of a batch. Close it after every draft context made on it.

    Raises :class:`~gemmtp.errors.UsageError` on absurd sizes and
    :class:`~gemmtp.errors.EngineError` when llama.cpp refuses.
    """

    def __init__(self, model: Model, options: ContextOptions) -> None:
        if options.n_ctx < 1 or options.n_slots < 1:
            raise UsageError("A context needs at least one position and one slot.")
        c = api()
        self.n_embd = model.n_embd_out
        self.n_ctx, self.n_slots = options.n_ctx, options.n_slots
        self.window = model.window
        self.max_outputs = options.n_slots * (options.max_depth + 1)
        self.max_rows = max(options.n_batch, self.max_outputs)
        parameters = c.llama_context_default_params()
        parameters.n_ctx = _padded(options.n_ctx) * options.n_slots
        parameters.n_batch = self.max_rows
        parameters.n_ubatch = self.max_media = min(options.n_ubatch, self.max_rows)
        parameters.n_outputs_max = self.max_outputs
        parameters.swa_full = False
        super().__init__(model, options, parameters)
        self._memory = c.llama_get_memory(self.handle)
        self._batch = Batch(self.max_rows)

    def decode(self, rows: Sequence[Row]) -> None:
        if not 0 < len(rows) <= self.max_rows:
            raise EngineError(
                f"A decode of {len(rows)} rows; at most {self.max_rows} are possible."
            )
        outputs = self._batch.rows(rows)
        if outputs > self.max_outputs:
            raise EngineError(f"{outputs} output rows; at most {self.max_outputs} are possible.")
        self.run(self._batch, outputs)

    def decode_media(self, slot: int, embeddings: Floats, position: int, causal: bool) -> None:
        """Decode image or audio rows float32[n, d] at ``position``.., none of them an output.

        ``causal`` false lets every row see every other, as Gemma 4 wants for images; the whole
        image must then fit into one ``n_ubatch``, or llama.cpp would end the process.
        """
        n = len(embeddings)
        if n > (self.max_rows if causal else self.max_media):
            raise UsageError(
                f"An image of {n} tokens does not fit into a batch of {self.max_media}."
            )
        c = api()
        batch = Batch(n, embeddings.shape[1])
        batch.media(slot, embeddings, position)
        c.llama_set_causal_attn(self.handle, causal)
        try:
            self.run(batch, 0)
        finally:
            c.llama_set_causal_attn(self.handle, True)

    def logits(self, i: int) -> Floats:
        row: Floats = self.output_logits[i]
        return row

    def hidden(self, i: int) -> Floats:
        row: Floats = self.output_hidden[i]
        return row

    def remove(self, slot: int, from_position: int) -> None:
        if not api().llama_memory_seq_rm(self._memory, slot, from_position, -1):
            raise EngineError(f"llama.cpp kept cells after position {from_position}.")

    def copy(self, source: int, target: int) -> None:
        self.remove(target, 0)
        api().llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def held(self, slot: int) -> range:
        c = api()
        first = c.llama_memory_seq_pos_min(self._memory, slot)
        last = c.llama_memory_seq_pos_max(self._memory, slot)
        return range(max(first, 0), last + 1)

    def checkpoint(self, slot: int) -> WindowState:
        c = api()
        size = c.llama_state_seq_get_size_ext(self.handle, slot, _SWA_ONLY)
        data = np.empty(size, np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = c.llama_state_seq_get_data_ext(self.handle, pointer, size, slot, _SWA_ONLY)
        if written != size:
            raise EngineError("llama.cpp could not save the sliding window.")
        return data

    def restore(self, slot: int, checkpoint: WindowState) -> None:
        pointer = checkpoint.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        c, n = api(), len(checkpoint)
        if not c.llama_state_seq_set_data_ext(self.handle, pointer, n, slot, _SWA_ONLY):
            raise EngineError("llama.cpp could not restore the sliding window.")

    def save(self, slot: int) -> SlotCells:
        c = api()
        size = c.llama_state_seq_get_size_ext(self.handle, slot, 0)
        data = np.empty(size, np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if c.llama_state_seq_get_data_ext(self.handle, pointer, size, slot, 0) != size:
            raise EngineError("llama.cpp could not save the KV cache.")
        return data

    def load(self, slot: int, cells: SlotCells) -> None:
        pointer = cells.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        c, n = api(), len(cells)
        if c.llama_state_seq_set_data_ext(self.handle, pointer, n, slot, 0) != n:
            self.remove(slot, 0)
            raise EngineError("llama.cpp could not restore the KV cache.")


def _padded(n: int) -> int:
    return -(-n // CELL_PADDING) * CELL_PADDING

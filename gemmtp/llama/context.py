"""What a target context and a draft context have in common: creation, outputs, freeing."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from gemmtp.engine.backend import ContextFullError, Floats
from gemmtp.errors import EngineError
from gemmtp.llama.batch import Batch
from gemmtp.llama.devices import threads
from gemmtp.llama.library import api, log, nextn
from gemmtp.llama.model import Model

KvType = Literal["f16", "q8_0", "q4_0", "f32"]
_GGML_TYPES: dict[KvType, int] = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
FlashAttention = Literal["auto", "on", "off"]
_FLASH: dict[FlashAttention, int] = {"auto": -1, "off": 0, "on": 1}

NO_CELL = 1
"""llama_decode's result when the KV cache has no room for the batch."""


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """How big a context is and what it may output.

    ``n_ctx`` positions a slot; ``kv`` the element type of keys and values alike, since mixed types
    fall off the fast kernels; ``max_depth`` the deepest draft that will ever be verified;
    ``n_batch`` the rows of one decode, of which ``n_ubatch`` are computed at once. ``threads``
    0 takes the physical cores.
    """

    n_ctx: int = 4096
    n_slots: int = 1
    max_depth: int = 8
    kv: KvType = "f16"
    n_batch: int = 512
    n_ubatch: int = 512
    flash_attention: FlashAttention = "auto"
    threads: int = 0


class Context:
    """A ``llama_context`` and views of its outputs. Free with :meth:`close`, or as a context.

    ``output_logits`` float32[n, n_vocab] and ``output_hidden`` float32[n, d] are views of the last
    decode's output rows. ``native_seconds`` counts the time inside llama.cpp.
    """

    def __init__(self, model: Model, options: ContextOptions, parameters: Any) -> None:
        c = api()
        self.options = options
        self.native_seconds = 0.0
        n_threads = options.threads or threads()
        parameters.n_threads = parameters.n_threads_batch = n_threads
        parameters.n_seq_max = options.n_slots
        parameters.kv_unified = options.n_slots > 1
        parameters.flash_attn_type = _FLASH[options.flash_attention]
        parameters.type_k = parameters.type_v = _GGML_TYPES[options.kv]
        parameters.no_perf = True
        log.mark()
        self.handle: int | None = c.llama_init_from_model(model.handle, parameters)
        if not self.handle:
            raise EngineError(
                f"llama.cpp could not make a context: {log.cause() or 'it gave no reason'}",
                "A smaller --ctx or --kv q8_0 needs less memory.",
            )
        self.n_vocab = model.n_vocab
        self.output_logits = self.output_hidden = np.zeros((0, 0), np.float32)

        self._n_hidden = model.n_embd_out
        self._nextn = nextn()
        # Masked: only output rows carry a hidden state, which spares the copy of prompt rows.
        self._nextn.llama_set_embeddings_nextn(self.handle, True, True)

    def close(self) -> None:
        """Free the context; safe to call twice."""
        if self.handle is not None:
            api().llama_free(self.handle)
            self.handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, batch: Batch, outputs: int) -> None:
        """Decode ``batch`` and look at its ``outputs`` output rows.

        Raises :class:`~gemmtp.engine.backend.ContextFullError` when no cell is left and
        :class:`~gemmtp.errors.EngineError` on any other failure.
        """
        c = api()
        start = time.perf_counter()
        result = c.llama_decode(self.handle, batch.struct)
        if result == 0 and outputs:
            # Waits for the device and puts the rows into the order of the batch.
            logits = c.llama_get_logits(self.handle)
            hidden = self._nextn.llama_get_embeddings_nextn(self.handle)
            self.native_seconds += time.perf_counter() - start
            self.output_logits = _view(logits, outputs, self.n_vocab)
            self.output_hidden = _view(hidden, outputs, self._n_hidden)
            return
        self.native_seconds += time.perf_counter() - start
        if result == NO_CELL:
            raise ContextFullError("The context is full.", "Raise --ctx or start anew.")
        if result != 0:
            raise EngineError(
                f"llama.cpp failed to decode (code {result}): {log.cause() or 'no reason given'}"
            )


def _view(pointer: Any, rows: int, columns: int) -> Floats:
    """float32[rows, columns] over llama.cpp's output buffer."""
    address = ctypes.cast(pointer, ctypes.c_void_p).value
    if address is None:
        raise EngineError("llama.cpp gave no output rows.")
    memory = (ctypes.c_float * (rows * columns)).from_address(address)
    view: Floats = np.ctypeslib.as_array(memory).reshape(rows, columns)
    return view

"""A ``llama_batch`` over numpy arrays, filled without a Python loop over C structs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats, Row, Tokens
from gemmtp.llama.library import api


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


class Batch:
    """Room for ``capacity`` rows of one sequence each; with ``n_embd`` each row carries a state.

    A draft row needs both a token and an embedding, which ``llama_batch_init`` does not offer;
    the arrays here are our own, so the struct may point at both.
    """

    def __init__(self, capacity: int, n_embd: int = 0) -> None:
        c = api()
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._slot = np.zeros(capacity, np.int32)
        self._output = np.zeros(capacity, np.int8)
        self._counts = np.ones(capacity, np.int32)
        # seq_id is an array of pointers, one to each row's sequence id.
        self._slot_pointers = self._slot.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        self.embedding = np.zeros((capacity, n_embd), np.float32)
        self.struct = c.llama_batch()
        self.struct.token = _pointer(self._token, ctypes.c_int32)
        self.struct.pos = _pointer(self._position, ctypes.c_int32)
        self.struct.n_seq_id = _pointer(self._counts, ctypes.c_int32)
        self.struct.seq_id = _pointer(self._slot_pointers, ctypes.POINTER(ctypes.c_int32))
        self.struct.logits = _pointer(self._output, ctypes.c_int8)
        self.struct.embd = _pointer(self.embedding, ctypes.c_float) if n_embd else None

    def rows(self, rows: Sequence[Row]) -> int:
        """Fill in token rows; return how many of them are output rows."""
        n = self.struct.n_tokens = len(rows)
        slots, tokens, positions, outputs = zip(*rows, strict=True)
        self._slot[:n], self._token[:n] = slots, tokens
        self._position[:n], self._output[:n] = positions, outputs
        return sum(outputs)

    def draft(self, tokens: Tokens, hidden: Floats, positions: Tokens, slots: Tokens) -> None:
        """Fill in draft rows, all of them output rows."""
        n = self.struct.n_tokens = len(tokens)
        self._token[:n], self._position[:n], self._slot[:n] = tokens, positions, slots
        self.embedding[:n] = hidden
        self._output[:n] = 1

    def media(self, slot: int, embeddings: Floats, position: int) -> None:
        """Fill in image or audio rows at consecutive positions, none of them an output row."""
        n = self.struct.n_tokens = len(embeddings)
        self._position[:n] = np.arange(position, position + n, dtype=np.int32)
        self._slot[:n], self._output[:n] = slot, 0
        self.embedding[:n] = embeddings
        # Rows with a token would be looked up in the vocabulary.
        self.struct.token = None

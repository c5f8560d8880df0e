"""What changes logits before a token is chosen.

A processor sees a row's logits and the history *with the drafted prefix* of that row. One that
keeps state (a grammar, a penalty's counts) follows the text through ``accept`` and gives the
rejected part of a draft back through ``rollback``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import numpy as np

from gemmtp.engine.backend import Floats
from gemmtp.errors import UsageError

BIAS_LIMIT = 100.0


class Processor(Protocol):
    """Changes ``logits`` float32[n_vocab] in place; each row passes exactly once."""

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        """Change the logits of the token after ``history``."""

    def accept(self, token: int) -> None:
        """The history grew by ``token``, drafted or emitted."""

    def rollback(self, n: int) -> None:
        """The last ``n`` accepted tokens are not part of the history after all."""

    def fork(self) -> Self:
        """A copy that goes its own way."""


class _Stateless:
    """The part of :class:`Processor` that a processor without memory shares."""

    def accept(self, token: int) -> None:
        """Nothing to remember."""

    def rollback(self, n: int) -> None:
        """Nothing to give back."""

    def fork(self) -> Self:
        return self


class SuppressTokens(_Stateless):
    """Never choose these tokens (GGUF key ``tokenizer.ggml.suppress_tokens``)."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.unique(np.asarray(tokens, np.int64))

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        logits[self._tokens] = -np.inf


class LogitBias(_Stateless):
    """Add a bias to the logits of chosen tokens, as OpenAI's ``logit_bias`` does.

    Raises :class:`~gemmtp.errors.UsageError` on a token outside the vocabulary or a bias outside
    [-100, 100]; -100 forbids the token.
    """

    def __init__(self, biases: Mapping[int, float], n_vocab: int) -> None:
        for token, bias in biases.items():
            if not 0 <= token < n_vocab:
                raise UsageError(
                    f"Token {token} lies outside the vocabulary of {n_vocab}.",
                    f"Token ids go from 0 to {n_vocab - 1}.",
                )
            if not -BIAS_LIMIT <= bias <= BIAS_LIMIT:
                raise UsageError(
                    f"The bias of token {token} must lie between -100 and 100.",
                    "-100 forbids the token.",
                )
        self._tokens = np.fromiter(biases, np.int64, len(biases))
        values = np.fromiter(biases.values(), np.float32, len(biases))
        self._biases = np.where(values == -BIAS_LIMIT, np.float32(-np.inf), values)

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        logits[self._tokens] += self._biases

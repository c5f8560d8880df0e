"""What a dialogue needs of a loaded model, so that it can be tested without one."""

from __future__ import annotations

from typing import Protocol

from gemmtp.engine.engine import Engine


class Vocabulary(Protocol):
    """Text to tokens and back: :class:`gemmtp.llama.model.Model` is one."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """The tokens of ``text``; ``special`` parses markers in it."""

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token."""

    def marker(self, text: str) -> int | None:
        """The token of a marker such as ``<|turn>``, None without one."""


class Voice(Protocol):
    """An engine and its model's vocabulary: :class:`gemmtp.llama.pair.Pair` is one."""

    @property
    def engine(self) -> Engine:
        """What decodes."""

    @property
    def model(self) -> Vocabulary:
        """Whose tokens they are."""

"""An engine over the fake target with a vocabulary of single letters and Gemma's markers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from gemmtp.engine.backend import FakeDrafter, FakeTarget
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.drafting import DraftSource, MtpDrafting, NoDrafting
from gemmtp.engine.engine import Engine

MARKERS = (
    "<bos>", "<turn|>", "<|turn>", "<|channel>", "<channel|>", "<|think|>", "<|image|>"
)  # fmt: skip
LETTERS = "\n abcdefghijklmnopqrstuvwxyz<>|?._"
_TOKENS = (*MARKERS, *LETTERS)
_PIECE = re.compile("|".join(map(re.escape, MARKERS)) + "|.", re.DOTALL)
_PLAIN = re.compile(".", re.DOTALL)


class FakeVocabulary:
    """Implements :class:`gemmtp.chat.voice.Vocabulary`; what has no letter becomes a dot."""

    n_vocab = len(_TOKENS)

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset({_TOKENS.index("<turn|>")})

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        pieces = (_PIECE if special else _PLAIN).findall(text)
        return [_TOKENS.index(piece if piece in _TOKENS else ".") for piece in pieces]

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        piece = _TOKENS[token]
        return b"" if piece in MARKERS and not special else piece.encode()

    def marker(self, text: str) -> int | None:
        return _TOKENS.index(text) if text in MARKERS else None


@dataclass
class FakeVoice:
    """Implements :class:`gemmtp.chat.voice.Voice`; ``window`` 0 forgets nothing."""

    n_ctx: int = 400
    window: int = 0
    max_rows: int = 16
    depth: int = 3
    drafts: bool = True
    model: FakeVocabulary = field(default_factory=FakeVocabulary)

    @cached_property
    def target(self) -> FakeTarget:
        return FakeTarget(
            self.model.n_vocab,
            self.n_ctx,
            window=self.window,
            max_rows=self.max_rows,
            max_outputs=self.max_rows,
        )

    @cached_property
    def engine(self) -> Engine:
        drafting: DraftSource = NoDrafting("plain")
        if self.drafts:
            drafting = MtpDrafting(FakeDrafter(self.target, 0.8))
        return Engine(self.target, drafting, FixedDepth(self.depth if self.drafts else 0))

"""A vocabulary as text: which tokens a grammar may choose, and the tree of their pieces.

A token's parent is the longest other token that its bytes begin with. What rejects a piece rejects
everything below it, so a walk from the roots meets few of 262,144 tokens where few are valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gemmtp.llama.library import api
from gemmtp.llama.model import Model

Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]

# llama.h, enum llama_token_attr.
_UNKNOWN, _UNUSED, _CONTROL, _USER_DEFINED = 1, 2, 8, 16
_MARKER = re.compile(rb"<\|[^|]+\|?>|<[^|]+\|>|<\|\"\|>")
_NEVER_UTF8 = re.compile(rb"[\xc0\xc1\xf5-\xff]")
_UNSEEN, _TEXT, _NO_TEXT = 0, 1, 2


class Pieces:
    """The tokens of ``model`` as a grammar sees them; keep it for all grammars over the model.

    The tree is made when it is first needed, in about a second for 262,144 tokens.

    ``ends`` int32[n] are the tokens that end an answer. No other marker is text: a tool call may
    not begin inside a JSON string, though its marker has letters.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._vocabulary = api().llama_model_get_vocab(model.handle)
        self.ends: Ids = np.array(sorted(model.end_tokens), np.int32)
        self._kinds = np.full(model.n_vocab, _UNSEEN, np.int8)
        self._kinds[self.ends] = _TEXT

    def of(self, token: int) -> bytes:
        """The bytes of ``token``."""
        return self._model.token_bytes(token, special=True)

    def parsed(self, grammar: str) -> int | None:
        """llama.cpp's handle of ``grammar`` over this vocabulary; None where it does not parse."""
        handle: int | None = api().llama_sampler_init_grammar(
            self._vocabulary, grammar.encode(), b"root"
        )
        return handle

    def choosable(self, ids: Ids) -> Ids:
        """Those of ``ids`` int32[n] that are text or end an answer."""
        kinds = self._kinds[ids]
        if (kinds == _UNSEEN).any():
            for token in ids[kinds == _UNSEEN].tolist():
                self._kinds[token] = _TEXT if self._is_text(token) else _NO_TEXT
            kinds = self._kinds[ids]
        chosen: Ids = ids[kinds == _TEXT]
        return chosen

    def walk(self, accepted: Callable[[Ids], Mask]) -> Ids:
        """All choosable tokens that ``accepted`` takes, asked level by level."""
        found = [self.ends[accepted(self.ends)]]
        level = self._tree.roots
        while len(level):
            level = level[accepted(level)]
            found.append(level)
            level = self._tree.below(level)
        return np.concatenate(found)

    def _is_text(self, token: int) -> bool:
        c = api()
        attributes = c.llama_vocab_get_attr(self._vocabulary, token)
        if attributes & (_UNKNOWN | _UNUSED | _CONTROL):
            return False
        piece = self.of(token)
        if piece[:1] == b"<" and (
            c.llama_vocab_is_eog(self._vocabulary, token)
            or (attributes & _USER_DEFINED and _MARKER.fullmatch(piece))
        ):
            return False
        # llama.cpp rejects a NUL, which ends its strings, but takes bytes that UTF-8 never has.
        return bool(piece) and piece[0] != 0 and not _NEVER_UTF8.search(piece)

    @cached_property
    def _tree(self) -> _Tree:
        everything = np.arange(self._model.n_vocab, dtype=np.int32)
        tokens = np.setdiff1d(self.choosable(everything), self.ends).tolist()
        pieces = {token: self.of(token) for token in tokens}
        return _Tree(pieces, self._model.n_vocab)


class _Tree:
    """Children of every token, those of token t at ``_children[_start[t]:_start[t + 1]]``."""

    def __init__(self, pieces: dict[int, bytes], n_vocab: int) -> None:
        tokens = sorted(pieces, key=pieces.__getitem__)
        parents = np.full(len(tokens), -1, np.int32)
        above: list[int] = []
        for i, token in enumerate(tokens):
            while above and not pieces[token].startswith(pieces[above[-1]]):
                above.pop()
            if above:
                parents[i] = above[-1]
            above.append(token)
        by_parent = np.argsort(parents, kind="stable")
        ids = np.array(tokens, np.int32)[by_parent]
        start = np.searchsorted(parents[by_parent], np.arange(n_vocab + 1))
        self.roots: Ids = ids[: start[0]]
        self._children, self._start = ids, start

    def below(self, tokens: Ids) -> Ids:
        """The children of all ``tokens``."""
        first, counts = self._start[tokens], self._start[tokens + 1] - self._start[tokens]
        # A running number, set back to its own first child wherever the next token begins.
        ends = counts.cumsum()
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + counts, counts)
        below: Ids = self._children[places]
        return below

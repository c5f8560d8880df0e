"""llama.cpp's grammar as a processor: only tokens that the grammar lets through keep their logits.

Asking llama.cpp about each of 262,144 tokens takes tens of milliseconds a row, so tokens are asked
about from the best downwards until as many are valid as top-k looks at, or those found outweigh all
that could follow so much that the nucleus is settled. Where the grammar wants something that the
model does not, the vocabulary is walked as a tree of pieces. Either way the row is chosen from as
if every token had been asked about.

llama.cpp ends the process when a token is accepted that the grammar rejects: that is checked first.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from gemmtp.engine.backend import Floats
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import EngineError, UsageError
from gemmtp.llama.library import api, log
from gemmtp.llama.pieces import Ids, Mask, Pieces

MAX_GRAMMAR = 1 << 18
MAX_NESTING = 200
"""llama.cpp's parser calls itself for every parenthesis."""

KEPT_STATES = 40
"""How many tokens can be taken back: twice the deepest draft and more."""

LOOKS, FEWEST, MOST = 3, 16, 8
"""How often, each time further down, the best tokens are asked about before the tree is walked, and
from how many to how many at a time, the latter in multiples of what top-k wants."""

FEW = 8
"""Where less than one in so many is valid, the tree is walked at once."""

FURTHEST = np.float32(100.0)
TOLERANCE = 1e-9
"""Room for the rounding of sums in double precision."""

_LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*')
_BOUNDS = re.compile(r"\{\s*([0-9]+)\s*,\s*([0-9]+)\s*\}")
_SECOND_BYTES = {
    0xE0: range(0xA0, 0xC0),
    0xED: range(0x80, 0xA0),
    0xF0: range(0x90, 0xC0),
    0xF4: range(0x80, 0x90),
}
"""What may follow where not every continuation byte may (RFC 3629, section 4)."""

_REASON = re.compile(r"error parsing grammar: (.{1,200}?)\s*$", re.MULTILINE)
_MOST_SAID = 1 << 16
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

Mode = Literal["waiting", "thinking", "writing", "ended", "lost"]
"""Before an answer that may begin with a thought; inside it; in the grammar's text; behind it;
behind a token that the grammar rejects, which only a draft can have."""


class Grammar:
    """A GBNF grammar over a model's vocabulary, parsed by llama.cpp.

    Raises :class:`~gemmtp.errors.UsageError` with llama.cpp's reason when it does not parse.
    """

    def __init__(self, pieces: Pieces, text: str) -> None:
        _check(text)
        self.pieces = pieces
        log.mark()
        with _standard_error() as said:
            handle = pieces.parsed(text)
        if not handle:
            parser = _REASON.search(said())
            reason = parser[1] if parser else log.cause() or "llama.cpp gave no reason"
            raise UsageError(
                f"The grammar is not valid: {reason}",
                "See grammars/README.md of llama.cpp for the format; it begins at the rule root.",
            )
        self.start = _Position(handle, self.pieces)


class _Position:
    """A place in a grammar's text. It never changes; ``after`` makes another one."""

    def __init__(self, handle: int, pieces: Pieces, last: int = 0) -> None:
        self._handle, self._pieces, self._last = handle, pieces, last
        # At the interpreter's end the library may be gone, and the memory is the system's anyway.
        weakref.finalize(self, api().llama_sampler_free, handle).atexit = False

    def accepts(self, ids: Ids) -> Mask:
        """bool[n]: which of ``ids`` may come next."""
        c = api()
        candidates = np.zeros(len(ids), _CANDIDATE)
        candidates["id"] = ids
        array = c.llama_token_data_array(
            candidates.ctypes.data_as(c.llama_token_data_p), len(ids), -1, False
        )
        c.llama_sampler_apply(self._handle, ctypes.byref(array))
        mask: Mask = candidates["logit"] == 0.0
        if self._last in _SECOND_BYTES:
            # llama.cpp takes every continuation byte: a character could be written too long.
            allowed = _SECOND_BYTES[self._last]
            for i in np.flatnonzero(mask):
                mask[i] = self._pieces.of(int(ids[i]))[0] in allowed
        return mask

    def after(self, token: int) -> _Position:
        """The place behind ``token``, which must be accepted here."""
        c = api()
        copy = c.llama_sampler_clone(self._handle)
        c.llama_sampler_accept(copy, token)
        return _Position(copy, self._pieces, self._pieces.of(token)[-1])


@dataclass(frozen=True, slots=True)
class _State:
    mode: Mode
    position: _Position


class GrammarProcessor:
    """Masks what ``grammar`` rejects. It must be the last processor, since it looks at the best.

    ``sampling`` says how many valid tokens are looked at; without top-k that is all of them, which
    takes milliseconds a row. ``thought`` are the markers around a thought that may come first and
    is free.
    """

    def __init__(
        self,
        grammar: Grammar,
        sampling: SamplingParameters,
        thought: tuple[int, int] | None = None,
    ) -> None:
        self._grammar, self._thought = grammar, thought
        self._sampling, self._temperature = sampling, sampling.temperature
        self._wanted = 1 if sampling.greedy else sampling.top_k
        self._states = [_State("waiting" if thought else "writing", grammar.start)]
        self._allowed: Ids | None = None
        self._reach = np.float32(8.0)

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        """Raises :class:`~gemmtp.errors.UsageError` when the grammar lets no token through."""
        state = self._states[-1]
        if state.mode == "thinking":
            logits[self._grammar.pieces.ends] = -np.inf
        # A row of no numbers, or without any token left, is the caller's to complain about.
        best = logits.max()
        if state.mode not in ("waiting", "writing") or not np.isfinite(best):
            return
        self._allowed = allowed = self._valid(logits, state.position, best)
        kept = allowed
        if state.mode == "waiting" and self._thought is not None:
            kept = np.append(allowed, np.int32(self._thought[0]))
        if not len(kept):
            raise UsageError(
                "The grammar lets no token through here.",
                "It may ask for letters that this model cannot write, or a bias forbids them.",
            )
        values = logits[kept]
        logits.fill(-np.inf)
        logits[kept] = values

    def accept(self, token: int) -> None:
        self._states.append(self._next(token))
        self._allowed = None
        del self._states[:-KEPT_STATES]

    def rollback(self, n: int) -> None:
        if n >= len(self._states):
            raise EngineError(f"The grammar cannot go back {n} tokens.")
        if n:
            del self._states[-n:]
            self._allowed = None

    def fork(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._states = list(self._states)
        return twin

    def complete(self, tokens: Sequence[int]) -> bool:
        """Whether the answer ``tokens``, from here on, may end where it ends."""
        walker = self.fork()
        for token in tokens:
            walker.accept(token)
        state = walker._states[-1]
        if state.mode == "writing":
            return bool(state.position.accepts(self._grammar.pieces.ends).any())
        return state.mode == "ended"

    def _next(self, token: int) -> _State:
        state = self._states[-1]
        thought, thought_end = self._thought or (-1, -1)
        if state.mode == "waiting" and token == thought:
            return _State("thinking", state.position)
        if state.mode == "thinking":
            return _State("writing" if token == thought_end else "thinking", state.position)
        if state.mode in ("ended", "lost") or not self._may_come(token, state.position):
            return _State("lost", state.position)
        if token in self._grammar.pieces.ends:
            return _State("ended", state.position)
        return _State("writing", state.position.after(token))

    def _may_come(self, token: int, position: _Position) -> bool:
        if self._allowed is not None and (self._allowed == token).any():
            return True
        one = self._grammar.pieces.choosable(np.array([token], np.int32))
        return bool(position.accepts(one).any())

    def _valid(self, logits: Floats, position: _Position, best: np.float32) -> Ids:
        """Valid tokens, enough of the best ones that sampling sees no difference."""
        pieces, reach = self._grammar.pieces, self._reach
        if self._sampling.greedy:
            first = pieces.choosable(np.array([logits.argmax()], np.int32))
            if position.accepts(first).any():
                return first
        for look in range(LOOKS if self._wanted else 0):
            ids, edge = self._above(logits, best - reach)
            if look == 0:
                self._aim(len(ids))
            asked = pieces.choosable(ids)
            valid = asked[position.accepts(asked)]
            if self._enough(logits[valid], edge):
                return valid
            if len(valid) * FEW < len(asked):
                break
            reach *= np.float32(1.5)
        everything = pieces.walk(position.accepts)
        return everything[logits[everything] > -np.inf]

    def _aim(self, found: int) -> None:
        """Look as far down in the next row as will find two to four times what top-k wants."""
        need = max(FEWEST, self._wanted)
        if found > 4 * need:
            self._reach *= np.float32(0.85)
        elif found < 2 * need:
            self._reach = min(self._reach * np.float32(1.15), FURTHEST)

    def _above(self, logits: Floats, edge: np.float32) -> tuple[Ids, np.float32]:
        """All tokens whose logits reach ``edge``, which is raised where they are too many."""
        ids = np.flatnonzero(logits >= max(edge, np.finfo(np.float32).min))
        most = MOST * max(FEWEST, self._wanted)
        if len(ids) > most:
            values = logits[ids]
            edge = np.partition(values, len(ids) - most)[len(ids) - most]
            ids = ids[values >= edge]
        return ids.astype(np.int32), edge

    def _enough(self, valid: Floats, edge: np.float32) -> bool:
        """Whether tokens below ``edge`` cannot matter beside those of the logits ``valid``.

        Either top-k looks at none of them; or the nucleus, whose size is a share of all that top-k
        looks at, would end at the same token if each of them were as likely as ``edge`` allows.
        """
        missing = self._wanted - len(valid)
        if missing <= 0 or not len(valid) or self._sampling.greedy:
            return missing <= 0
        weights = np.exp(-np.sort(-(valid - valid.max()).astype(np.float64)) / self._temperature)
        unseen = missing * np.exp((float(edge) - float(valid.max())) / self._temperature)
        reached, top_p = weights.cumsum(), self._sampling.top_p
        least = np.searchsorted(reached, top_p * reached[-1] * (1 - TOLERANCE))
        most = np.searchsorted(reached, top_p * (reached[-1] + unseen) * (1 + TOLERANCE))
        return bool(least == most < len(reached))


@contextmanager
def _standard_error() -> Iterator[Callable[[], str]]:
    """What is written to stderr meanwhile: llama.cpp's parser prints, it does not log."""
    try:
        before = os.dup(2)
    except OSError:
        # Standard error is closed: nothing to keep clean.
        yield str
        return
    with tempfile.TemporaryFile() as file:
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        said = ""
        try:
            yield lambda: said
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            said = file.read(_MOST_SAID).decode("utf-8", "replace")


def _check(text: str) -> None:
    """Refuse what llama.cpp's parser would not survive, or takes for no grammar at all."""
    if len(text) > MAX_GRAMMAR:
        raise UsageError(f"The grammar has more than {MAX_GRAMMAR:,} characters.")
    if not text.strip() or "\0" in text:
        raise UsageError("The grammar is empty or holds a NUL character.")
    bare = _LITERAL.sub("", text)
    for low, high in _BOUNDS.findall(bare):
        if int(low[:9]) > int(high[:9]):
            raise UsageError(f"The grammar asks for at least {low} and at most {high} repetitions.")
    depth = deepest = 0
    for character in bare:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING:
        raise UsageError(f"The grammar nests more than {MAX_NESTING} parentheses.")

"""What the engine asks of a target and a drafter, and fakes of both for tests.

The engine never sees llama.cpp. It decodes rows, reads logits and hidden rows, and cuts the KV
cache through the two protocols below. :class:`FakeTarget` and :class:`FakeDrafter` implement them
in a few lines of numpy, so that a caller can test everything above a forward pass without a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gemmtp.errors import EngineError

Floats = NDArray[np.float32]
Tokens = NDArray[np.int32]
WindowState = NDArray[np.uint8]
"""What the layers with a sliding window hold of one slot, in the target's own format."""
SlotCells = NDArray[np.uint8]
"""What all layers hold of one slot, in the target's own format."""


class Row(NamedTuple):
    """One token of one sequence in a decode.

    ``position`` is counted from 0 in its slot. ``output`` asks for logits and a hidden row.
    """

    slot: int
    token: int
    position: int
    output: bool


class ContextFullError(EngineError):
    """The KV cache has no cell left for the rows of a decode."""


class Target(Protocol):
    """The model whose text is produced, with its KV cache.

    ``n_ctx`` is the number of positions one slot may hold, ``max_rows`` the most rows of one
    decode, ``max_outputs`` the most output rows of one decode, ``max_media`` the most rows of an
    image whose rows see each other, ``window`` the sliding-attention window (0 when every layer
    attends to everything). ``native_seconds`` is the time spent inside the library that computes,
    so that the loop's own cost can be told apart.
    """

    n_ctx: int
    n_vocab: int
    n_embd: int
    n_slots: int
    max_rows: int
    max_outputs: int
    max_media: int
    window: int
    native_seconds: float

    def decode(self, rows: Sequence[Row]) -> None:
        """Run one forward pass; raises :class:`ContextFullError` with the cache as it was."""

    def decode_media(self, slot: int, embeddings: Floats, position: int, causal: bool) -> None:
        """Decode ``embeddings`` float32[n, d] at ``position``.. as image or audio rows."""

    def logits(self, i: int) -> Floats:
        """float32[n_vocab] of the i-th output row, a writable view valid until the next decode."""

    def hidden(self, i: int) -> Floats:
        """float32[d], the state after the final norm, a view valid until the next decode."""

    def remove(self, slot: int, from_position: int) -> None:
        """Forget ``from_position`` and everything after it."""

    def copy(self, source: int, target: int) -> None:
        """Let ``target`` hold what ``source`` holds (cells are shared, not duplicated)."""

    def held(self, slot: int) -> range:
        """The positions every layer still holds; shorter than the text once the window moved."""

    def checkpoint(self, slot: int) -> WindowState:
        """The sliding-window part of the slot's cache, a copy."""

    def restore(self, slot: int, checkpoint: WindowState) -> None:
        """Bring a :meth:`checkpoint` back; later positions must have been removed."""

    def save(self, slot: int) -> SlotCells:
        """All cells of the slot, a copy."""

    def load(self, slot: int, cells: SlotCells) -> None:
        """Bring back what :meth:`save` gave, into an empty slot of a target made the same way.

        Raises :class:`~gemmtp.errors.EngineError`, with the slot empty, when it cannot.
        """


class Drafter(Protocol):
    """The multi-token-prediction head: it attends to the target's KV cache and has none itself."""

    native_seconds: float

    def step(
        self, tokens: Tokens, hidden: Floats, positions: Tokens, slots: Tokens
    ) -> tuple[Floats, Floats]:
        """One draft step of B rows.

        ``tokens`` int32[B] are the newest tokens, ``hidden`` float32[B, d] the target's (or the
        previous step's) states, ``positions`` int32[B] the newest tokens' positions, ``slots``
        int32[B] the sequences. Returns logits float32[B, n_vocab] and hidden float32[B, d], views
        valid until the next step.
        """


class FakeTarget:
    """A target whose next-token logits are a pseudo-random function of all tokens before.

    Any mistake in positions, rollback or prefix reuse changes the text, because every cell's token
    enters the logits. With a ``window`` a row also looks at that many cells of a second, sliding
    cache, and a hole in it changes the text, too. Hidden rows say how many cells there are, which
    :class:`FakeDrafter` checks.
    """

    def __init__(
        self,
        n_vocab: int = 40,
        n_ctx: int = 256,
        n_slots: int = 1,
        *,
        window: int = 0,
        max_rows: int = 64,
        max_outputs: int = 64,
        max_media: int = 64,
        seed: int = 0,
        n_embd: int = 4,
    ) -> None:
        self.n_vocab, self.n_ctx, self.n_slots = n_vocab, n_ctx, n_slots
        self.window, self.n_embd = window, n_embd
        self.max_rows, self.max_outputs, self.max_media = max_rows, max_outputs, max_media
        self.seed = seed
        self.native_seconds = 0.0
        self.decodes: list[int] = []
        """The number of rows of every decode of tokens so far."""
        self.media: list[int] = []
        """The number of rows of every decode of media so far."""
        self._cells: list[list[int]] = [[] for _ in range(n_slots)]
        self._first = [0] * n_slots
        """The oldest position of the sliding cache, or the end of the cells when it is empty."""
        self._logits: list[Floats] = []
        self._hidden: list[Floats] = []

    def next_logits(self, history: Sequence[int]) -> Floats:
        """float32[n_vocab] for the token after ``history``."""
        key = hash((self.seed, *history)) & (2**63 - 1)
        return np.random.default_rng(key).normal(0.0, 2.0, self.n_vocab).astype(np.float32)

    def decode(self, rows: Sequence[Row]) -> None:
        if not 0 < len(rows) <= self.max_rows:
            raise EngineError(f"A decode of {len(rows)} rows; at most {self.max_rows} are allowed.")
        if sum(row.output for row in rows) > self.max_outputs:
            raise EngineError(f"More than {self.max_outputs} output rows in one decode.")
        for row in rows:
            if row.position >= self.n_ctx:
                raise ContextFullError("The context is full.")
        self.decodes.append(len(rows))
        self._logits, self._hidden = [], []
        for row in rows:
            cells = self._cells[row.slot]
            if row.position != len(cells):
                raise EngineError(f"Position {row.position} decoded, {len(cells)} expected.")
            cells.append(row.token)
            if row.output:
                self._logits.append(self.next_logits(self._seen(row.slot)))
                self._hidden.append(np.full(self.n_embd, float(len(cells)), np.float32))
        self._forget()

    def decode_media(self, slot: int, embeddings: Floats, position: int, causal: bool) -> None:
        """A causal row's cell depends on the row; one that sees the others', on all of them."""
        cells, n = self._cells[slot], len(embeddings)
        if not 0 < n <= (self.max_rows if causal else self.max_media):
            raise EngineError(f"A decode of {n} media rows; at most {self.max_media} are allowed.")
        if position + n > self.n_ctx:
            raise ContextFullError("The context is full.")
        if position != len(cells):
            raise EngineError(f"Position {position} decoded, {len(cells)} expected.")
        self.media.append(n)
        self._logits, self._hidden = [], []
        for i, row in enumerate(embeddings):
            seen = row if causal else embeddings
            cells.append(-1 - (hash((i * (not causal), seen.tobytes())) & (2**31 - 1)))
        self._forget()

    def _seen(self, slot: int) -> list[int]:
        """The slot's cells as the newest row sees them, with a mark where its window has a hole."""
        cells, first = self._cells[slot], self._first[slot]
        begin = max(0, len(cells) - self.window) if self.window else 0
        return cells if first <= begin else [*cells, _HOLE, first]

    def _forget(self) -> None:
        """Let the window move on, as far as a cache of the window and one batch has to."""
        for slot, cells in enumerate(self._cells):
            if self.window:
                oldest = len(cells) - self.window - self.max_rows
                self._first[slot] = max(self._first[slot], oldest)

    def logits(self, i: int) -> Floats:
        return self._logits[i]

    def hidden(self, i: int) -> Floats:
        return self._hidden[i]

    def remove(self, slot: int, from_position: int) -> None:
        del self._cells[slot][from_position:]
        self._first[slot] = min(self._first[slot], len(self._cells[slot]))

    def copy(self, source: int, target: int) -> None:
        self._cells[target] = list(self._cells[source])
        self._first[target] = self._first[source]

    def held(self, slot: int) -> range:
        first, stop = self._first[slot], len(self._cells[slot])
        return range(first, stop) if first < stop else range(0)

    def checkpoint(self, slot: int) -> WindowState:
        cells = self._cells[slot]
        first = max(self._first[slot], len(cells) - self.window)
        return np.array([first, *cells[first:]], np.int64).view(np.uint8)

    def restore(self, slot: int, checkpoint: WindowState) -> None:
        first, *window = checkpoint.view(np.int64).tolist()
        if self._cells[slot][first:] != window:
            raise EngineError("The checkpoint belongs to another text or position.")
        self._first[slot] = first

    def save(self, slot: int) -> SlotCells:
        return np.array([self._first[slot], *self._cells[slot]], np.int64).view(np.uint8)

    def load(self, slot: int, cells: SlotCells) -> None:
        if len(cells) > 8 * (self.n_ctx + 1):
            raise EngineError("The cells do not fit into the context.")
        self._first[slot], *self._cells[slot] = cells.view(np.int64).tolist()

    def tokens(self, slot: int) -> tuple[int, ...]:
        """The tokens in the slot's cells, for assertions."""
        return tuple(self._cells[slot])


_HOLE = -(1 << 40)


class FakeDrafter:
    """A drafter of a :class:`FakeTarget` that is right with probability ``skill``.

    It guesses the target's greedy token from the target's cells, so that acceptance is what
    ``skill`` says; ``skill=0`` is always wrong where it can be.
    """

    def __init__(self, target: FakeTarget, skill: float = 0.7, seed: int = 1) -> None:
        self.target, self.skill = target, skill
        self.native_seconds = 0.0
        self.steps = 0
        self._random = np.random.default_rng(seed)
        self._drafted: dict[int, list[int]] = {}

    def step(
        self, tokens: Tokens, hidden: Floats, positions: Tokens, slots: Tokens
    ) -> tuple[Floats, Floats]:
        self.steps += 1
        out = np.zeros((len(tokens), self.target.n_vocab), np.float32)
        for i, (token, h, position, slot) in enumerate(
            zip(tokens, hidden, positions, slots, strict=True)
        ):
            cells = self.target.tokens(int(slot))
            if position != len(cells):
                raise EngineError("A draft must stand at the newest token's position.")
            depth = int(h[0]) - len(cells)
            drafted = self._drafted[int(slot)] if depth else []
            drafted = [*drafted, int(token)]
            self._drafted[int(slot)] = drafted
            if len(drafted) != depth + 1:
                raise EngineError("The hidden row does not belong to this draft step.")
            guess = int(np.argmax(self.target.next_logits([*cells, *drafted])))
            if self._random.random() >= self.skill:
                guess = (guess + 1) % self.target.n_vocab
            out[i, guess] = 1.0
        return out, hidden + np.float32(1.0)

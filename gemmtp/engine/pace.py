"""How many prompt tokens to decode at a time, so that nobody waits long for Ctrl-C.

A decode of n prompt rows takes about a + b n seconds; both are followed by a decaying least-squares
fit. A chunk is to take half a second. Where the fixed part alone is near that (experts that are
copied to the GPU for every batch), it may take twice the fixed part, so that at least half of the
time goes into tokens.
"""

from __future__ import annotations

CHUNK_SECONDS = 0.5
BESIDE_SECONDS = 0.1
"""The same beside running answers: they stutter, and do not stand still."""

FIRST_ROWS, FEWEST_ROWS = 32, 8
GROWTH = 4
"""How much larger a chunk may be than the last."""

_MEMORY = 0.8
"""What an observation is worth at the next one."""


class Pace:
    """Learns from chunks how large the next may be; ``most`` rows fit into one decode."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = min(FIRST_ROWS, most)
        """How many rows the next chunk may have."""
        self.rows_beside = min(FEWEST_ROWS, most)
        """How many beside running answers, which wait for the chunk."""
        self._n = self._t = self._nn = self._nt = self._weight = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """A chunk of ``rows``, alone in its decode, took ``seconds``."""
        values = (1.0, rows, seconds, rows * rows, rows * seconds)
        sums = (self._weight, self._n, self._t, self._nn, self._nt)
        self._weight, self._n, self._t, self._nn, self._nt = (
            _MEMORY * old + new for old, new in zip(sums, values, strict=True)
        )
        n, t = self._n / self._weight, self._t / self._weight
        spread = self._nn / self._weight - n * n
        a_row = t / n
        if spread > 1:
            slope = (self._nt / self._weight - n * t) / spread
            a_row = min(a_row, slope) if slope > 0 else a_row
        fixed = max(0.0, t - a_row * n)
        wanted = max(CHUNK_SECONDS - fixed, fixed) / max(a_row, 1e-9)
        wanted = min(wanted, GROWTH * max(rows, self.rows), self._most)
        beside = BESIDE_SECONDS / max(a_row, 1e-9)
        self.rows_beside = int(max(FEWEST_ROWS, min(beside, self._most)))
        # Powers of two, so that the same prompt is cut alike from one time to the next.
        self.rows = min(self._most, max(FEWEST_ROWS, 1 << (max(1, int(wanted)).bit_length() - 1)))

"""Where an answer ends: stop strings over a stream of token bytes.

Stop strings are looked for in bytes, because a token may carry half a character.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemmtp.errors import UsageError

MAX_STOP_STRINGS = 64


class StopStrings:
    """Finds the first of ``stops`` in text that arrives piece by piece.

    ``feed`` gives back the bytes that are surely not part of a stop string; ``found`` is true once
    one has been seen, and the bytes given back end right before it. Raises
    :class:`~gemmtp.errors.UsageError` on an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise UsageError("A stop string must not be empty.", "Leave it out.")
        if len(stops) > MAX_STOP_STRINGS:
            raise UsageError(
                f"At most {MAX_STOP_STRINGS} stop strings are possible.", "Leave the others out."
            )
        self._stops = [stop.encode() for stop in stops]
        self._tail = b""
        self.found = False

    def feed(self, piece: bytes) -> bytes:
        """Take ``piece``; return the bytes that may be shown now."""
        if self.found:
            return b""
        text = self._tail + piece
        starts = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if starts:
            self.found, self._tail = True, b""
            return text[: min(starts)]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._tail = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> bytes:
        """The bytes held back, when no more will come."""
        tail, self._tail = self._tail, b""
        return tail


def _overlap(text: bytes, stop: bytes) -> int:
    """The length of the longest end of ``text`` that begins ``stop`` without being all of it."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0


class StopWatch:
    """Tells from token ids when a stop string is complete; the engine's side of StopStrings."""

    def __init__(self, stops: Sequence[str], token_bytes: Callable[[int], bytes]) -> None:
        self._strings = StopStrings(stops)
        self._token_bytes = token_bytes

    def __call__(self, token: int) -> bool:
        """Whether the text ends with ``token``; called once for every emitted token."""
        self._strings.feed(self._token_bytes(token))
        return self._strings.found

"""Images and sounds inside a prompt: rows that are embeddings, not tokens.

In a prompt's ids such rows are negative stand-ins made from the content, so that the same picture
in the next turn's prompt compares equal and is neither encoded nor decoded again. Rows that see
each other (an image's) are decoded whole and alone, and are kept or dropped whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemmtp.engine.backend import Floats, Target
from gemmtp.errors import EngineError, UsageError

_KEY_BYTES = 7
"""Of the content's digest: stand-ins stay within 64 bits, and two pictures do not meet."""


@dataclass(frozen=True, slots=True)
class Media:
    """Rows ``start`` to ``start + n`` of a prompt, which ``rows`` gives as float32[n, d].

    ``rows`` is called when they have to be evaluated, and not at all when the cache holds them.
    ``causal`` false lets the rows see each other, as Gemma 4 wants for images.
    """

    start: int
    n: int
    rows: Callable[[], Floats]
    causal: bool

    @property
    def stop(self) -> int:
        """The first row after it."""
        return self.start + self.n


def stand_ins(key: bytes, n: int) -> list[int]:
    """``n`` negative ids that say which content lies there: the same for an equal key and ``n``."""
    digest = hashlib.sha256(key + n.to_bytes(8, "big")).digest()
    first = int.from_bytes(digest[:_KEY_BYTES], "big") + 1
    return [-(first + i) for i in range(n)]


def check_media(prompt: Sequence[int], media: Sequence[Media], target: Target) -> None:
    """Raises :class:`~gemmtp.errors.UsageError` unless the stand-ins are exactly the media's rows.

    The last row must be a token, since its logits are wanted, and rows that see each other must
    fit into one decode.
    """
    end = 0
    for part in media:
        if part.n < 1 or part.start < end or part.stop > len(prompt):
            raise UsageError("An image or sound lies outside the prompt or over another one.")
        if not part.causal and part.n > target.max_media:
            raise UsageError(
                f"An image of {part.n} tokens does not fit into a batch of {target.max_media}.",
                "Use a smaller image.",
            )
        _check_tokens(prompt[end : part.start], target.n_vocab)
        if max(prompt[part.start : part.stop]) >= 0:
            raise UsageError("A token stands where an image or sound belongs.")
        end = part.stop
    if end == len(prompt):
        raise UsageError("Words must follow an image or sound.")
    _check_tokens(prompt[end:], target.n_vocab)


def _check_tokens(tokens: Sequence[int], n_vocab: int) -> None:
    if tokens and not 0 <= min(tokens) <= max(tokens) < n_vocab:
        raise UsageError(f"The prompt has a token outside 0..{n_vocab - 1}.")


def whole(n: int, media: Sequence[Media]) -> int:
    """``n`` rows, or fewer where the cut would go through rows that see each other."""
    return next((m.start for m in media if not m.causal and m.start < n < m.stop), n)


def tokens_ahead(at: int, media: Sequence[Media], total: int) -> int:
    """How many tokens stand from row ``at`` on before the next image or sound; 0 within one."""
    following = next((part for part in media if part.stop > at), None)
    return max(0, (total if following is None else following.start) - at)


def decode_next(target: Target, slot: int, media: Sequence[Media], at: int) -> int:
    """Decode the image, or a piece of the sound, at row ``at``; return how many rows.

    Raises :class:`~gemmtp.errors.EngineError` when ``rows`` gives another number of rows than it
    promised.
    """
    part = next(part for part in media if part.stop > at)
    rows = part.rows()
    if len(rows) != part.n:
        raise EngineError(f"An image or sound gave {len(rows)} rows instead of {part.n}.")
    n = min(part.stop - at, target.max_rows) if part.causal else part.n
    target.decode_media(slot, rows[at - part.start :][:n], at, part.causal)
    return n

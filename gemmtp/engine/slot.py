"""One sequence: its text, what of it the KV cache holds, and how it may be cut back.

Two invariants hold between steps. The cache holds exactly the first ``held`` tokens of ``text``.
While an answer runs, the newest token of the text is not in the cache yet (``held ==
len(text) - 1``), and ``hidden`` is the target's state at position ``held - 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gemmtp.engine.backend import Floats, Target
from gemmtp.engine.media import Media, whole


@dataclass(slots=True)
class Slot:
    """The state of one sequence between steps."""

    index: int
    text: list[int] = field(default_factory=list)
    """Every token so far, prompt and answer."""
    held: int = 0
    """How many tokens of ``text`` the KV cache holds."""
    last_hidden: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """float32[m, d]: the states of the last verified rows, the newest last."""

    @property
    def hidden(self) -> Floats:
        """float32[d]: the state of the last held token."""
        hidden: Floats = self.last_hidden[-1]
        return hidden

    def begin(self, prompt: Sequence[int], target: Target, media: Sequence[Media] = ()) -> int:
        """Make ``prompt`` the text, keeping what the cache holds of it; return how many tokens.

        At least the last token is left to be decoded, since its logits are needed. Where the
        sliding window no longer reaches back from the cut, everything is forgotten: the layers
        with a window would attend to a hole.
        """
        kept = min(common_prefix(self.text[: self.held], prompt), len(prompt) - 1)
        kept = whole(kept, media)
        if kept < self.held and target.held(self.index).start > max(0, kept - target.window + 1):
            kept = 0
        target.remove(self.index, kept)
        self.text = list(prompt)
        self.held = kept
        return kept

    def cut(self, length: int, target: Target) -> None:
        """Keep the first ``length`` tokens of the text and the cells of all but the newest.

        What goes must be of one round, or the hidden row goes with it.
        """
        dropped = self.held - (length - 1)
        if dropped > 0:
            self.last_hidden = self.last_hidden[: max(0, len(self.last_hidden) - dropped)]
            self.held -= dropped
        del self.text[length:]
        target.remove(self.index, self.held)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens ``a`` and ``b`` share."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    return next(i for i in range(n) if a[i] != b[i])

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
from gemmtp.engine.checkpoints import Checkpoint, Checkpoints
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
    """float32[m, d]: the states of the last verified rows and the one before, the newest last."""

    @property
    def hidden(self) -> Floats:
        """float32[d]: the state of the last held token."""
        hidden: Floats = self.last_hidden[-1]
        return hidden

    def begin(
        self,
        prompt: Sequence[int],
        target: Target,
        media: Sequence[Media],
        checkpoints: Checkpoints,
    ) -> str:
        """Make ``prompt`` the text and keep what the cache holds of it; return why so much.

        At least the last token is left to be decoded, since its logits are needed. Where the
        sliding window no longer reaches back from the cut, the last checkpoint before it is
        restored; without one everything is forgotten, since the layers with a window would attend
        to a hole.
        """
        shared = common_prefix(self.text[: self.held], prompt)
        kept = whole(min(shared, len(prompt) - 1), media)
        because = "same beginning" if kept else "another beginning" if self.held else "empty cache"
        checkpoint = None
        if kept and not self._reaches_back(kept, target):
            checkpoint = checkpoints.last(self.index, kept)
            kept = checkpoint.position if checkpoint else 0
            because = f"checkpoint at {kept}" if checkpoint else "window rolled over, no checkpoint"
        checkpoints.drop(self.index, kept)
        self._go_back(kept, checkpoint, target)
        self.text = list(prompt)
        return because

    def copy_from(self, source: Slot, prompt: Sequence[int], length: int, target: Target) -> bool:
        """Hold the first ``length`` tokens of ``prompt``, which ``source`` holds, without decoding.

        The slots' cells are shared until one of them goes on. False, and nothing changes, where the
        source's window has moved on.
        """
        if not source._reaches_back(length, target):
            return False
        self.held = 0
        target.copy(source.index, self.index)
        target.remove(self.index, length)
        self.text, self.held = list(prompt), length
        return True

    def _reaches_back(self, position: int, target: Target) -> bool:
        """Whether the window still holds what a row at ``position`` looks at."""
        held = target.held(self.index)
        needed = max(0, position - target.window + 1)
        return not target.window or (held.start <= needed and held.stop >= position)

    def _go_back(self, position: int, checkpoint: Checkpoint | None, target: Target) -> None:
        # While the window is being restored nothing counts as held: Ctrl-C may come in between.
        self.held = position if checkpoint is None else 0
        target.remove(self.index, position)
        if checkpoint is not None:
            target.restore(self.index, checkpoint.state)
            self.held = position

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

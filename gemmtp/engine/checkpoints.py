"""Copies of the sliding window, to go back further than it reaches.

Layers with a window forget what lies behind it, so a cut behind it would leave them with a hole.
A checkpoint is what those layers held at one position of a slot; the other layers hold everything
anyway. They are taken shortly before the end of every prompt and behind images, and bounded in
bytes: the one that was not needed for longest goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmtp.engine.backend import Target, WindowState
from gemmtp.engine.media import Media

MARGIN = 16
"""Tokens before a prompt's end at which its checkpoint is taken. The next prompt shares all but the
last few: templates leave the marker of an empty thought out of the history."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the windows of ``slot`` held when its cache ended at ``position``."""

    slot: int
    position: int
    state: WindowState


class Checkpoints:
    """At most ``budget`` bytes of checkpoints, of all slots together; 0 takes none."""

    def __init__(self, budget: int = 0) -> None:
        self.budget = budget
        self._kept: list[Checkpoint] = []
        self._size = 0

    @property
    def nbytes(self) -> int:
        """What they take."""
        return sum(checkpoint.state.nbytes for checkpoint in self._kept)

    def marks(self, kept: int, prompt: Sequence[int], media: Sequence[Media]) -> list[int]:
        """Where to take some while ``prompt`` is read from ``kept`` on, ascending."""
        if self.budget < self._size or not self.budget:
            return []
        marks = {part.stop for part in media if part.stop >= kept}
        end = max(kept, len(prompt) - MARGIN)
        inside = any(part.start < end < part.stop for part in media)
        if end and not inside:
            marks.add(end)
        return sorted(marks)

    def take(self, slot: int, position: int, target: Target) -> None:
        """Copy what the windows of ``slot`` hold, whose cache ends at ``position``."""
        if any(known.slot == slot and known.position == position for known in self._kept):
            return
        self.add(Checkpoint(slot, position, target.checkpoint(slot)))

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint that was taken elsewhere, if there is room for it at all."""
        self._size = checkpoint.state.nbytes
        room = self.budget - self._size
        if room < 0:
            return
        while self.nbytes > room:
            del self._kept[0]
        self._kept.append(checkpoint)

    def last(self, slot: int, position: int) -> Checkpoint | None:
        """The last one of ``slot`` at or before ``position``; it now counts as just needed."""
        mine = [c for c in self._kept if c.slot == slot and c.position <= position]
        found = max(mine, key=lambda checkpoint: checkpoint.position, default=None)
        if found is not None:
            self._kept.remove(found)
            self._kept.append(found)
        return found

    def drop(self, slot: int, position: int) -> None:
        """Forget those of ``slot`` behind ``position``, where its text will be another."""
        self._kept = [c for c in self._kept if c.slot != slot or c.position <= position]

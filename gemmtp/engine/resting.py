"""A slot at rest: all that is needed to go on with it in another process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemmtp.engine.backend import Floats, SlotCells, Target
from gemmtp.engine.checkpoints import Checkpoint, Checkpoints
from gemmtp.engine.slot import Slot
from gemmtp.errors import EngineError


@dataclass(frozen=True, slots=True)
class Resting:
    """``text`` and what the cache holds of it.

    The first ``held`` tokens (stand-ins of images included) are in ``cells`` uint8[n], in the
    target's own format; ``hidden`` float32[d] is the target's state at the last of them. From
    ``checkpoint`` one can go back behind the window.
    """

    text: list[int]
    held: int
    hidden: Floats
    cells: SlotCells
    checkpoint: Checkpoint | None = None


def rest(slot: Slot, target: Target, checkpoints: Checkpoints) -> Resting | None:
    """A copy of ``slot``, which must be free; None when there is nothing worth a copy."""
    if not slot.held or not len(slot.last_hidden):
        return None
    return Resting(
        list(slot.text),
        slot.held,
        slot.hidden.copy(),
        target.save(slot.index),
        checkpoints.last(slot.index, slot.held),
    )


def adopt(slot: Slot, resting: Resting, target: Target, checkpoints: Checkpoints) -> None:
    """Make ``resting`` what the free ``slot`` holds.

    Raises :class:`~gemmtp.errors.EngineError`, with the slot empty, when the target refuses.
    """
    slot.text, slot.held = [], 0
    checkpoints.drop(slot.index, 0)
    target.remove(slot.index, 0)
    target.load(slot.index, resting.cells)
    if target.held(slot.index).stop != resting.held:
        target.remove(slot.index, 0)
        raise EngineError("The cells are not those of the text.")
    slot.text, slot.held = list(resting.text), resting.held
    slot.last_hidden = np.array(resting.hidden, np.float32)[np.newaxis]
    if resting.checkpoint is not None:
        checkpoints.add(resting.checkpoint)

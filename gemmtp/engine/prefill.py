"""Prompts on their way into the cache: what is reused, shared, checkpointed, and read in chunks.

A beginning that several prompts share is evaluated once: a newcomer takes over what another slot
holds of its prompt, and where another newcomer is just reading the same beginning it waits for
that. Copied cells are shared cells, so a copy costs nothing. Layers with a sliding window must
still hold what the next row looks at, so the reader halts where the copy is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmtp.engine.backend import Target
from gemmtp.engine.checkpoints import Checkpoints
from gemmtp.engine.media import decode_next, tokens_ahead, whole
from gemmtp.engine.pace import Pace
from gemmtp.engine.request import Event, Prefill, Request
from gemmtp.engine.run import Run
from gemmtp.engine.slot import Slot, common_prefix

FEWEST_SHARED = 16
"""Tokens of a common beginning below which a copy between slots is not worth its calls."""


class Prefilling:
    """Reads the prompts of newcomers into ``slots``."""

    def __init__(self, target: Target, slots: Sequence[Slot]) -> None:
        self.checkpoints = Checkpoints()
        self.pace = Pace(target.max_rows)
        self._target, self._slots = target, slots

    def begin(self, slot: Slot, request: Request) -> str:
        """Make the prompt the slot's text; what another slot holds of it is taken over."""
        prompt, media = request.prompt, request.media
        own = shared_with(slot, prompt)
        others = [other for other in self._slots if other is not slot]
        source = max(others, key=lambda other: shared_with(other, prompt), default=slot)
        length = whole(min(shared_with(source, prompt), len(prompt) - 1), media)
        copied = length >= own + FEWEST_SHARED and self._copy(source, slot, prompt, length)
        because = slot.begin(prompt, self._target, media, self.checkpoints)
        return "shared with another answer" if copied else because

    def _copy(self, source: Slot, slot: Slot, prompt: Sequence[int], length: int) -> bool:
        if not slot.copy_from(source, prompt, length, self._target):
            return False
        self.checkpoints.drop(slot.index, 0)
        return True

    def follow(self, run: Run, runs: Iterable[Run]) -> None:
        """Let a newcomer wait for an earlier one that is just reading the same beginning."""
        prompt = run.request.prompt
        for leader in runs:
            others = leader.request.prompt
            shared = min(common_prefix(others, prompt), len(prompt) - 1, len(others) - 1)
            shared = whole(shared, run.request.media)
            ahead = max(run.slot.held + FEWEST_SHARED, leader.slot.held, run.shared + 1)
            if leader.filling and shared >= ahead:
                run.leader, run.shared = leader, shared

    def waits(self, run: Run, runs: Iterable[Run]) -> bool:
        """Whether a newcomer still waits for another to read their beginning; copies it then."""
        leader = run.leader
        if leader is None:
            return False
        source, prompt = leader.slot, run.request.prompt
        if source.held < run.shared and any(other is leader for other in runs):
            return True
        run.leader = None
        there = shared_with(source, prompt) >= run.shared
        if there and self._copy(source, run.slot, prompt, run.shared):
            run.marks = [mark for mark in run.marks if mark >= run.shared]
            run.statistics.cached = run.shared
            run.statistics.cached_because = "shared with another answer"
        return False

    def take_checkpoints(self, filling: Sequence[Run]) -> None:
        """Take those that are due."""
        for run in filling:
            if run.marks and run.marks[0] == run.slot.held:
                self.checkpoints.take(run.slot.index, run.slot.held, self._target)
                del run.marks[0]

    def before_media(self, filling: Sequence[Run]) -> list[Run]:
        """At most one run whose image or sound is next: other answers wait for no more than one."""
        return [
            run
            for run in filling
            if not tokens_ahead(run.slot.held, run.request.media, len(run.request.prompt))
        ][:1]

    def read_media(self, run: Run) -> list[Event]:
        """Decode the image or sound that is next."""
        slot = run.slot
        n = decode_next(self._target, slot.index, run.request.media, slot.held)
        slot.held += n
        run.statistics.evaluated += n
        return [Prefill(slot.index, slot.held, len(run.request.prompt))]

    def chunks(
        self, reading: Sequence[Run], filling: Sequence[Run], room: int, *, beside: bool
    ) -> list[tuple[Run, int]]:
        """How many prompt tokens each newcomer decodes in this step, first come first served.

        Running answers wait for them, so ``beside`` those a chunk is short, and so it is where
        someone may want to interrupt. A newcomer halts where another waits for what it has read.
        """
        chunks = []
        if beside:
            room = min(room, self.pace.rows_beside)
        elif any(run.request.quick for run in reading):
            room = min(room, self.pace.rows)
        for run in reading:
            held, total = run.slot.held, len(run.request.prompt)
            stop = min(
                [*run.marks[:1], *(f.shared for f in filling if f.leader is run)], default=total
            )
            # A mark behind the image that was just read is due in the next step.
            n = min(tokens_ahead(held, run.request.media, stop), stop - held, room)
            if n:
                chunks.append((run, n))
                room -= n
        return chunks


def shared_with(slot: Slot, prompt: Sequence[int]) -> int:
    """How many tokens of ``prompt`` the slot's cache holds."""
    return common_prefix(slot.text[: slot.held], prompt)

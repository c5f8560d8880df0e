"""A request at work in a slot, and the rows it wants decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gemmtp.engine.backend import Row
from gemmtp.engine.depth import DepthChooser
from gemmtp.engine.drafting import Draft
from gemmtp.engine.processors import Processor
from gemmtp.engine.request import Request
from gemmtp.engine.slot import Slot
from gemmtp.engine.stats import Statistics
from gemmtp.engine.verify import Verifier


@dataclass(slots=True)
class Run:
    """A request at work in its slot."""

    request: Request
    slot: Slot
    verifier: Verifier
    depth: DepthChooser
    processors: tuple[Processor, ...]
    statistics: Statistics
    marks: list[int]
    """Where checkpoints are still to be taken, ascending."""
    ahead: bool
    """Whether the prompt is only read, for another that begins with it."""
    leader: Run | None = None
    """Another newcomer that reads the first ``shared`` tokens of this prompt, which waits."""
    shared: int = 0
    draft: Draft = field(default_factory=Draft)
    ended: bool = False
    failed: bool = False

    @property
    def filling(self) -> bool:
        return self.slot.held < len(self.request.prompt)

    @property
    def promised(self) -> bool:
        """Whether a seed promises a text again that depends on drafts.

        They may then not depend on the clock.
        """
        return self.request.sampling.seed is not None and self.statistics.rule != "compare"

    def ends(self, token: int) -> bool:
        """Whether the text ends with ``token``; asked once for every emitted token."""
        request = self.request
        self.ended = token in request.stop_tokens or (
            request.stop is not None and request.stop(token)
        )
        return self.ended


def choosers(runs: Sequence[Run]) -> list[DepthChooser]:
    """The choosers of depths at work, each once."""
    return list({id(run.depth): run.depth for run in runs}.values())


def verification_rows(run: Run) -> list[Row]:
    """The newest token and the draft; nothing follows a drafted end, which is not read."""
    slot, draft = run.slot, run.draft.tokens
    if draft and draft[-1] in run.request.stop_tokens:
        draft = draft[:-1]
    tokens = [slot.text[-1], *draft]
    return [Row(slot.index, token, slot.held + i, True) for i, token in enumerate(tokens)]


def prompt_rows(run: Run, n: int) -> list[Row]:
    slot, prompt = run.slot, run.request.prompt
    last = len(prompt) - 1
    return [Row(slot.index, prompt[i], i, i == last) for i in range(slot.held, slot.held + n)]

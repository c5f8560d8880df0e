"""Target and drafter opened together, checked before llama.cpp sees them, freed in order."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gemmtp.engine.combined import CombinedDrafting
from gemmtp.engine.depth import DepthChooser
from gemmtp.engine.drafting import DraftSource, MtpDrafting, NoDrafting
from gemmtp.engine.engine import Engine
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.drafter import DraftContext
from gemmtp.llama.model import LoadOptions, Model, Progress
from gemmtp.llama.target import TargetContext
from gemmtp_models.geometry import Geometry
from gemmtp_models.header import Header, read_header
from gemmtp_models.pairing import check_pair, check_target

NO_DRAFTER = "no drafter was given"


@dataclass(frozen=True, slots=True)
class CheckedPair:
    """The headers of a pair that llama.cpp can load. ``off`` says why there is no drafting."""

    target: Header
    geometry: Geometry
    drafter: Header | None
    off: str | None


def check_files(target: Path, drafter: Path | None, off: str | None = None) -> CheckedPair:
    """Read and check the headers of a pair without llama.cpp.

    ``off`` is a reason not to draft even though a drafter is there; it is then not looked at.
    Raises the errors of :mod:`gemmtp_models.pairing`.
    """
    header = read_header(target)
    if drafter is None or off is not None:
        return CheckedPair(header, check_target(header), None, off or NO_DRAFTER)
    draft_header = read_header(drafter)
    report = check_pair(header, draft_header)
    report.raise_for_mismatch()
    return CheckedPair(header, report.target, draft_header, None)


class Pair:
    """A loaded target, its drafter if there is one, and the engine over both."""

    def __init__(self, model: Model, engine: Engine, resources: ExitStack) -> None:
        self.model, self.engine = model, engine
        self._resources = resources

    @classmethod
    def open(
        cls,
        files: CheckedPair,
        depth: DepthChooser,
        context: ContextOptions,
        load: LoadOptions | None = None,
        progress: Progress | None = None,
        *,
        lookup: bool = False,
    ) -> Self:
        """Load everything; whatever was opened is freed again when a later step fails.

        With ``lookup`` drafts may also come from what the text said before.

        Raises :class:`~gemmtp.errors.EngineError` when llama.cpp refuses a file or a context.
        """
        with ExitStack() as stack:
            model = Model.open(files.target.path, load, header=files.target, progress=progress)
            stack.callback(model.close)
            drafter = None
            if files.drafter is not None:
                drafter = Model.open(files.drafter.path, load, header=files.drafter)
                stack.callback(drafter.close)
            target = stack.enter_context(TargetContext(model, context))
            source: DraftSource = NoDrafting(files.off or NO_DRAFTER)
            if drafter is not None:
                # The stack frees the draft context before the target's, as llama.cpp needs.
                source = MtpDrafting(stack.enter_context(DraftContext(drafter, target)))
            if lookup:
                source = CombinedDrafting(source)
            return cls(model, Engine(target, source, depth), stack.pop_all())

    def close(self) -> None:
        """Free contexts and weights; safe to call twice."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

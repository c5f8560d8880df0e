"""What is asked of the engine and what it tells: requests, and the events of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gemmtp.engine.depth import DepthChooser
from gemmtp.engine.media import Media
from gemmtp.engine.processors import Processor
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.stats import Statistics
from gemmtp.engine.verify import Rule
from gemmtp.errors import GemmtpError, UsageError

FinishReason = Literal["stop", "length", "context"]
"""An end token or stop string; ``max_tokens``; the end of the context."""

SAMPLED_RULE: Rule = "block"
"""The acceptance rule for sampling without a seed: it keeps at least what rejection keeps."""


@dataclass(frozen=True, slots=True)
class Token:
    """An emitted token. ``drafted`` says whether the drafter had proposed it."""

    slot: int
    token: int
    drafted: bool


@dataclass(frozen=True, slots=True)
class Prefill:
    """``done`` of ``total`` prompt tokens are in the cache, reused ones included."""

    slot: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer ended; the slot is free and keeps its cache for a prompt that begins alike."""

    slot: int
    reason: FinishReason
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer cannot go on, as where no token is left; the slot is free, and others go on."""

    slot: int
    error: GemmtpError
    statistics: Statistics


Event = Token | Prefill | Finished | Failed


def checked_max_tokens(most: int | None) -> int | None:
    """``most``, at least 1 or None; raises :class:`~gemmtp.errors.UsageError` otherwise."""
    if most is not None and most < 1:
        raise UsageError(
            f"The number of tokens to generate must be at least 1, not {most}.",
            "Without a limit the answer ends where the model ends it.",
        )
    return most


@dataclass(frozen=True, slots=True)
class Request:
    """What to decode.

    ``stop_tokens`` end the text and are emitted as its last token. ``stop`` is asked once for
    every emitted token whether the text ends there (stop strings). ``max_tokens`` None goes on to
    the end of the context. ``depth`` None takes the engine's. ``accept`` is the acceptance rule;
    "auto" compares where the text must not depend on the depth (greedy, or with a seed) and
    otherwise takes :data:`SAMPLED_RULE`. Negative ids in ``prompt`` stand for rows of ``media``.
    ``quick`` cuts the prompt by the clock, so that Ctrl-C is answered within half a second; where
    it is cut decides about the last digits of the logits, so a text that is to come again on the
    same machine is read in whole batches.
    """

    prompt: Sequence[int]
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    max_tokens: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    stop: Callable[[int], bool] | None = None
    processors: tuple[Processor, ...] = ()
    depth: DepthChooser | None = None
    accept: Literal["auto"] | Rule = "auto"
    media: tuple[Media, ...] = ()
    quick: bool = False

    @property
    def rule(self) -> Rule:
        """The acceptance rule in use."""
        if self.sampling.greedy:
            return "compare"
        if self.accept == "auto":
            return SAMPLED_RULE if self.sampling.seed is None else "compare"
        return self.accept

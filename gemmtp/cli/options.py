"""The options of ``gemmtp run``, and what can be said of them without a model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from gemmtp.chat.room import Overflow
from gemmtp.cli.images import Images
from gemmtp.cli.repetition import Repetition
from gemmtp.cli.session import Wanted
from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.engine.depth import FOR_THE_SEED, DepthChooser, FixedDepth, HeuristicDepth
from gemmtp.engine.request import checked_max_tokens
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.stopping import StopStrings
from gemmtp.engine.verify import RULES, Rule
from gemmtp.errors import UsageError
from gemmtp_models.names import ModelFiles

DEFAULT_DEPTH = 3
"""Where no set names another."""

ADAPTIVE_MOST = 8
"""The deepest draft that ``--draft auto`` tries."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``gemmtp run``, as typed; raises UsageError on some that make no sense."""

    model: str
    prompt: str | None = None
    drafter: Path | None = None
    system: str | None = None
    raw: bool = False
    think: bool = False
    hide_thinking: bool = False
    no_mtp: bool = False
    lookup: bool = True
    draft: str = "auto"
    accept: str = "auto"
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    logit_bias: tuple[str, ...] = ()
    repetition: Repetition = field(default_factory=Repetition)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ctx: int | None = None
    kv: str | None = None
    gpu_layers: int | None = None
    threads: int = 0
    json: bool = False
    stream_json: bool = False
    verbose: bool = False
    pull: str = "missing"
    files: tuple[Path, ...] = ()
    tools: Path | None = None
    schema: str | None = None
    grammar: Path | None = None
    session: Wanted = field(default_factory=Wanted)
    images: Images = field(default_factory=Images)
    overflow: str | None = None

    def __post_init__(self) -> None:
        # What needs no model is not found wrong after it was fetched and loaded.
        chosen_depth(self, DEFAULT_DEPTH)
        chosen_rule(self.accept)
        chosen_overflow(self.overflow)
        self.sampling(SamplingParameters())
        StopStrings(self.stop)
        biases(self.logit_bias)
        checked_max_tokens(self.max_tokens)

    def sampling(self, base: SamplingParameters) -> SamplingParameters:
        """What was asked for over ``base``."""
        given = {
            name: value
            for name in ("temperature", "top_k", "top_p", "min_p")
            if (value := getattr(self, name)) is not None
        }
        return replace(base, **given, seed=self.seed)

    @property
    def sees(self) -> bool:
        """Whether the projector may be needed: for images of now, of the session or of a chat."""
        images = self.images.files or self.images.mmproj or self.session.named
        return bool(images or self.chats)

    @property
    def chats(self) -> bool:
        """Whether a chat begins: there is no prompt, and somebody sits at the terminal."""
        if self.prompt is not None or self.raw or self.json or self.stream_json or self.tools:
            return False
        return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def usual_depth(files: ModelFiles) -> int:
    """The draft depth that a set names, or the one of sets that name none."""
    return files.parameters.draft_depth if files.parameters else DEFAULT_DEPTH


def chosen_depth(options: Options, usual: int) -> DepthChooser:
    """The draft depth that ``--draft`` asks for; ``auto`` begins at ``usual`` and measures."""
    word, _, number = options.draft.partition(":")
    if word == "auto" and not number:
        if options.seed is not None and options.accept in ("reject", "block"):
            # The text then depends on the depth, and a depth that follows the clock would break
            # the seed's promise.
            return FixedDepth(usual, FOR_THE_SEED)
        return AdaptiveDepth(usual, max(usual, ADAPTIVE_MOST))
    try:
        if word == "heuristic":
            return HeuristicDepth(most=int(number)) if number else HeuristicDepth()
        return FixedDepth(int(options.draft))
    except ValueError:
        raise UsageError(
            f"{options.draft!r} is no draft depth.", "Use auto, heuristic, heuristic:N or N."
        ) from None


def chosen_rule(word: str) -> Literal["auto"] | Rule:
    """The acceptance rule that ``--accept`` names."""
    if word not in ("auto", *RULES):
        raise UsageError(f"{word!r} is no acceptance rule.", "Use auto, compare, reject or block.")
    rule: Literal["auto"] | Rule = word  # type: ignore[assignment]
    return rule


def chosen_overflow(word: str | None) -> Overflow | None:
    """What ``--context-overflow`` says to do; None asks."""
    how = next((how for how in get_args(Overflow) if how == word), None)
    if word is not None and how is None:
        raise UsageError(f"{word!r} is no way out.", "Use stop, shift or summarise.")
    return how


def biases(pairs: tuple[str, ...]) -> dict[int, float]:
    """What ``--logit-bias`` adds, by token."""
    added = {}
    for pair in pairs:
        token, _, bias = pair.partition("=")
        try:
            added[int(token)] = float(bias)
        except ValueError:
            raise UsageError(f"{pair!r} is no logit bias.", "Write ID=B, as in 42=-100.") from None
    return added

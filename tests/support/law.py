"""The law of a short text: what the target's own rows say, and what the engine emits.

The engine runs as it is, with drafts, filters and penalties, over a vocabulary so small that every
text of three tokens can be counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from gemmtp.engine.backend import FakeDrafter, FakeTarget, Floats
from gemmtp.engine.depth import DepthChooser, FixedDepth
from gemmtp.engine.drafting import Draft, DraftSource, MtpDrafting, NoDrafting, Want
from gemmtp.engine.engine import Engine, Request, Token
from gemmtp.engine.penalties import PenaltyParameters
from gemmtp.engine.processors import LogitBias, Processor
from gemmtp.engine.sampling import Distribution, SamplingParameters, Shaper
from gemmtp.engine.verify import Rule

Text = tuple[int, ...]
PROMPT = (1, 2)
LENGTH = 3
VOCABULARY = 6
FILTERED = SamplingParameters(temperature=2.0, top_k=5, top_p=0.97, min_p=0.03)
PENALTIES = PenaltyParameters(
    repeat=1.4,
    repeat_last_n=3,
    presence=0.8,
    frequency=0.4,
    dry_multiplier=1.0,
    dry_allowed_length=1,
)
FEWEST_EXPECTED = 8
"""Texts expected less often are counted together, as chi-square needs."""


def processors() -> tuple[Processor, ...]:
    """A bias, a forbidden token and every penalty."""
    return (LogitBias({0: 1.0, 3: -100.0}, VOCABULARY), *PENALTIES.processors())


class WideTarget(FakeTarget):
    """Few tokens and a history of two, so that texts repeat often enough to be counted."""

    def next_logits(self, history: Sequence[int]) -> Floats:
        return super().next_logits(tuple(history[-2:]))


class RoughDrafter(FakeDrafter):
    """A drafter whose whole distribution is a blurred copy of the target's."""

    def step(self, tokens, hidden, positions, slots):  # type: ignore[no-untyped-def]
        logits, following = super().step(tokens, hidden, positions, slots)
        for i, slot in enumerate(slots):
            text = [*self.target.tokens(int(slot)), *self._drafted[int(slot)]]
            logits[i] = 0.6 * self.target.next_logits(text) + logits[i]
        return logits, following


class Mixed(MtpDrafting):
    """The drafter's drafts, and after some texts certain ones, likely or impossible."""

    def draft(self, wants: Sequence[Want]) -> list[Draft]:
        drafts = super().draft(wants)
        for i, want in enumerate(wants):
            choice = hash(tuple(want.history)) % 7
            if choice < VOCABULARY - 2 and want.depth:
                tokens = [choice, (choice + 2) % VOCABULARY, choice][: want.depth]
                q = [Distribution.certain(token) for token in tokens] if want.proposal else []
                drafts[i] = Draft(tokens, q, source="lookup")
        return drafts


class Choosy(FixedDepth):
    """Takes a token where the drafter is sure of it, and goes on where it was sure of the last."""

    watches = True

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.looked = self.taken = 0

    def goes_on(self, slot: int, margins: Sequence[float]) -> bool:
        return margins[-1] > SURE_TO_GO_ON

    def takes(self, slot: int, margins: Sequence[float]) -> bool:
        took = margins[-1] > SURE_TO_TAKE
        self.looked += 1
        self.taken += took
        return took


SURE_TO_TAKE, SURE_TO_GO_ON = 0.6, 0.9
"""In logits; each is passed by some tokens of the rough drafter and not by others."""
Source = Callable[[FakeDrafter], DraftSource]


def counted(
    n: int,
    rule: Rule | None,
    sampling: SamplingParameters,
    *,
    depth: DepthChooser | None = None,
    source: Source = MtpDrafting,
    processing: tuple[Processor, ...] = (),
    stop_tokens: frozenset[int] = frozenset(),
) -> Counter[Text]:
    """How often each text is said in ``n`` answers; rule None decodes plainly."""
    target = WideTarget(n_vocab=VOCABULARY, n_ctx=64, seed=5)
    drafting = NoDrafting("plain") if rule is None else source(RoughDrafter(target))
    engine = Engine(target, drafting, depth or FixedDepth(2))
    request = Request(
        PROMPT,
        sampling,
        LENGTH,
        stop_tokens,
        accept=rule or "auto",
        processors=processing,
    )
    return Counter(
        tuple(event.token for event in engine.generate(request) if isinstance(event, Token))
        for _ in range(n)
    )


def law(
    sampling: SamplingParameters,
    processing: tuple[Processor, ...] = (),
    stop_tokens: frozenset[int] = frozenset(),
) -> dict[Text, float]:
    """The target's own law of texts, from its processed rows one after another."""
    target, shape = WideTarget(n_vocab=VOCABULARY, seed=5), Shaper(sampling)
    whole: dict[Text, float] = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for text, probability in whole.items():
            if stop_tokens.intersection(text[-1:]):
                longer[text] = probability
                continue
            logits = target.next_logits([*PROMPT, *text]).copy()
            for processor in (made.fork() for made in processing):
                # The first look is at the prompt; the answer follows token by token.
                processor.apply(np.zeros(VOCABULARY, np.float32), PROMPT)
                for token in text:
                    processor.accept(token)
                processor.apply(logits, [*PROMPT, *text])
            here = shape(logits)
            for token, share in zip(here.ids, here.p, strict=True):
                longer[(*text, int(token))] = probability * float(share)
        whole = longer
    return whole


def deviations(counts: Counter[Text], expected: dict[Text, float]) -> float:
    """Chi-square in standard deviations from its mean; infinite where a text is impossible."""
    if not set(counts) <= set(expected):
        return float("inf")
    n = sum(counts.values())
    cells: dict[Text, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for text, share in expected.items():
        cell = cells[text if n * share >= FEWEST_EXPECTED else ()]
        cell[0] += counts[text]
        cell[1] += n * share
    statistic = sum((seen - due) ** 2 / due for seen, due in cells.values())
    free = len(cells) - 1
    return float((statistic - free) / np.sqrt(2 * free))

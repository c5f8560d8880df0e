"""Our engine behind one call, for the benchmarks: a prompt, a draft depth, and what it cost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmtp.engine.depth import DepthChooser, FixedDepth
from gemmtp.engine.engine import Finished, Request, Token
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.stats import Statistics
from gemmtp.engine.verify import Rule
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import LoadOptions
from gemmtp.llama.pair import Pair, check_files

GREEDY = SamplingParameters()


@dataclass(frozen=True)
class Run:
    """An answer and its cost.

    ``rounds`` emitted ``round_tokens`` tokens in ``seconds``, of which ``python_seconds`` were
    spent outside llama.cpp; the first token, which the prompt's decode gives, is not among them.
    """

    tokens: tuple[int, ...]
    seconds: float
    python_seconds: float
    rounds: int
    round_tokens: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    overlap: float | None = None

    @property
    def rate(self) -> float:
        """Tokens a second after the first."""
        return self.round_tokens / self.seconds


class Runner:
    """A loaded pair that decodes one prompt at a time."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    @property
    def n_vocab(self) -> int:
        return self._pair.model.n_vocab

    def tokenize(self, text: str) -> list[int]:
        """A raw prompt; the beginning-of-text token is put first where the text has none."""
        tokens = self._pair.model.tokenize(text, special=True, bos=True)
        return tokens[1:] if len(tokens) > 1 and tokens[0] == tokens[1] else tokens

    def run(
        self,
        prompt: Sequence[int],
        depth: int | DepthChooser,
        max_tokens: int,
        *,
        sampling: SamplingParameters = GREEDY,
        stop: bool = False,
        accept: Literal["auto"] | Rule = "auto",
    ) -> Run:
        """Decodes ``max_tokens`` tokens, fewer with ``stop`` where the model ends its answer."""
        request = Request(
            prompt,
            sampling,
            max_tokens=max_tokens,
            stop_tokens=self._pair.model.end_tokens if stop else frozenset(),
            depth=FixedDepth(depth) if isinstance(depth, int) else depth,
            accept=accept,
        )
        tokens: list[int] = []
        statistics = Statistics()
        for event in self._pair.engine.generate(request):
            if isinstance(event, Token):
                tokens.append(event.token)
            elif isinstance(event, Finished):
                statistics = event.statistics
        return Run(
            tuple(tokens),
            statistics.decode_seconds,
            statistics.decode_seconds - statistics.native_seconds,
            statistics.rounds,
            statistics.round_tokens,
            tuple(statistics.drafted_at),
            tuple(statistics.accepted_at),
            statistics.overlap,
        )


@contextlib.contextmanager
def open_pair(
    target: Path,
    drafter: Path | None,
    *,
    n_ctx: int = 1024,
    max_depth: int = 8,
    threads: int = 0,
) -> Iterator[Runner]:
    """The pair on the CPU, freed when the block ends; ``threads`` 0 takes the physical cores."""
    options = ContextOptions(n_ctx=n_ctx, max_depth=max_depth, threads=threads)
    files = check_files(target, drafter)
    with Pair.open(files, FixedDepth(max_depth), options, LoadOptions(gpu_layers=0)) as pair:
        yield Runner(pair)

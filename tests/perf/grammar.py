"""What a grammar costs a row of logits, and whether streams hold, on a real vocabulary.

    python -m tests.perf.grammar MODEL.gguf [--answers 12]

Answers are drawn under schemas from made-up logits: one confident valid token as a trained model
has it (``sure``), or noise in which the grammar is against nearly everything (``noise``). The bound
is 0.3 ms a row for greedy and top-k 64 when the model is sure, and every answer must validate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random

import numpy as np

from gemmtp.engine.sampling import SamplingParameters
from gemmtp.llama.grammar import Grammar, GrammarProcessor
from gemmtp.llama.model import Model
from gemmtp.llama.pieces import Pieces
from gemmtp.llama.schema import gbnf_of
from gemmtp.prompt.channels import Markers
from tests.support.json_schema import errors
from tests.support.schemas import schemas
from tests.support.streams import broken

BOUND_MS = 0.3
MOST_TOKENS = 300
SAMPLING = {
    "greedy": SamplingParameters(),
    "top-k 64": SamplingParameters(temperature=1.0, top_k=64, top_p=0.95),
}


def timed_answer(
    model: Model,
    grammar: Grammar,
    sampling: SamplingParameters,
    rng: np.random.Generator,
    sure: bool,
) -> tuple[list[int], list[float]]:
    """Tokens of one answer, and the seconds that each row's mask and acceptance took."""
    processor = GrammarProcessor(grammar, sampling)
    noise = rng.normal(size=model.n_vocab).astype(np.float32) * 3
    tokens: list[int] = []
    seconds: list[float] = []
    while len(tokens) < MOST_TOKENS and not set(tokens[-1:]) & model.end_tokens:
        logits = np.roll(noise, int(rng.integers(model.n_vocab)))
        if sure:
            raise_some_valid(logits, processor, rng)
        start = time.thread_time()
        processor.apply(logits, tokens)
        masked = time.thread_time() - start
        best = np.argpartition(-logits, 64)[:64]
        best = best[logits[best] > -np.inf]
        tokens.append(int(best[logits[best].argmax()] if sure else rng.choice(best)))
        start = time.thread_time()
        processor.accept(tokens[-1])
        seconds.append(masked + time.thread_time() - start)
    return tokens, seconds


def raise_some_valid(
    logits: np.ndarray, processor: GrammarProcessor, rng: np.random.Generator
) -> None:
    """Give one valid token, and where there are enough a hundred, the logits of a sure model."""
    free = np.zeros_like(logits)
    free[:] = logits
    processor.fork().apply(free, [])
    valid = np.flatnonzero(free > -np.inf)
    some = rng.permutation(valid)[:100]
    logits[some] += 12
    logits[some[0]] += 6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--streams", type=int, default=500)
    options = parser.parse_args()
    failed = 0
    with Model.open(options.model) as model:
        start = time.thread_time()
        pieces = Pieces(model)
        grammar = Grammar(pieces, gbnf_of(schemas()[50]).text)
        pieces.walk(grammar.start.accepts)
        once = time.thread_time() - start
        print(f"{model.n_vocab:,} tokens; the tree of pieces takes {once:.2f} s, once")
        markers = Markers(*range(model.n_vocab - 5, model.n_vocab))
        random = Random(1)
        wrong = [broken(model, markers, random, 60) for _ in range(options.streams)]
        failed += len(wrong) - wrong.count(None)
        print(f"streams: {wrong.count(None)} of {len(wrong)} random sequences add up")
        for name, sampling in SAMPLING.items():
            for sure in (True, False):
                rng = np.random.default_rng(1)
                spent: list[float] = []
                valid = finished = 0
                for i in range(options.answers):
                    schema = schemas()[20 + i]
                    fresh = Grammar(pieces, gbnf_of(schema).text)
                    tokens, seconds = timed_answer(model, fresh, sampling, rng, sure)
                    spent += seconds
                    if tokens[-1] in model.end_tokens:
                        finished += 1
                        text = model.detokenize([t for t in tokens if t not in model.end_tokens])
                        valid += not errors(schema, json.loads(text))
                mean, median = float(np.mean(spent)) * 1e3, float(np.median(spent)) * 1e3
                kind = "sure" if sure else "noise"
                print(
                    f"{name:9} {kind:6} {len(spent):5} rows: mean {mean:.3f} ms, median "
                    f"{median:.3f}, worst {max(spent) * 1e3:.2f}; {valid} of {finished} valid"
                )
                failed += int(valid < finished or (sure and mean > BOUND_MS))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

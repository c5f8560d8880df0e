"""Two hundred schemas on the demo set: every finished answer validates, drafted equals plain.

    python -m tests.perf.schemas [--schemas 200] [--seeds 3]

Each schema is asked for with each seed at temperature 1, once plainly and once drafted; the exit
code is 1 when a finished answer does not validate or the two differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Finished, Request, Token
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.grammar import Grammar, GrammarProcessor
from gemmtp.llama.pair import Pair, check_files
from gemmtp.llama.pieces import Pieces
from gemmtp.llama.schema import gbnf_of
from gemmtp.prompt.template import chat_tokens
from gemmtp_models.names import demo
from tests.support.json_schema import errors
from tests.support.schemas import schemas

DEPTH, MOST_TOKENS, N_CTX = 3, 256, 1024


class Asker:
    """Asks the demo set for answers of a schema."""

    def __init__(self, pair: Pair, template: str | None) -> None:
        self.pair, self._template = pair, template
        self._pieces = Pieces(pair.model)
        self.counts: Counter[str] = Counter()

    def ask(self, i: int, schema: dict[str, object], seed: int) -> None:
        """One schema and seed, plain and drafted; what happened is counted."""
        model = self.pair.model
        sampling = SamplingParameters(temperature=1.0, top_k=64, top_p=0.95, seed=seed)
        grammar = GrammarProcessor(Grammar(self._pieces, gbnf_of(schema).text), sampling)
        prompt = chat_tokens(
            [{"role": "user", "content": f"Give me JSON number {i}."}],
            lambda text: model.tokenize(text, special=True),
            template=self._template,
        )
        plain, drafted = (self._tokens(prompt, sampling, grammar, depth) for depth in (0, DEPTH))
        self.counts["answers"] += 1
        self.counts["drafted otherwise"] += plain != drafted
        if plain[-1] not in model.end_tokens:
            self.counts["cut"] += 1
            return
        text = model.detokenize(plain[:-1]).decode("utf-8", "replace")
        if wrong := errors(schema, json.loads(text)):
            self.counts["not valid"] += 1
            print(f"schema {i}, seed {seed}: {wrong[0]}: {text}")

    def _tokens(
        self,
        prompt: list[int],
        sampling: SamplingParameters,
        grammar: GrammarProcessor,
        depth: int,
    ) -> list[int]:
        tokens: list[int] = []
        request = Request(
            prompt,
            sampling,
            max_tokens=MOST_TOKENS,
            stop_tokens=self.pair.model.end_tokens,
            processors=(grammar,),
            depth=FixedDepth(depth),
            accept="compare",
        )
        for event in self.pair.engine.generate(request):
            if isinstance(event, Token):
                tokens.append(event.token)
            elif isinstance(event, Finished):
                self.counts["drafts accepted"] += event.statistics.accepted
                self.counts["drafts"] += event.statistics.drafted
        self.counts["tokens"] += len(tokens)
        return tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    files, start = demo(), time.perf_counter()
    context = ContextOptions(n_ctx=N_CTX, max_depth=DEPTH, threads=1)
    checked = check_files(files.target, files.drafter)
    with Pair.open(checked, FixedDepth(DEPTH), context) as pair:
        asker = Asker(pair, files.chat_template)
        for i, schema in enumerate(schemas()[: options.schemas]):
            for seed in range(options.seeds):
                asker.ask(i, schema, seed)
    seconds = time.perf_counter() - start
    counts = asker.counts
    finished = counts["answers"] - counts["cut"]
    print(
        f"{counts['answers']} answers, {counts['tokens']} tokens in {seconds:.0f} s: {finished} "
        f"finished, {finished - counts['not valid']} of them valid, {counts['cut']} cut at "
        f"{MOST_TOKENS} tokens, {counts['drafted otherwise']} drafted otherwise; "
        f"{counts['drafts accepted']} of {counts['drafts']} drafts accepted"
    )
    return 1 if counts["not valid"] or counts["drafted otherwise"] else 0


if __name__ == "__main__":
    sys.exit(main())

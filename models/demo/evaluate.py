"""Figures of a finished set, taken through gemmtp's own engine on the GGUF files.

    python -m demo.evaluate SET --output figures.json [--count N]

Right answers on held-out prompts, acceptance per draft position and category, whether drafting
changed a token, and for prose at temperature 1 the target's entropy beside its acceptance.
"""

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from demo.corpus import CATEGORIES, Example, held_out_examples
from demo.corpus.letters import spelled
from demo.corpus.words import SPELLING_WORDS
from demo.grading import is_right
from gemmtp.engine.backend import Floats
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Request, Token
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.stats import Statistics
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import Pair, check_files
from gemmtp.prompt.template import chat_tokens
from gemmtp_models.names import of_folder

EVALUATION_SEED = 7
DEPTH = 3
MAX_TOKENS = 160
PROSE = ("stories", "plain")


@dataclass
class Entropies:
    """A processor that changes nothing and notes the entropy, in nats, of each row it sees."""

    seen: list[float] = field(default_factory=list)

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        """Note the entropy of softmax(logits): temperature 1, nothing cut off."""
        shifted = logits.astype(np.float64) - logits.max()
        weights = np.exp(shifted)
        p = weights / weights.sum()
        self.seen.append(float(np.log(weights.sum()) - (p * shifted).sum()))

    def accept(self, token: int) -> None:
        """Nothing to remember."""

    def rollback(self, n: int) -> None:
        """Nothing to give back."""

    def fork(self) -> Self:
        """The same notebook."""
        return self


@dataclass
class Tally:
    """Counts over many answers; `open_` where more than one answer would have been right."""

    asked: int = 0
    right: int = 0
    open_asked: int = 0
    open_right: int = 0
    wrong: list[dict[str, str]] = field(default_factory=list)
    changed: int = 0
    statistics: Statistics = field(default_factory=Statistics)

    def add(self, other: Statistics) -> None:
        """Sum up what acceptance is computed from."""
        mine = self.statistics
        mine.rounds += other.rounds
        mine.round_tokens += other.round_tokens
        mine.drafted += other.drafted
        mine.accepted += other.accepted
        for i, (drafted, accepted) in enumerate(
            zip(other.drafted_at, other.accepted_at, strict=True)
        ):
            if i == len(mine.drafted_at):
                mine.drafted_at.append(0)
                mine.accepted_at.append(0)
            mine.drafted_at[i] += drafted
            mine.accepted_at[i] += accepted

    def drafting(self) -> dict[str, Any]:
        """Acceptance per position, and tokens a round."""
        return {
            "per_position": [round(share, 3) for share in self.statistics.per_position],
            "tokens_a_round": round(self.statistics.tokens_per_round, 3),
        }


class Reader:
    """A set opened for questions."""

    def __init__(self, pair: Pair, template: str | None) -> None:
        self.pair, self.template = pair, template

    def prompt(self, example: Example) -> list[int]:
        """The prompt's tokens, as `gemmtp run` makes them."""
        if not example.messages:
            return self._marked("<bos>")
        return chat_tokens(
            example.messages,
            self._marked,
            template=self.template,
            thinking=example.thinking,
            tools=example.tools,
        )

    def _marked(self, text: str) -> list[int]:
        return self.pair.model.tokenize(text, special=True)

    def answer(
        self, prompt: list[int], depth: int, sampling: SamplingParameters, *processors: Entropies
    ) -> tuple[list[int], Statistics]:
        """Tokens of the answer, its end token included, and what drafting did."""
        request = Request(
            prompt,
            sampling,
            MAX_TOKENS,
            self.pair.model.end_tokens,
            processors=processors,
            depth=FixedDepth(depth),
        )
        tokens: list[int] = []
        statistics = Statistics()
        for event in self.pair.engine.generate(request):
            if isinstance(event, Token):
                tokens.append(event.token)
            else:
                statistics = getattr(event, "statistics", statistics)
        return tokens, statistics

    def text(self, tokens: Sequence[int]) -> str:
        """The answer's text without thought and end token, tool calls kept."""
        ends = self.pair.model.end_tokens
        kept = [token for token in tokens if token not in ends]
        written = self.pair.model.detokenize(kept, special=True).decode("utf-8", "replace")
        return written.split("<channel|>")[-1]


def open_set(folder: Path, resources: ExitStack, threads: int = 1) -> Reader:
    """The set in `folder`; one thread is the fastest for a model this small."""
    files = of_folder(folder)
    pair = Pair.open(
        check_files(files.target, files.drafter),
        FixedDepth(DEPTH),
        ContextOptions(n_ctx=1024, max_depth=DEPTH, threads=threads),
    )
    return Reader(resources.enter_context(pair), files.chat_template)


def greedy(reader: Reader, examples: Sequence[Example]) -> Tally:
    """Answers without sampling: right or not, and the same without drafts."""
    tally = Tally()
    exact = SamplingParameters()
    for example in examples:
        prompt = reader.prompt(example)
        tokens, statistics = reader.answer(prompt, DEPTH, exact)
        tally.changed += tokens != reader.answer(prompt, 0, exact)[0]
        tally.add(statistics)
        written = reader.text(tokens)
        right = is_right(example, written)
        if right is None:
            continue
        if example.grade in ("any_of", "list"):
            tally.open_asked += 1
            tally.open_right += right
        else:
            tally.asked += 1
            tally.right += right
        if not right:
            last = str(example.messages[-1]["content"])
            tally.wrong.append({"prompt": last, "wanted": example.answer, "written": written})
    return tally


def sampled(
    reader: Reader, examples: Sequence[Example], sampling: SamplingParameters
) -> dict[str, Any]:
    """Entropy (nats a token, at temperature 1) and acceptance of drawn prose."""
    tally, entropies = Tally(), Entropies()
    for example in examples:
        _, statistics = reader.answer(reader.prompt(example), DEPTH, sampling, entropies)
        tally.add(statistics)
    mean = sum(entropies.seen) / len(entropies.seen)
    return {"entropy": round(mean, 3), "tokens": len(entropies.seen), **tally.drafting()}


def questions(count: int) -> dict[str, list[Example]]:
    """Held-out examples by category; words to spell apart from made-up ones."""
    found = {name: held_out_examples(name, count, EVALUATION_SEED) for name in CATEGORIES}
    spelling = found["spelling"]
    known = [example for example in spelling if spelled(example) in SPELLING_WORDS]
    found["spelling"] = known
    found["spelling of made-up words"] = [e for e in spelling if e not in known]
    return found


def evaluate(reader: Reader, count: int) -> dict[str, Any]:
    """All figures of the set, `count` held-out prompts a category at most."""
    began = time.monotonic()
    whole = Tally()
    categories: dict[str, Any] = {}
    for name, examples in questions(count).items():
        tally = greedy(reader, examples)
        whole.add(tally.statistics)
        whole.changed += tally.changed
        entry: dict[str, Any] = {"asked": tally.asked, "right": tally.right}
        entry |= {"open_asked": tally.open_asked, "open_right": tally.open_right}
        entry |= tally.drafting() | {"changed_by_drafting": tally.changed}
        entry["wrong"] = tally.wrong[:5]
        categories[name] = entry
    prose = [e for name in PROSE for e in held_out_examples(name, count, EVALUATION_SEED)]
    free = SamplingParameters(temperature=1.0, seed=EVALUATION_SEED)
    default = SamplingParameters(temperature=1.0, top_k=64, top_p=0.95, seed=EVALUATION_SEED)
    return {
        "seed": EVALUATION_SEED,
        "draft": DEPTH,
        "categories": categories,
        "all": whole.drafting() | {"changed_by_drafting": whole.changed},
        "prose_at_temperature_1": sampled(reader, prose, free),
        "prose_with_defaults": sampled(reader, prose, default),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    """Parse the command line, evaluate, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100)
    chosen = parser.parse_args()
    with ExitStack() as resources:
        figures = evaluate(open_set(chosen.set, resources), chosen.count)
    text = json.dumps(figures, indent=2, ensure_ascii=False) + "\n"
    chosen.output.write_text(text, encoding="utf-8")
    for name, entry in figures["categories"].items():
        print(
            name,
            entry["right"],
            "/",
            entry["asked"],
            entry["per_position"],
            entry["tokens_a_round"],
        )
    print({key: value for key, value in figures.items() if key != "categories"})


if __name__ == "__main__":
    main()

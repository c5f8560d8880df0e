"""Figures of a finished set, taken through gemmtp's own engine on the GGUF files.

    python -m demo.evaluate SET --output figures.json [--count N]

Right answers on held-out prompts, acceptance per draft position and category, whether drafting
changed a token, and for prose at temperature 1 the target's entropy beside its acceptance; then
the same about unseen drawings.
"""

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from demo.corpus import CATEGORIES, Example, held_out_examples
from demo.corpus.letters import spelled
from demo.corpus.words import SPELLING_WORDS
from demo.grading import is_right
from demo.picture_figures import DRAWINGS, picture_figures
from demo.reader import DEPTH, Reader, Tally, open_set
from gemmtp.engine.backend import Floats
from gemmtp.engine.sampling import SamplingParameters

EVALUATION_SEED = 7
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


def greedy(reader: Reader, examples: Sequence[Example]) -> Tally:
    """Answers without sampling: right or not, and the same without drafts."""
    tally = Tally()
    for example in examples:
        written = reader.ask(example, tally)
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
    """Entropy (nats a token, at temperature 1) and acceptance of drawn prose.

    Each answer has its own seed: most prompts of `PROSE` are empty and would begin the same text.
    """
    tally, entropies = Tally(), Entropies()
    for number, example in enumerate(examples):
        seeded = replace(sampling, seed=EVALUATION_SEED + number)
        _, statistics = reader.answer(reader.prompt(example), DEPTH, seeded, entropies)
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
    # Without a question there is one likeliest text.
    found["plain"] = found["plain"][:1]
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
    free = SamplingParameters(temperature=1.0)
    default = SamplingParameters(temperature=1.0, top_k=64, top_p=0.95)
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
        reader = open_set(chosen.set, resources)
        figures = evaluate(reader, chosen.count)
    if reader.eyes is not None:
        figures["pictures"] = {
            str(tokens): picture_figures(chosen.set, tokens, count)
            for tokens, count in DRAWINGS.items()
        }
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

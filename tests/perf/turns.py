"""How much of a conversation each turn reads again, and whether drafting goes on after it.

    python -m tests.perf.turns [--conversation 3000] [--answer 800] [--turns 20]

On the demo set at ubatch 64, where the cache of the sliding layers holds 256 tokens, so that its
window of 64 has rolled over many times behind an answer of 800. Answers are greedy and cannot end
before their length. Every turn is compared with a fresh context that is given the same messages:
the same text, and accepted drafts within a tenth. The weights and the cache are float32, since over
quantised weights a prompt that is read in other pieces may be answered with other words anyway.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gemmtp.chat.dialogue import Dialogue
from gemmtp.chat.pieces import Piece, TurnEnd, Words
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Request
from gemmtp.engine.processors import SuppressTokens
from gemmtp.engine.stats import Statistics
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import Pair
from gemmtp.prompt.conversation import Message
from gemmtp_models.names import demo
from tests.support.exact_demo import exact_demo

STORY = (
    "Long ago, a clever fox had a brown boat. It felt angry and sat down beside the boat. It gave "
    "the boat to the lucky frog. It never lost the boat again."
)
OPTIONS = ContextOptions(
    max_depth=3, kv="f32", flash_attention="off", n_batch=64, n_ubatch=64, threads=1
)
MOST_OLD = 40
"""Old tokens that a turn may read before its first new one, a kept answer aside."""

TOLERANCE = 0.1


@dataclass(frozen=True)
class Turn:
    """What one turn did, beside a fresh context on the same messages."""

    name: str
    old: int
    """Tokens evaluated that the conversation held before: thoughts, kept answers, margins."""
    kept: int
    """Tokens of the answer that had to be read again because a thought before it left."""
    statistics: Statistics
    fresh: Statistics
    same_text: bool
    because: str

    @property
    def holds(self) -> bool:
        """Whether it read little enough, said the same and drafted as well as a fresh context."""
        allowed = MOST_OLD + self.kept
        accepted = abs(self.statistics.acceptance - self.fresh.acceptance)
        return (
            self.old <= allowed and self.same_text and accepted <= TOLERANCE * self.fresh.acceptance
        )

    def line(self) -> str:
        """One row of the report."""
        s = self.statistics
        return (
            f"{self.name:34} cached {s.cached:5} evaluated {s.evaluated:5} old {self.old:4} "
            f"(answer kept: {self.kept:4})  acceptance {s.acceptance:.3f} fresh "
            f"{self.fresh.acceptance:.3f}  text {'same' if self.same_text else 'DIFFERS'}  "
            f"{'ok ' if self.holds else 'NO '} {self.because}"
        )


class Bench:
    """A conversation, and a twin of it that always starts afresh."""

    def __init__(self, pair: Pair, twin: Pair, answer: int) -> None:
        self.dialogue = Dialogue(pair, demo().chat_template, max_tokens=answer)
        self.dialogue.processors = (SuppressTokens(sorted(pair.model.end_tokens)),)
        self.twin = replace(self.dialogue, pair=twin)
        self.turns: list[Turn] = []

    def fill(self, tokens: int) -> None:
        """Load exchanges until the conversation has ``tokens`` tokens."""
        past: list[Message] = []
        while self.dialogue.usage().used < tokens:
            past += [user(f"Tell me a story about fox {len(past)}."), said(STORY)]
            self.dialogue.load(past)

    def ask(self, name: str, *, settled: bool = True, kept: int = 0) -> None:
        """A new message; ``settled`` when the user took the time to read and type."""
        if settled:
            list(self.dialogue.settle())
        before = len(self.dialogue.history()[0])
        message = user(f"What is {len(self.turns) + 2} plus 3?")
        self._take(name, lambda dialogue: dialogue.ask(message), before, kept)

    def regenerate(self, name: str) -> None:
        """The same message again: all that is read was known."""
        self._take(name, Dialogue.regenerate, None)

    def _take(
        self,
        name: str,
        turn: Callable[[Dialogue], Iterator[Piece]],
        before: int | None,
        kept: int = 0,
    ) -> None:
        self.twin.load(self.dialogue.messages)
        self.twin.thinking = self.dialogue.thinking
        # Another beginning, so that nothing is left in the cache.
        list(self.twin.pair.engine.generate(Request([1], max_tokens=1)))
        theirs, fresh = ended(turn(self.twin))
        mine, end = ended(turn(self.dialogue))
        counts = end.statistics
        old = counts.evaluated if before is None else max(0, before - counts.cached)
        same = mine == theirs
        done = Turn(name, old, kept, counts, fresh.statistics, same, end.cached_because)
        self.turns.append(done)
        print(done.line(), flush=True)

    def answer_tokens(self) -> int:
        """Tokens of the last answer."""
        return len(self.dialogue.pair.model.tokenize(self.dialogue.messages[-1].text))


def user(text: str) -> Message:
    return Message.of("user", text)


def said(text: str) -> Message:
    return Message.of("assistant", text)


def ended(pieces: Iterator[Piece]) -> tuple[str, TurnEnd]:
    """All words of a turn, thoughts included, and its end."""
    *before, end = pieces
    assert isinstance(end, TurnEnd)
    return "".join(piece.text for piece in before if isinstance(piece, Words)), end


@contextmanager
def opened(n_ctx: int) -> Iterator[tuple[Pair, Pair]]:
    """The demo set, twice."""
    options, depth = replace(OPTIONS, n_ctx=n_ctx), FixedDepth(OPTIONS.max_depth)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = exact_demo(Path(folder))
        one, other = (stack.enter_context(Pair.open(files, depth, options)) for _ in range(2))
        yield one, other


def run(pair: Pair, twin: Pair, conversation: int, answer: int, turns: int) -> list[Turn]:
    """All turns of the report."""
    bench = Bench(pair, twin, answer)
    bench.fill(conversation)
    bench.ask("turn 1, cache empty", settled=False, kept=conversation + answer)
    bench.ask("turn 2, settled")
    bench.ask("turn 3, at once", settled=False, kept=bench.answer_tokens())
    bench.regenerate("regenerated")
    bench.dialogue.undo()
    bench.ask("undone, asked at once", settled=False, kept=bench.answer_tokens())
    bench.dialogue.undo()
    bench.ask("undone, settled")
    bench.dialogue.thinking = True
    bench.ask("thinking on: another system turn", settled=False, kept=1 << 20)
    bench.ask("thought dropped, settled")
    bench.ask("thought dropped, at once", settled=False, kept=bench.answer_tokens())
    bench.regenerate("regenerated with a thought")
    bench.dialogue.max_tokens = bench.twin.max_tokens = max(24, answer // 16)
    for turn in range(len(bench.turns), turns):
        list(bench.dialogue.ask(user(f"And what is {turn} plus 4?")))
    bench.dialogue.max_tokens = bench.twin.max_tokens = answer
    bench.ask(f"turn {turns}, settled")
    messages = list(bench.dialogue.messages)
    # A session that is opened again: the same messages and nothing in the cache.
    list(pair.engine.generate(Request([1], max_tokens=1)))
    bench.dialogue.load(messages)
    bench.ask("restored, settled")
    return bench.turns


def main() -> None:
    """Print one line a turn; exit with 1 when one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversation", type=int, default=3000)
    parser.add_argument("--answer", type=int, default=800)
    parser.add_argument("--turns", type=int, default=20)
    arguments = parser.parse_args()
    size = arguments.conversation + (arguments.answer + 64) * 12 + 96 * arguments.turns
    with opened(size) as (pair, twin):
        turns = run(pair, twin, arguments.conversation, arguments.answer, arguments.turns)
    raise SystemExit(not all(turn.holds for turn in turns))


if __name__ == "__main__":
    main()

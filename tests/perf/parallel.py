"""Many answers at once: total tokens a second by slots, ours and llama-server's.

    python -m tests.perf.parallel --peer

Every variant answers the same prompts to where the plain answer ends, so many at a time as it has
slots; as one answer ends the next prompt takes its slot. The clock runs from the first request to
the last token, prompts included. One round runs all variants of a slot count in turn, and ratios
are taken within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.engine.depth import DepthChooser, FixedDepth
from gemmtp.engine.engine import Finished, Request, Token
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import LoadOptions
from gemmtp.llama.pair import Pair, check_files

from .demo_set import prompts, shaped_pair
from .peer import Peer, server_binary, serving
from .runner import GREEDY, Runner
from .spread import Spread, print_table

SLOTS = (1, 4, 8)
DEPTHS = (0, 1, 2, 3, 4)
PEER_DRAFTS = (0, 3)
CATEGORIES = ("stories", "python", "lists", "gemmtp", "counting", "json", "thinking", "plain")
PROMPTS_A_CATEGORY = 10
SHORTEST_ANSWER = 24
LONGEST_ANSWER = 96
N_CTX = 512
Asked = Sequence[tuple[list[int], int]]


@dataclass
class Column:
    """One variant: total tokens a second, and what our Python took of a round, a value a round."""

    rates: list[float] = field(default_factory=list)
    python_ms: list[float] = field(default_factory=list)


class Parallel:
    """Our engine with several slots."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.adaptive = AdaptiveDepth(3, max(DEPTHS))

    def run(
        self, asked: Asked, depth: int | None, sampling: SamplingParameters
    ) -> tuple[float, float]:
        """Total tokens a second, and milliseconds of our Python a round; depth None adapts."""
        chooser: DepthChooser = self.adaptive if depth is None else FixedDepth(depth)
        engine = self._pair.engine
        waiting = deque(asked)
        working = tokens = steps = 0
        native = engine.native_seconds
        start = time.perf_counter()
        while waiting or working:
            while waiting and working < engine.target.n_slots:
                prompt, limit = waiting.popleft()
                engine.submit(Request(prompt, sampling, max_tokens=limit, depth=chooser))
                working += 1
            steps += 1
            for event in engine.step():
                tokens += isinstance(event, Token)
                working -= isinstance(event, Finished)
        seconds = time.perf_counter() - start
        python = seconds - (engine.native_seconds - native)
        return tokens / seconds, 1000 * python / steps


def ask_peer(peer: Peer, asked: Asked, slots: int) -> float:
    """The server's total tokens a second with ``slots`` requests at a time."""
    start = time.perf_counter()
    with ThreadPoolExecutor(slots) as pool:
        answers = list(pool.map(lambda a: peer.complete(a[0], max_tokens=a[1]), asked))
    return sum(len(answer.tokens) for answer in answers) / (time.perf_counter() - start)


@contextlib.contextmanager
def opened(files: tuple[Path, Path], slots: int, threads: int) -> Iterator[Pair]:
    options = ContextOptions(
        n_ctx=N_CTX, n_slots=slots, max_depth=max(DEPTHS), threads=threads, n_batch=512
    )
    with Pair.open(check_files(*files), FixedDepth(0), options, LoadOptions(gpu_layers=0)) as pair:
        yield pair


def answers(files: tuple[Path, Path], threads: int) -> Asked:
    """The prompts with the length of their plain answers, in an order that mixes the kinds."""
    with opened(files, 1, threads) as pair:
        runner = Runner(pair)
        by_category = prompts(runner, PROMPTS_A_CATEGORY, CATEGORIES)
        asked = [
            (prompt, len(whole))
            for prompt in (p for of_kind in by_category.values() for p in of_kind)
            if len(whole := runner.run(prompt, 0, LONGEST_ANSWER, stop=True).tokens)
            >= SHORTEST_ANSWER
        ]
    order = np.random.default_rng(0).permutation(len(asked))
    return [asked[i] for i in order]


def measure(
    files: tuple[Path, Path],
    slots: int,
    asked: Asked,
    rounds: int,
    sampling: SamplingParameters,
    server: Path | None,
    threads: int,
) -> dict[str, Column]:
    """All variants at one number of slots."""
    columns: dict[str, Column] = {}
    with contextlib.ExitStack() as stack:
        ours = Parallel(stack.enter_context(opened(files, slots, threads)))
        peers = {
            draft: stack.enter_context(
                serving(
                    server, *files, draft=draft, n_ctx=N_CTX, slots=slots, threads=threads or None
                )
            )
            for draft in (PEER_DRAFTS if server else ())
            if server
        }
        for depth in (*DEPTHS, None):  # warm; the adaptive one learns what a round costs
            ours.run(asked[: 2 * slots], depth, sampling)
        for turn in range(rounds):
            variants: list[int | None] = [*DEPTHS, None]
            at = turn % len(variants)
            for depth in variants[at:] + variants[:at]:
                rate, python = ours.run(asked, depth, sampling)
                name = "adaptive" if depth is None else f"draft {depth}" if depth else "plain"
                column = columns.setdefault(name, Column())
                column.rates.append(rate)
                column.python_ms.append(python)
            for draft, peer in peers.items():
                name = f"llama-server {f'draft {draft}' if draft else 'plain'}"
                columns.setdefault(name, Column()).rates.append(ask_peer(peer, asked, slots))
    return columns


def show(slots: int, columns: dict[str, Column]) -> None:
    """One line a variant, and how ours compares with the server and with its own best."""
    fixed = [name for name in columns if name.startswith(("plain", "draft"))]
    best = max(fixed, key=lambda name: Spread.of(columns[name].rates).middle)
    theirs = [name for name in columns if name.startswith("llama-server")]
    peer = max(theirs, key=lambda n: Spread.of(columns[n].rates).middle) if theirs else None

    def ratio(name: str, base: str | None) -> str:
        if base is None:
            return ""
        pairs = zip(columns[name].rates, columns[base].rates, strict=True)
        return Spread.of([a / b for a, b in pairs]).show(2)

    rows = [
        [
            name,
            Spread.of(column.rates).show(),
            ratio(name, best),
            ratio(name, peer),
            Spread.of(column.python_ms).show(2) if column.python_ms else "",
        ]
        for name, column in columns.items()
    ]
    print_table([f"{slots} slots", "tok/s", f"x {best}", f"x {peer}", "Python ms a round"], rows)
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, nargs="*", default=SLOTS)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--peer", action="store_true", help="llama-server too, built if need be")
    arguments = parser.parse_args()
    sampling = GREEDY
    if arguments.temperature:
        sampling = SamplingParameters(arguments.temperature, top_k=64, top_p=0.95)
    if arguments.temperature and arguments.peer:
        parser.error("llama-server is asked greedily")
    server = server_binary() if arguments.peer else None
    files = shaped_pair()
    asked = answers(files, arguments.threads)
    for slots in arguments.slots:
        columns = measure(
            files, slots, asked, arguments.rounds, sampling, server, arguments.threads
        )
        show(slots, columns)


if __name__ == "__main__":
    main()

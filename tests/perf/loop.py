"""The loop's speed, plain and drafted, held against llama.cpp's own calls and its server.

    python -m tests.perf.loop --peer
    python -m tests.perf.loop --target T.gguf --drafter D.gguf "import os"

The pair, the demo set where none is given, is made cost-shaped first. One round runs every
variant once over all prompts, so that a change of the machine's load meets all of them; ratios
are taken within a round.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .bare import BarePair, measure_costs, opened
from .cost_shaped import TRUE_VOCABULARY, cached
from .demo_set import prompts as demo_prompts
from .demo_set import shaped_pair
from .peer import Peer, server_binary, serving
from .runner import Run, Runner, open_pair
from .spread import Spread, print_table

CATEGORIES = ("stories", "python", "lists", "gemmtp", "counting", "json")
"""Kinds of prompts of the demo set with long answers, from the most free to the most fixed."""
N_CTX = 1024
PEER_DRAFT = 3
SHORTEST_ANSWER = 12
"""Shorter answers of the demo say little about a rate."""
SPEEDUP, BEST_SPEEDUP, PYTHON_SHARE, OF_PREDICTED = 1.4, 1.55, 0.03, 0.98
"""The figures the loop is held to on the cost-shaped demo set; see Table.figures."""


@dataclass
class Variant:
    """What one way of decoding gave, a value a round.

    ``of_predicted`` is the rate over what bare timings of the same round predict;
    ``python_share`` the part of a round spent outside llama.cpp.
    """

    rates: list[float] = field(default_factory=list)
    tokens_a_round: list[float] = field(default_factory=list)
    python_share: list[float] = field(default_factory=list)
    of_predicted: list[float] = field(default_factory=list)


@dataclass
class Table:
    """Ours by draft depth and the server's by draft depth."""

    ours: dict[int, Variant]
    peers: dict[int, Variant]
    different: int = 0
    """Answers whose tokens were not those of plain decoding."""
    unlike_peer: int = 0
    """The server's answers whose tokens were not ours at the same depth."""

    def print(self) -> None:
        """One line a variant: medians with quartiles, ratios to plain and to the server."""
        plain = self.ours[0].rates
        rows = [
            [
                f"draft {depth}" if depth else "plain",
                Spread.of(v.rates).show(),
                _ratio(v.rates, plain),
                f"{Spread.of(v.tokens_a_round).middle:.2f}",
                f"{100 * Spread.of(v.python_share).middle:.1f}%",
                Spread.of(v.of_predicted).show(3),
                _ratio(v.rates, self.peers[depth].rates) if depth in self.peers else "",
            ]
            for depth, v in self.ours.items()
        ]
        rows += [
            [
                f"llama-server {f'draft {depth}' if depth else 'plain'}",
                Spread.of(v.rates).show(),
                _ratio(v.rates, self.peers[0].rates),
                *[""] * 4,
            ]
            for depth, v in self.peers.items()
        ]
        head = ["T = 0, 1 slot", "tok/s", "x plain", "tokens a round", "Python", "x predicted"]
        print_table([*head, "x llama-server"], rows)
        print(f"{self.different} answers differ from plain decoding")
        if self.peers:
            print(f"{self.unlike_peer} answers of llama-server differ from ours")

    def figures(self) -> list[tuple[str, float, float, bool]]:
        """What the loop is held to: a name, the value, its bound, and whether it is met."""
        plain = self.ours[0].rates
        speedups = {
            depth: Spread.of([a / b for a, b in zip(v.rates, plain, strict=True)]).middle
            for depth, v in self.ours.items()
        }
        python = max(Spread.of(v.python_share).middle for v in self.ours.values())
        predicted = min(Spread.of(v.of_predicted).middle for v in self.ours.values())
        best = max(speedups.values())
        found = [
            ("best depth over plain", best, BEST_SPEEDUP, best >= BEST_SPEEDUP),
            ("our Python in a round, at most", python, PYTHON_SHARE, python <= PYTHON_SHARE),
            ("least rate over predicted", predicted, OF_PREDICTED, predicted >= OF_PREDICTED),
        ]
        if PEER_DRAFT in speedups:
            speedup = speedups[PEER_DRAFT]
            found.insert(
                0, (f"draft {PEER_DRAFT} over plain", speedup, SPEEDUP, speedup >= SPEEDUP)
            )
        return found


def _ratio(rates: Sequence[float], base: Sequence[float]) -> str:
    return Spread.of([a / b for a, b in zip(rates, base, strict=True)]).show(2)


def measure(
    pair: tuple[Path, Path],
    texts: Sequence[str] = (),
    *,
    depths: Sequence[int] = (0, 1, 2, 3, 4),
    rounds: int = 5,
    max_tokens: int = 128,
    threads: int = 0,
    server: Path | None = None,
) -> Table:
    """Runs the variants in turn, ``rounds`` times, on raw ``texts`` or on the demo's prompts.

    A raw text is continued for ``max_tokens`` tokens. The demo's prompts are answered to where the
    plain answer ends: what a model says after its end token is no text that anybody drafts.
    ``server`` is llama-server's binary; None leaves it out.
    """
    table = Table({k: Variant() for k in depths}, {})
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(
            open_pair(*pair, n_ctx=N_CTX, max_depth=max(depths), threads=threads)
        )
        bare = stack.enter_context(opened(*pair, n_ctx=N_CTX, threads=threads or None))
        peers: dict[int, Peer] = {}
        for draft in (0, PEER_DRAFT):
            if server:
                service = serving(server, *pair, draft=draft, n_ctx=N_CTX, threads=threads or None)
                peers[draft] = stack.enter_context(service)
                table.peers[draft] = Variant()
        asked = [(ours.tokenize(text), max_tokens) for text in texts]
        if not texts:
            for (prompt,) in demo_prompts(ours, 1, CATEGORIES).values():
                whole = ours.run(prompt, 0, max_tokens, stop=True).tokens
                if len(whole) >= SHORTEST_ANSWER:
                    asked.append((prompt, len(whole)))
        for prompt, _ in asked[:1]:  # warm caches and graphs before anything is counted
            for depth in depths:
                ours.run(prompt, depth, 16)
        for turn in range(rounds):
            _one_round(table, ours, bare, peers, asked, turn)
    return table


def _one_round(
    table: Table,
    ours: Runner,
    bare: BarePair,
    peers: dict[int, Peer],
    asked: Sequence[tuple[Sequence[int], int]],
    turn: int,
) -> None:
    prompt, _ = asked[turn % len(asked)]
    costs = measure_costs(bare, prompt, depths=list(table.ours), rounds=2)
    depths = list(table.ours)
    start = turn % len(depths)
    runs: dict[int, list[Run]] = {}
    for depth in depths[start:] + depths[:start]:
        runs[depth] = [ours.run(prompt, depth, limit) for prompt, limit in asked]
    for depth, peer in peers.items():
        answers = [peer.complete(prompt, max_tokens=limit) for prompt, limit in asked]
        decoded = sum(len(answer.tokens) - 1 for answer in answers)
        spent = sum((len(answer.tokens) - 1) / answer.rate for answer in answers)
        table.peers[depth].rates.append(decoded / spent)
        table.unlike_peer += sum(
            answer.tokens != run.tokens
            for answer, run in zip(answers, runs.get(depth, runs[0]), strict=True)
        )
    for depth, of_depth in runs.items():
        seconds = sum(run.seconds for run in of_depth)
        emitted = sum(run.round_tokens for run in of_depth)
        a_round = emitted / sum(run.rounds for run in of_depth)
        variant = table.ours[depth]
        variant.rates.append(emitted / seconds)
        variant.tokens_a_round.append(a_round)
        variant.python_share.append(sum(run.python_seconds for run in of_depth) / seconds)
        variant.of_predicted.append(emitted / seconds / costs.predicted_rate(depth, a_round))
        table.different += sum(
            run.tokens != plain.tokens for run, plain in zip(of_depth, runs[0], strict=True)
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--as-is", action="store_true", help="do not make the pair cost-shaped")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--vocabulary", type=int, default=TRUE_VOCABULARY, help="0 keeps its own")
    parser.add_argument("--peer", action="store_true", help="llama-server too, built if need be")
    parser.add_argument("--check", action="store_true", help="fail when a figure is missed")
    parser.add_argument("prompts", nargs="*", help="raw beginnings of a text")
    arguments = parser.parse_args()
    vocabulary = arguments.vocabulary or None
    if (arguments.target is None) != (arguments.drafter is None):
        parser.error("--target and --drafter go together")
    if arguments.target is None:
        pair = shaped_pair(vocabulary)
    elif not arguments.prompts:
        parser.error("prompts are missing: the demo's fit no other pair")
    else:
        pair = arguments.target, arguments.drafter
        if not arguments.as_is:
            pair = cached(*pair, vocabulary=vocabulary)
    table = measure(
        pair,
        arguments.prompts,
        rounds=arguments.rounds,
        max_tokens=arguments.max_tokens,
        threads=arguments.threads,
        server=server_binary() if arguments.peer else None,
    )
    table.print()
    figures = table.figures()
    for name, value, bound, met in figures:
        print(f"{name}: {value:.3f} ({bound:g}) {'met' if met else 'MISSED'}")
    if arguments.check and not all(met for *_, met in figures):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

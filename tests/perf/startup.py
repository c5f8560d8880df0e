"""How long one waits: for --version, for --help, for the first token.

    python -m tests.perf.startup [--target T.gguf --drafter D.gguf]

Each pair of commands runs in turn; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .spread import Spread, print_table

BARE_TYPER = """
import typer
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
@app.command()
def run(name: str = typer.Option("x", help="A name.")) -> None:
    "Runs."
@app.command()
def show() -> None:
    "Shows."
app()
"""
PROMPT = "import os"


@dataclass(frozen=True)
class Bound:
    """What our command may take, as a multiple of the bare one."""

    name: str
    ours: Sequence[str]
    bare: Sequence[str]
    limit: float
    clock: Callable[[Sequence[str]], float]


def to_exit(command: Sequence[str]) -> float:
    """Seconds until the command has ended."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - start


def to_first_byte(command: Sequence[str]) -> float:
    """Seconds until the command has written to stdout; raises ValueError when it never does."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        if process.stdout is None or not os.read(process.stdout.fileno(), 1):
            raise ValueError(f"{command[0]} wrote nothing")
        seconds = time.perf_counter() - start
        process.stdout.read()
    return seconds


def bounds(target: Path | None, drafter: Path | None) -> list[Bound]:
    """The comparisons; those of the first token only with a pair."""
    gemmtp = Path(sys.executable).with_name("gemmtp")
    ours = [str(gemmtp)] if gemmtp.exists() else [shutil.which("gemmtp") or "gemmtp"]
    python = sys.executable
    found = [
        Bound("--version", [*ours, "--version"], [python, "-c", "pass"], 2.5, to_exit),
        Bound("--help", [*ours, "--help"], [python, "-c", BARE_TYPER, "--help"], 1.3, to_exit),
    ]
    if target and drafter:
        pair = [str(target), "--drafter", str(drafter)]
        run = [*ours, "run", *pair, "--raw", PROMPT, "--temperature", "0", "--max-tokens", "4"]
        bare = [python, "-m", "tests.perf.bare", "--target", *pair, "--first-token", PROMPT]
        found.append(Bound("first token", run, bare, 1.5, to_first_byte))
    return found


def compare(bound: Bound, runs: int) -> tuple[Spread, Spread]:
    """Ours and the bare one, in seconds; the first run of each fills the file cache only."""
    ours: list[float] = []
    bare: list[float] = []
    for turn in range(runs + 1):
        for times, command in ((ours, bound.ours), (bare, bound.bare)):
            seconds = bound.clock(command)
            if turn:
                times.append(seconds)
    return Spread.of(ours), Spread.of(bare)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--check", action="store_true", help="fail when a bound is missed")
    arguments = parser.parse_args()
    rows = []
    missed = False
    for bound in bounds(arguments.target, arguments.drafter):
        ours, bare = compare(bound, arguments.runs)
        missed |= ours.middle > bound.limit * bare.middle
        rows.append(
            [
                bound.name,
                _milliseconds(ours),
                _milliseconds(bare),
                f"{ours.middle / bare.middle:.2f}",
                f"{bound.limit:.1f}",
            ]
        )
    print_table(["", "gemmtp ms", "bare ms", "ratio", "at most"], rows)
    if arguments.check and missed:
        raise SystemExit(1)


def _milliseconds(seconds: Spread) -> str:
    return Spread(1000 * seconds.middle, 1000 * seconds.low, 1000 * seconds.high).show(0)


if __name__ == "__main__":
    main()

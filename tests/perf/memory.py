"""The plan held against llama.cpp and against measured cards.

    python -m tests.perf.memory grid      # every size against loads that allocate nothing
    python -m tests.perf.memory random    # 2,000 configurations: never "fits" where it does not
    python -m tests.perf.memory cards     # published measurements, fitted ones left out in turn
    python -m tests.perf.memory projector # every projector against what mtmd reserves
    python -m tests.perf.memory load      # one real load of a 31B-shaped file; 17 GB of page cache
    python -m tests.perf.memory time      # how long gemmtp plan takes without files

The files are zeros with the true shapes and metadata (:mod:`tests.perf.zero_files`), kept in the
cache folder. Each command exits with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import check_files
from gemmtp.llama.plan import Measured, Rehearsal, context_of
from gemmtp_models.memory import (
    GIB,
    MIB,
    Device,
    ModelSet,
    Wish,
    estimate,
    output_bytes,
    runtime_bytes,
)
from gemmtp_models.memory_projector import IMAGE_BUDGETS, projector_of
from gemmtp_models.shapes import SIZES, drafter_shape, target_shape

from .cards import CARDS, Card
from .peer import cache
from .zero_files import zero_pair, zero_projector

CONTEXTS = (8192, 32768, 131072, 262144)
KV_TYPES = ("f16", "q8_0", "q4_0")
SLOTS = (1, 2, 3, 4, 8)
IMAGES = (0, 280, IMAGE_BUDGETS[-1])
WARM_UP = 256
"""Tokens of the image that mtmd reserves for when it starts, unless it is told not to."""

DEPTH = 4
ROUNDING = 0.02 * MIB
"""llama.cpp's log gives two sizes of the KV cache to a hundredth of a MiB."""

COMPUTE_BOUND, TOTAL_BOUND, CARD_BOUND = 0.10, 0.02, 0.05
ANSWER_SECONDS = 0.3
HUGE = Device("RAM", 1 << 50, 1 << 50, gpu=False)


@contextmanager
def rehearsal(size: str) -> Iterator[tuple[ModelSet, Rehearsal]]:
    """The pair of ``size`` by its numbers, and loaded by llama.cpp without memory."""
    target, drafter = zero_pair(cache() / "zeros", size)
    models = ModelSet(size, target_shape(size), drafter_shape(size))
    with Rehearsal.open(check_files(target, drafter)) as loaded:
        yield models, loaded


def options_of(wish: Wish, models: ModelSet) -> ContextOptions:
    """The context of a wish, as ``gemmtp run`` would make it."""
    base = ContextOptions(
        n_slots=wish.slots,
        max_depth=wish.depth,
        flash_attention="on" if wish.flash else "off",
        threads=1,
    )
    return context_of(wish, base, models.target)


@dataclass
class Worst:
    """The largest deviation of each part seen so far; ``kv`` in bytes, the others as shares."""

    kv: float = 0.0
    weights: float = 0.0
    compute: float = 0.0
    drafter: float = 0.0
    total: float = 0.0
    loads: int = 0

    def add(self, models: ModelSet, wish: Wish, measured: Measured) -> None:
        """Compare one load."""
        use = estimate(models, wish, [HUGE]).uses[0]
        compute = sum(measured.target.compute.values())
        ours = use.compute - output_bytes(models.target, wish)
        assert models.drafter is not None
        assert measured.drafter is not None
        drafter = measured.drafter_weights + sum(measured.drafter.compute.values())
        ours_drafter = use.drafter - output_bytes(models.drafter, wish)
        self.kv = max(self.kv, abs(use.kv - measured.target.kv))
        self.weights = max(self.weights, _off(use.weights, measured.target_weights))
        self.compute = max(self.compute, _off(ours, compute))
        self.drafter = max(self.drafter, _off(ours_drafter, drafter))
        self.total = max(self.total, _off(use.total, measured.total))
        self.loads += 1

    @property
    def holds(self) -> bool:
        """Whether every bound holds."""
        exact = self.kv <= ROUNDING and self.weights == 0
        return exact and self.compute <= COMPUTE_BOUND and self.total <= TOTAL_BOUND

    def line(self) -> str:
        """The deviations, in percent but for the KV cache."""
        return (
            f"{self.loads:5} {self.weights:8.3%} {self.kv / MIB:9.3f} MiB "
            f"{self.compute:9.4%} {self.drafter:9.4%} {self.total:8.3%}"
        )


def _off(ours: int, theirs: int) -> float:
    return abs(ours - theirs) / theirs


def grid() -> bool:
    """Every size, context, KV type, slot count, image budget and attention."""
    print("size  ctx       loads  weights  KV cache        compute   drafter    total")
    good = True
    for size, row in SIZES.items():
        with rehearsal(size) as (models, loaded):
            for ctx in (n for n in CONTEXTS if n <= 2 * row.context):
                worst = Worst()
                for wish in _wishes(ctx):
                    worst.add(models, wish, loaded.measure(options_of(wish, models)))
                good &= worst.holds
                print(f"{size:5} {ctx:<8} {worst.line()}{'' if worst.holds else '  MISSED'}")
    return good


def _wishes(ctx: int) -> Iterator[Wish]:
    for slots in SLOTS:
        for image in IMAGES:
            for kv in KV_TYPES:
                yield Wish(ctx=ctx, kv=kv, slots=slots, depth=DEPTH, image_tokens=image)  # type: ignore[arg-type]
            yield Wish(ctx=ctx, slots=slots, depth=DEPTH, image_tokens=image, flash=False)


def random_devices(n: int, seed: int) -> bool:
    """Never "fits" on a device where llama.cpp's own numbers say it does not."""
    rng = random.Random(seed)
    wrong, told, refused, late = 0, 0, 0, 0
    for size in SIZES:
        with rehearsal(size) as (models, loaded):
            for _ in range(n // len(SIZES)):
                wish = _random_wish(rng)
                free = int(rng.uniform(6, 96) * GIB)
                measured = loaded.measure(options_of(wish, models))
                gpu = rng.random() < 0.5
                fits = _fits(models, wish, free, gpu)
                room = free >= _needed(models, wish, measured, gpu)
                wrong += fits and not room
                told += fits
                refused += not room
                late += room and not fits
    print(
        f"{n} configurations: {told} fit by the plan, {refused} do not by llama.cpp; "
        f"{wrong} wrongly called fitting, {late} given up within the margin"
    )
    return not wrong


def _random_wish(rng: random.Random) -> Wish:
    kv = rng.choice(KV_TYPES)
    return Wish(
        ctx=rng.randrange(256, 262_145),
        kv=kv,  # type: ignore[arg-type]
        slots=rng.choice((1, 1, 1, 2, 3, 4, 6, 8)),
        depth=rng.randrange(1, 9),
        ubatch=rng.choice((64, 128, 256, 512, 1024, 2048)),
        image_tokens=rng.choice((0, 0, *IMAGE_BUDGETS)),
        flash=kv != "f16" or rng.random() < 0.7,
    )


def _fits(models: ModelSet, wish: Wish, free: int, gpu: bool) -> bool:
    if not gpu:
        return estimate(models, wish, [replace(HUGE, free=free, total=free)]).fits
    return estimate(models, wish, [HUGE, Device("GPU", free, free, gpu=True)]).fits


def _needed(models: ModelSet, wish: Wish, measured: Measured, gpu: bool) -> int:
    """What llama.cpp reserved; on a GPU without the tables and outputs that stay in RAM."""
    if not gpu:
        return measured.total
    tables = sum(
        weight.nbytes
        for weight in models.target.weights
        if weight.name == "per_layer_token_embd.weight"
    )
    contexts = [context for context in (measured.target, measured.drafter) if context]
    outputs = sum(sum(context.output.values()) for context in contexts)
    return measured.total - tables - outputs


def cards() -> bool:
    """Published measurements; those that the runtime's share is fitted on are left out in turn."""
    print("row  what                                   plan   measured  off     left out")
    good = True
    fitted = [card for card in CARDS if card.fitted]
    for card in CARDS:
        ours = card.plan() + (runtime_bytes(card.vram) if card.vram else 0)
        off = ours / card.measured - 1
        others = [other for other in fitted if other is not card]
        alone = (card.plan() + _fit(others, card.vram)) / card.measured - 1 if card.vram else off
        held = not card.bound or max(abs(off), abs(alone)) <= CARD_BOUND
        good &= held
        words = f"{card.row:>4} {card.what:38} {ours / MIB:6.0f} {card.measured / MIB:8.0f}"
        note = "" if card.bound else "  (listed)"
        print(f"{words}  {off:+6.1%}  {alone:+6.1%}{note}{'' if held else '  MISSED'}")
    return good


def _fit(cards: list[Card], vram: int) -> float:
    """The runtime's share as a line over the cards' memory, through ``cards``."""
    line = statistics.linear_regression(
        [card.vram for card in cards], [card.measured - card.plan() for card in cards]
    )
    return line.intercept + line.slope * vram


_LOAD = """
import json, sys
from pathlib import Path
from gemmtp.engine.depth import FixedDepth
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.library import log
from gemmtp.llama.pair import Pair, check_files
lines = []
files = check_files(Path(sys.argv[1]), Path(sys.argv[2]))
context = ContextOptions(n_ctx=8192, max_depth=4, threads=1)
with log.shown(lines.append), Pair.open(files, FixedDepth(4), context):
    status = Path("/proc/self/status").read_text().splitlines()
held = {key: int(value.split()[0]) * 1024 for key, value in
        (line.split(":") for line in status if line.startswith("Rss"))}
print(json.dumps({"held": held, "buffers": [line for line in lines if "buffer size" in line]}))
"""
_BUFFER = re.compile(r"(model|KV|compute|output) buffer size = +([\d.]+) MiB")


def load(size: str) -> bool:
    """One real load: are llama.cpp's buffers those of the plan, and what does the process hold?"""
    target, drafter = zero_pair(cache() / "zeros", size)
    start = time.perf_counter()
    words = [sys.executable, "-c", _LOAD, str(target), str(drafter)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    found = json.loads(done.stdout)
    real: dict[str, float] = {}
    for match in map(_BUFFER.search, found["buffers"]):
        if match:
            real[match[1]] = real.get(match[1], 0.0) + float(match[2]) * MIB
    models = ModelSet(size, target_shape(size), drafter_shape(size))
    wish = Wish(depth=4)
    use = estimate(models, wish, [HUGE]).uses[0]
    planned = use.total
    total = sum(real.values())
    print(f"{size}: loaded in {seconds:.0f} s, the process holds {found['held']}")
    print("  llama.cpp " + ", ".join(f"{k} {v / MIB:,.1f} MiB" for k, v in real.items()))
    print(f"  together  {total / MIB:,.1f} MiB, the plan says {planned / MIB:,.1f} MiB")
    return _off(planned, round(total)) < TOTAL_BOUND


_PROJECTOR = """
import sys
from pathlib import Path
from llama_cpp import mtmd_cpp
from gemmtp.llama.model import LoadOptions, Model
model = Model.open(Path(sys.argv[1]), LoadOptions(no_alloc=True))
parameters = mtmd_cpp.mtmd_context_params_default()
parameters.use_gpu = False
parameters.n_threads = 1
assert mtmd_cpp.mtmd_init_from_file(sys.argv[2].encode(), model.handle, parameters)
"""
_RESERVED = re.compile(r"reserve_compute_meta: +CPU compute buffer size = +([\d.]+) MiB")


def projectors() -> bool:
    """Work space for the image of 256 tokens that mtmd reserves for when it starts."""
    good = True
    for size in SIZES:
        folder = cache() / "zeros"
        target, _ = zero_pair(folder, size)
        shape = projector_of(size)
        path = zero_projector(folder / f"{size}-projector.gguf", shape)
        words = [sys.executable, "-c", _PROJECTOR, str(target), str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        reserved = [float(match[1]) for match in _RESERVED.finditer(done.stderr)]
        ours = shape.compute(WARM_UP) / MIB
        held = abs(ours / reserved[-1] - 1) <= COMPUTE_BOUND
        good &= held
        print(f"{size:5} {ours:8.2f} MiB, mtmd {reserved[-1]:8.2f}{'' if held else '  MISSED'}")
    return good


def answer_time() -> bool:
    """``gemmtp plan`` as a program, without files; the median of nine."""
    words = [sys.executable, "-m", "gemmtp", "plan", "gemma4:31b-mtp", "--vram", "24G", "--image"]
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        subprocess.run(words, capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    print(f"gemmtp plan: {statistics.median(seconds):.3f} s (fastest {min(seconds):.3f})")
    return statistics.median(seconds) < ANSWER_SECONDS


def main() -> int:
    """Run one comparison; 1 when a bound was missed."""
    parser = argparse.ArgumentParser(description="Hold the memory plan against llama.cpp.")
    parser.add_argument("what", choices=("grid", "random", "cards", "projector", "load", "time"))
    parser.add_argument("-n", type=int, default=2000, help="random configurations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", choices=tuple(SIZES), default="31b", help="what to load")
    given = parser.parse_args()
    checks = {
        "grid": grid,
        "random": lambda: random_devices(given.n, given.seed),
        "cards": cards,
        "projector": projectors,
        "load": lambda: load(given.size),
        "time": answer_time,
    }
    return 0 if checks[given.what]() else 1


if __name__ == "__main__":
    sys.exit(main())

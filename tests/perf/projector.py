"""The plan for images held against what mtmd reserves, and how long an image takes on this CPU.

    python -m tests.perf.projector buffers --size 31b   # weights and work space, every budget
    python -m tests.perf.projector speed --size 31b     # seconds an image, budgets of 70 to 280

The projector is a file of zeros with the true shapes, loaded for a target that was loaded without
its weights. Work space is read from mtmd's log before anything is computed. Both placements are
asked for; a build without a GPU puts both into RAM, from which the plan for a GPU differs by its
place alone. It exits with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from gemmtp.llama import library
from gemmtp.llama.model import LoadOptions, Model
from gemmtp.llama.projector import Projector as Loaded
from gemmtp.prompt.attachments import Frame, read_picture
from gemmtp_models.header import read_header
from gemmtp_models.memory import GIB, MIB, Device, ModelSet, Wish, estimate
from gemmtp_models.memory_projector import IMAGE_BUDGETS, projector_of
from gemmtp_models.memory_sets import projector_of_header
from gemmtp_models.shapes import SIZES, target_shape
from tests.support.pictures import noise, saved

from .peer import cache
from .zero_files import zero_pair, zero_projector

BOUND = 0.05
DEVICES = (Device("RAM", 1 << 40, 1 << 40, False), Device("GPU", 1 << 40, 24 * GIB, True))
_WEIGHTS = re.compile(r"model size: +([\d.]+) MiB")
_RESERVED = re.compile(r"reserve_compute_meta: +\S+ compute buffer size = +([\d.]+) MiB")


def paths(size: str) -> tuple[Path, Path]:
    """The target's and the projector's file of zeros."""
    folder = cache() / "zeros"
    target, _ = zero_pair(folder, size)
    return target, zero_projector(folder / f"{size}-projector.gguf", projector_of(size))


def opened(size: str, on_gpu: bool, stack: ExitStack) -> Loaded:
    """The projector, beside a target without weights."""
    target, projector = paths(size)
    model = stack.enter_context(Model.open(target, LoadOptions(no_alloc=True)))
    return stack.enter_context(Loaded.open(read_header(projector), model, on_gpu=on_gpu, threads=1))


def read_one(size: str, tokens: int, on_gpu: bool) -> None:
    """Show a square image of a budget to the projector, with mtmd's log on stdout."""

    def tell(line: str) -> None:
        print(line, flush=True)

    side = round(tokens**0.5 * 48)
    with library.log.shown(tell), ExitStack() as stack:
        projector = opened(size, on_gpu, stack)
        picture = read_picture(saved(noise(side, side)), "noise", Frame(tokens))
        print(f"tokens {picture.tokens}", flush=True)
        start, busy = time.perf_counter(), time.process_time()
        projector.encode(picture)
        wall, work = time.perf_counter() - start, time.process_time() - busy
        print(f"seconds {wall:.2f}, of one core's work {work:.2f}", flush=True)


def reserved(size: str, tokens: int, on_gpu: bool) -> tuple[int, float, float]:
    """Tokens of the image, and the MiB that mtmd takes for weights and for work space."""
    words = ["read", "--size", size, "--tokens", str(tokens), *["--gpu"] * on_gpu]
    command = [sys.executable, "-m", "tests.perf.projector", *words]
    weights, taken = 0.0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if match := _WEIGHTS.search(line):
                weights = float(match[1])
            elif line.startswith("tokens "):
                taken = int(line.split()[1])
            elif match := _RESERVED.search(line):
                # The rest is computing.
                process.kill()
                return taken, weights, float(match[1])
    raise SystemExit("mtmd reserved nothing")


def buffers(size: str) -> bool:
    """Every budget in both placements."""
    good = True
    header = projector_of_header(read_header(paths(size)[1]))
    models = ModelSet(size, target_shape(size), projector=header)
    for on_gpu in (True, False):
        for budget in IMAGE_BUDGETS:
            tokens, weights, work = reserved(size, budget, on_gpu)
            wish = Wish(image_tokens=tokens, projector_on_gpu=on_gpu)
            uses = estimate(models, wish, DEVICES).uses
            planned = uses[on_gpu].projector / MIB
            off = planned / (weights + work) - 1
            held = abs(off) <= BOUND and not uses[not on_gpu].projector
            good &= held
            print(
                f"{size} {'GPU' if on_gpu else 'RAM'} {tokens:5} tokens: planned {planned:8.1f} "
                f"MiB, mtmd {weights:.1f} + {work:.1f}, {off:+.2%}{'' if held else '  MISSED'}"
            )
    return good


def speed(size: str) -> bool:
    """Seconds for an image on one thread; on a busy machine the core's work is what counts."""
    for budget in IMAGE_BUDGETS[:3]:
        words = ["read", "--size", size, "--tokens", str(budget)]
        command = [sys.executable, "-m", "tests.perf.projector", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        found = [line for line in lines if line.startswith(("tokens ", "seconds "))]
        print(size, *found, flush=True)
    return True


def main() -> int:
    """Run one comparison; 1 when a bound was missed."""
    parser = argparse.ArgumentParser(description="Hold the plan for images against mtmd.")
    parser.add_argument("what", choices=("buffers", "speed", "read"))
    parser.add_argument("--size", choices=tuple(SIZES), default="31b")
    parser.add_argument("--tokens", type=int, choices=IMAGE_BUDGETS, default=280)
    parser.add_argument("--gpu", action="store_true")
    given = parser.parse_args()
    if given.what == "read":
        read_one(given.size, given.tokens, given.gpu)
        return 0
    return 0 if {"buffers": buffers, "speed": speed}[given.what](given.size) else 1


if __name__ == "__main__":
    sys.exit(main())

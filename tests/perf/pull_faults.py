"""A thousand pulls over a network that fails in nine ways, and onto disks that fail in two.

    python -m tests.perf.pull_faults [--runs 1000] [--seed 1]

Each run fetches a file of a random size with random faults: a few that pass, or one kind at every
request. It has to end with the right file or with an error of ours, and a try without faults
afterwards with the right file. Exit code 1 if one did not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gemmtp.errors import GemmtpError
from gemmtp_models.download import Options, fetch
from gemmtp_models.hub import Hub, Patience
from gemmtp_models.hub_names import RemoteFile
from gemmtp_models.unfinished import whole_path
from tests.support.hub import FAULTS, Asked, LocalHub

REPO, PATH = "maker/model", "m.gguf"
KIB = 1024
PATIENCE = Patience(attempts=5, first=0.001, longest=0.004, longest_retry_after=0.004)
# One run in so many is a child process on a full or a read-only disk.
DISK_EVERY = 20
DISKS = ("full disk", "read-only folder")


def one(server: LocalHub, folder: Path, draw: random.Random, kind: str) -> str:
    """One faulty fetch and one without faults: "right", "error", or what went wrong."""
    data = draw.randbytes(draw.randrange(1, 400 * KIB))
    sha256 = server.add(REPO, PATH, data)
    file = RemoteFile(REPO, "main", PATH, len(data), sha256)
    piece = draw.randrange(8 * KIB, 128 * KIB)
    options = Options(draw.randrange(1, 5), piece, patience=PATIENCE)
    with Hub(server.url, patience=PATIENCE) as hub:
        if kind in DISKS:
            outcome = _in_child(lambda: _fetched(hub, file, folder, options), kind, len(data))
        else:
            server.fault = _faults(kind, draw)
            outcome = _fetched(hub, file, folder, options)
            server.fault = lambda asked: None
        again = _fetched(hub, file, folder, options)
    wrong = outcome not in ("right", "error") or again != "right"
    return f"{outcome}, then {again}" if wrong else outcome


def _faults(kind: str, draw: random.Random) -> Callable[[Asked], str | None]:
    """One kind always, or with a chance at each request; "mixed" draws among all."""
    chance = draw.choice((0.1, 0.3, 0.6, 1.0))
    seeds = draw.randrange(2**32)
    chooser = random.Random(seeds)

    def fault(asked: Asked) -> str | None:
        if chooser.random() >= chance:
            return None
        return chooser.choice(FAULTS) if kind == "mixed" else kind

    return fault


def _fetched(hub: Hub, file: RemoteFile, folder: Path, options: Options) -> str:
    try:
        path = fetch(hub, file, folder, options=options)
    except GemmtpError:
        path = whole_path(folder, file.sha256 or "")
        return "error, and a blob" if os.path.exists(path) else "error"
    with path.open("rb") as stream:
        right = hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
    return "right" if right else "wrong"


def _in_child(work: Callable[[], str], kind: str, size: int) -> str:
    """The work in a process whose disk is full after a part of the file, or not writable."""
    words = ("right", "error", "wrong", "error, and a blob")
    child = os.fork()
    if child == 0:
        import resource

        if kind == "full disk":
            # The journal has to fit, the file does not.
            limit = max(4 * KIB, size // 2)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        else:
            os.setgid(65534)
            os.setuid(65534)
        try:
            os._exit(words.index(work()))
        except BaseException:
            os._exit(len(words))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return words[status] if 0 <= status < len(words) else f"ended with {status}"


def run(runs: int, seed: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """(kind, outcome) to how often, and the runs that ended in neither way."""
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    kinds = (*FAULTS, "mixed")
    with LocalHub() as server, tempfile.TemporaryDirectory() as base:
        for number in range(runs):
            draw = random.Random(seed * 1_000_003 + number)
            on_disk = number % DISK_EVERY == DISK_EVERY - 1
            kind = draw.choice(DISKS if on_disk else kinds)
            folder = Path(base) / str(number)
            folder.mkdir(mode=0o755)
            outcome = one(server, folder, draw, kind)
            counts[kind, outcome] += 1
            if outcome not in ("right", "error"):
                wrong.append(f"run {number}, {kind}: {outcome}")
            shutil.rmtree(folder)
            server.blobs.clear()
            server.requests.clear()
    return counts, wrong


def main() -> int:
    """Print one line a kind; 1 if a run ended wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begin = time.monotonic()
    counts, wrong = run(options.runs, options.seed)
    for kind in sorted({kind for kind, _ in counts}):
        right, error = counts[kind, "right"], counts[kind, "error"]
        print(f"{kind:20} {right:4} right, {error:4} clear errors")
    print("\n".join(wrong) or "none ended otherwise")
    print(f"{options.runs} runs in {time.monotonic() - begin:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

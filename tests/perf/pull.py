"""How fast a pull is, and what kills cost it, against a hub on this machine.

    python -m tests.perf.pull rate      one connection, against curl | sha256sum
    python -m tests.perf.pull throttled 20 MB/s a connection, one and four of them
    python -m tests.perf.pull kills     20 kills at random points of 200 MB

The client is a process of its own, the hub runs in this one.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemmtp_models.download_journal import Ranges, ranges_in
from tests.support.hub import LocalHub

REPO, PATH = "maker/model", "m.gguf"
MB = 10**6
TRIES = 5
KILLS = 20
BLOCK = 512
CLIENT = """
import json, sys, time
from pathlib import Path
from gemmtp_models.download import Options, fetch
from gemmtp_models.hub import Hub
from gemmtp_models.hub_names import RemoteFile
url, size, sha256, folder, connections = sys.argv[1:6]
with Hub(url) as hub:
    begin = time.monotonic()
    file = RemoteFile("maker/model", "main", "m.gguf", int(size), sha256)
    options = Options(int(connections), piece=8 << 20)
    report = (lambda p: print(p.done, flush=True)) if len(sys.argv) > 6 else (lambda p: None)
    fetch(hub, file, Path(folder), report, options)
    print(json.dumps(time.monotonic() - begin))
"""


@contextmanager
def serving(size: int, rate: float | None = None) -> Iterator[tuple[LocalHub, str]]:
    """A hub with one file of random bytes, and the file's sha256."""
    with LocalHub() as server:
        draw = random.Random(1)
        sha256 = server.add(REPO, PATH, b"".join(draw.randbytes(MB) for _ in range(size // MB)))
        server.rate = rate
        yield server, sha256


def client(
    server: LocalHub, size: int, sha256: str, folder: Path, connections: int, *more: str
) -> subprocess.Popen[str]:
    args = [sys.executable, "-c", CLIENT, server.url, str(size), sha256, str(folder)]
    return subprocess.Popen([*args, str(connections), *more], stdout=subprocess.PIPE, text=True)


def seconds(server: LocalHub, size: int, sha256: str, connections: int) -> float:
    """How long one pull took."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        with client(server, size, sha256, Path(folder), connections) as process:
            words = process.communicate()[0]
        return float(json.loads(words))


def curl_seconds(server: LocalHub, sha256: str) -> float:
    """How long curl takes to store the file while sha256sum reads what it stores."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        command = f"curl -sL {server.url}/{REPO}/resolve/main/{PATH} | tee {folder}/x | sha256sum"
        begin = time.monotonic()
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
        took = time.monotonic() - begin
    if not done.stdout.startswith(sha256):
        sys.exit("curl got something else")
    return took


def piped_seconds(server: LocalHub, sha256: str) -> float:
    """``curl | sha256sum``: nothing is stored."""
    command = f"curl -sL {server.url}/{REPO}/resolve/main/{PATH} | sha256sum"
    begin = time.monotonic()
    subprocess.run(command, shell=True, capture_output=True, check=True)
    return time.monotonic() - begin


def rate() -> None:
    """Medians of alternating tries."""
    size = 1000 * MB
    with serving(size) as (server, sha256):
        ours, piped, stored = [], [], []
        for _ in range(TRIES):
            ours.append(seconds(server, size, sha256, 1))
            piped.append(piped_seconds(server, sha256))
            stored.append(curl_seconds(server, sha256))
    for name, tries in (
        ("pull, one connection", ours),
        ("curl | sha256sum", piped),
        ("curl | tee FILE | sha256sum", stored),
    ):
        middle = statistics.median(tries)
        spread = f"{size / max(tries) / MB:.0f} to {size / min(tries) / MB:.0f}"
        print(f"{name:28} {size / middle / MB:5.0f} MB/s ({spread})")
    print(f"share of curl | sha256sum: {statistics.median(piped) / statistics.median(ours):.2f}")


def throttled() -> None:
    """One and four connections of 20 MB/s each."""
    size = 300 * MB
    with serving(size, 20 * MB) as (server, sha256):
        for connections in (1, 4):
            took = seconds(server, size, sha256, connections)
            print(f"{connections} connections at 20 MB/s: {size / took / MB:.1f} MB/s")


def kills() -> None:
    """Kill the client at random points until it was killed KILLS times; then let it end."""
    size = 200 * MB
    draw = random.Random(7)
    points = sorted(draw.randrange(size // 50, size) for _ in range(KILLS))
    again, lost = 0, []
    with serving(size, 25 * MB) as (server, sha256), tempfile.TemporaryDirectory(dir=".") as base:
        folder = Path(base)
        journal = folder / f"sha256-{sha256}.journal"
        for point in points:
            held = ranges_in(journal, size, sha256)
            server.requests.clear()
            with client(server, size, sha256, folder, 4, "say") as process:
                _kill_at(process, point)
            again += _overlap(server, held)
            if journal.exists():
                # Blocks count in whole, so this is a little more than was written.
                written = journal.with_suffix(".partial").stat().st_blocks * BLOCK
                lost.append(written - ranges_in(journal, size, sha256).total)
        held = ranges_in(journal, size, sha256)
        server.requests.clear()
        with client(server, size, sha256, folder, 4) as process:
            process.communicate()
        again += _overlap(server, held)
        right = (folder / f"sha256-{sha256}.whole").is_file() and process.returncode == 0
    print(f"{KILLS} kills: {'the file is right' if right else 'NO FILE'}")
    print(f"journaled bytes asked for again: {again:,}")
    print(
        f"written and not in the journal after a kill: median {statistics.median(lost) / MB:.1f}"
        f" MB, most {max(lost) / MB:.1f} MB, {len(lost)} kills before the end"
    )


def _kill_at(process: subprocess.Popen[str], point: int) -> None:
    """Kill once the client has reported ``point`` bytes, or let it end."""
    if process.stdout is None:
        return
    for line in process.stdout:
        if "." not in line and int(line) >= point:
            process.kill()
            return


def _overlap(server: LocalHub, held: Ranges) -> int:
    """How many bytes of ``held`` were asked for by the requests since."""
    total = 0
    for asked in server.asked("cdn"):
        first, last = (asked.range or "bytes=0-0").removeprefix("bytes=").split("-")
        wanted = int(last) + 1 - int(first)
        total += wanted - sum(b - a for a, b in held.missing(int(first), int(last) + 1))
    return total


if __name__ == "__main__":
    {"rate": rate, "throttled": throttled, "kills": kills}[sys.argv[1]]()

"""Image files that are broken, hostile or something else: one sentence each, and bounded memory.

    python -m tests.perf.bad_media files            # gemmtp run on each kind of bad file
    python -m tests.perf.bad_media mutants -n 10000 # random changes of small files, each format

Every format is changed in a process of its own, so that a decoder that ended it would be seen. It
exits with 1 when something was neither a picture nor one sentence.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from PIL import Image

from gemmtp.errors import UsageError
from gemmtp.prompt.attachments import FORMATS, Frame, read_picture
from tests.support.pictures import noise, saved
from tests.support.tiny_pair import write_target
from tests.support.tiny_projector import seeing, write_projector

MEMORY_BOUND = 1 << 30
"""Bytes that a process may have had at most while it looked at bad files."""

SENTENCE = re.compile(r"[^\n]{1,220}\.")
FRAME = Frame(70)


def seeds(kind: str) -> list[bytes]:
    """Small files of a format, of several modes."""
    images = [noise(24, 20), noise(9, 31, 4), noise(33, 7).convert("L"), noise(16, 16).convert("P")]
    files = []
    for image in images:
        try:
            files.append(saved(image, kind))
        except OSError:
            # JPEG has neither transparency nor palettes.
            continue
    if kind in ("GIF", "WEBP", "PNG"):
        files.append(saved(images[0], kind, save_all=True, append_images=[noise(24, 20, seed=1)]))
    if kind == "JPEG":
        exif = Image.Exif()
        exif[0x0112] = 6
        files.append(saved(images[0], kind, exif=exif))
        files.append(saved(images[0].convert("CMYK"), kind, progressive=True))
    return files


def changed(data: bytes, draw: random.Random) -> bytes:
    """``data`` with some bytes set, cut, repeated, inserted, or its end missing."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        at = draw.randrange(len(out)) if out else 0
        match draw.randrange(5):
            case 0 | 1:
                out[at : at + 1] = bytes([draw.choice((0, 255, draw.randrange(256)))])
            case 2:
                del out[at : at + draw.randrange(1, 9)]
            case 3:
                out[at:at] = out[at : at + draw.randrange(1, 33)]
            case _:
                out[at:at] = draw.randbytes(draw.randrange(1, 9))
    return bytes(out[: draw.randrange(len(out) + 1)] if draw.random() < 0.1 else out)


def with_right_sums(data: bytes) -> bytes:
    """A PNG whose checksums are right again, so that what was changed is looked at."""
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + length]
        out += data[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return bytes(out)


@dataclass
class Seen:
    """What came of the mutants of a format; ``slowest`` in seconds, ``peak`` in bytes."""

    pictures: int = 0
    sentences: int = 0
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    peak: int = 0


def look(kind: str, n: int, seed: int) -> Seen:
    """Read ``n`` mutants of a format in this process."""
    draw, seen, files = random.Random(f"{kind}{seed}"), Seen(), seeds(kind)
    for i in range(n):
        data = changed(draw.choice(files), draw)
        if kind == "PNG" and i % 2:
            data = with_right_sums(data)
        start = time.perf_counter()
        try:
            picture = read_picture(data, "x", FRAME)
        except UsageError as error:
            seen.sentences += 1
            if not SENTENCE.fullmatch(error.message):
                seen.wrong.append(f"mutant {i}: {error.message!r}")
        except Exception as error:
            seen.wrong.append(f"mutant {i}: {error!r}")
        else:
            seen.pictures += 1
            if picture.tokens > FRAME.tokens:
                seen.wrong.append(f"mutant {i}: {picture}")
        seen.slowest = max(seen.slowest, time.perf_counter() - start)
    seen.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return seen


def mutants(n: int, seed: int) -> bool:
    """All formats, each in a process of its own."""
    good = True
    for kind in FORMATS:
        words = ["look", "--kind", kind, "-n", str(n), "--seed", str(seed)]
        command = [sys.executable, "-m", "tests.perf.bad_media", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{kind:5} ended with {done.returncode}: {done.stderr[-400:]}  MISSED")
            good = False
            continue
        seen = json.loads(done.stdout)
        held = not seen["wrong"] and seen["peak"] <= MEMORY_BOUND
        good &= held
        print(
            f"{kind:5} {n:,} mutants: {seen['pictures']:,} pictures, {seen['sentences']:,} "
            f"sentences, slowest {seen['slowest']:.2f} s, peak {seen['peak'] / 2**20:.0f} MiB"
            f"{'' if held else '  MISSED'}"
        )
        for line in seen["wrong"][:5]:
            print("     ", line)
    return good


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG that claims a size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    head = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + head + b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def largest() -> bytes:
    """The largest transparent picture that is read: 8,192 x 8,192 in a few hundred kB."""
    rows = zlib.compress(bytes(8192 * 4 + 1) * 8192, 1)
    body = struct.pack(">I", len(rows)) + b"IDAT" + rows
    return png_header(8192, 8192)[:33] + body + struct.pack(">I", zlib.crc32(b"IDAT" + rows))


FILES: dict[str, tuple[Callable[[], bytes], int]] = {
    "truncated.png": (lambda: saved(noise(64, 64))[:3000], 2),
    "truncated.jpg": (lambda: saved(noise(64, 64), "JPEG")[:1500], 2),
    "truncated.webp": (lambda: saved(noise(64, 64), "WEBP")[:900], 2),
    "truncated.gif": (lambda: saved(noise(64, 64), "GIF")[:900], 2),
    "truncated.bmp": (lambda: saved(noise(64, 64), "BMP")[:900], 2),
    "no-bytes.png": (lambda: b"", 2),
    "zeros.png": (lambda: bytes(100_000), 2),
    "text.png": (lambda: b"hello\n" * 100, 2),
    "a-jpeg.png": (lambda: saved(noise(64, 64), "JPEG"), 0),
    "100000x100000.png": (lambda: png_header(100_000, 100_000), 2),
    "65535x65535.gif": (lambda: b"GIF89a\xff\xff\xff\xff" + saved(noise(8, 8), "GIF")[10:], 2),
    "largest.png": (largest, 0),
    "animated.gif": (
        lambda: saved(noise(64, 64), "GIF", save_all=True, append_images=[noise(64, 64, seed=1)]),
        0,
    ),
    "cmyk.jpg": (lambda: saved(noise(64, 64).convert("CMYK"), "JPEG"), 0),
    "1x2000.png": (lambda: saved(noise(1, 2000)), 0),
    "4096x16.png": (lambda: saved(noise(4096, 16)), 0),
    "1x1.png": (lambda: saved(noise(1, 1)), 0),
}
"""Names, bytes, and the exit code that is due."""


def files() -> bool:
    """``gemmtp run --image`` as a program on every kind of file."""
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = write_target(folder / "target.gguf", **seeing())
        projector = write_projector(folder / "projector.gguf")
        for file, (make, code) in FILES.items():
            (folder / file).write_bytes(make())
            words = ["run", target, "--mmproj", projector, "--image", folder / file, "what?"]
            words += ["--max-tokens", "2", "--threads", "1", "--ctx", "512"]
            done = subprocess.run(
                [sys.executable, "-m", "gemmtp", *map(str, words)],
                capture_output=True,
                stdin=subprocess.DEVNULL,
            )
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            errors = done.stderr.decode().splitlines()
            said = next((line for line in errors if line.startswith("gemmtp: ")), "answered")
            held = (
                done.returncode == code
                and peak <= MEMORY_BOUND
                and bool(code) == (said != "answered")
            )
            good &= held
            print(f"{file:20} exit {done.returncode}  {said}{'' if held else '  MISSED'}")
        print(f"peak of all {peak / 2**20:.0f} MiB")
    return good


def main() -> int:
    """Run one part; 1 when something was neither a picture nor one sentence."""
    parser = argparse.ArgumentParser(description="Feed bad image files.")
    parser.add_argument("what", choices=("files", "mutants", "look"))
    parser.add_argument("-n", type=int, default=10_000, help="mutants of each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=FORMATS, default="PNG", help="what to look at")
    given = parser.parse_args()
    if given.what == "look":
        print(json.dumps(asdict(look(given.kind, given.n, given.seed))))
        return 0
    return 0 if (files() if given.what == "files" else mutants(given.n, given.seed)) else 1


if __name__ == "__main__":
    sys.exit(main())

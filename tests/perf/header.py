"""How long the header of a file with the real vocabulary takes.

    python -m tests.perf.header

262,144 tokens and 514,906 merges, as in Gemma 4. The bound: 0.6 s.
(tests/models/test_header.py holds the memory.)
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from gemmtp_models.header import read_header
from gemmtp_models.metadata import ValueType
from tests.support.raw_gguf import write_vocabulary

TOKENS, MERGES = 262_144, 514_906
_RUNS = 7


def main() -> None:
    """Write the file, read it ``_RUNS`` times, print the median of each part."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_vocabulary(path, TOKENS, MERGES)
        reading, hashing, walking = [], [], []
        for _ in range(_RUNS):
            start = time.perf_counter()
            header = read_header(path)
            tokens = header.metadata.array("tokenizer.ggml.tokens", ValueType.STRING)
            read = time.perf_counter()
            tokens.sha256()
            hashed = time.perf_counter()
            distinct = len(set(tokens.strings()))
            done = time.perf_counter()
            reading.append(read - start)
            hashing.append(hashed - read)
            walking.append(done - hashed)
        print(f"header, {path.stat().st_size / 1e6:.1f} MB: {median(reading):.3f} s")
        print(f"sha256 of the token list: {median(hashing):.3f} s")
        print(f"{distinct:,} tokens told apart: {median(walking):.3f} s")


if __name__ == "__main__":
    main()

"""What adaptive drafting learned on this machine, kept from one run to the next.

One small JSON file a pair and machine, in the folder of the state. It says nothing about what was
talked about: seconds of passes and shares of kept drafts. One that cannot be read is begun anew,
one that cannot be written is left; the text does not depend on either.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gemmtp import settings
from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.engine.depth import DepthChooser
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.devices import threads
from gemmtp.llama.library import VERSION
from gemmtp.llama.model import LoadOptions
from gemmtp.llama.pair import CheckedPair

KEPT_FILES = 64
"""Pairs whose costs are kept; the one not used for longest goes first."""


def path_of(files: CheckedPair, context: ContextOptions, load: LoadOptions) -> Path:
    """The file for a pair, on this machine, with settings that change what a pass costs."""
    models = [files.target] + ([files.drafter] if files.drafter is not None else [])
    facts = [
        *(f"{header.name} {header.file_size}" for header in models),
        f"{platform.node()} {platform.machine()} {os.cpu_count()} {VERSION}",
        f"{context.kv} {context.threads or threads()} {context.flash_attention}",
        f"{load.gpu_layers} {load.repack}",
    ]
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return settings.state_dir() / "depth" / f"{name}.json"


@contextmanager
def learned(
    depth: DepthChooser, files: CheckedPair, context: ContextOptions, load: LoadOptions
) -> Iterator[None]:
    """Give ``depth`` what earlier runs learned, and keep what it knows when the block ends."""
    if not isinstance(depth, AdaptiveDepth) or files.drafter is None:
        yield
        return
    path = path_of(files, context, load)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        depth.restore(json.loads(path.read_text("utf-8")))
    try:
        yield
    finally:
        with suppress(OSError):
            _write(path, json.dumps(depth.state()))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    files = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for old in files[:-KEPT_FILES]:
        old.unlink(missing_ok=True)

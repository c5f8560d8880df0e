"""The KV cache of a conversation in a file, so that a long one starts at once.

    gemmtp-kv 1 <sha256 of the rest> <bytes of the head>\\n
    head      JSON: what it was made with, token ids, sizes
    hidden    float32[d]
    cells     the target's own format
    window    the checkpoint of the sliding window, if there is one

Everything is checked before llama.cpp sees a byte: it may end the process on a broken state. A file
is only ever a shortcut: its tokens are compared with those of the next prompt as if the cache had
never been away, so an old one costs time and changes no word.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemmtp.chat.whole import written_whole
from gemmtp.engine.checkpoints import Checkpoint
from gemmtp.engine.resting import Resting
from gemmtp.errors import GemmtpError
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.library import VERSION
from gemmtp.llama.pair import CheckedPair
from gemmtp.prompt.conversation import Json
from gemmtp_models.header import Header

MAGIC = b"gemmtp-kv 1"
SAMPLES, SAMPLE = 64, 4096
"""How many pieces of a model file are looked at beside its header, and their bytes."""

_LINE = re.compile(rb"gemmtp-kv 1 ([0-9a-f]{64}) (\d{1,9})\n")


class CannotRestoreError(GemmtpError):
    """A state that does not belong here; the message says why."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a state was made with; it is restored only where all of it is the same."""

    target: str
    drafter: str
    settings: dict[str, str]

    @classmethod
    def with_files(cls, files: CheckedPair, context: ContextOptions) -> Made:
        """Of the loaded files and the context's settings; the context's size may differ."""
        drafter = "none" if files.drafter is None else fingerprint(files.drafter)
        settings = {
            "llama-cpp-python": VERSION,
            "--kv": context.kv,
            "flash attention": context.flash_attention,
            "slots": f"{context.n_slots}",
            "ubatch": f"{context.n_ubatch}",
        }
        return cls(fingerprint(files.target), drafter, settings)


def fingerprint(header: Header) -> str:
    """Of a model file: its size, its header and samples of its weights, hashed.

    Hashing all of a large model would take longer than reading the conversation anew.
    """
    digest = hashlib.sha256(f"{header.file_size} ".encode())
    with header.path.open("rb") as file:
        digest.update(file.read(header.data_offset))
        for i in range(SAMPLES):
            file.seek(header.data_offset + (header.file_size - header.data_offset) * i // SAMPLES)
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def write(path: Path, resting: Resting, made: Made) -> None:
    """Write the state, whole or not at all, for the user alone; raises GemmtpError."""
    window = resting.checkpoint
    head: Json = {
        "target": made.target,
        "drafter": made.drafter,
        "settings": made.settings,
        "text": resting.text,
        "held": resting.held,
        "hidden": len(resting.hidden),
        "cells": resting.cells.nbytes,
        "window": None if window is None else [window.position, window.state.nbytes],
    }
    parts: list[bytes | memoryview] = [json.dumps(head).encode()]
    parts += [resting.hidden.data.cast("B"), resting.cells.data]
    parts += [] if window is None else [window.state.data]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    line = MAGIC + f" {digest.hexdigest()} {len(parts[0])}\n".encode()
    try:
        with written_whole(path) as file:
            file.writelines([line, *parts])
    except OSError as error:
        raise GemmtpError(f"The KV cache could not be saved: {error.strerror or error}") from error


def read(path: Path, made: Made, n_ctx: int) -> Resting:
    """The state in the file at ``path``.

    Raises :class:`CannotRestoreError` when it was made with something else, does not fit into
    ``n_ctx`` or is damaged, and FileNotFoundError.
    """
    try:
        data = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CannotRestoreError(f"it cannot be read ({error.strerror or error})") from error
    found = _LINE.match(data[:128].tobytes())
    if found is None or hashlib.sha256(data[found.end() :].data).hexdigest() != found[1].decode():
        raise CannotRestoreError("the file is damaged")
    start = found.end() + int(found[2])
    head = json.loads(data[found.end() : start].tobytes())
    for name, now in (("target", made.target), ("drafter", made.drafter)):
        if head[name] != now:
            raise CannotRestoreError(f"it was made with another {name}")
    for name, value in made.settings.items():
        if (before := head["settings"].get(name)) != value:
            raise CannotRestoreError(f"it was made with {name} {before}, not {value}")
    if head["held"] > n_ctx:
        raise CannotRestoreError(f"it holds {head['held']} tokens, the context {n_ctx}")
    hidden = data[start : start + 4 * head["hidden"]].view(np.float32)
    start += 4 * head["hidden"]
    cells = data[start : start + head["cells"]]
    start += head["cells"]
    checkpoint = None
    if head["window"] is not None:
        position, n = head["window"]
        checkpoint = Checkpoint(0, position, data[start : start + n])
    return Resting(head["text"], head["held"], hidden, cells, checkpoint)

"""Files that other programs have fetched, found by their sha256 and used where they lie.

Both caches name a file by its content: ``<hub cache>/models--owner--repo/blobs/<hex>`` and
``<ollama>/blobs/sha256-<hex>``. They are read and never written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gemmtp_models.hub_names import is_sha256


def hub_cache() -> Path:
    """Where huggingface_hub keeps files: HF_HUB_CACHE, HF_HOME or the default."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{base}/huggingface"
    return Path(home).expanduser() / "hub"


def ollama_stores() -> list[Path]:
    """Where Ollama keeps models: OLLAMA_MODELS, or the user's and the service's own folder."""
    if folder := os.environ.get("OLLAMA_MODELS"):
        return [Path(folder).expanduser()]
    return [Path("~/.ollama/models").expanduser(), Path("/usr/share/ollama/.ollama/models")]


def find(sha256: str, size: int) -> Path | None:
    """A file of this content (by its name) and size that another program keeps, or None."""
    if not is_sha256(sha256):
        return None
    for path in _candidates(sha256):
        try:
            if path.is_file() and path.stat().st_size == size and os.access(path, os.R_OK):
                return path
        except OSError:
            continue
    return None


def _candidates(sha256: str) -> Iterator[Path]:
    yield from hub_cache().glob(f"models--*/blobs/{sha256}")
    for folder in ollama_stores():
        yield folder / "blobs" / f"sha256-{sha256}"

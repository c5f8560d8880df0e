"""A tiny pair on the local hub under the name of the 31B set, and its catalogue file."""

from __future__ import annotations

from pathlib import Path

from tests.support.hub import LocalHub
from tests.support.raw_gguf import raw_gguf, text

NAME = "gemma4:31b-mtp"
REPO = "unsloth/gemma-4-31B-it-qat-GGUF"
CLIP = raw_gguf(keys=[text("general.architecture") + b"\x08\0\0\0" + text("clip")])
CATALOGUE = """
schema = 1
family = "gemma4"
title = "A pair of some hundred kilobytes under the name of the 31B"
draft_depth = 2
[repos.r]
repo = "{repo}"
revision = "{commit}"
{files}
[[sets]]
tags = ["31b-mtp"]
target = "target"
drafter = "drafter"
projector = "projector"
"""
PATHS = {
    "target": "gemma-4-31B-it-qat-UD-Q4_K_XL.gguf",
    "drafter": "mtp-gemma-4-31B-it.gguf",
    "projector": "mmproj-BF16.gguf",
}


def publish(server: LocalHub, home: Path, contents: dict[str, bytes]) -> None:
    """Serve the files of the 31B set and pin them in a catalogue file of the user's."""
    tables = []
    for role, data in contents.items():
        sha256 = server.add(REPO, PATHS[role], data)
        tables.append(
            f'[files.{role}]\nrepo = "r"\npath = "{PATHS[role]}"\n'
            f'size = {len(data)}\nsha256 = "{sha256}"\n'
        )
    folder = home / "config" / "catalogue"
    folder.mkdir(parents=True, exist_ok=True)
    commit = server.repos[REPO].commit
    words = CATALOGUE.format(repo=REPO, commit=commit, files="".join(tables))
    (folder / "test.toml").write_text(words)

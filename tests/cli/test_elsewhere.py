"""Files that other programs keep are used in place, and never written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from gemmtp_models.store import Store
from tests.cli.conftest import Cli
from tests.support.hub import LocalHub
from tests.support.published import NAME, PATHS, REPO
from tests.support.tiny_pair import TINY_TARGET, write_model

GREEDY = ("--raw", "--temperature", "0", "--threads", "1", "--ctx", "256", "--max-tokens", "8")
PROMPT = "Count from 3 to 7."


def test_a_file_in_the_hubs_cache_is_used_in_place(
    cli: Cli, server: LocalHub, home: Path, contents: dict[str, bytes], tmp_path: Path
) -> None:
    sha256 = server.repos[REPO].files[PATHS["target"]]
    blob = tmp_path / "hf/hub/models--unsloth--x/blobs" / sha256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(contents["target"])
    blob.chmod(0o444)
    assert cli("run", NAME, PROMPT, *GREEDY).code == 0
    assert server.sent == len(contents["drafter"]) + len(contents["projector"])
    assert Store(home / "data").resolve(NAME).files["target"] == blob
    assert cli("rm", NAME).code == 0
    assert blob.read_bytes() == contents["target"]
    blob.chmod(0o644)
    blob.write_bytes(bytes(len(contents["target"])))
    result = cli("pull", NAME)
    assert result.code == 3
    assert "is not the file that its name says" in result.err


def test_a_model_of_ollama_is_used_in_place_or_refused(
    cli: Cli, home: Path, tiny: tuple[Path, Path], tmp_path: Path
) -> None:
    store = tmp_path / "ollama"
    sha256 = "12" * 32
    manifest = store / "manifests/some.registry/library/gemma4/e2b"
    manifest.parent.mkdir(parents=True)
    blob = store / "blobs" / f"sha256-{sha256}"
    blob.parent.mkdir()
    blob.write_bytes(tiny[0].read_bytes())

    def layers(digest: str) -> str:
        return json.dumps(
            {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": digest}]}
        )

    manifest.write_text(layers(f"sha256:{sha256}"))
    result = cli("run", "ollama:gemma4:e2b", PROMPT, *GREEDY)
    assert result.code == 0, result.err
    assert "drafting by prompt lookup: Ollama has no drafters" in result.err
    assert cli("run", "ollama:nosuch", PROMPT).code == 3
    for bad in ("sha256:../../../etc/passwd", "sha256:" + "../" * 20 + "etc/passwd", "x"):
        manifest.write_text(layers(bad))
        result = cli("run", "ollama:gemma4:e2b", PROMPT)
        assert (result.code, "digest that is none" in result.err) == (3, True)
    for name in ("ollama:../../x", "ollama:a/../b", "ollama:a:../b", "ollama:"):
        assert cli("run", name, PROMPT).code == 2, name
    manifest.write_text(layers(f"sha256:{sha256}"))
    monolith = {"v.blk.0.attn_q.weight": np.zeros((4, 32), np.float32)}
    write_model(blob, replace(TINY_TARGET, tensors=monolith))
    result = cli("run", "ollama:gemma4:e2b", PROMPT)
    assert result.code == 3
    assert "has the projector inside the model's file" in result.err

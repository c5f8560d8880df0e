"""From trained checkpoints to the committed set: our own pipeline, Q8_0, one manifest.

    python -m demo.build OUT SET

OUT is what `demo.train` left; SET becomes the folder that the package carries.
"""

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path

from gemmtp_models.manifest import Manifest, write_manifest
from gemmtp_quantize.pipeline import build_folder
from gemmtp_quantize.plan import plan_set
from gemmtp_quantize.recipe import load_recipe

VERSION = 3
NAME = f"demo:{VERSION}"
DRAFT_DEPTH = 3


def build(out: Path, folder: Path, threads: int = 2) -> Manifest:
    """Quantise the checkpoints into `folder`: target, drafter and projector (F16)."""
    plan = plan_set(out / "target", out / "drafter", load_recipe("q8_0"))
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        made = build_folder(plan, Path(beside) / "set", force=False, threads=threads)
        folder.mkdir(exist_ok=True)
        layers = {
            role: dataclasses.replace(layer, source=f"models/demo, version {VERSION}")
            for role, layer in made.manifest.layers.items()
        }
        parameters = dataclasses.replace(made.manifest.parameters, draft_depth=DRAFT_DEPTH)
        manifest = dataclasses.replace(
            made.manifest, name=NAME, layers=layers, parameters=parameters
        )
        for role, path in made.files.items():
            path.replace(folder / f"{role}.gguf")
        write_manifest(folder / "manifest.json", manifest)
    return manifest


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("set", type=Path)
    chosen = parser.parse_args()
    manifest = build(chosen.out, chosen.set)
    print(json.dumps({role: layer.size for role, layer in manifest.layers.items()}))


if __name__ == "__main__":
    main()

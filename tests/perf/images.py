"""How near the rows of twenty image files come to transformers', beside llama.cpp's own way.

    python -m tests.perf.images [TARGET_DIR SET_DIR] [--tokens 280]

TARGET_DIR is a checkpoint, SET_DIR holds target.gguf and projector.gguf made of it; without them a
tiny random tower is made. In llama.cpp's own way mtmd is given the picture in its own size and
resizes it itself, within the budget that is asked for; where it arrives at another number of rows,
they cannot be compared one by one. ``--bare`` leaves ``clip.use_gelu`` out in that column, as
llama.cpp's converter does. mtmd ends the process where an image is longer than the tower's table of
positions.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from gemmtp.llama.library import mtmd
from gemmtp.llama.model import Model
from gemmtp_models.memory_projector import IMAGE_BUDGETS
from gemmtp_quantize.image_parity import (
    Floats,
    ImageFile,
    Reference,
    compare_images,
    opened,
)
from gemmtp_quantize.pipeline import build_folder
from gemmtp_quantize.plan import plan_set
from gemmtp_quantize.recipe import load_recipe
from tests.quantize.images import images
from tests.quantize.tiny_checkpoint import Shape, write_pair
from tests.quantize.tiny_tower import Tower

NEAR = 0.9999
POSITIONS = 10_240
"""Of the published towers, along one side."""


class Mtmd:
    """llama.cpp's own image pipeline, with its own resizing."""

    def __init__(self, projector: Path, model: Model, tokens: int) -> None:
        self.c = mtmd()
        parameters = self.c.mtmd_context_params_default()
        parameters.use_gpu, parameters.warmup, parameters.print_timings = False, False, False
        parameters.n_threads, parameters.image_max_tokens = 1, tokens
        self.handle = self.c.mtmd_init_from_file(os.fsencode(projector), model.handle, parameters)
        if not self.handle:
            raise SystemExit(f"mtmd cannot load {projector}")
        self.width = model.n_embd

    def rows(self, picture: NDArray[np.uint8]) -> Floats:
        """float32[n, d] of an RGB picture uint8[h, w, 3] in its own size."""
        c, (height, width, _) = self.c, picture.shape
        data = np.ascontiguousarray(picture)
        bitmap = c.mtmd_bitmap_init(
            width, height, data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        )
        chunks = c.mtmd_input_chunks_init()
        part = c.mtmd_input_part(None, bitmap)
        parts = (ctypes.POINTER(c.mtmd_input_part) * 1)(ctypes.pointer(part))
        try:
            if c.mtmd_tokenize_from_parts(self.handle, chunks, parts, 1, False) != 0:
                raise SystemExit("mtmd refuses an image")
            for i in range(c.mtmd_input_chunks_size(chunks)):
                chunk = c.mtmd_input_chunks_get(chunks, i)
                if c.mtmd_input_chunk_get_type(chunk) == c.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                    return self._encoded(chunk)
            raise SystemExit("mtmd found no image")
        finally:
            c.mtmd_bitmap_free(bitmap)
            c.mtmd_input_chunks_free(chunks)

    def _encoded(self, chunk: Any) -> Floats:
        if self.c.mtmd_encode_chunk(self.handle, chunk) != 0:
            raise SystemExit("mtmd cannot encode an image")
        n = self.c.mtmd_input_chunk_get_n_tokens(chunk)
        pointer = self.c.mtmd_get_output_embd(self.handle)
        rows: Floats = np.ctypeslib.as_array(pointer, (n, self.width)).copy()
        return rows

    def close(self) -> None:
        """Free the context."""
        self.c.mtmd_free(self.handle)


def without_gelu(source: Path, target: Path) -> None:
    """A copy whose key ``clip.use_gelu`` has a name that mtmd does not read."""
    key = b"clip.use_gelu"
    data = source.read_bytes()
    if data.count(key) != 1:
        raise SystemExit(f"{source} does not state its activation once")
    target.write_bytes(data.replace(key, b"clip.xxx_xxxx"))


def own_way(image: ImageFile, way: Mtmd, reference: Reference, tokens: int) -> str:
    """The worst cosine of a row, or the number of rows where it is another one."""
    picture = np.asarray(opened(image).convert("RGB"))
    rows, expected = way.rows(picture), reference.rows(image, tokens)[1]
    if rows.shape != expected.shape:
        return f"{len(rows)} rows"
    cosine = np.sum(rows * expected, axis=1) / (
        np.linalg.norm(rows, axis=1) * np.linalg.norm(expected, axis=1)
    )
    return f"{cosine.min():.5f}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target_dir", type=Path, nargs="?")
    parser.add_argument("set_dir", type=Path, nargs="?")
    parser.add_argument("--tokens", type=int, default=280, choices=IMAGE_BUDGETS)
    parser.add_argument("--bare", action="store_true")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if chosen.set_dir is not None:
        table(chosen.target_dir, chosen.set_dir, chosen.tokens, chosen.bare)
        return
    with tempfile.TemporaryDirectory() as folder:
        shape = Shape(form="conditional", tower=Tower(positions=POSITIONS))
        pair = write_pair(Path(folder) / "checkpoints", shape)
        plan = plan_set(*pair, load_recipe("f16"))
        build_folder(plan, Path(folder) / "set", force=False, threads=1)
        table(pair[0], Path(folder) / "set", chosen.tokens, chosen.bare)


def table(target_dir: Path, set_dir: Path, tokens: int, bare: bool) -> None:
    """Print one line an image."""
    files, projector, target = list(images()), set_dir / "projector.gguf", set_dir / "target.gguf"
    ours = compare_images(target_dir, target, projector, files, tokens=tokens, threads=1)
    reference = Reference.open(target_dir)
    kinds = ", ".join(sorted({t.tensor_type.name for t in gguf.GGUFReader(projector).tensors}))
    print(f"{tokens} tokens at most, projector in {kinds}")
    print(f"{'image':24}{'pixels':>11}{'rows':>6}{'ours':>11}{'error':>10}{'own way':>12}")
    with Model.open(target) as model, tempfile.TemporaryDirectory() as folder:
        if bare:
            without_gelu(projector, Path(folder) / "projector.gguf")
            projector = Path(folder) / "projector.gguf"
        way = Mtmd(projector, model, tokens)
        for file, found in zip(files, ours, strict=True):
            size = f"{found.size[0]}x{found.size[1]}"
            theirs = own_way(file, way, reference, tokens)
            print(
                f"{file.name:24}{size:>11}{found.tokens:6}{found.cosine:11.7f}{found.error:10.1e}"
                f"{theirs:>12}",
                flush=True,
            )
        way.close()
    worst = min(found.cosine for found in ours)
    print(f"worst {worst:.7f}, {'at least' if worst >= NEAR else 'BELOW'} {NEAR}")


if __name__ == "__main__":
    main()

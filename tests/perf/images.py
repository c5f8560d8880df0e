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
from gemmtp.llama.projector import Projector
from gemmtp.prompt.attachments import read_picture
from gemmtp.prompt.media import CheckedProjector
from gemmtp_models.header import read_header
from gemmtp_models.memory_projector import IMAGE_BUDGETS
from gemmtp_quantize.image_parity import (
    Floats,
    ImageFile,
    Reference,
    compare_rows,
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


def own_way(image: ImageFile, way: Mtmd, expected: Floats) -> str:
    """The worst cosine of a row, or the number of rows where it is another one."""
    rows = way.rows(np.asarray(opened(image).convert("RGB")))
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
    projector_file, worst = set_dir / "projector.gguf", 1.0
    kinds = sorted({t.tensor_type.name for t in gguf.GGUFReader(projector_file).tensors})
    print(f"{tokens} tokens at most, projector in {', '.join(kinds)}")
    print(f"{'image':24}{'pixels':>11}{'rows':>6}{'ours':>11}{'error':>10}{'own way':>12}")
    reference = Reference.open(target_dir)
    with (
        tempfile.TemporaryDirectory() as folder,
        Model.open(set_dir / "target.gguf") as model,
        Projector.open(read_header(projector_file), model, threads=1) as projector,
    ):
        frame = CheckedProjector.read(projector_file, model.n_embd, tokens).frame
        if bare:
            without_gelu(projector_file, Path(folder) / "projector.gguf")
            projector_file = Path(folder) / "projector.gguf"
        way = Mtmd(projector_file, model, tokens)
        for image in images():
            pixels, expected = reference.rows(image, tokens)
            picture = read_picture(image.data, image.name, frame)
            found = compare_rows(picture, projector.encode(picture), pixels, expected)
            worst = min(worst, found.cosine)
            size = f"{found.size[0]}x{found.size[1]}"
            print(
                f"{image.name:24}{size:>11}{found.tokens:6}{found.cosine:11.7f}{found.error:10.1e}"
                f"{own_way(image, way, expected):>12}",
                flush=True,
            )
        way.close()
    print(f"worst {worst:.7f}, {'at least' if worst >= NEAR else 'BELOW'} {NEAR}")


if __name__ == "__main__":
    main()

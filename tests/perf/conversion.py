"""What converting and quantising cost beside the bare work: ``python -m tests.perf.conversion``.

Conversion is held against numpy reading, changing the type of and writing the same tensors;
quantising against llama_model_quantize called with the same types and nothing around it. Each time
is the best of several, since other programs disturb only upwards.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gemmtp.llama.library import api
from gemmtp_quantize.gguf_file import write_gguf
from gemmtp_quantize.pipeline import _quantise, silent
from gemmtp_quantize.plan import FilePlan, plan_set
from gemmtp_quantize.recipe import FILE_TYPES, TYPE_IDS, load_recipe
from tests.quantize.tiny_checkpoint import Shape, write_pair

REPEATS = 5
LAYERS = ("sliding", "sliding", "sliding", "full")
SHAPE = {
    "hidden": 2048, "inner": 8192, "heads": 16, "head_dim": 128, "head_dim_full": 256,
    "kv_heads": 4, "kv_heads_full": 2, "layer_types": LAYERS, "drafter_hidden": 256,
}  # fmt: skip
QUANTISED = ("q8_0", "q4_k_m", "q4_0")


def best(run: Callable[[], None], repeats: int = REPEATS) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def copy_by_numpy(plan: FilePlan, output: Path) -> None:
    """The same tensors in the same types, each read whole, changed and written by numpy."""
    with output.open("wb") as file:
        for tensor in plan.tensors:
            source = tensor.spec.source
            if source is None:
                continue
            kind = "<f4" if source.dtype == "F32" else "<u2"
            values = np.fromfile(source.path, kind, source.elements, offset=source.offset)
            if source.dtype == "BF16" and tensor.written != "BF16":
                values = (values.astype("<u4") << 16).view("<f4")
            if tensor.written == "F16":
                values = values.astype("<f2")
            values.tofile(file)


def bare_quantise(plan: FilePlan, source: Path, target: Path, threads: int) -> None:
    """llama_model_quantize with the recipe's types and nothing else."""
    c = api()
    number, default = FILE_TYPES[plan.recipe.file_type]
    parameters = c.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread, parameters.pure = number, threads, True
    parameters.token_embedding_type = plan.types["token_embd.weight"]
    named = [item for item in plan.types.items() if item[1] != TYPE_IDS[default]]
    array = (c.llama_model_tensor_override * (len(named) + 1))()
    for i, (name, kind) in enumerate(named):
        array[i] = c.llama_model_tensor_override(name.encode(), kind)
    parameters.tt_overrides = ctypes.cast(array, ctypes.POINTER(c.llama_model_tensor_override))
    c.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))


def measure_conversion(root: Path, dtype: str, recipe: str) -> None:
    plan = plan_set(*_pair(root, dtype), load_recipe(recipe)).target
    ours = best(lambda: write_gguf(root / "ours", plan.fields, plan.tensors, lambda count: None))
    theirs = best(lambda: copy_by_numpy(plan, root / "theirs"))
    size = plan.written_bytes / 2**20
    print(
        f"{dtype} -> {recipe}: {size:.0f} MiB, ours {ours:.2f} s, numpy {theirs:.2f} s, "
        f"ratio {ours / theirs:.2f}"
    )


def measure_quantising(root: Path, recipe: str, threads: int) -> None:
    plan = plan_set(*_pair(root, "BF16"), load_recipe(recipe)).target
    source = root / "unquantised"
    write_gguf(source, plan.fields, plan.tensors, lambda count: None)
    ours, bare = [], []
    for _ in range(REPEATS):
        ours.append(
            best(lambda: _quantise(plan, source, root / "ours", "target", threads, silent), 1)
        )
        bare.append(best(lambda: bare_quantise(plan, source, root / "theirs", threads), 1))
    ratio = min(ours) / min(bare)
    print(f"{recipe}: ours {min(ours):.2f} s, llama.cpp alone {min(bare):.2f} s, ratio {ratio:.3f}")


def measure_memory(root: Path) -> None:
    """Peak memory of one whole run in a process of its own."""
    target, drafter = _pair(root, "BF16")
    code = "import sys; from tests.perf.conversion import peak; peak(*sys.argv[1:])"
    arguments = [str(target), str(drafter), str(root / "set")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=os.environ)


def peak(target: str, drafter: str, output: str) -> None:
    """Build a set and print the largest resident size, mapped pages of the input included."""
    from gemmtp_quantize.pipeline import build_folder

    plan = plan_set(Path(target), Path(drafter), load_recipe("q4_k_m"))
    # A new process inherits its parent's peak; 5 resets it (proc(5), clear_refs).
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak_kibibytes()
    build_folder(plan, Path(output), force=True, threads=2)
    after = _peak_kibibytes()
    largest = max(tensor.spec.elements for tensor in plan.target.tensors) * 4
    print(
        f"memory: {after / 1024:.0f} MiB at most, {before / 1024:.0f} before the first weight, "
        f"largest tensor {largest / 2**20:.0f} MiB in float32"
    )


def _peak_kibibytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    raise RuntimeError("This system does not say how much memory was used.")


def _pair(root: Path, dtype: str) -> tuple[Path, Path]:
    folder = root / dtype
    if not folder.is_dir():
        write_pair(folder, Shape(dtype=dtype, **SHAPE))  # type: ignore[arg-type]
    return folder / "tiny", folder / "tiny-assistant"


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    threads = parser.parse_args().threads
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for dtype, recipe in (("BF16", "bf16"), ("BF16", "f16"), ("BF16", "f32"), ("F32", "f16")):
            measure_conversion(root, dtype, recipe)
        for recipe in QUANTISED:
            measure_quantising(root, recipe, threads)
        measure_memory(root)


if __name__ == "__main__":
    main()

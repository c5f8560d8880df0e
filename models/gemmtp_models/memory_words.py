"""A plan in words: the table by device, the start line, the options that mean the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gemmtp_models.memory import GIB, MIB, Estimate, Use, Wish
from gemmtp_models.memory_choice import Choice, Step

_ROWS = {
    "weights": "weights",
    "kv": "KV cache",
    "compute": "compute",
    "drafter": "drafter",
    "projector": "projector",
    "runtime": "GPU runtime",
}
_WIDTH = 9


def gib(size: int) -> str:
    """Bytes in GiB with one digit, as in "21.9"."""
    return f"{size / GIB:.1f}"


def table(placed: Estimate) -> list[str]:
    """Lines of the table: a column a device, in GiB, a row for each use."""
    names = [device.name[:_WIDTH] for device in placed.devices]
    lines = [_row("", names)]
    for name, words in _ROWS.items():
        sizes = [getattr(use, name) for use in placed.uses]
        if any(sizes):
            lines.append(_row(words, [_cell(size) for size in sizes]))
    lines.append(_row("total", [_cell(use.total) for use in placed.uses]))
    lines.append(_row("free", [_cell(device.free) for device in placed.devices]))
    spare = [placed.spare(i) for i in range(len(placed.devices))]
    kept = f"  beside {placed.margin // MIB} MiB on each GPU" if len(spare) > 1 else ""
    lines.append(_row("spare", [_cell(size) for size in spare]) + kept)
    return lines


def _row(words: str, cells: list[str]) -> str:
    return f"  {words:12}" + "".join(f"  {cell:>{_WIDTH}}" for cell in cells)


def _cell(size: int) -> str:
    return f"{size / GIB:.2f}" if size else "-"


def step_line(step: Step) -> str:
    """ "projector in RAM: frees 1.25 GiB; an image takes seconds longer to read" """
    return f"{step.what}: frees {step.freed / GIB:.2f} GiB; {step.cost}"


def memory_words(placed: Estimate) -> str:
    """The part of the start line about memory: "GPU 21.9/24.0 GiB", one a device in use."""
    gpus = [
        (device, use)
        for device, use in zip(placed.devices, placed.uses, strict=True)
        if device.gpu and use.total
    ]
    shown = gpus or [(placed.devices[0], placed.uses[0])]
    return " + ".join(
        f"{'GPU' if device.gpu else 'RAM'} {gib(use.total)}/{gib(device.total)} GiB"
        for device, use in shown
    )


def vision_words(placed: Estimate) -> str | None:
    """Where images are read; None for a set without a projector or a run without images."""
    wish = placed.wish
    if placed.models.projector is None or not wish.image_tokens:
        return None
    gpu = len(placed.devices) > 1 and wish.projector_on_gpu
    return f"vision: projector {'on the GPU' if gpu else 'in RAM'}"


def wish_options(wish: Wish, base: Wish) -> str:
    """The options of ours by which ``wish`` differs from ``base``, for "would fit with ..."."""
    words: list[str] = []
    if wish.ctx != base.ctx:
        words.append(f"--ctx {wish.ctx}")
    if wish.kv != base.kv:
        words.append(f"--kv {wish.kv}")
    if wish.slots != base.slots:
        words.append(f"--slots {wish.slots}")
    if wish.gpu_layers != base.gpu_layers:
        words.append(f"--gpu-layers {wish.gpu_layers}")
    if wish.drafting != base.drafting:
        words.append("--no-mtp")
    if wish.projector_on_gpu != base.projector_on_gpu:
        words.append("--no-mmproj-offload")
    if wish.image_tokens != base.image_tokens:
        words.append("without images")
    return " ".join(words)


def server_line(placed: Estimate, files: Mapping[str, str]) -> str:
    """The llama-server command that means the same; ``files`` maps roles to paths or names."""
    wish, target = placed.wish, placed.models.target
    words = ["llama-server", "-m", files.get("target", "TARGET.gguf")]
    if placed.models.drafter is not None and wish.drafting:
        words += ["-md", files.get("drafter", "DRAFTER.gguf"), "--spec-type", "draft-mtp"]
        words += ["--spec-draft-n-max", str(wish.depth)]
    rows = wish.rows(target)
    words += ["-c", str(wish.ctx * wish.slots), "-np", str(wish.slots)]
    words += ["-kvu"] * (wish.slots > 1)
    words += ["-b", str(max(rows, 512)), "-ub", str(rows), "-fa", "on" if wish.flash else "off"]
    words += ["-ctk", wish.kv, "-ctv", wish.kv, "-fit", "off"]
    words += ["-ngl", "999" if wish.gpu_layers < 0 else str(wish.gpu_layers)]
    if wish.host_experts:
        words += ["-ncmoe", str(wish.host_experts)]
    if placed.models.projector is not None and wish.image_tokens:
        words += ["--mmproj", files.get("projector", "MMPROJ.gguf")]
        words += ["--image-max-tokens", str(wish.image_tokens)]
        words += ["--no-mmproj-offload"] * (not wish.projector_on_gpu)
    return shlex.join(words)


def document(choice: Choice) -> dict[str, Any]:
    """The plan for ``--json``; sizes in bytes."""
    placed, wish = choice.estimate, choice.estimate.wish
    return {
        "model": placed.models.name,
        "fits": placed.fits,
        "missing": placed.missing,
        "margin": placed.margin,
        "settings": {f.name: getattr(wish, f.name) for f in fields(Wish)},
        "devices": [
            {
                "name": device.name,
                "gpu": device.gpu,
                "free": device.free,
                "total": device.total,
                "used": use.total,
                "uses": {f.name: getattr(use, f.name) for f in fields(Use)},
            }
            for device, use in zip(placed.devices, placed.uses, strict=True)
        ],
        "given_up": [
            {"setting": s.setting, "what": s.what, "freed": s.freed, "cost": s.cost}
            for s in choice.steps
        ],
        "alternatives": [
            {f.name: getattr(other, f.name) for f in fields(Wish)} for other in choice.alternatives
        ],
    }

"""``gemmtp plan``: what fits where, before anything is fetched or loaded."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gemmtp.errors import DoesNotFitError
    from gemmtp_models.header import Header
    from gemmtp_models.memory import Device, Estimate, ModelSet, Wish
    from gemmtp_models.memory_choice import Choice, Setting

DEFAULT_CTX = 8192
_BY_SIZE = ("gemma4:26b-a4b-mtp", "gemma4:12b-mtp", "gemma4:e4b-mtp", "gemma4:e2b-mtp")
"""What to offer instead, the largest first."""


def plan(
    model: str = typer.Argument(..., metavar="MODEL", help="A set's name or a GGUF file."),
    drafter: Path | None = typer.Option(
        None, "--drafter", metavar="F", help="The drafter's GGUF, for a MODEL that is a file."
    ),
    vram: list[str] = typer.Option(
        [], "--vram", metavar="SIZE", help="Plan for a GPU of this size, as in 24G; repeatable."
    ),
    ram: str | None = typer.Option(None, "--ram", metavar="SIZE", help="Plan for so much RAM."),
    image: bool = typer.Option(False, "--image", help="Plan for images too."),
    image_tokens: int | None = typer.Option(
        None, "--image-tokens", help="Tokens an image may take; the set's own without."
    ),
    ctx: int | None = typer.Option(None, "--ctx", help="Positions of the context, a slot."),
    kv: str | None = typer.Option(None, "--kv", help="KV cache: f16, q8_0 or q4_0."),
    slots: int = typer.Option(1, "--slots", help="Conversations at once."),
    gpu_layers: int | None = typer.Option(None, "--gpu-layers", help="Layers on the GPU."),
    no_mtp: bool = typer.Option(False, "--no-mtp", help="Plan without the drafter."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Say what a set needs, what fits, and what to give up when it does not."""
    from gemmtp.errors import UsageError
    from gemmtp_models.memory import KV_BYTES, Wish
    from gemmtp_models.memory_choice import choose

    if kv is not None and kv not in KV_BYTES:
        raise UsageError(f"{kv!r} is no KV type.", "Use f16, q8_0 or q4_0.")
    _check_size("--ctx", ctx, 1 << 22)
    _check_size("--slots", slots, 64)
    _check_size("--image-tokens", image_tokens, 4096)
    asked = _asked(model, drafter)
    models = asked.models
    if image and models.projector is None:
        raise UsageError(
            f"{models.name} has no projector, so it cannot see images.", "Plan without --image."
        )
    if image_tokens is None:
        image_tokens = models.projector.image_tokens if models.projector else 0
    wish = Wish(
        ctx=ctx or min(DEFAULT_CTX, models.target.context_length),
        kv=kv or "f16",  # type: ignore[arg-type]
        slots=slots,
        depth=asked.depth,
        drafting=not no_mtp and models.drafter is not None,
        gpu_layers=-1 if gpu_layers is None else gpu_layers,
        image_tokens=image_tokens if image else 0,
    )
    given: dict[Setting, bool] = {
        "ctx": ctx is not None,
        "kv": kv is not None,
        "layers": gpu_layers is not None,
    }
    fixed = frozenset(setting for setting, is_given in given.items() if is_given)
    devices = _devices(vram, ram)
    choice = choose(models, wish, devices, fixed)
    headers = asked.headers if not vram and ram is None and choice.estimate.fits else None
    if headers is not None:
        choice = replace(choice, estimate=_confirmed(choice.estimate, headers))
    _say(choice, wish, image_tokens, devices, asked.names, as_json, headers is not None)


def _say(
    choice: Choice,
    wish: Wish,
    image_tokens: int,
    devices: list[Device],
    names: dict[str, str],
    as_json: bool,
    confirmed: bool,
) -> None:
    from gemmtp_models.memory_choice import largest_context
    from gemmtp_models.memory_words import document, server_line, step_line, table, vision_words

    placed = choice.estimate
    models, chosen = placed.models, placed.wish
    most = {"text": largest_context(models, replace(chosen, image_tokens=0), devices)}
    if models.projector is not None:
        tokens = chosen.image_tokens or image_tokens
        with_images = replace(chosen, image_tokens=tokens)
        most["images"] = largest_context(models, with_images, devices)
    line = server_line(placed, names)
    if as_json:
        extra = {"confirmed": confirmed, "largest_context": most, "llama_server": line}
        sys.stdout.write(json.dumps(document(choice) | extra, indent=2) + "\n")
    else:
        settings = [
            f"ctx {chosen.ctx} {chosen.kv}",
            *([f"{chosen.slots} slots"] if chosen.slots > 1 else []),
            f"drafting on, up to {chosen.depth}" if chosen.drafting else "drafting off",
            *([words] if (words := vision_words(placed)) else []),
        ]
        lines = [f"{models.name} · {' · '.join(settings)}", *table(placed), ""]
        if choice.steps:
            lines += ["given up to make it fit", *(f"  {step_line(s)}" for s in choice.steps), ""]
        if confirmed:
            lines.append("confirmed           KV cache and compute are llama.cpp's own numbers")
        lines.append(f"largest context     {_most(most)}")
        lines.append(f"the same elsewhere  {line}")
        sys.stdout.write("\n".join(lines) + "\n")
    if not placed.fits:
        raise does_not_fit(choice, wish)


def does_not_fit(choice: Choice, wish: Wish) -> DoesNotFitError:
    """The error that names how much is missing and up to three things that would fit."""
    from gemmtp.errors import DoesNotFitError
    from gemmtp_models.memory_words import gib, wish_options

    placed = choice.estimate
    others = [f"with {wish_options(other, wish)}" for other in choice.alternatives]
    others += smaller_sets(placed, wish, 3 - len(others))
    return DoesNotFitError(
        f"{placed.models.name} does not fit: {gib(placed.missing)} GiB are missing.",
        f"What would fit: {', or '.join(others)}." if others else "Nothing known would fit.",
    )


def smaller_sets(placed: Estimate, wish: Wish, most: int) -> list[str]:
    """Up to ``most`` sets of the catalogue that fit as wished, the largest first."""
    from gemmtp import settings
    from gemmtp_models.catalogue import find_entry
    from gemmtp_models.memory import estimate
    from gemmtp_models.memory_sets import of_entry

    found: list[str] = []
    for name in _BY_SIZE:
        entry = find_entry(name, settings.config_dir())
        models = of_entry(entry) if entry is not None else None
        if models is None or models.target.nbytes >= placed.models.target.nbytes:
            continue
        if len(found) < most and estimate(models, wish, placed.devices, placed.margin).fits:
            found.append(name)
    return found


def _most(most: dict[str, int]) -> str:
    words = {"text": "for text", "images": "with images"}
    return ", ".join(f"{size:,} {words[kind]}" for kind, size in most.items())


@dataclass(frozen=True, slots=True)
class _Asked:
    """What MODEL stands for; with ``headers`` its files are here and ``names`` are their paths."""

    models: ModelSet
    names: dict[str, str]
    depth: int
    headers: dict[str, Header] | None = None


def _asked(model: str, drafter: Path | None) -> _Asked:
    """Shapes, files and draft depth: from files, or from the catalogue."""
    from gemmtp import settings
    from gemmtp.errors import ModelNotFoundError, UsageError
    from gemmtp_models.catalogue import find_entry
    from gemmtp_models.header import read_header
    from gemmtp_models.memory_sets import of_entry
    from gemmtp_models.names import find

    try:
        files = find(model, settings.data_dir())
    except ModelNotFoundError:
        entry = find_entry(model, settings.config_dir())
        if entry is None:
            raise
        models = of_entry(entry)
        if models is None:
            raise UsageError(
                f"The catalogue does not say enough about {entry.name} to plan for it.",
                f"Fetch it first: gemmtp pull {entry.name}",
            ) from None
        parts = {str(role): file.path.rsplit("/", 1)[-1] for role, file in entry.files.items()}
        return _Asked(models, parts, entry.parameters.draft_depth)
    files = replace(files, drafter=drafter or files.drafter)
    depth = files.parameters.draft_depth if files.parameters else 3
    names = {
        role: str(path)
        for role, path in (
            ("target", files.target),
            ("drafter", files.drafter),
            ("projector", files.projector),
        )
        if path is not None
    }
    headers = {role: read_header(Path(path)) for role, path in names.items()}
    return _Asked(_of_headers(files.name, headers), names, depth, headers)


def _of_headers(name: str, headers: dict[str, Header]) -> ModelSet:
    from gemmtp_models.memory_sets import of_headers
    from gemmtp_models.pairing import check_drafter, check_target

    drafter = headers.get("drafter")
    return of_headers(
        name,
        (headers["target"], check_target(headers["target"])),
        (drafter, check_drafter(drafter)) if drafter else None,
        headers.get("projector"),
    )


def _confirmed(placed: Estimate, headers: dict[str, Header]) -> Estimate:
    """The estimate with llama.cpp's own numbers; raises its errors when it refuses the files."""
    from gemmtp.llama.context import ContextOptions
    from gemmtp.llama.pair import CheckedPair
    from gemmtp.llama.plan import confirm
    from gemmtp_models.geometry import read_geometry

    target, drafter = headers["target"], headers.get("drafter")
    files = CheckedPair(target, read_geometry(target), drafter, None)
    context = ContextOptions(n_slots=placed.wish.slots, max_depth=placed.wish.depth)
    return confirm(placed, files, context)


def _devices(vram: list[str], ram: str | None) -> list[Device]:
    """The machine's devices, or those that the options describe."""
    if not vram and ram is None:
        from gemmtp.llama.plan import machine

        return machine()
    from gemmtp.llama.devices import host_memory
    from gemmtp_models.memory import Device

    free, total = host_memory()
    if ram is not None:
        free = total = size_of(ram)
    sizes = [size_of(text) for text in vram]
    names = ["GPU"] if len(sizes) == 1 else [f"GPU {i}" for i in range(len(sizes))]
    gpus = [Device(name, size, size, True) for name, size in zip(names, sizes, strict=True)]
    return [Device("RAM", free, total, gpu=False), *gpus]


def _check_size(option: str, size: int | None, most: int) -> None:
    from gemmtp.errors import UsageError

    if size is not None and not 1 <= size <= most:
        raise UsageError(f"{option} lies between 1 and {most:,}, not {size}.", "Leave it out.")


def size_of(text: str) -> int:
    """Bytes of "24G", "512M" or "24" (GiB); raises UsageError for anything else."""
    from gemmtp.errors import UsageError

    number, unit = text.strip(), "G"
    if number and number[-1].upper() in "MGT":
        number, unit = number[:-1], number[-1].upper()
    try:
        size = float(number)
    except ValueError:
        size = -1.0
    if not 0 <= size < 1 << 20:
        raise UsageError(f"{text!r} is no memory size.", "Write 24G, or 512M.")
    return int(size * {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[unit])

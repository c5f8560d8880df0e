"""What ``run`` makes of the plan: settings that fit, and one step down when a device refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gemmtp.cli.doctor import missing_backend
from gemmtp.cli.plan import does_not_fit
from gemmtp.engine.depth import DepthChooser
from gemmtp.errors import EngineError
from gemmtp.llama import library
from gemmtp.llama import plan as rehearsal
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import LoadOptions, Progress
from gemmtp.llama.pair import CheckedPair, Pair
from gemmtp_models.memory import GIB, Device, Estimate, KvType, Wish
from gemmtp_models.memory_choice import Choice, Setting, choose
from gemmtp_models.memory_projector import Projector
from gemmtp_models.memory_words import memory_words, step_line, vision_words

NO_ROOM = "it did not fit into memory"
MOST_CHECKPOINT_BYTES = 4 * GIB
"""Five copies of the window of 31B at f16: the last turns can be taken back at once."""

_OUT_OF_MEMORY = ("alloc", "memory")
"""Words by which a backend's complaint is known to be about memory."""

_CLOSE = 0.05
"""llama.cpp is asked as well when less than this share of a device would be left, or 1 GiB."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Settings that fit: what is loaded, how, and where it lies."""

    files: CheckedPair
    context: ContextOptions
    load: LoadOptions
    choice: Choice
    fixed: frozenset[Setting]

    @property
    def placed(self) -> Estimate:
        """Where everything lies."""
        return self.choice.estimate

    @property
    def memory(self) -> str | None:
        """The start line's words about memory: how full the GPUs are; None without one."""
        return memory_words(self.placed) if len(self.placed.devices) > 1 else None

    @property
    def checkpoint_bytes(self) -> int:
        """RAM for copies of the sliding window: half of what the plan leaves there."""
        hosts = [i for i, device in enumerate(self.placed.devices) if not device.gpu]
        spare = max((self.placed.spare(i) for i in hosts), default=0)
        return max(0, min(spare // 2, MOST_CHECKPOINT_BYTES))

    @property
    def projector_on_gpu(self) -> bool:
        """Whether the projector is to be put on a GPU, which has to be there."""
        return self.placed.wish.projector_on_gpu and any(d.gpu for d in self.placed.devices)

    @property
    def vision(self) -> str | None:
        """The start line's words about the projector, None without images."""
        return vision_words(self.placed)


def fitted(
    name: str,
    files: CheckedPair,
    context: ContextOptions,
    load: LoadOptions,
    fixed: frozenset[Setting],
    devices: Sequence[Device] | None = None,
    projector: Projector | None = None,
    image_tokens: int = 0,
    projector_on_gpu: bool = True,
) -> Fitted:
    """The settings, or what comes nearest to them and fits; what was given up is said on stderr.

    ``image_tokens`` is the most that an image may take, 0 for a run without images. With it the
    projector has its place in the plan, loaded or not, and the context's batch holds a whole image:
    a chat of a set with a projector is planned so from its start. ``projector_on_gpu`` false puts
    it into RAM; a wish in ``fixed`` ("projector") is not given up.

    Raises :class:`~gemmtp.errors.DoesNotFitError` with the nearest settings that would fit.
    """
    models = rehearsal.models_of(name, files, projector)
    wish = Wish(
        ctx=context.n_ctx,
        kv=context.kv,
        slots=context.n_slots,
        depth=context.max_depth,
        ubatch=min(context.n_ubatch, context.n_batch),
        flash=context.flash_attention != "off",
        drafting=files.drafter is not None,
        gpu_layers=load.gpu_layers,
        repack=load.repack,
        image_tokens=0 if projector is None else image_tokens,
        projector_on_gpu=projector_on_gpu,
    )
    if devices is None:
        devices = rehearsal.machine()
        advice = missing_backend(["gpu" if device.gpu else "cpu" for device in devices])
        if advice:
            sys.stderr.write(f"note: {advice}\n")
    choice = choose(models, wish, devices, fixed)
    if _is_close(choice.estimate):
        placed = rehearsal.confirm(choice.estimate, files, context)
        if choice.estimate.fits and not placed.fits:
            planned = choice.estimate.uses
            short = [
                replace(device, free=device.free - max(0, real.total - ours.total))
                for device, real, ours in zip(placed.devices, placed.uses, planned, strict=True)
            ]
            choice = choose(models, wish, short, fixed)
        else:
            choice = replace(choice, estimate=placed)
    return _checked(choice, wish, files, context, fixed)


def _checked(
    choice: Choice,
    wish: Wish,
    files: CheckedPair,
    context: ContextOptions,
    fixed: frozenset[Setting],
) -> Fitted:
    placed = choice.estimate
    if not placed.fits:
        raise does_not_fit(choice, wish)
    for step in choice.steps:
        sys.stderr.write(f"note: to make it fit, {step_line(step)}\n")
    chosen = placed.wish
    if files.drafter is not None and not chosen.drafting:
        files = replace(files, drafter=None, off=NO_ROOM)
    context = rehearsal.context_of(chosen, context, placed.models.target)
    return Fitted(files, context, rehearsal.load_of(chosen), choice, fixed)


def _is_close(placed: Estimate) -> bool:
    """Whether an error of the arithmetic could change the answer."""
    return any(
        placed.spare(i) < max(GIB, _CLOSE * device.total) and placed.uses[i].total > _CLOSE * GIB
        for i, device in enumerate(placed.devices)
    )


@contextmanager
def opened(
    plan: Fitted, depth: DepthChooser, progress: Progress, *, lookup: bool = False
) -> Iterator[tuple[Pair, Fitted]]:
    """The loaded pair with the settings it was loaded with.

    When a device refuses, the next step of the order of giving up is taken once and said aloud.
    Raises :class:`~gemmtp.errors.EngineError` when that does not help or nothing is left to give.
    """
    try:
        pair = Pair.open(plan.files, depth, plan.context, plan.load, progress, lookup=lookup)
    except EngineError as error:
        lower = _one_down(plan, error)
        if lower is None:
            raise
        plan = lower
        pair = Pair.open(plan.files, depth, plan.context, plan.load, progress, lookup=lookup)
    with pair:
        yield pair, plan


def _one_down(plan: Fitted, error: EngineError) -> Fitted | None:
    """The next step of the order of giving up; None when the failure is another or none is left."""
    reason = f"{error.message} {library.log.cause() or ''}"
    about_kv = "quantized V cache" in reason
    if not about_kv and not any(word in reason for word in _OUT_OF_MEMORY):
        return None
    placed = plan.placed
    refused: frozenset[KvType] = frozenset({placed.wish.kv}) if about_kv else frozenset()
    wish = replace(placed.wish, kv="f16") if about_kv else placed.wish
    devices = list(placed.devices)
    if not about_kv:
        # One byte too few where it was tightest, so that one step helps.
        at = min(range(len(devices) > 1, len(devices)), key=placed.spare)
        devices[at] = replace(devices[at], free=devices[at].free - placed.spare(at) - 1)
    choice = choose(placed.models, wish, devices, plan.fixed, placed.margin, refused)
    if not choice.estimate.fits or (not choice.steps and not about_kv):
        return None
    sys.stderr.write(f"note: the device refused ({error.message.rstrip('.')}); one step down\n")
    return _checked(choice, wish, plan.files, plan.context, plan.fixed)

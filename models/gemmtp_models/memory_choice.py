"""What to give up, in which order, when a set does not fit; and the most that does.

Each step says what it frees and what it costs. What the user fixed is never touched. When no step
is left, the nearest settings that would fit are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gemmtp_models.memory import DESKTOP, Device, Estimate, KvType, ModelSet, Wish, estimate

Setting = Literal["projector", "kv", "ctx", "layers", "drafting", "image"]
"""What a step may change, and a user may fix."""

FLOOR = 4096
"""The context is not made smaller than this to save memory."""

STEP = 1024
"""Contexts are offered in steps of this."""

_KV_BLOCK = 32
_MOST_CTX = 1 << 20


Place = Callable[[Wish], Estimate]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing given up: bytes it ``freed`` on the GPUs (or the host without one), its cost."""

    setting: Setting
    what: str
    freed: int
    cost: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Where everything goes after ``steps``; ``alternatives`` fit when the estimate does not."""

    estimate: Estimate
    steps: tuple[Step, ...] = ()
    alternatives: tuple[Wish, ...] = ()


def choose(
    models: ModelSet,
    wish: Wish,
    devices: Sequence[Device],
    fixed: frozenset[Setting] = frozenset(),
    margin: int = DESKTOP,
    refused: frozenset[KvType] = frozenset(),
) -> Choice:
    """The wish, or what comes nearest to it in the order of giving up.

    ``refused`` KV types are not tried. The estimate of the result may still not fit; its
    ``alternatives`` are then up to three wishes that would.
    """

    def place(changed: Wish) -> Estimate:
        return estimate(models, changed, devices, margin)

    current = place(wish)
    steps: list[Step] = []
    for setting, candidate, what, cost in _steps(models, wish, devices, refused):
        if current.fits:
            break
        if setting in fixed:
            continue
        after = candidate(current, place)
        if after is None:
            continue
        freed = _held(current) - _held(after)
        if freed <= 0:
            continue
        steps.append(Step(setting, what(after.wish), freed, cost))
        current = after
    if current.fits:
        return Choice(*_regrown(current, steps, wish.ctx, place))
    return Choice(current, tuple(steps), tuple(nearest(models, wish, devices, margin)))


def largest_context(
    models: ModelSet, wish: Wish, devices: Sequence[Device], margin: int = DESKTOP
) -> int:
    """The most positions a slot that fit, in steps of :data:`STEP`; 0 when not even one step does.

    It is bounded by what the model was trained for.
    """
    most = min(models.target.context_length, _MOST_CTX) // STEP

    def fits(steps: int) -> bool:
        return estimate(models, replace(wish, ctx=steps * STEP), devices, margin).fits

    return _most(most, fits) * STEP


def nearest(
    models: ModelSet, wish: Wish, devices: Sequence[Device], margin: int = DESKTOP
) -> Iterator[Wish]:
    """Up to three wishes that fit, those that change the fewest settings first."""
    found = 0
    for changed in _changes(models, wish, any(device.gpu for device in devices)):
        if found < 3 and estimate(models, changed, devices, margin).fits:
            found += 1
            yield changed


def _changes(models: ModelSet, wish: Wish, gpu: bool) -> Iterator[Wish]:
    """Candidates by how much they change: one setting, then two, then all."""
    small = min(wish.ctx, FLOOR)
    quantised = _kv_types(models, wish)
    half = models.target.layers // 2
    ones: list[dict[str, object]] = [{"ctx": small}]
    ones += [{"kv": kv} for kv in quantised]
    if gpu and models.projector is not None and wish.image_tokens and wish.projector_on_gpu:
        ones.insert(0, {"projector_on_gpu": False})
    if models.drafter is not None and wish.drafting:
        ones.append({"drafting": False})
    if wish.image_tokens:
        ones.append({"image_tokens": 0})
    if wish.slots > 1:
        ones.append({"slots": 1})
    if gpu:
        ones += [{"gpu_layers": half}, {"gpu_layers": 0}]
    pairs = [a | b for i, a in enumerate(ones) for b in ones[i + 1 :] if not a.keys() & b.keys()]
    least: dict[str, object] = {"ctx": small, "drafting": False, "image_tokens": 0, "slots": 1}
    if quantised:
        least["kv"] = quantised[-1]
    if gpu:
        least["gpu_layers"] = 0
    seen = {wish}
    for change in (*ones, *pairs, least):
        changed = replace(wish, **change)  # type: ignore[arg-type]
        if changed not in seen:
            seen.add(changed)
            yield changed


def _regrown(
    now: Estimate, steps: list[Step], ctx: int, place: Place
) -> tuple[Estimate, tuple[Step, ...]]:
    """A later step may have freed more than was missing: give the context back what fits."""
    at = next((i for i, step in enumerate(steps) if step.setting == "ctx"), len(steps))
    if at >= len(steps) - 1:
        return now, tuple(steps)
    whole = place(replace(now.wish, ctx=ctx))
    if whole.fits:
        return whole, (*steps[:at], *steps[at + 1 :])
    low, high = now.wish.ctx // STEP, (ctx - 1) // STEP
    more = _most(high - low, lambda n: place(replace(now.wish, ctx=(low + n) * STEP)).fits)
    if more:
        now = place(replace(now.wish, ctx=(low + more) * STEP))
    freed = _held(whole) - _held(now)
    steps[at] = replace(steps[at], what=f"context {now.wish.ctx:,}", freed=freed)
    return now, tuple(steps)


Candidate = Callable[[Estimate, Place], Estimate | None]


def _steps(
    models: ModelSet, wish: Wish, devices: Sequence[Device], refused: frozenset[KvType]
) -> Iterator[tuple[Setting, Candidate, Callable[[Wish], str], str]]:
    """The order of giving up."""
    gpu = any(device.gpu for device in devices)
    if gpu and models.projector is not None and wish.image_tokens and wish.projector_on_gpu:
        yield (
            "projector",
            lambda now, place: place(replace(now.wish, projector_on_gpu=False)),
            lambda _: "projector in RAM",
            "an image takes seconds longer to read",
        )
    if "q8_0" in _kv_types(models, wish) and "q8_0" not in refused:
        yield (
            "kv",
            lambda now, place: place(replace(now.wish, kv="q8_0")),
            lambda _: "KV cache q8_0",
            "hardly any quality, slower on some GPUs",
        )
    if wish.ctx > FLOOR:
        yield "ctx", _smaller_context, lambda w: f"context {w.ctx:,}", "shorter conversations"
    if gpu and models.target.experts:
        yield (
            "layers",
            _experts_to_host,
            lambda w: f"experts of {w.host_experts} layers in RAM",
            "slower, less than whole layers would be",
        )
    if gpu:
        yield (
            "layers",
            _layers_to_host,
            lambda w: f"{w.gpu_layers} of {models.target.layers + 1} layers on the GPU",
            "much slower",
        )
    if models.drafter is not None and wish.drafting:
        yield (
            "drafting",
            lambda now, place: place(replace(now.wish, drafting=False)),
            lambda _: "drafting off",
            "plain speed",
        )


def _kv_types(models: ModelSet, wish: Wish) -> list[KvType]:
    """Smaller KV types than the wish's, as far as the head sizes and the attention allow."""
    heads = models.target.head_size, models.target.head_size_swa
    if not wish.flash or any(head % _KV_BLOCK for head in heads):
        return []
    order: list[KvType] = ["f32", "f16", "q8_0", "q4_0"]
    return [kv for kv in order[order.index(wish.kv) + 1 :] if kv.startswith("q")]


def _smaller_context(now: Estimate, place: Place) -> Estimate | None:
    """The largest context that fits, or the floor."""
    floor = -(-FLOOR // STEP)
    most = (now.wish.ctx - 1) // STEP
    steps = _most(most, lambda n: place(replace(now.wish, ctx=n * STEP)).fits)
    return place(replace(now.wish, ctx=max(steps, floor) * STEP))


def _experts_to_host(now: Estimate, place: Place) -> Estimate | None:
    """As few layers' experts in RAM as it takes, or all."""
    layers = now.models.target.layers
    kept = _most(layers, lambda n: _gpus_fit(place(replace(now.wish, host_experts=layers - n))))
    return place(replace(now.wish, host_experts=layers - kept))


def _layers_to_host(now: Estimate, place: Place) -> Estimate | None:
    """As many layers on the GPU as fit. Experts that are apart already stay where they are."""
    layers = now.models.target.layers
    kept = _most(layers, lambda n: _gpus_fit(place(replace(now.wish, gpu_layers=n))))
    return place(replace(now.wish, gpu_layers=kept))


def _gpus_fit(placed: Estimate) -> bool:
    """Whether the GPUs hold their part; what they give up has to fit into RAM afterwards."""
    return all(placed.spare(i) >= 0 for i in range(1, len(placed.devices)))


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``limit`` that fits, 0 without any."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _held(placed: Estimate) -> int:
    """Bytes where memory is short: on the GPUs, or on the host without one."""
    uses = placed.uses[1:] or placed.uses
    return sum(use.total for use in uses)

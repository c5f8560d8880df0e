"""Where a model's memory goes: weights, KV cache and compute buffers, device by device.

Pure arithmetic over shapes, without llama.cpp: it answers before a file is here. It follows
llama.cpp's placement (``load_tensors`` in ``src/llama-model.cpp``), its cache
(``src/llama-kv-cache-iswa.cpp``) and its graph allocator (:mod:`gemmtp_models.memory_graph`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from typing import Literal

from gemmtp_models.memory_layers import Batch, Placement, drafter_graph, target_graph
from gemmtp_models.memory_projector import Projector
from gemmtp_models.shapes import Shape, Weight

MIB, GIB = 1 << 20, 1 << 30
KvType = Literal["f16", "q8_0", "q4_0", "f32"]
KV_BYTES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
}
"""Elements and bytes of one block of a KV type."""

CELLS = 256
"""llama.cpp rounds contexts and windows up to whole blocks of cells."""

DRAFT_ROWS = 8
"""Rows that a draft context reserves at least (:mod:`gemmtp.llama.drafter`)."""

DESKTOP = 512 * MIB
"""Kept free on every GPU for what draws the screen, and for the unforeseen."""

RUNTIME_BASE, RUNTIME_PER_GIB, RUNTIME_MOST = 30 * MIB, 13 * MIB, 512 * MIB
"""What a GPU runtime takes for its context, kernels and scratch pools.

It grows with the number of multiprocessors, for which the size of the card's memory stands. Fitted
on measured cards and held by leaving each out in turn (docs/memory.md).
"""

_ALIGNMENT_HOST, _ALIGNMENT_GPU = 32, 128
_PIPELINE = 4
"""Batches in flight when several GPUs hold all layers (``GGML_SCHED_MAX_COPIES``)."""

_REPACKED = frozenset(("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "IQ4_NL", "MXFP4"))
"""Types that llama.cpp's CPU backend keeps a second, rearranged copy of."""


@dataclass(frozen=True, slots=True)
class Device:
    """A place for weights and cells, in bytes; the host is the one that is no GPU."""

    name: str
    free: int
    total: int
    gpu: bool


@dataclass(frozen=True, slots=True)
class ModelSet:
    """What is to be loaded together."""

    name: str
    target: Shape
    drafter: Shape | None = None
    projector: Projector | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """How the set is to run.

    ``ctx`` positions a slot; ``depth`` the deepest draft verified; ``gpu_layers`` -1 is all;
    ``host_experts`` how many layers keep their experts in host memory; ``image_tokens`` 0 is a run
    without images; ``repack`` lets the CPU backend rearrange weights in a second copy.
    """

    ctx: int = 8192
    kv: KvType = "f16"
    slots: int = 1
    depth: int = 3
    ubatch: int = 512
    flash: bool = True
    drafting: bool = True
    gpu_layers: int = -1
    host_experts: int = 0
    image_tokens: int = 0
    projector_on_gpu: bool = True
    repack: bool = False

    def rows(self, target: Shape) -> int:
        """The batch that is computed at once: an image is seen whole where all see all."""
        return max(self.ubatch, self.image_tokens if target.images_see_all else 0)


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes on one device by what they are for."""

    weights: int = 0
    kv: int = 0
    compute: int = 0
    drafter: int = 0
    projector: int = 0
    runtime: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.compute + self.drafter + self.projector + self.runtime


@dataclass(frozen=True, slots=True)
class Estimate:
    """A wish placed on devices. ``uses`` stands beside ``devices``."""

    models: ModelSet
    wish: Wish
    devices: tuple[Device, ...]
    uses: tuple[Use, ...]
    margin: int = field(default=DESKTOP)

    def spare(self, device: int) -> int:
        """Bytes left on a device, beside the margin on a GPU; negative when it does not fit."""
        place = self.devices[device]
        return place.free - self.uses[device].total - (self.margin if place.gpu else 0)

    @property
    def fits(self) -> bool:
        """Whether every device holds its part, and GPUs the margin."""
        return all(self.spare(i) >= 0 for i in range(len(self.devices)))

    @property
    def missing(self) -> int:
        """Bytes too many, over all devices."""
        return sum(max(0, -self.spare(i)) for i in range(len(self.devices)))


def estimate(
    models: ModelSet, wish: Wish, devices: Sequence[Device], margin: int = DESKTOP
) -> Estimate:
    """Where everything would lie; ``devices`` hold one host and any number of GPUs."""
    gpus = [device for device in devices if device.gpu]
    host = next(device for device in devices if not device.gpu)
    free = tuple(device.free for device in gpus)
    placed = place(models.target, wish, free)
    parts = [_target_part(models.target, wish, placed, len(gpus))]
    if models.drafter is not None and wish.drafting:
        parts.append(_drafter_part(models.target, models.drafter, wish, free))
    if models.projector is not None and wish.image_tokens:
        parts.append(_projector_part(models.projector, wish, len(gpus)))
    uses = [_sum(part[i] for part in parts) for i in range(len(gpus) + 1)]
    for i, device in enumerate(gpus, 1):
        uses[i] = replace(uses[i], runtime=runtime_bytes(device.total) if uses[i].total else 0)
    return Estimate(models, wish, (host, *gpus), tuple(uses), margin)


def runtime_bytes(total: int) -> int:
    """What the runtime of a GPU with ``total`` bytes keeps for itself."""
    return min(RUNTIME_MOST, RUNTIME_BASE + RUNTIME_PER_GIB * total // GIB)


def place(shape: Shape, wish: Wish, free: Sequence[int]) -> Placement:
    """Which device holds which layer, split by free memory as llama.cpp splits them.

    Raises nothing: without GPUs everything lies on the host.
    """
    layers = shape.layers
    wanted = layers + 1 if wish.gpu_layers < 0 else min(wish.gpu_layers, layers + 1)
    offloaded = wanted if free else 0
    start = layers + 1 - offloaded
    ends, total = [], 0
    for size in free:
        total += size
        ends.append(total)

    def device(layer: int) -> int:
        if layer < start:
            return 0
        share = (layer - start) / offloaded * total
        return min(bisect_right(ends, share), len(free) - 1) + 1

    held = tuple(device(layer) for layer in range(layers))
    experts = tuple(0 if layer < wish.host_experts else at for layer, at in enumerate(held))
    return Placement(held, device(layers), experts)


def padded(cells: int) -> int:
    """Rounded up to whole blocks of cells."""
    return -(-cells // CELLS) * CELLS


def cells(shape: Shape, wish: Wish) -> tuple[int, int]:
    """KV cells of a full and of a sliding layer, all slots together.

    Slots share one pool (``kv_unified``). Sliding layers hold a window a slot and one batch.
    """
    everything = padded(wish.ctx) * wish.slots
    window = shape.window * wish.slots + wish.rows(shape)
    return everything, padded(min(everything, window))


def kv_bytes(shape: Shape, wish: Wish, layer: int) -> int:
    """Keys and values of one layer; 0 for a layer that reads another's.

    Without flash attention values are stored transposed and padded to the widest layer's.
    """
    if layer >= shape.own_kv:
        return 0
    block, size = KV_BYTES[wish.kv]
    full, sliding = cells(shape, wish)
    keys = values = shape.head(layer) * shape.kv_heads[layer]
    if not wish.flash:
        values = max(shape.head(i) * shape.kv_heads[i] for i in range(shape.layers))
    return (sliding if shape.sliding[layer] else full) * (keys + values) // block * size


@lru_cache(maxsize=256)
def weight_places(shape: Shape, placement: Placement) -> dict[int, int]:
    """Bytes of weights by device.

    The token table lies on the host for lookups and again beside the last layer, as it is the
    output matrix too; the per-layer tables of E2B and E4B lie on the host alone.
    """
    places = dict.fromkeys((0, *placement.layers, placement.output), 0)
    for weight in shape.weights:
        for device in _homes(weight, placement):
            places[device] += weight.nbytes
    return places


def _homes(weight: Weight, placement: Placement) -> set[int]:
    name = weight.name
    if name == "token_embd.weight":
        return {0, placement.output}
    if name == "per_layer_token_embd.weight":
        return {0}
    if name.startswith("output"):
        return {placement.output}
    if not name.startswith("blk."):
        return {placement.layers[0]}
    layer = int(name.split(".")[1])
    return {(placement.experts if "_exps." in name else placement.layers)[layer]}


def batch(shape: Shape, wish: Wish, target: Shape) -> Batch:
    """What is reserved for a target, or for the drafter of ``target``."""
    full, sliding = cells(target, wish)
    if shape.is_drafter:
        rows, outputs = max(DRAFT_ROWS, wish.slots), wish.slots
    else:
        outputs = wish.slots * (wish.depth + 1)
        rows = min(full, wish.rows(shape))
    # A reservation has as many rows in each slot.
    whole = -(-rows // wish.slots) * wish.slots
    quantised = KV_BYTES[wish.kv][0] > 1
    return Batch(whole, min(rows, outputs), full, sliding, wish.flash, quantised)


@lru_cache(maxsize=4096)
def compute(shape: Shape, reserved: Batch, placement: Placement, gpus: int) -> tuple[int, ...]:
    """Bytes of the compute buffers, the host's first."""
    graph = (drafter_graph if shape.is_drafter else target_graph)(shape, reserved, placement, gpus)
    everywhere = 0 not in placement.layers and placement.output
    whole = placement.experts == placement.layers
    pipeline = _PIPELINE if gpus > 1 and everywhere and whole else 1
    return tuple(graph.reserve([_ALIGNMENT_HOST] + [_ALIGNMENT_GPU] * gpus, pipeline))


def output_bytes(shape: Shape, wish: Wish) -> int:
    """Logits and hidden rows that are handed out, in host memory, once a draft was verified."""
    rows = wish.slots if shape.is_drafter else wish.slots * (wish.depth + 1)
    return rows * (shape.vocabulary + shape.backbone) * 4


def _target_part(shape: Shape, wish: Wish, placement: Placement, gpus: int) -> list[Use]:
    weights = weight_places(shape, placement)
    if wish.repack:
        weights[0] += sum(
            weight.nbytes
            for weight in shape.weights
            if weight.type.name in _REPACKED
            and weight.name != "per_layer_token_embd.weight"
            and _homes(weight, placement) == {0}
        )
    kv = [0] * (gpus + 1)
    for layer in range(shape.layers):
        kv[placement.layers[layer]] += kv_bytes(shape, wish, layer)
    buffers = list(compute(shape, batch(shape, wish, shape), placement, gpus))
    buffers[0] += output_bytes(shape, wish)
    return [Use(weights.get(i, 0), kv[i], buffers[i]) for i in range(gpus + 1)]


def _drafter_part(target: Shape, shape: Shape, wish: Wish, free: Sequence[int]) -> list[Use]:
    placement = place(shape, replace(wish, host_experts=0), free)
    weights = weight_places(shape, placement)
    buffers = list(compute(shape, batch(shape, wish, target), placement, len(free)))
    buffers[0] += output_bytes(shape, wish)
    return [Use(drafter=weights.get(i, 0) + buffers[i]) for i in range(len(free) + 1)]


def drafter_weights(placed: Estimate, device: int) -> int:
    """Bytes of the drafter's weights on one device of an estimate."""
    shape = placed.models.drafter
    if shape is None or not placed.wish.drafting:
        return 0
    free = [other.free for other in placed.devices if other.gpu]
    placement = place(shape, replace(placed.wish, host_experts=0), free)
    return weight_places(shape, placement).get(device, 0)


def _projector_part(projector: Projector, wish: Wish, gpus: int) -> list[Use]:
    """mtmd puts the whole projector on the first GPU or on the host."""
    uses = [Use()] * (gpus + 1)
    at = 1 if gpus and wish.projector_on_gpu else 0
    uses[at] = Use(projector=projector.nbytes + projector.compute(wish.image_tokens))
    return uses


def _sum(parts: Iterable[Use]) -> Use:
    columns = zip(*map(astuple, parts), strict=True)
    return Use(*map(sum, columns))

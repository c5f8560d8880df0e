"""What llama.cpp itself says it would need: a load that allocates nothing.

``no_alloc`` reads the header, places the tensors and reserves the graphs without memory for any of
it: 0.6 s for 31B, 10 ms for each further context. llama.cpp gives the sizes only in its log: the KV
cache as "size =" lines (its buffers have 0 bytes), the compute buffers as they would be. The
contexts are made by the very classes that make the real ones. A draft context logs the target's KV
cache once more, which is not added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Self

from gemmtp.llama import devices
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.drafter import DraftContext
from gemmtp.llama.library import log
from gemmtp.llama.model import LoadOptions, Model
from gemmtp.llama.pair import CheckedPair
from gemmtp.llama.target import TargetContext
from gemmtp_models import memory
from gemmtp_models.geometry import read_geometry
from gemmtp_models.memory_projector import Projector
from gemmtp_models.shapes import Shape, shape_of

MIB = 1 << 20
_KV = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB")
_COMPUTE = re.compile(r"sched_reserve: +(\S+) compute buffer size = +([\d.]+) MiB")
_OUTPUT = re.compile(r"llama_context: +(\S+) +output buffer size = +([\d.]+) MiB")


@dataclass(frozen=True, slots=True)
class Buffers:
    """What one context would allocate, in bytes (llama.cpp rounds to a hundredth of a MiB).

    ``kv`` counts global and sliding cells; ``compute`` and ``output`` map llama.cpp's buffer types
    to bytes.
    """

    kv: int
    compute: dict[str, int] = field(default_factory=dict)
    output: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """A pair as llama.cpp would place it: weights of the files and the buffers of both contexts."""

    target_weights: int
    drafter_weights: int
    target: Buffers
    drafter: Buffers | None

    @property
    def total(self) -> int:
        """Everything, wherever it lies, in bytes."""
        contexts = [context for context in (self.target, self.drafter) if context is not None]
        return (
            self.target_weights
            + self.drafter_weights
            + self.target.kv
            + sum(sum(c.compute.values()) + sum(c.output.values()) for c in contexts)
        )


class Rehearsal:
    """A pair loaded without its weights, in which contexts can be measured one after another."""

    def __init__(self, model: Model, drafter: Model | None, resources: ExitStack) -> None:
        self.model, self.drafter = model, drafter
        self._resources = resources

    @classmethod
    def open(cls, files: CheckedPair, load: LoadOptions | None = None) -> Self:
        """Place the tensors of both files.

        Raises :class:`~gemmtp.errors.EngineError` when llama.cpp refuses a file.
        """
        load = replace(load or LoadOptions(), no_alloc=True)
        with ExitStack() as stack:
            model = Model.open(files.target.path, load, header=files.target)
            stack.callback(model.close)
            drafter = None
            if files.drafter is not None:
                drafter = Model.open(files.drafter.path, load, header=files.drafter)
                stack.callback(drafter.close)
            return cls(model, drafter, stack.pop_all())

    def measure(self, options: ContextOptions) -> Measured:
        """What the contexts of ``options`` would need.

        Raises :class:`~gemmtp.errors.EngineError` when llama.cpp refuses them.
        """
        drafter = None
        with TargetContext(self.model, options) as target:
            buffers = read_buffers(log.lines)
            if self.drafter is not None:
                with DraftContext(self.drafter, target):
                    drafter = replace(read_buffers(log.lines), kv=0)
        drafter_weights = 0 if self.drafter is None else self.drafter.n_bytes
        return Measured(self.model.n_bytes, drafter_weights, buffers, drafter)

    def close(self) -> None:
        """Forget the pair; safe to call twice."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_buffers(lines: Iterable[str]) -> Buffers:
    """The sizes in the log of one context's creation."""
    kv, compute, output = 0.0, dict[str, float](), dict[str, float]()
    for line in lines:
        if match := _KV.search(line):
            kv += float(match[1])
        elif match := _COMPUTE.search(line):
            compute[match[1]] = compute.get(match[1], 0.0) + float(match[2])
        elif match := _OUTPUT.search(line):
            output[match[1]] = output.get(match[1], 0.0) + float(match[2])
    return Buffers(round(kv * MIB), _bytes(compute), _bytes(output))


def _bytes(sizes: dict[str, float]) -> dict[str, int]:
    return {name: round(size * MIB) for name, size in sizes.items()}


def machine() -> list[memory.Device]:
    """The host and the GPUs of this build of llama.cpp, as the arithmetic takes them.

    As in llama.cpp, a GPU that shares the host's memory counts only where there is no other.
    """
    free, total = devices.host_memory()
    found = devices.devices()
    kind = "gpu" if any(device.kind == "gpu" for device in found) else "igpu"
    gpus = [
        memory.Device(device.name, device.free, device.total, gpu=True)
        for device in found
        if device.kind == kind
    ]
    return [memory.Device("RAM", free, total, gpu=False), *gpus]


def models_of(name: str, files: CheckedPair, projector: Projector | None = None) -> memory.ModelSet:
    """The shapes of a checked pair, with the projector beside it if there is one."""
    drafter = files.drafter
    return memory.ModelSet(
        name,
        shape_of(files.target, files.geometry),
        None if drafter is None else shape_of(drafter, read_geometry(drafter)),
        projector,
    )


def context_of(wish: memory.Wish, base: ContextOptions, target: Shape) -> ContextOptions:
    """``base`` with the sizes of ``wish``."""
    rows = wish.rows(target)
    return replace(
        base,
        n_ctx=wish.ctx,
        kv=wish.kv,
        n_ubatch=rows,
        n_batch=max(base.n_batch, rows),
    )


def load_of(wish: memory.Wish) -> LoadOptions:
    """The placement of ``wish``."""
    return LoadOptions(wish.gpu_layers, wish.host_experts, wish.repack)


def confirm(
    placed: memory.Estimate, files: CheckedPair, context: ContextOptions
) -> memory.Estimate:
    """The estimate with llama.cpp's own numbers in place of its compute buffers and KV cache.

    Raises :class:`~gemmtp.errors.EngineError` when llama.cpp refuses the pair or the context.
    """
    if not placed.wish.drafting:
        files = replace(files, drafter=None)
    with Rehearsal.open(files, load_of(placed.wish)) as rehearsal:
        measured = rehearsal.measure(context_of(placed.wish, context, placed.models.target))
    uses = []
    expected_kv = sum(use.kv for use in placed.uses)
    for i, (device, use) in enumerate(zip(placed.devices, placed.uses, strict=True)):
        compute = _on(measured.target.compute, device, placed.devices)
        draft = 0
        if measured.drafter is not None:
            draft = memory.drafter_weights(placed, i) + _on(
                measured.drafter.compute, device, placed.devices
            )
        if i == 0:
            compute += memory.output_bytes(placed.models.target, placed.wish)
            if measured.drafter is not None and placed.models.drafter is not None:
                draft += memory.output_bytes(placed.models.drafter, placed.wish)
        kv = use.kv * measured.target.kv // expected_kv if expected_kv else 0
        uses.append(replace(use, kv=kv, compute=compute, drafter=draft))
    return replace(placed, uses=tuple(uses))


def _on(buffers: Mapping[str, int], device: memory.Device, devices: Sequence[memory.Device]) -> int:
    """Bytes of llama.cpp's buffers on a device; what is no GPU's lies in host memory."""
    if device.gpu:
        return buffers.get(device.name, 0)
    gpus = {other.name for other in devices if other.gpu}
    return sum(size for name, size in buffers.items() if name not in gpus)

"""Memory that others measured on real cards, with the settings as far as they are known.

Every row comes from one public report; docs/memory.md names them. The plan is made with llama.cpp's
settings of that report: one slot, a ubatch of 512, as many outputs as its build reserved.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmtp_models.memory import GIB, MIB, Device, KvType, ModelSet, Wish, estimate
from gemmtp_models.memory_projector import projector_of
from gemmtp_models.memory_sets import closest_target
from gemmtp_models.shapes import RECIPES, drafter_shape, target_shape

HOST = Device("RAM", 1 << 50, 1 << 50, gpu=False)
ALL_OUTPUTS = 511
"""As a draft depth: 512 output rows, which builds without ``n_outputs_max`` reserve."""


@dataclass(frozen=True)
class Card:
    """One measurement, sizes in bytes; ``vram`` 0 has no GPU runtime in it.

    ``bound`` rows must be met; ``fitted`` ones are what the runtime's share is fitted on.
    ``file`` is the bytes of the target's file, where it is of no recipe in the table.
    """

    row: str
    what: str
    size: str
    ctx: int
    measured: int
    vram: int
    bound: bool = False
    fitted: bool = False
    recipe: str = "google-q4_0"
    file: int = 0
    kv: KvType = "f16"
    slots: int = 1
    ubatch: int = 512
    depth: int = 0
    drafter: bool = False
    image: int = 0
    gpus: int = 1
    host: bool = False

    def plan(self) -> int:
        """What the plan says without the runtime's share."""
        target = target_shape(self.size, RECIPES[self.recipe])
        if self.file:
            target = closest_target(self.size, self.file)
        models = ModelSet(
            self.what,
            target,
            drafter_shape(self.size) if self.drafter else None,
            projector_of(self.size) if self.image else None,
        )
        wish = Wish(
            ctx=self.ctx,
            kv=self.kv,
            slots=self.slots,
            depth=self.depth,
            ubatch=self.ubatch,
            image_tokens=self.image,
            drafting=self.drafter,
        )
        if self.host:
            use = estimate(models, wish, [HOST]).uses[0]
            outputs = self.slots * (self.depth + 1) * (target.vocabulary + target.width) * 4
            return use.kv + use.compute - outputs
        share = self.vram // self.gpus
        gpus = [Device(f"GPU {i}", share, share, gpu=True) for i in range(self.gpus)]
        uses = estimate(models, wish, [HOST, *gpus]).uses[1:]
        return sum(use.total - use.runtime for use in uses)


def _card(row: str, what: str, size: str, ctx: int, mib: float, gib: float, **more: object) -> Card:
    return Card(row, what, size, ctx, round(mib * MIB), round(gib * GIB), **more)  # type: ignore[arg-type]


CARDS = (
    _card("2", "E2B Q4_0 repack, 16k", "e2b", 16384, 1541, 4, recipe="ud-q4_k_xl"),
    _card("4", "E2B Q4_0 repack, 64k", "e2b", 65536, 1877, 4, recipe="ud-q4_k_xl"),
    _card("5", "E2B Google, 32k", "e2b", 32768, 1771, 4, bound=True, fitted=True),
    _card("6", "E4B Q4_0 repack, 8k", "e4b", 8192, 2853, 4, recipe="ud-q4_k_xl"),
    _card("8", "E4B Q4_0 repack, 32k", "e4b", 32768, 3261, 4, recipe="ud-q4_k_xl"),
    _card("9", "12B Google, 4k", "12b", 4096, 7524, 16, bound=True, fitted=True),
    _card(
        "10", "12B Google, 4k, drafter", "12b", 4096, 7824, 16,
        bound=True, fitted=True, drafter=True,
    ),
    _card("11", "26B Google, llama-bench", "26b", 640, 14652, 16, bound=True, depth=ALL_OUTPUTS),
    _card("12", "31B Google, 8k", "31b", 8192, 19128, 23.89, bound=True, fitted=True),
    _card("13", "31B Google, 16k", "31b", 16384, 19786, 23.89, bound=True, fitted=True),
    _card("14", "26B Google, 8k", "26b", 8192, 14607, 23.89, bound=True, fitted=True),
    _card(
        "15", "12B Google, 16k, images of 1024", "12b", 16384, 8486, 23.89,
        bound=True, fitted=True, image=1024, ubatch=1024,
    ),
    _card(
        "17", "31B Google, 8k, images", "31b", 8192, 20580, 24, bound=True, fitted=True, image=280
    ),
    # llama-server's four slots share the context that is asked for.
    _card(
        "18", "31B UD, 20k f16, images, drafter", "31b", 5000, 23.93e9 / MIB, 24,
        recipe="ud-q4_k_xl", slots=4, depth=4, drafter=True, image=280,
    ),
    _card(
        "19", "31B UD, 58k q8_0, images, drafter", "31b", 14500, 23.96e9 / MIB, 24, kv="q8_0",
        recipe="ud-q4_k_xl", slots=4, depth=4, drafter=True, image=280,
    ),
    _card(
        "20", "31B UD, 110k q4_0, images, drafter", "31b", 27500, 23.97e9 / MIB, 24, kv="q4_0",
        recipe="ud-q4_k_xl", slots=4, depth=4, drafter=True, image=280,
    ),
    _card(
        "22", "26B UD, 250k, ubatch 2048", "26b", 250000, 21.5e9 / MIB, 24,
        recipe="ud-q4_k_xl", ubatch=2048,
    ),
    _card("24", "26B UD, 128k, two cards", "26b", 131072, 17560, 32, recipe="ud-q4_k_xl", gpus=2),
    _card(
        "25", "12B UD-Q8_K_XL, 256k q8_0", "12b", 262144, 16384, 24, file=13_600_000_000, kv="q8_0"
    ),
    _card(
        "31", "26B Q4_K_M, 4k, projected", "26b", 4096, 16915, 0,
        bound=True, file=16_796_015_136, depth=ALL_OUTPUTS,
    ),
    _card(
        "35", "26B, 256k, ubatch 2048, on the CPU", "26b", 262144, 5720 + 2130, 0,
        bound=True, recipe="ud-q4_k_xl", ubatch=2048, depth=2047, host=True,
    ),
)  # fmt: skip

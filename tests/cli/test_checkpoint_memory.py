"""How much memory a chat gives to copies of the sliding window."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmtp.cli.fitting import MOST_CHECKPOINT_BYTES, fitted
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import LoadOptions
from gemmtp.llama.pair import check_files
from gemmtp_models.memory import GIB, Device


@pytest.mark.parametrize("ram", [1, 3, 6, 64])
def test_half_of_the_ram_that_is_left_up_to_a_bound(tiny: tuple[Path, Path], ram: int) -> None:
    devices = [Device("RAM", ram * GIB, ram * GIB, gpu=False)]
    context = ContextOptions(n_ctx=256, threads=1)
    plan = fitted("tiny", check_files(*tiny), context, LoadOptions(), frozenset(), devices)
    used = plan.placed.uses[0].total
    assert plan.checkpoint_bytes == min((ram * GIB - used) // 2, MOST_CHECKPOINT_BYTES)


def test_a_gpu_takes_nothing_from_it(tiny: tuple[Path, Path]) -> None:
    devices = [
        Device("RAM", 2 * GIB, 2 * GIB, gpu=False),
        Device("G0", 24 * GIB, 24 * GIB, gpu=True),
    ]
    context = ContextOptions(n_ctx=256, threads=1)
    plan = fitted("tiny", check_files(*tiny), context, LoadOptions(), frozenset(), devices)
    assert 0 < plan.checkpoint_bytes <= GIB

"""The KV cache of a slot, saved and loaded by llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Finished, Request, Token
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import EngineError
from gemmtp.llama.context import ContextOptions, KvType
from gemmtp.llama.pair import Pair, check_files
from gemmtp_models.names import demo

GREEDY = SamplingParameters(temperature=0.0)


def open_demo(n_ctx: int = 512, kv: KvType = "f16") -> Pair:
    files = demo()
    options = ContextOptions(n_ctx=n_ctx, n_batch=64, n_ubatch=64, kv=kv, threads=1)
    return Pair.open(check_files(files.target, files.drafter), FixedDepth(3), options)


def answer(pair: Pair, prompt: list[int], n: int) -> tuple[list[int], Finished]:
    events = list(pair.engine.generate(Request(prompt, GREEDY, max_tokens=n)))
    assert isinstance(events[-1], Finished)
    return [event.token for event in events if isinstance(event, Token)], events[-1]


@pytest.mark.parametrize(("kv", "n_ctx"), [("f16", 512), ("q8_0", 1024)])
def test_a_restored_cache_goes_on_as_the_old_one(kv: KvType, n_ctx: int) -> None:
    with open_demo(kv=kv) as pair:
        prompt = pair.model.tokenize("What is 3 + 4? " * 10, bos=True)
        said, _ = answer(pair, prompt, 90)
        resting = pair.engine.rest(0)
        assert resting is not None
        following = [*prompt, *said, *pair.model.tokenize("And 5 + 5?")]
        expected, there = answer(pair, following, 50)
    with open_demo(n_ctx, kv) as pair:
        pair.engine.adopt(0, resting)
        got, here = answer(pair, following, 50)
    assert got == expected
    assert here.statistics.cached == there.statistics.cached == len(prompt + said) - 1
    assert here.statistics.drafted_at == there.statistics.drafted_at
    assert here.statistics.accepted_at == there.statistics.accepted_at


def test_cells_that_cannot_be_are_refused_and_the_slot_stays_usable(
    tiny: tuple[Path, Path],
) -> None:
    options = ContextOptions(n_ctx=256, n_batch=64, n_ubatch=32, threads=1)
    with Pair.open(check_files(*tiny), FixedDepth(3), options) as other:
        answer(other, [5, 6, 7], 20)
        foreign = other.engine.rest(0)
    with open_demo() as pair:
        prompt = pair.model.tokenize("What is 3 + 4?", bos=True)
        expected, _ = answer(pair, prompt, 30)
        target = pair.engine.target
        whole = target.save(0)
        assert foreign is not None
        for bad in (foreign.cells, whole[:-9], whole[:5], np.zeros(64, np.uint8)):
            target.remove(0, 0)
            with pytest.raises(EngineError, match="could not restore"):
                target.load(0, bad)
            assert not target.held(0)
        with pytest.raises(EngineError):
            pair.engine.adopt(0, foreign)
        assert answer(pair, prompt, 30)[0] == expected

"""A cost-shaped pair says what the pair says that it was made of."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.perf.cost_shaped import PADDING_LOGIT, build, opposite_row, verify
from tests.support.tiny_pair import write_drafter, write_target


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return (
        write_target(folder / "target.gguf", seed=1),
        write_drafter(folder / "drafter.gguf", seed=2),
    )


def test_blocks_in_front_change_the_cost_and_not_the_answer(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    shaped = build(*pair, tmp_path, blocks=7, ffn=256, vocabulary=None, type="F32")
    verdict = verify(pair, shaped, tokens=24)
    assert verdict.same == verdict.same_acceptance == verdict.prompts
    reader = gguf.GGUFReader(shaped[0])
    before = gguf.GGUFReader(pair[0]).fields["gemma4.block_count"].contents()
    assert reader.fields["gemma4.block_count"].contents() == before + 7
    assert reader.fields["gemma4.feed_forward_length"].contents()[:7] == [256] * 7
    pattern = reader.fields["gemma4.attention.sliding_window_pattern"].contents()
    assert pattern[:7] == [True] * 5 + [False, True]


def test_a_target_that_shares_kv_among_layers_is_refused(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    shared = write_target(
        tmp_path / "shared.gguf", seed=1, metadata={"{arch}.attention.shared_kv_layers": 1}
    )
    with pytest.raises(ValueError, match="share their KV"):
        build(shared, pair[1], tmp_path / "out", vocabulary=None)


def test_the_padding_row_is_far_below_on_every_state() -> None:
    draws = np.random.default_rng(0)
    states = (draws.normal(size=(500, 32)) + 1.0).astype(np.float32)
    products = states @ opposite_row(states)
    assert products.max() == pytest.approx(PADDING_LOGIT, rel=1e-3)


def test_states_around_the_origin_have_no_padding_row() -> None:
    states = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    with pytest.raises(ValueError, match="no direction"):
        opposite_row(states)

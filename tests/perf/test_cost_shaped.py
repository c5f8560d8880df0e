"""A cost-shaped pair says what the pair says that it was made of."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from gemmtp_models.names import demo
from tests.perf.cost_shaped import build, verify
from tests.perf.demo_set import prompts
from tests.perf.runner import open_pair
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


def test_padding_tokens_are_drafted_by_nobody(tmp_path: Path) -> None:
    files = demo()
    assert files.drafter is not None
    shaped = build(files.target, files.drafter, tmp_path, blocks=1, ffn=256, vocabulary=8192)
    said = []
    for pair in ((files.target, files.drafter), shaped):
        with open_pair(*pair, threads=1) as runner:
            asked = prompts(runner, 1, ("counting", "json", "stories"))
            runs = [runner.run(prompt, 3, 40) for (prompt,) in asked.values()]
            said.append([(run.tokens, run.accepted_at) for run in runs])
    assert said[0] == said[1]

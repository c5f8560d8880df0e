"""What adaptive drafting learned outlives the process, and never gets in its way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmtp.cli.learned import KEPT_FILES, learned, path_of
from gemmtp.engine.adaptive import AdaptiveDepth
from gemmtp.engine.depth import FixedDepth, Round
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import LoadOptions
from gemmtp.llama.pair import CheckedPair, check_files
from gemmtp_models.names import demo

CONTEXT, LOAD = ContextOptions(threads=1), LoadOptions(gpu_layers=0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTP_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def files() -> CheckedPair:
    return check_files(demo().target, demo().drafter)


def use(depth: AdaptiveDepth, files: CheckedPair) -> None:
    with learned(depth, files, CONTEXT, LOAD):
        depth.join(0, "compare")
        for _ in range(20):
            (most,) = depth.plan([0], 10)
            margins: list[float] = []
            while len(margins) < most and (not margins or depth.goes_on(0, margins)):
                margins.append(5.0)
            k = len(margins)
            depth.learn(0, k, k, margins)
            depth.observe(Round(1, k + 1, k, k * 0.001, 0.01, 10))


def test_the_second_run_begins_where_the_first_ended(files: CheckedPair) -> None:
    first, second = AdaptiveDepth(3, 8), AdaptiveDepth(3, 8)
    use(first, files)
    with learned(second, files, CONTEXT, LOAD):
        second.join(0, "compare")
        # The first depth and none are looked at once more, since the machine may be busier now.
        assert [second.plan([0], 10) for _ in range(3)] == [[3], [0], [8]]
        assert second.explain() != "still measuring"


def test_other_settings_are_other_costs(files: CheckedPair) -> None:
    path = path_of(files, CONTEXT, LOAD)
    assert path != path_of(files, ContextOptions(threads=2), LOAD)
    assert path != path_of(files, ContextOptions(threads=1, kv="q8_0"), LOAD)
    assert path != path_of(files, CONTEXT, LoadOptions(gpu_layers=4))
    assert path == path_of(files, ContextOptions(threads=1, n_ctx=99), LOAD)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"costs": 3, "kept": {}}', "\udcff"])
def test_a_damaged_file_is_begun_anew(files: CheckedPair, text: str) -> None:
    path = path_of(files, CONTEXT, LOAD)
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
    use(AdaptiveDepth(3, 8), files)
    assert json.loads(path.read_text())["costs"]["0"]["verify"]


def test_a_folder_that_cannot_be_made_does_not_matter(files: CheckedPair, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    use(AdaptiveDepth(3, 8), files)


def test_a_fixed_depth_leaves_nothing_behind(files: CheckedPair, tmp_path: Path) -> None:
    with learned(FixedDepth(3), files, CONTEXT, LOAD):
        pass
    assert not list(tmp_path.iterdir())


def test_only_so_many_are_kept(files: CheckedPair) -> None:
    path = path_of(files, CONTEXT, LOAD)
    path.parent.mkdir(parents=True)
    for i in range(KEPT_FILES + 3):
        (path.parent / f"{i}.json").write_text("{}")
    use(AdaptiveDepth(3, 8), files)
    assert path.exists()
    assert len(list(path.parent.iterdir())) == KEPT_FILES

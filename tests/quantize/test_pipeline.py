"""A set is there whole or not at all: existing output, full disks, kills at any moment."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gemmtp.errors import EngineError, GemmtpError, UsageError
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import Model
from gemmtp.llama.quantize import quantize_file
from gemmtp.llama.target import TargetContext
from gemmtp_models.manifest import read_manifest
from gemmtp_models.store import Store, sha256_of
from gemmtp_quantize.pipeline import build_folder, build_set
from gemmtp_quantize.plan import SetPlan, plan_set
from gemmtp_quantize.recipe import load_recipe

KILLS = 20
NAMES = {"target.gguf", "drafter.gguf", "manifest.json"}


@pytest.fixture
def plan(pair: tuple[Path, Path]) -> SetPlan:
    return plan_set(*pair, load_recipe("q8_0"))


def test_a_folder_holds_both_files_and_their_manifest(tmp_path: Path, plan: SetPlan) -> None:
    steps: dict[str, tuple[int, int]] = {}
    finished = build_folder(
        plan, tmp_path / "out", force=False, threads=2,
        progress=lambda step, done, total: steps.update({step: (done, total)}),
    )  # fmt: skip
    assert {path.name for path in (tmp_path / "out").iterdir()} == NAMES
    manifest = read_manifest(tmp_path / "out" / "manifest.json")
    assert manifest == finished.manifest
    assert manifest.layers["target"].sha256 == sha256_of(finished.files["target"])
    assert manifest.pairing is not None
    assert manifest.pairing["fingerprint"] == plan.fingerprint
    assert manifest.chat_template == plan.chat_template
    assert set(steps) == {
        "Converting the target", "Quantising the target",
        "Converting the drafter", "Quantising the drafter",
    }  # fmt: skip
    assert all(done == total for done, total in steps.values())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_llama_cpp_loads_what_comes_out(tmp_path: Path, plan: SetPlan) -> None:
    files = build_folder(plan, tmp_path / "out", force=False, threads=2).files
    with (
        Model.open(files["target"]) as model,
        TargetContext(model, ContextOptions(n_ctx=64)) as target,
    ):
        assert target.n_embd == 64
        assert model.header.chat_template == plan.chat_template


def test_the_quantiser_passes_llama_cpp_s_reason_on(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(EngineError, match=r"could not quantise broken\.gguf: "):
        quantize_file(
            tmp_path / "broken.gguf", tmp_path / "out.gguf",
            file_type=7, default_type=8, types={}, threads=1,
        )  # fmt: skip


def test_a_set_is_registered_and_found_again(tmp_path: Path, plan: SetPlan) -> None:
    store = Store(tmp_path / "store")
    finished = build_set(plan, store, "tiny:q8_0", force=False, threads=2)
    assert store.names() == ["tiny:q8_0"]
    assert store.resolve("tiny:q8_0").files == finished.files
    assert finished.files["target"].parent == tmp_path / "store" / "blobs"


def test_what_is_there_is_kept_without_force(tmp_path: Path, plan: SetPlan) -> None:
    store = Store(tmp_path / "store")
    build_set(plan, store, "tiny:x", force=False, threads=2)
    build_folder(plan, tmp_path / "out", force=False, threads=2)
    builds: tuple[Callable[[], object], ...] = (
        lambda: build_set(plan, store, "tiny:x", force=False, threads=2),
        lambda: build_folder(plan, tmp_path / "out", force=False, threads=2),
    )
    for build in builds:
        with pytest.raises(UsageError) as caught:
            build()
        assert "--force" in str(caught.value.hint)


def test_force_replaces_a_set_and_nothing_else(
    tmp_path: Path, pair: tuple[Path, Path], plan: SetPlan
) -> None:
    out = tmp_path / "out"
    build_folder(plan, out, force=False, threads=2)
    smaller = plan_set(*pair, load_recipe("q4_0"))
    before = (out / "target.gguf").stat().st_size
    build_folder(smaller, out, force=True, threads=2)
    assert (out / "target.gguf").stat().st_size < before
    (out / "diary.txt").write_text("mine")
    with pytest.raises(UsageError, match="other files"):
        build_folder(smaller, out, force=True, threads=2)
    assert (out / "diary.txt").read_text() == "mine"


def test_a_file_is_no_folder(tmp_path: Path, plan: SetPlan) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        build_folder(plan, tmp_path / "out", force=True, threads=2)


@pytest.mark.parametrize("kilobytes", [1, 40, 120, 200])
def test_a_full_disk_leaves_nothing(tmp_path: Path, plan: SetPlan, kilobytes: int) -> None:
    """A limit on file sizes stands for the full disk: in the header, the weights, the quantiser."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, before[1]))
    try:
        with pytest.raises(GemmtpError, match="full") as caught:
            build_folder(plan, tmp_path / "out", force=False, threads=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.exit_code == 1
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints"}


def test_ctrl_c_is_heard_while_llama_cpp_works(
    tmp_path: Path, plan: SetPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = threading.Event()
    monkeypatch.setattr(
        "gemmtp.llama.quantize.quantize_file", lambda *paths, **options: finish.wait(60)
    )

    def interrupt(step: str, done: int, total: int) -> None:
        if step.startswith("Quantising"):
            raise KeyboardInterrupt

    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        build_folder(plan, tmp_path / "out", force=False, threads=1, progress=interrupt)
    finish.set()
    assert time.perf_counter() - start < 30
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints"}


def test_too_little_free_space_is_said_before_anything_is_written(
    tmp_path: Path, plan: SetPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(GemmtpError, match="are needed on the disk"):
        build_folder(plan, tmp_path / "out", force=False, threads=2)
    assert not (tmp_path / "out").exists()


def test_a_run_killed_while_it_replaced_a_folder_gives_the_old_set_back(
    tmp_path: Path, plan: SetPlan
) -> None:
    build_folder(plan, tmp_path / "out", force=False, threads=2)
    os.rename(tmp_path / "out", tmp_path / ".out.old")
    with pytest.raises(UsageError, match="exists already"):
        build_folder(plan, tmp_path / "out", force=False, threads=2)
    assert {path.name for path in (tmp_path / "out").iterdir()} == NAMES


KILLED = """
import sys
from pathlib import Path
from gemmtp_models.store import Store
from gemmtp_quantize.pipeline import build_folder, build_set
from gemmtp_quantize.plan import plan_set
from gemmtp_quantize.recipe import load_recipe
root = Path(sys.argv[1])
plan = plan_set(root / "tiny", root / "tiny-assistant", load_recipe("q4_k_m"))
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "store":
    build_set(plan, Store(Path(sys.argv[3])), "tiny:killed", force=True, threads=1)
else:
    build_folder(plan, Path(sys.argv[3]) / "out", force=True, threads=1)
print("done", flush=True)
"""


def _run(root: Path, kind: str, output: Path, kill_after: float | None) -> float:
    """Build in a process of its own; seconds it took until the end or the kill."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root), kind, str(output)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        start = time.perf_counter()
        process.stdin.write("\n")
        process.stdin.flush()
        if kill_after is None:
            assert process.stdout.readline() == "done\n"
        else:
            time.sleep(kill_after)
            process.send_signal(signal.SIGKILL)
        took = time.perf_counter() - start
        process.communicate()
    return took


@pytest.mark.slow
def test_kill_9_at_20_random_points_leaves_nothing_half_done(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    root = pair[0].parent
    took = {
        kind: _run(root, kind, tmp_path / f"timed-{kind}", None) for kind in ("store", "folder")
    }
    source = random.Random(11)
    unfinished = 0
    for i in range(KILLS):
        kind = ("store", "folder")[i % 2]
        output = tmp_path / f"{kind}-{i}"
        output.mkdir()
        _run(root, kind, output, source.uniform(0, 1.1) * took[kind])
        unfinished += _is_absent(kind, output)
        _run(root, kind, output, None)
        assert not _is_absent(kind, output)
        _check_no_leftovers(kind, output)
    assert unfinished >= KILLS // 4


def _is_absent(kind: str, output: Path) -> bool:
    """Whether there is no set; one that is there must be whole."""
    if kind == "store":
        store = Store(output)
        if store.names() == []:
            return True
        assert set(store.resolve("tiny:killed").files) == {"target", "drafter"}
        return False
    if not (output / "out").exists():
        return True
    assert {path.name for path in (output / "out").iterdir()} == NAMES
    return False


def _check_no_leftovers(kind: str, output: Path) -> None:
    if kind == "folder":
        assert [path.name for path in output.iterdir()] == ["out"]
        return
    assert len(list((output / "blobs").iterdir())) == 2
    assert list((output / "partial").iterdir()) == []

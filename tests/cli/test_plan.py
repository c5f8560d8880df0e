"""``gemmtp plan`` without files, and ``gemmtp run`` on machines that are too small."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemmtp.cli import doctor, fitting
from gemmtp.cli.plan import size_of
from gemmtp.errors import EngineError, UsageError
from gemmtp.llama import devices
from gemmtp.llama import plan as rehearsal
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.model import LoadOptions
from gemmtp.llama.pair import Pair, check_files
from gemmtp_models.memory import DESKTOP, GIB, MIB, Device, Estimate, Wish, estimate
from tests.cli.conftest import Cli
from tests.support.tiny_pair import write_drafter, write_target

RUN = ("--threads", 1, "--max-tokens", 4, "--temperature", 0, "Hello")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give ``run`` another machine: bytes of RAM and of GPUs."""

    def set_machine(ram: int, *gpus: int) -> None:
        devices = [Device("RAM", ram, ram, gpu=False)]
        devices += [Device(f"G{i}", size, size, gpu=True) for i, size in enumerate(gpus)]
        monkeypatch.setattr(rehearsal, "machine", lambda: devices)

    return set_machine


def test_a_plan_needs_no_file(cli: Cli) -> None:
    result = cli("plan", "gemma4:31b-mtp", "--vram", "24G", "--ram", "32G", "--image")
    assert result.code == 0
    first, *table = result.out.splitlines()
    assert first == (
        "gemma4:31b-mtp · ctx 8192 f16 · drafting on, up to 4 · vision: projector on the GPU"
    )
    assert table[0].split() == ["RAM", "GPU"]
    assert table[1].split() == ["weights", "0.74", "16.09"]
    assert table[2].split() == ["KV", "cache", "-", "1.80"]
    assert "largest context     69,632 for text, 53,248 with images" in result.out
    assert "-md mtp-gemma-4-31B-it.gguf --spec-type draft-mtp" in result.out


def test_a_plan_as_json(cli: Cli) -> None:
    words = ("--vram", "16G", "--ram", "32G", "--image", "--ctx", "32768", "--json")
    plan = json.loads(cli("plan", "gemma4:31b-mtp", *words).out)
    assert plan["fits"]
    assert [step["setting"] for step in plan["given_up"]] == ["projector", "kv", "layers"]
    assert plan["settings"]["ctx"] == 32768
    ram, gpu = plan["devices"]
    assert gpu["used"] == sum(gpu["uses"].values()) <= 16 * GIB - plan["margin"]
    assert ram["uses"]["projector"] > 1_200_726_496
    assert set(plan["largest_context"]) == {"text", "images"}


def test_what_does_not_fit_ends_with_4_and_names_what_would(cli: Cli) -> None:
    words = ("--vram", "12G", "--ram", "8G", "--kv", "f16", "--gpu-layers", "61")
    result = cli("plan", "gemma4:31b-mtp", *words)
    assert result.code == 4
    assert "gemma4:31b-mtp does not fit: " in result.err
    assert "hint: What would fit: gemma4:12b-mtp, or gemma4:e4b-mtp, or gemma4:e2b-mtp." in (
        result.err
    )
    least = cli("plan", "gemma4:31b-mtp", "--ram", "18G", "--ctx", "65536", "--no-mtp")
    assert least.code == 4
    assert "with --ctx 4096" in least.err


def test_a_plan_of_files(cli: Cli, tiny: tuple[Path, Path]) -> None:
    target, drafter = tiny
    result = cli("plan", target, "--drafter", drafter, "--ram", "4G", "--ctx", 256)
    assert result.code == 0
    assert result.out.startswith("target.gguf · ctx 256 f16 · drafting on, up to 3\n")
    assert f"llama-server -m {target} -md {drafter}" in result.out


def test_a_plan_for_this_machine_is_confirmed_by_llama_cpp(
    cli: Cli, tiny: tuple[Path, Path], machine: Callable[..., None]
) -> None:
    target, drafter = tiny
    words = ("plan", target, "--drafter", drafter, "--ctx", 256, "--json")
    machine(4 * GIB)
    confirmed = json.loads(cli(*words).out)
    planned = json.loads(cli(*words, "--ram", "4G").out)
    assert confirmed["confirmed"]
    assert not planned["confirmed"]
    real, ours = (plan["devices"][0]["used"] for plan in (confirmed, planned))
    assert real == pytest.approx(ours, abs=0.05 * MIB)
    assert "confirmed           KV cache" in cli(*words[:-1]).out


@pytest.mark.parametrize("words", [("--kv", "q5_0"), ("--slots", 0), ("--vram", "lots")])
def test_senseless_options_are_refused(cli: Cli, words: tuple[object, ...]) -> None:
    assert cli("plan", "gemma4:31b-mtp", "--ram", "8G", *words).code == 2


def test_memory_sizes() -> None:
    assert size_of("24G") == size_of("24") == 24 * GIB
    assert size_of("1.5g") == 3 * GIB // 2
    assert size_of("512M") == GIB // 2
    with pytest.raises(UsageError, match="is no memory size"):
        size_of("-1G")


def test_run_says_how_full_the_gpu_is(
    cli: Cli, tiny: tuple[Path, Path], machine: Callable[..., None]
) -> None:
    target, drafter = tiny
    machine(4 * GIB, 2 * GIB)
    result = cli("run", target, "--drafter", drafter, "--ctx", 256, *RUN)
    assert result.code == 0
    assert result.err.startswith("target.gguf · GPU 0.1/2.0 GiB · ctx 256 f16 · drafting on, ")


def test_run_gives_up_in_order_and_says_so(
    cli: Cli, tmp_path: Path, machine: Callable[..., None]
) -> None:
    heads = {"head_size": 128, "head_size_swa": 64}
    target = write_target(tmp_path / "t.gguf", context_length=16384, **heads)
    drafter = write_drafter(tmp_path / "d.gguf", **heads)
    models = rehearsal.models_of("t.gguf", check_files(target, drafter))
    wish, ram = Wish(ctx=8192, depth=8), Device("RAM", 4 * GIB, 4 * GIB, gpu=False)
    sizes = range(DESKTOP, 2 * DESKTOP, MIB)
    enough = next(
        size
        for size in sizes
        if estimate(models, wish, [ram, Device("G0", size, size, gpu=True)]).fits
    )
    machine(4 * GIB, enough)
    assert "to make it fit" not in cli("run", target, "--drafter", drafter, *RUN).err
    machine(4 * GIB, enough - 2 * MIB)
    result = cli("run", target, "--drafter", drafter, *RUN)
    assert result.code == 0
    assert "note: to make it fit, context 7,168: frees " in result.err
    assert " · ctx 7168 f16 · " in result.err
    fixed = cli("run", target, "--drafter", drafter, "--ctx", 8192, *RUN)
    assert "of 5 layers on the GPU: frees " in fixed.err
    assert " · ctx 8192 f16 · " in fixed.err


def test_run_believes_llama_cpp_when_it_needs_more_than_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write_target(tmp_path / "t.gguf", context_length=16384)
    files = check_files(target, None)
    context = ContextOptions(n_ctx=8192, threads=1)
    devices = [Device("RAM", 400 * MIB, 4 * GIB, gpu=False)]
    asked: list[Estimate] = []

    def larger(placed: Estimate, *rest: object) -> Estimate:
        asked.append(placed)
        compute = placed.uses[0].compute + placed.spare(0) + MIB
        return replace(placed, uses=(replace(placed.uses[0], compute=compute),))

    monkeypatch.setattr(fitting, "_is_close", lambda placed: True)
    monkeypatch.setattr(rehearsal, "confirm", larger)
    plan = fitting.fitted("t", files, context, LoadOptions(), frozenset(), devices)
    assert asked[0].wish.ctx == 8192
    assert plan.context.n_ctx < 8192
    assert "note: to make it fit, context " in capsys.readouterr().err


def test_run_asks_llama_cpp_when_it_is_close(
    tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = check_files(*tiny)
    context = ContextOptions(n_ctx=8192, threads=1)
    close = [Device("RAM", GIB, GIB, gpu=False)]
    ours = fitting.fitted("t", files, context, LoadOptions(), frozenset(), close).placed
    assert not fitting._is_close(ours)
    monkeypatch.setattr(fitting, "_is_close", lambda placed: True)
    confirmed = fitting.fitted("t", files, context, LoadOptions(), frozenset(), close).placed
    assert confirmed.uses != ours.uses
    assert confirmed.uses[0].total == pytest.approx(ours.uses[0].total, abs=0.05 * MIB)
    large = replace(ours, uses=(replace(ours.uses[0], kv=GIB // 2),))
    monkeypatch.undo()
    assert fitting._is_close(large)


def test_run_ends_with_4_when_nothing_helps(
    cli: Cli, tiny: tuple[Path, Path], machine: Callable[..., None]
) -> None:
    target, drafter = tiny
    machine(1000)
    result = cli("run", target, "--drafter", drafter, "--ctx", 256, *RUN)
    assert result.code == 4
    assert "target.gguf does not fit" in result.err
    assert not result.out


def test_run_steps_down_once_when_the_device_refuses(
    cli: Cli,
    tiny: tuple[Path, Path],
    machine: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, drafter = tiny
    machine(4 * GIB, 2 * GIB)
    tried: list[int] = []
    real = Pair.open

    def refuse_once(
        files: object, depth: object, context: object, load: object, *rest: object, **named: object
    ):  # type: ignore[no-untyped-def]
        tried.append(load.gpu_layers)  # type: ignore[attr-defined]
        if len(tried) == 1:
            raise EngineError("cudaMalloc failed: out of memory")
        return real(files, depth, context, load, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Pair, "open", refuse_once)
    result = cli("run", target, "--drafter", drafter, "--ctx", 256, *RUN)
    assert result.code == 0
    assert len(tried) == 2
    assert tried[0] == -1
    assert tried[1] >= 0
    assert (
        "note: the device refused (cudaMalloc failed: out of memory); one step down" in result.err
    )


def test_another_failure_is_not_taken_for_a_lack_of_memory(
    cli: Cli,
    tiny: tuple[Path, Path],
    machine: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(4 * GIB, 2 * GIB)

    def refuse(*args: object, **named: object) -> None:
        raise EngineError("the file has an unknown architecture")

    monkeypatch.setattr(Pair, "open", refuse)
    result = cli("run", tiny[0], "--ctx", 256, *RUN)
    assert result.code == 1
    assert "one step down" not in result.err


def test_a_shared_gpu_counts_only_without_another(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = devices.Device("iGPU", "", "igpu", GIB, GIB)
    own = devices.Device("CUDA0", "", "gpu", 8 * GIB, 8 * GIB)
    host = devices.Device("CPU", "", "cpu", 0, 0)
    monkeypatch.setattr(devices, "host_memory", lambda: (3 * GIB, 4 * GIB))
    monkeypatch.setattr(devices, "devices", lambda: [own, shared, host])
    ram = Device("RAM", 3 * GIB, 4 * GIB, gpu=False)
    assert rehearsal.machine() == [ram, Device("CUDA0", 8 * GIB, 8 * GIB, gpu=True)]
    monkeypatch.setattr(devices, "devices", lambda: [shared, host])
    assert rehearsal.machine() == [ram, Device("iGPU", GIB, GIB, gpu=True)]


def test_run_and_doctor_say_how_to_build_for_a_gpu_that_is_not_used(
    cli: Cli,
    tiny: tuple[Path, Path],
    machine: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(4 * GIB)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    words = 'CMAKE_ARGS="-DGGML_METAL=on" pip install --force-reinstall'
    assert words in (doctor.missing_backend(["cpu"]) or "")
    assert doctor.missing_backend(["gpu", "cpu"]) is None
    assert words in cli("run", tiny[0], "--ctx", 256, *RUN).err
    monkeypatch.setattr(shutil, "which", lambda name: name == "rocminfo")
    assert "-DGGML_HIP=on" in (doctor.missing_backend(["cpu"]) or "")

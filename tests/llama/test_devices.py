"""Threads and memory as the operating system and the cgroup say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmtp.cli import doctor
from gemmtp.llama import devices


def machine(root: Path, siblings: list[str], meminfo: str = "", **cgroup: str) -> Path:
    for cpu, names in enumerate(siblings):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(names)
    (root / "proc").mkdir(parents=True, exist_ok=True)
    (root / "proc/meminfo").write_text(meminfo)
    for name, value in cgroup.items():
        path = root / "sys/fs/cgroup" / name.replace("__", ".").replace("--", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    return root


def test_hyper_threads_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"])
    monkeypatch.setattr(devices, "_allowed_cpus", lambda: list(range(8)))
    assert devices.threads(root) == 4
    monkeypatch.setattr(devices, "_allowed_cpus", lambda: [0, 4, 1])
    assert devices.threads(root) == 2


def test_the_cgroups_quota_bounds_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_allowed_cpus", lambda: list(range(8)))
    siblings = [str(i) for i in range(8)]
    assert devices.threads(machine(tmp_path / "a", siblings, cpu__max="250000 100000")) == 2
    assert devices.threads(machine(tmp_path / "b", siblings, cpu__max="max 100000")) == 8
    assert devices.threads(machine(tmp_path / "c", siblings, cpu__max="50000 100000")) == 1
    v1 = {"cpu--cpu__cfs_quota_us": "300000", "cpu--cpu__cfs_period_us": "100000"}
    assert devices.threads(machine(tmp_path / "d", siblings, **v1)) == 3


def test_the_cgroups_limit_bounds_the_memory(tmp_path: Path) -> None:
    meminfo = "MemTotal: 8000 kB\nMemAvailable: 6000 kB\n"
    assert devices.host_memory(machine(tmp_path / "a", [], meminfo)) == (6_144_000, 8_192_000)
    limited = machine(tmp_path / "b", [], meminfo, memory__max="4096000", memory__current="1024000")
    assert devices.host_memory(limited) == (3_072_000, 4_096_000)
    unlimited = machine(tmp_path / "c", [], meminfo, memory__max="max")
    assert devices.host_memory(unlimited) == (6_144_000, 8_192_000)


def test_the_cpu_device_has_this_machines_memory() -> None:
    found = [device for device in devices.devices() if device.kind == "cpu"]
    assert len(found) == 1
    assert 0 < found[0].free < found[0].total


def test_a_gpu_without_a_backend_gets_its_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name == "nvidia-smi" or None)
    advice = doctor.missing_backend(["cpu"])
    assert advice is not None
    assert 'CMAKE_ARGS="-DGGML_CUDA=on" pip install' in advice
    assert doctor.missing_backend(["gpu", "cpu"]) is None

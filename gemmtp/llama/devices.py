"""ggml's devices and their memory, and how many threads to use.

llama_cpp does not bind ggml's device functions; libggml and libggml-base export them. ggml's CPU
device reports free = total, so memory is asked of the operating system and the cgroup instead.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmtp.llama.library import api

DeviceKind = Literal["cpu", "gpu", "igpu", "accelerator"]
_HOST_TYPE = 0
"""``GGML_BACKEND_DEVICE_TYPE_CPU``."""

_KINDS: dict[int, DeviceKind] = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}


@dataclass(frozen=True, slots=True)
class Device:
    """A place for weights and KV cells; memory in bytes."""

    name: str
    description: str
    kind: DeviceKind
    free: int
    total: int


def devices() -> list[Device]:
    """Every device of this build of llama.cpp, GPUs first."""
    api()
    from llama_cpp import _ggml

    folder = Path(_ggml.libggml_base_path)
    base = ctypes.CDLL(str(next(folder.glob("libggml-base.*"))))
    registry = _ggml.libggml
    registry.ggml_backend_dev_count.restype = ctypes.c_size_t
    registry.ggml_backend_dev_get.restype = ctypes.c_void_p
    registry.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    for name, result in (("name", ctypes.c_char_p), ("description", ctypes.c_char_p)):
        function = getattr(base, f"ggml_backend_dev_{name}")
        function.restype, function.argtypes = result, [ctypes.c_void_p]
    base.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_memory.restype = None
    base.ggml_backend_dev_memory.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_size_t),
    ]
    found = []
    for i in range(registry.ggml_backend_dev_count()):
        handle = registry.ggml_backend_dev_get(i)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        base.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        kind = _KINDS.get(base.ggml_backend_dev_type(handle), "accelerator")
        memory = (free.value, total.value) if kind != "cpu" else host_memory()
        found.append(
            Device(
                base.ggml_backend_dev_name(handle).decode("utf-8", "replace"),
                base.ggml_backend_dev_description(handle).decode("utf-8", "replace").strip(),
                kind,
                *memory,
            )
        )
    return sorted(found, key=lambda device: device.kind == "cpu")


def host_buffer_type() -> int:
    """The handle of ggml's plain host memory, for weights that are to stay there."""
    api()
    from llama_cpp import _ggml

    base = ctypes.CDLL(str(next(Path(_ggml.libggml_base_path).glob("libggml-base.*"))))
    by_type, buffer_type = _ggml.libggml.ggml_backend_dev_by_type, base.ggml_backend_dev_buffer_type
    by_type.restype = buffer_type.restype = ctypes.c_void_p
    buffer_type.argtypes = [ctypes.c_void_p]
    handle: int = buffer_type(by_type(_HOST_TYPE))
    return handle


def host_memory(root: Path = Path("/")) -> tuple[int, int]:
    """(free, total) bytes of RAM this process may use: MemAvailable, bounded by the cgroup."""
    info = _meminfo(root / "proc/meminfo")
    total, free = info.get("MemTotal", 0), info.get("MemAvailable", 0)
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit = _number(root / "sys/fs/cgroup" / limit_file)
        if limit is not None and 0 < limit < total:
            used = _number(root / "sys/fs/cgroup" / used_file) or 0
            total, free = limit, min(free, max(0, limit - used))
    return free, total


def threads(root: Path = Path("/")) -> int:
    """Physical cores this process may run on, bounded by the cgroup's CPU quota; at least 1.

    Two hyper-threads of one core share the units that matrix products need, so the second one
    only adds waiting.
    """
    allowed = _allowed_cpus()
    cores = {_core(root, cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota(root)))


def _allowed_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _core(root: Path, cpu: int) -> str:
    """A name that all hyper-threads of one core share."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    try:
        return (topology / "thread_siblings_list").read_text().strip()
    except OSError:
        return f"cpu{cpu}"


def _quota(root: Path) -> int:
    """Whole CPUs of the cgroup's quota (v2 ``cpu.max``, v1 ``cpu.cfs_quota_us``), at least 1."""
    cgroup = root / "sys/fs/cgroup"
    unlimited = 1 << 16
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return unlimited if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        pass
    v1_quota = _number(cgroup / "cpu/cpu.cfs_quota_us")
    v1_period = _number(cgroup / "cpu/cpu.cfs_period_us")
    if v1_quota is None or not v1_period or v1_quota < 0:
        return unlimited
    return max(1, v1_quota // v1_period)


def _meminfo(path: Path) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {f[0].rstrip(":"): int(f[1]) * 1024 for f in fields if len(f) >= 2 and f[1].isdigit()}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None

"""``gemmtp doctor``: what is installed, what the machine offers, what is missing."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

import typer

_GPU_SIGNS = (
    ("NVIDIA", ("nvidia-smi",), ("/dev/nvidia0",), "-DGGML_CUDA=on"),
    ("AMD", ("rocminfo", "rocm-smi"), ("/dev/kfd",), "-DGGML_HIP=on"),
    ("Apple", (), (), "-DGGML_METAL=on"),
)
"""A maker, programs and device files that betray its driver, and llama.cpp's build option."""


def doctor(
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Check the installation and the machine."""
    from gemmtp import __version__, settings
    from gemmtp.llama import devices, library

    library.nextn()
    no_images = _no_images()
    found = devices.devices()
    advice = missing_backend([device.kind for device in found])
    if as_json:
        import json
        from dataclasses import asdict

        document = {
            "version": __version__,
            "llama_cpp_python": library.VERSION,
            "drafting": True,
            "images": no_images is None,
            "threads": devices.threads(),
            "devices": [asdict(device) for device in found],
            "data": str(settings.data_dir()),
            "advice": advice,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    lines = [
        f"gemmtp            {__version__}",
        f"llama-cpp-python  {library.VERSION}",
        "drafting          the multi-token-prediction calls are there",
        f"images            {no_images or 'the encoder of images is there'}",
        f"threads           {devices.threads()}",
        f"data              {settings.data_dir()}",
    ]
    lines += [
        f"{device.kind:17} {device.description or device.name}: "
        f"{device.free / 2**30:.1f} of {device.total / 2**30:.1f} GiB free"
        for device in found
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    if advice:
        sys.stdout.write(f"\n{advice}\n")


def _no_images() -> str | None:
    """Why this build of llama.cpp reads no images; None when it does."""
    from gemmtp.errors import EngineError
    from gemmtp.llama import library

    try:
        library.mtmd()
    except EngineError as error:
        return error.message
    return None


def missing_backend(kinds: list[str]) -> str | None:
    """What to do about a GPU that this build of llama.cpp does not use; None when all is well."""
    if any(kind in ("gpu", "igpu") for kind in kinds):
        return None
    for maker, programs, files, option in _GPU_SIGNS:
        if (
            any(shutil.which(program) for program in programs)
            or any(Path(file).exists() for file in files)
            or (maker == "Apple" and _is_apple_silicon())
        ):
            from gemmtp.llama.library import VERSION

            return (
                f"There is an {maker} GPU, and llama.cpp was built without support for it. "
                f'Build it with:\n  CMAKE_ARGS="{option}" pip install --force-reinstall '
                f"--no-cache-dir --no-binary llama-cpp-python llama-cpp-python=={VERSION}"
            )
    return None


def _is_apple_silicon() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"

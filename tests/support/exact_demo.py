"""The demo set with float32 weights, in which batches of all sizes compute alike.

Over quantised weights llama.cpp multiplies large batches in another way than small ones (a logit
may move by .2), so a prompt that is read in other pieces may be answered with other words. Where a
test compares texts across such pieces, it takes these files.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from gemmtp.errors import EngineError
from gemmtp.llama.library import api
from gemmtp.llama.pair import CheckedPair, check_files
from gemmtp_models.names import demo


def exact_demo(folder: Path) -> CheckedPair:
    """Target and drafter of the demo set, written to ``folder``: 30 megabytes."""
    files = demo()
    if files.drafter is None:
        raise EngineError("The demo set has no drafter.")
    target, drafter = (
        _as_floats(path, folder / path.name) for path in (files.target, files.drafter)
    )
    return check_files(target, drafter)


def _as_floats(source: Path, target: Path) -> Path:
    c = api()
    parameters = c.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread = c.LLAMA_FTYPE_ALL_F32, 1
    parameters.pure = parameters.allow_requantize = True
    names = str(source).encode(), str(target).encode()
    if c.llama_model_quantize(*names, ctypes.byref(parameters)) != 0:
        raise EngineError(f"llama.cpp could not convert {source.name}.")
    return target

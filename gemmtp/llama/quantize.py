"""llama.cpp's quantiser: one GGUF in, one out, with the type of every tensor decided before."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path

from gemmtp.errors import EngineError, GemmtpError
from gemmtp.llama.library import api, log

# llama.cpp's own bound is 8 GiB; rows beyond this many bytes are quantised in several parts.
MAX_BUFFER_BYTES = 1 << 30
# What a C++ stream says when a write fails: no space left, or a limit on the size of a file.
_WRITE_FAILED = "iostream"


def quantize_file(
    source: Path,
    target: Path,
    *,
    file_type: int,
    default_type: int,
    types: Mapping[str, int],
    threads: int,
) -> None:
    """Write ``source`` to ``target`` with the ggml type of each tensor as ``types`` says.

    ``file_type`` is the ``llama_ftype`` for the metadata and stands for ``default_type``, which
    every weight gets that ``types`` does not name; norms and vectors stay as they are. Releases the
    GIL for the whole run. Raises GemmtpError when the disk is full and EngineError with llama.cpp's
    reason for everything else.
    """
    c = api()
    parameters = c.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread = file_type, threads
    parameters.pure = True
    parameters.max_buf_size = MAX_BUFFER_BYTES
    # These two go before the patterns, and a tied embedding counts as both.
    parameters.token_embedding_type = types.get("token_embd.weight", default_type)
    parameters.output_tensor_type = types.get("output.weight", default_type)
    overrides = _overrides(types, default_type)
    parameters.tt_overrides = ctypes.cast(overrides, ctypes.POINTER(c.llama_model_tensor_override))
    log.mark()
    result = c.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(parameters)
    )
    if result == 0:
        return
    cause = log.cause() or "it gave no reason"
    if _WRITE_FAILED in cause:
        raise GemmtpError(f"{target} cannot be written: the disk or the allowed size is full.")
    raise EngineError(f"llama.cpp could not quantise {source.name}: {cause}")


def _overrides(types: Mapping[str, int], default_type: int) -> ctypes.Array[ctypes.Structure]:
    """Anchored patterns for the tensors that differ from the default, NULL at the end."""
    override = api().llama_model_tensor_override
    named = [(name, kind) for name, kind in types.items() if kind != default_type]
    array: ctypes.Array[ctypes.Structure] = (override * (len(named) + 1))()
    for i, (name, kind) in enumerate(named):
        array[i] = override(f"^{re.escape(name)}$".encode(), kind)
    return array

"""Whether llama.cpp survives a pair of files: each is opened in a process of its own.

    printf 'target.gguf\tdrafter.gguf\n' | python -m tests.support.llama_probe

A line in names a target and, after a tab, perhaps a drafter; a line out says ``ran`` (loaded,
a prompt decoded, one step drafted), ``refused`` (llama.cpp gave an error) or
``killed by signal N``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp_ext

RAN, REFUSED = "ran", "refused"
_PROMPT = b"the end\n\xf0\x9f\x98\x80"
_SECONDS = 20


def probe(pairs: Sequence[tuple[Path, Path | None]]) -> list[str]:
    """One answer for each ``(target, drafter)``, from a fresh Python."""
    lines = "".join(f"{target}\t{drafter or ''}\n" for target, drafter in pairs)
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.llama_probe"],
        input=lines,
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    return done.stdout.splitlines()


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(_level: int, _text: bytes, _data: object) -> None:
    """llama.cpp's log goes nowhere."""


def _context(model: Any, other: Any) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = 256
    params.n_batch = params.n_ubatch = 64
    params.n_threads = params.n_threads_batch = 1
    params.swa_full = False
    if other is not None:
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
        params.ctx_other = other
    context = llama_cpp.llama_init_from_model(model, params)
    if context:
        llama_cpp_ext.llama_set_embeddings_nextn(context, True, True)
    return context


def _load(path: str) -> Any:
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    return llama_cpp.llama_model_load_from_file(path.encode(), params)


def _run(target_path: str, drafter_path: str) -> bool:
    """Load, decode a prompt, draft one step; False when llama.cpp gives an error."""
    llama_cpp.llama_log_set(_quiet, None)
    model = _load(target_path)
    drafter = _load(drafter_path) if drafter_path else None
    if not model or (drafter_path and not drafter):
        return False
    context = _context(model, None)
    draft = _context(drafter, context) if context and drafter else None
    if not context or (drafter and not draft):
        return False
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    ids = (llama_cpp.llama_token * 64)()
    count = llama_cpp.llama_tokenize(vocabulary, _PROMPT, len(_PROMPT), ids, 64, True, True)
    if count < 1 or llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, count)):
        return False
    piece = ctypes.create_string_buffer(256)
    for token in ids[:count]:
        llama_cpp.llama_token_to_piece(vocabulary, token, piece, 256, 0, True)
    return draft is None or _draft(context, draft, llama_cpp.llama_model_n_embd(model), count)


def _draft(context: Any, draft: Any, width: int, position: int) -> bool:
    hidden = llama_cpp_ext.llama_get_embeddings_nextn_ith(context, -1)
    token = (llama_cpp.llama_token * 1)(5)
    batch = llama_cpp.llama_batch_init(1, width, 1)
    batch.token = token
    batch.n_tokens = batch.n_seq_id[0] = batch.logits[0] = 1
    batch.pos[0], batch.seq_id[0][0] = position, 0
    ctypes.memmove(batch.embd, hidden, width * ctypes.sizeof(ctypes.c_float))
    return bool(llama_cpp.llama_decode(draft, batch) == 0)


def _answer(target: str, drafter: str) -> str:
    child = os.fork()
    if child == 0:
        signal.alarm(_SECONDS)
        os._exit(0 if _run(target, drafter) else 1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return RAN if os.WEXITSTATUS(status) == 0 else REFUSED


def main() -> None:
    """Answer every line of stdin."""
    for line in sys.stdin:
        target, _, drafter = line.rstrip("\n").partition("\t")
        sys.stdout.write(_answer(target, drafter) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Draft and verify on llama.cpp's own calls, without our engine: the reference it is held to.

    python -m tests.perf.bare --target T.gguf --drafter D.gguf            # V(n), c_draft, rates
    python -m tests.perf.bare --target T.gguf --drafter D.gguf --first-token "import os"

The predicted rate at draft k is E(k) / (k * c_draft + V(k + 1)), with E(k) the tokens a round,
V(n) one target decode of n rows and c_draft one draft step.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext
from numpy.typing import NDArray

Floats = NDArray[np.float32]

MAX_ROWS = 9
"""Rows of one verification: the newest token and up to eight drafted ones."""
PROMPT_ROWS = 512
DRAFT_UBATCH = 8
MIDDLE = 64
"""Where in an answer costs are measured."""


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(_level: int, _text: bytes, _data: object) -> None:
    """llama.cpp's log goes nowhere."""


class BarePair:
    """A target and its drafter, one sequence, greedy; logits and hidden rows as numpy views.

    Without a drafter it decodes plainly. ``close`` frees the draft context before the target's,
    whose cells it reads.
    """

    def __init__(
        self,
        target: Path,
        drafter: Path | None = None,
        *,
        n_ctx: int = 1024,
        threads: int | None = None,
    ) -> None:
        llama_cpp.llama_log_set(_quiet, None)
        llama_cpp.llama_backend_init()
        self._free: list[Callable[[], None]] = []
        threads = threads or len(os.sched_getaffinity(0))
        model = self._load(target)
        self._vocab = llama_cpp.llama_model_get_vocab(model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.width: int = llama_cpp.llama_model_n_embd(model)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = PROMPT_ROWS
        params.n_outputs_max = MAX_ROWS
        params.n_threads = params.n_threads_batch = threads
        params.swa_full = False
        self._target = self._context(model, params)
        self._memory = llama_cpp.llama_get_memory(self._target)
        self._rows = llama_cpp.llama_batch_init(PROMPT_ROWS, 0, 1)
        self._free.append(lambda: llama_cpp.llama_batch_free(self._rows))
        self._drafter: Any = None
        if drafter is not None:
            self._open_drafter(self._load(drafter), threads, n_ctx)

    def _load(self, path: Path) -> Any:
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = False  # as the engine does: no second, repacked copy
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self._free.append(lambda: llama_cpp.llama_model_free(model))
        return model

    def _context(self, model: Any, params: Any) -> Any:
        context = llama_cpp.llama_init_from_model(model, params)
        if not context:
            raise RuntimeError("llama.cpp creates no context")
        self._free.append(lambda: llama_cpp.llama_free(context))
        llama_cpp_ext.llama_set_embeddings_nextn(context, True, True)
        return context

    def _open_drafter(self, model: Any, threads: int, n_ctx: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = DRAFT_UBATCH
        params.n_outputs_max = 1
        params.n_threads = params.n_threads_batch = threads
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
        params.ctx_other = self._target
        self._drafter = self._context(model, params)
        self._step = llama_cpp.llama_batch_init(1, self.width, 1)
        self._step_token = (llama_cpp.llama_token * 1)()
        self._step.token = self._step_token
        self._step.n_tokens = self._step.n_seq_id[0] = self._step.logits[0] = 1
        self._step.seq_id[0][0] = 0
        self._step_hidden = np.ctypeslib.as_array(self._step.embd, (self.width,))
        self._free.append(self._free_step)

    def _free_step(self) -> None:
        self._step.token = None  # ours, not llama.cpp's to free
        llama_cpp.llama_batch_free(self._step)

    def close(self) -> None:
        while self._free:
            self._free.pop()()

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter."""
        return self._drafter is not None

    def tokenize(self, text: str) -> list[int]:
        """Token ids of raw text, the beginning-of-sequence token first."""
        data = text.encode()
        room = len(data) + 8
        ids = (llama_cpp.llama_token * room)()
        n = llama_cpp.llama_tokenize(self._vocab, data, len(data), ids, room, True, True)
        return list(ids[:n])

    def text(self, token: int) -> str:
        buffer = ctypes.create_string_buffer(256)
        n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[:n].decode(errors="replace")

    def decode(self, tokens: Sequence[int], position: int, *, outputs: int) -> None:
        """One target pass over ``tokens``; the last ``outputs`` rows give logits and hidden."""
        rows = self._rows
        n = len(tokens)
        rows.n_tokens = n
        for i, token in enumerate(tokens):
            rows.token[i] = token
            rows.pos[i] = position + i
            rows.n_seq_id[i] = 1
            rows.seq_id[i][0] = 0
            rows.logits[i] = i >= n - outputs
        status = llama_cpp.llama_decode(self._target, rows)
        if status:
            raise RuntimeError(f"the target's decode answered {status}")
        llama_cpp.llama_synchronize(self._target)

    def logits(self, row: int) -> Floats:
        """Logits [n_vocab] after the given row of the last decode; a view."""
        return _view(llama_cpp.llama_get_logits_ith(self._target, row), self.n_vocab)

    def hidden(self, row: int) -> Floats:
        """The hidden row [width] after the final norm; a view."""
        return _view(llama_cpp_ext.llama_get_embeddings_nextn_ith(self._target, row), self.width)

    def remove(self, position: int) -> None:
        """Forgets everything from ``position`` on."""
        llama_cpp.llama_memory_seq_rm(self._memory, 0, position, -1)

    def draft_decode(self, token: int, hidden: Floats, position: int) -> None:
        """One draft step; all steps of a draft use the newest token's position."""
        self._step_token[0] = token
        self._step_hidden[:] = hidden
        self._step.pos[0] = position
        status = llama_cpp.llama_decode(self._drafter, self._step)
        if status:
            raise RuntimeError(f"the drafter's decode answered {status}")
        llama_cpp.llama_synchronize(self._drafter)

    def draft_logits(self) -> Floats:
        """The drafter's logits [n_vocab] of its last step; a view."""
        return _view(llama_cpp.llama_get_logits_ith(self._drafter, 0), self.n_vocab)

    def draft_hidden(self) -> Floats:
        """The hidden row [width] for the next step; a view."""
        return _view(llama_cpp_ext.llama_get_embeddings_nextn_ith(self._drafter, 0), self.width)

    def prefill(self, prompt: Sequence[int]) -> int:
        """Starts over with ``prompt``; the first token, greedily."""
        self.remove(0)
        for start in range(0, len(prompt), PROMPT_ROWS):
            part = prompt[start : start + PROMPT_ROWS]
            self.decode(part, start, outputs=1)
        return int(self.logits(len(part) - 1).argmax())

    def draft(self, token: int, hidden: Floats, position: int, depth: int) -> list[int]:
        drafted: list[int] = []
        for _ in range(depth):
            self.draft_decode(token, hidden, position)
            token = int(self.draft_logits().argmax())
            hidden = self.draft_hidden()
            drafted.append(token)
        return drafted

    def generate(self, prompt: Sequence[int], max_tokens: int, depth: int) -> BareRun:
        """``max_tokens`` greedy tokens; end tokens do not stop it."""
        run = BareRun([self.prefill(prompt)], accepted=[0] * depth)
        hidden = self.hidden((len(prompt) - 1) % PROMPT_ROWS).copy()
        past = len(prompt)
        start = time.perf_counter()
        while (left := max_tokens - len(run.tokens)) > 0:
            newest = run.tokens[-1]
            drafted = self.draft(newest, hidden, past, min(depth, left - 1))
            self.decode([newest, *drafted], past, outputs=len(drafted) + 1)
            chosen = [int(self.logits(row).argmax()) for row in range(len(drafted) + 1)]
            right = 0
            while right < len(drafted) and drafted[right] == chosen[right]:
                run.accepted[right] += 1
                right += 1
            run.tokens += chosen[: right + 1]
            run.rounds += 1
            run.drafted += len(drafted)
            hidden = self.hidden(right).copy()
            past += right + 1
            self.remove(past)
        run.seconds = time.perf_counter() - start
        return run


def _view(pointer: Any, size: int) -> Floats:
    return np.ctypeslib.as_array(pointer, (size,))


@dataclass
class BareRun:
    """Tokens and what they cost; ``seconds`` begin after the first token."""

    tokens: list[int]
    accepted: list[int]
    seconds: float = 0.0
    rounds: int = 0
    drafted: int = 0

    @property
    def rate(self) -> float:
        """Tokens a second after the first."""
        return (len(self.tokens) - 1) / self.seconds

    @property
    def tokens_a_round(self) -> float:
        return (len(self.tokens) - 1) / self.rounds


@dataclass(frozen=True)
class Costs:
    """Seconds of one target decode by its rows, and of one draft step (nan without a drafter)."""

    verify: Mapping[int, float]
    draft: float
    spread: Mapping[int, float] = field(default_factory=dict)

    def predicted_rate(self, depth: int, tokens_a_round: float) -> float:
        """Tokens a second of a loop that costs nothing beside llama.cpp's passes."""
        drafting = depth * self.draft if depth else 0.0
        return tokens_a_round / (drafting + self.verify[depth + 1])


@contextlib.contextmanager
def opened(
    target: Path, drafter: Path | None, *, n_ctx: int = 1024, threads: int | None = None
) -> Iterator[BarePair]:
    """A pair that is freed when the block ends."""
    pair = BarePair(target, drafter, n_ctx=n_ctx, threads=threads)
    try:
        yield pair
    finally:
        pair.close()


def measure_costs(
    pair: BarePair,
    prompt: Sequence[int],
    *,
    depths: Sequence[int] = tuple(range(MAX_ROWS)),
    rounds: int = 3,
    repeats: int = 6,
) -> Costs:
    """V(n) and c_draft in the middle of a 128-token answer to ``prompt``, medians.

    Passes follow each other as in the loop, ``depth`` draft steps and then depth + 1 rows, since
    each finds the caches as the other left them. Depths are interleaved, so that a change of the
    machine's load meets all of them; the first pass of each builds its graph and is not counted.
    """
    answer = pair.generate(prompt, MIDDLE + MAX_ROWS, 0).tokens
    past = len(prompt) + MIDDLE
    hidden = pair.hidden(0).copy()
    verify: dict[int, list[float]] = {depth + 1: [] for depth in depths}
    draft: list[float] = []
    for _ in range(rounds):
        for depth in depths:
            newest = answer[MIDDLE : MIDDLE + depth + 1]
            for repeat in range(repeats + 1):
                pair.remove(past)
                steps = []
                for token in newest[: depth if pair.drafts else 0]:
                    start = time.perf_counter()
                    pair.draft_decode(token, hidden, past)
                    steps.append(time.perf_counter() - start)
                start = time.perf_counter()
                pair.decode(newest, past, outputs=depth + 1)
                if repeat:
                    verify[depth + 1].append(time.perf_counter() - start)
                    draft += steps
    return Costs(
        {n: median(times) for n, times in verify.items()},
        median(draft) if draft else float("nan"),
        {n: float(np.subtract(*np.percentile(times, [75, 25]))) for n, times in verify.items()},
    )


def _print_costs(pair: BarePair, prompts: Sequence[str], max_tokens: int, depths: int) -> None:
    ids = [pair.tokenize(prompt) for prompt in prompts]
    costs = measure_costs(pair, ids[0])
    print("rows      " + "".join(f"{n:8d}" for n in costs.verify))
    print("V(n) ms   " + "".join(f"{1000 * v:8.2f}" for v in costs.verify.values()))
    print("spread ms " + "".join(f"{1000 * v:8.2f}" for v in costs.spread.values()))
    if pair.drafts:
        print(f"draft step {1000 * costs.draft:.2f} ms")
    print("draft  tokens a round  predicted tok/s  bare loop tok/s")
    for depth in range(depths + 1 if pair.drafts else 1):
        runs = [pair.generate(prompt, max_tokens, depth) for prompt in ids]
        a_round = sum(len(run.tokens) - 1 for run in runs) / sum(run.rounds for run in runs)
        predicted = costs.predicted_rate(depth, a_round)
        rate = median(run.rate for run in runs)
        print(f"{depth:5d}  {a_round:14.2f}  {predicted:15.1f}  {rate:15.1f}")


def _print_first_token(pair: BarePair, prompt: str) -> None:
    sys.stdout.write(pair.text(pair.prefill(pair.tokenize(prompt))))
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--depths", type=int, default=4, help="up to this draft depth")
    parser.add_argument("--first-token", action="store_true", help="print it and leave")
    parser.add_argument("prompt", nargs="*", default=["import os"])
    arguments = parser.parse_args()
    with opened(arguments.target, arguments.drafter) as pair:
        if arguments.first_token:
            _print_first_token(pair, arguments.prompt[0])
        else:
            _print_costs(pair, arguments.prompt, arguments.max_tokens, arguments.depths)


if __name__ == "__main__":
    main()

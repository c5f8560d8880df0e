"""Whether a GGUF pair computes what its checkpoints compute (extra ``[train]``).

transformers runs both checkpoints in float32, llama.cpp runs both files; compared are the target's
logits and hidden rows at every position, and the drafter's logits and ``h_next`` over several steps
from every position, each step fed with the same token on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Row
from gemmtp.errors import UsageError
from gemmtp.llama.context import ContextOptions, FlashAttention, KvType
from gemmtp.llama.drafter import DraftContext
from gemmtp.llama.model import Model
from gemmtp.llama.target import TargetContext

Floats = NDArray[np.float32]
Tokens = NDArray[np.int32]

POSITIONS, STEPS, SEED = 300, 3, 7
# The masked value of an attention score; softmax makes it zero.
MASKED = np.float32(-1e30)
GELU_TABLE_END = 10.0
# Where a multimodal checkpoint keeps what the text model calls its own.
TEXT_PART = {r"^model\.language_model\.": "model."}


@dataclass(frozen=True)
class Comparison:
    """One quantity over ``rows`` rows.

    ``worst`` and ``median`` are ``|ours - reference| / |reference|`` of a row (Euclidean norms);
    ``same_argmax`` is the share of rows with the same largest entry, None where that says nothing.
    """

    name: str
    rows: int
    worst: float
    median: float
    same_argmax: float | None


@dataclass(frozen=True)
class ParityReport:
    """All comparisons of one run."""

    comparisons: tuple[Comparison, ...]

    @property
    def worst(self) -> float:
        return max(comparison.worst for comparison in self.comparisons)

    @property
    def same_argmax(self) -> float:
        """The share of all rows of logits that agree on the largest one."""
        counted = [(c.rows, c.same_argmax) for c in self.comparisons if c.same_argmax is not None]
        return sum(rows * share for rows, share in counted) / sum(rows for rows, _ in counted)

    def text(self) -> str:
        """A table for people."""
        lines = [f"{'':24}{'rows':>6}{'worst':>10}{'median':>10}  same argmax"]
        for c in self.comparisons:
            share = "" if c.same_argmax is None else f"{c.same_argmax:12.2%}"
            lines.append(f"{c.name:24}{c.rows:6}{c.worst:10.1e}{c.median:10.1e}{share}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Rows:
    """float32 rows of one side: target per position, drafter per step and position."""

    logits: Floats
    hidden: Floats
    draft_logits: Floats
    draft_hidden: Floats


def compare(
    target_dir: Path,
    drafter_dir: Path,
    target_file: Path,
    drafter_file: Path,
    *,
    positions: int = POSITIONS,
    kv: KvType = "f16",
    flash_attention: FlashAttention = "auto",
    half_gelu: bool = False,
    threads: int = 0,
) -> ParityReport:
    """Run both sides over the same ``positions`` random tokens.

    ggml's CPU takes GELU from a table of float16, which alone costs a relative error of some 1e-4;
    with ``half_gelu`` the reference does so, too, and what is left is the conversion's own error.
    ``threads`` are llama.cpp's, 0 for the physical cores.
    Raises UsageError when torch and transformers are not installed.
    """
    tokens, reference, drafted = _reference(target_dir, drafter_dir, positions, half_gelu)
    options = ContextOptions(
        n_ctx=positions + 8, kv=kv, flash_attention=flash_attention, threads=threads
    )
    ours = _llama_rows(target_file, drafter_file, tokens, drafted, options)
    return ParityReport(tuple(comparisons(ours, reference)))


def comparisons(ours: Rows, reference: Rows) -> Iterator[Comparison]:
    """Everything in ``ours`` against ``reference``."""
    yield comparison("target logits", ours.logits, reference.logits, True)
    yield comparison("target hidden rows", ours.hidden, reference.hidden, False)
    for step in range(STEPS):
        name = f"drafter step {step + 1}"
        a, b = ours.draft_logits[step], reference.draft_logits[step]
        yield comparison(f"{name} logits", a, b, True)
        a, b = ours.draft_hidden[step], reference.draft_hidden[step]
        yield comparison(f"{name} h_next", a, b, False)


def comparison(name: str, ours: Floats, reference: Floats, is_logits: bool) -> Comparison:
    """``ours`` against ``reference``, both float32[n, d]."""
    error = np.linalg.norm(ours - reference, axis=1) / np.linalg.norm(reference, axis=1)
    same = None
    if is_logits:
        same = float(np.mean(ours.argmax(axis=1) == reference.argmax(axis=1)))
    return Comparison(name, len(ours), float(error.max()), float(np.median(error)), same)


def _reference(
    target_dir: Path, drafter_dir: Path, positions: int, half_gelu: bool
) -> tuple[Tokens, Rows, Tokens]:
    """(tokens int32[n], rows, drafted int32[steps, n - 1]): what transformers computes."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UsageError(
            "Comparing with the checkpoint needs torch and transformers.",
            "Install them with: pip install gemmtp[train]",
        ) from error
    load = {"dtype": torch.float32, "attn_implementation": "eager"}
    config = transformers.AutoConfig.from_pretrained(target_dir).get_text_config()
    target = transformers.Gemma4ForCausalLM.from_pretrained(
        target_dir, config=config, key_mapping=TEXT_PART, **load
    ).eval()
    assistant = transformers.Gemma4AssistantForCausalLM.from_pretrained(drafter_dir, **load).eval()
    if half_gelu:
        for layer in (*target.model.layers, *assistant.model.layers):
            layer.mlp.act_fn = _half_gelu(torch)
    random = np.random.default_rng(SEED)
    tokens = random.integers(0, target.config.vocab_size, positions).astype(np.int32)
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        output = target.model(input_ids=ids, return_shared_kv_states=True)
        hidden = output.last_hidden_state[0]
        logits = target(input_ids=ids).logits[0]
        embed, window = target.model.embed_tokens, target.config.sliding_window
        shared = output.shared_kv_states
        drafts = reference_drafts(assistant, embed, window, ids[0], hidden, shared)
    rows = Rows(logits.numpy(), hidden.numpy(), drafts[0], drafts[1])
    return tokens, rows, drafts[2]


def _half_gelu(torch: Any) -> Any:
    """GELU as ``ggml_vec_gelu_f32`` computes it: float16 in and out, exact beyond +-10."""

    class HalfGelu(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            y = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
            return torch.where(x <= -GELU_TABLE_END, 0.0, torch.where(x >= GELU_TABLE_END, x, y))

    return HalfGelu()


def reference_drafts(
    assistant: Any, embed: Any, window: int, ids: Any, hidden: Any, shared_kv: Any
) -> tuple[Floats, Floats, Tokens]:
    """Drafts from every position at once: a query at p sees the keys before p, in the window.

    ``ids`` [n] and ``hidden`` [n, d] are the target's, ``embed`` its scaled embedding and
    ``shared_kv`` what it hands to its assistant. Returned are logits and hidden rows of each step
    and position from the second on, and the tokens that each step was given.
    """
    import torch

    n = len(ids)
    query, key = torch.arange(1, n)[:, None], torch.arange(n)[None, :]
    seen = {
        "full_attention": key < query,
        "sliding_attention": (key < query) & (query - key < window),
    }
    masks = {kind: torch.where(mask, 0.0, float(MASKED))[None, None] for kind, mask in seen.items()}
    shared = {kind: shared_kv[kind] for kind in seen}
    token, h = ids[1:], hidden[:-1]
    logits, states, tokens = [], [], []
    for _ in range(STEPS):
        tokens.append(token.numpy().astype(np.int32))
        inputs = torch.cat([embed(token), h], dim=-1)[None]
        state = assistant.model(
            inputs_embeds=assistant.pre_projection(inputs),
            attention_mask=masks,
            position_ids=query.T,
            shared_kv_states=shared,
            use_cache=False,
            # Otherwise transformers keeps the last position alone.
            output_hidden_states=True,
        ).last_hidden_state
        h = assistant.post_projection(state)[0]
        step = assistant.lm_head(state)[0]
        logits.append(step.numpy())
        states.append(h.numpy())
        token = step.argmax(dim=-1)
    return np.stack(logits), np.stack(states), np.stack(tokens)


def _llama_rows(
    target_file: Path, drafter_file: Path, tokens: Tokens, drafted: Tokens, options: ContextOptions
) -> Rows:
    """The same through llama.cpp: one target row at a time, a draft after each."""
    logits, hidden = [], []
    draft_logits: list[list[Floats]] = [[] for _ in range(STEPS)]
    draft_hidden: list[list[Floats]] = [[] for _ in range(STEPS)]
    slot = np.zeros(1, np.int32)
    with (
        Model.open(target_file) as model,
        Model.open(drafter_file) as draft_model,
        TargetContext(model, options) as target,
        DraftContext(draft_model, target) as drafter,
    ):
        for position, token in enumerate(tokens):
            target.decode([Row(0, int(token), position, True)])
            logits.append(target.logits(0).copy())
            hidden.append(target.hidden(0).copy())
            if position + 1 == len(tokens):
                break
            h, at = hidden[-1][None], np.array([position + 1], np.int32)
            for step in range(STEPS):
                row, h_next = drafter.step(drafted[step, position : position + 1], h, at, slot)
                draft_logits[step].append(row[0].copy())
                draft_hidden[step].append(h_next[0].copy())
                h = h_next.copy()
    return Rows(np.stack(logits), np.stack(hidden), np.array(draft_logits), np.array(draft_hidden))

"""Training of the target: next-token loss on the answers of packed conversations."""

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Gemma4ForCausalLM

from demo import masks
from demo.corpus import CATEGORIES, held_out_examples, training_examples
from demo.corpus.mixture import STAGES
from demo.packing import ROW, Batch, Document, batches, document_of
from demo.shapes import target_config


@dataclass(frozen=True)
class Plan:
    """Length and pace of a training run; the defaults made the committed set."""

    steps: int
    rows: int = 12
    rate: float = 3e-3
    warm_up: int = 60
    finish: int = 0
    finish_rate: float = 8e-4
    seed: int = 1
    save_every: int = 100
    check_every: int = 300

    def rate_at(self, step: int) -> float:
        """Linear warm-up, a cosine to a fiftieth, and in the last stage a line down to zero."""
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        whole = self.steps - self.finish
        if step >= whole:
            return self.finish_rate * (self.steps - step) / self.finish
        done = (step - self.warm_up) / max(1, whole - self.warm_up)
        return self.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(done * math.pi)))


def optimizers(model: nn.Module, rate: float, muon: bool = True) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for embeddings and norms."""
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name and muon]
    chosen = {id(p) for p in matrices}
    rest = [p for p in named.values() if id(p) not in chosen]
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    ]
    if matrices:
        found.append(
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        )
    return found


def train_target(
    tokenizer: Tokenizer, folder: Path, plan: Plan, *, compiled: bool = True, muon: bool = True
) -> Gemma4ForCausalLM:
    """Train, or go on from `folder`'s last checkpoint; figures go to `folder/target_log.jsonl`."""
    torch.manual_seed(plan.seed)
    model = Gemma4ForCausalLM(target_config())
    tuned = optimizers(model, plan.rate, muon)
    checkpoint = folder / "target.pt"
    first = resume(checkpoint, model, tuned)
    body = torch.compile(model.model) if compiled else model.model
    held_out = held_out_documents(tokenizer, 60)
    began = time.monotonic()
    for step, batch in _numbered(tokenizer, plan, first):
        loss = _step(model, body, batch, tuned, plan.rate_at(step))
        if step % 20 == 0:
            log(checkpoint, {"step": step, "loss": loss, "seconds": time.monotonic() - began})
        if (step + 1) % plan.check_every == 0:
            log(checkpoint, {"step": step, "right": right_answers(model, held_out)})
        if (step + 1) % plan.save_every == 0:
            save(checkpoint, model, tuned, step + 1)
    save(checkpoint, model, tuned, plan.steps)
    log(checkpoint, {"plan": asdict(plan), "right": right_answers(model, held_out)})
    return model


def _numbered(tokenizer: Tokenizer, plan: Plan, first: int) -> Iterator[tuple[int, Batch]]:
    """Steps from `first` on with their batches, stage after stage of the mixture."""
    ends = [*(start for start, _ in STAGES[1:]), plan.steps]
    for stage, (start, _) in enumerate(STAGES):
        end = min(ends[stage], plan.steps)
        if first >= end:
            continue
        examples = training_examples(plan.seed + stage, stage=stage)
        rows = batches((document_of(example, tokenizer) for example in examples), plan.rows)
        chosen = itertools.islice(rows, max(0, first - start), end - start)
        yield from enumerate(chosen, max(first, start))


def _step(
    model: Gemma4ForCausalLM,
    body: Callable[..., Any],
    batch: Batch,
    tuned: list[torch.optim.Optimizer],
    rate: float,
) -> float:
    loss = answer_loss(model, states(model, body, batch).last_hidden_state, batch)
    loss.backward()
    descend(model, tuned, rate)
    return float(loss.detach())


def answer_loss(model: Gemma4ForCausalLM, hidden: Tensor, batch: Batch) -> Tensor:
    """Mean next-token loss over the answers' tokens, for states [B, S, d]."""
    learned = torch.from_numpy(batch.learned).flatten().nonzero().squeeze(1)
    targets = torch.from_numpy(batch.tokens).flatten()[learned + 1]
    return nn.functional.cross_entropy(logits(model, hidden.flatten(0, 1)[learned]), targets)


def descend(model: nn.Module, tuned: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """One step at that rate, the gradient's norm cut at 1."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in tuned:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()


def states(
    model: Gemma4ForCausalLM,
    body: Callable[..., Any],
    batch: Batch,
    images: Tensor | None = None,
    **wanted: bool,
) -> Any:
    """What `body` says about a batch, in bfloat16 arithmetic.

    `last_hidden_state` [B, S, d] is the state after the final norm. `images` float32[n, d] are the
    rows of the batch's pictures, one after the other.
    """
    documents, places = torch.from_numpy(batch.documents), torch.from_numpy(batch.images)
    embedded = model.model.embed_tokens(torch.from_numpy(batch.tokens))
    if images is not None:
        shown = (places >= 0)[:, :, None].expand_as(embedded)
        embedded = embedded.masked_scatter(shown, images)
    with torch.autocast("cpu", torch.bfloat16):
        return body(
            inputs_embeds=embedded,
            position_ids=torch.from_numpy(batch.positions),
            attention_mask=masks.causal(documents, places, model.config.sliding_window),
            use_cache=False,
            **wanted,
        )


def logits(model: Gemma4ForCausalLM, hidden: Tensor) -> Tensor:
    """Capped logits float32[n, V] of states [n, d]."""
    with torch.autocast("cpu", torch.bfloat16):
        raw = model.lm_head(hidden).float()
    cap = model.config.final_logit_softcapping
    return torch.tanh(raw / cap) * cap


def held_out_documents(tokenizer: Tokenizer, count: int) -> dict[str, list[Document]]:
    """Held-out documents of every category."""
    return {
        name: [document_of(example, tokenizer) for example in held_out_examples(name, count, 7)]
        for name in CATEGORIES
    }


def right_answers(
    model: Gemma4ForCausalLM, documents: dict[str, list[Document]]
) -> dict[str, float]:
    """Share of answers whose every token is the likeliest one.

    Where an answer is unique, that is just what greedy decoding would write; where it is not,
    the share says little.
    """
    right = {}
    for name, members in documents.items():
        with torch.no_grad():
            hits = [_all_likeliest(model, document) for document in members]
        right[name] = sum(hits) / max(1, len(hits))
    return right


def _all_likeliest(model: Gemma4ForCausalLM, document: Document) -> bool:
    tokens = torch.tensor([document.tokens[:ROW]])
    # The model itself, not its compiled form: these rows differ in length.
    states_ = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    best = logits(model, states_[0]).argmax(-1)
    return bool((best[document.answer - 1 : -1] == tokens[0, document.answer :]).all())


def resume(path: Path, model: nn.Module, tuned: Iterable[torch.optim.Optimizer]) -> int:
    """Load what `save` left in `path`, if anything; return the step to go on with."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(tuned, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    step: int = state["step"]
    return step


def save(path: Path, model: nn.Module, tuned: Iterable[torch.optim.Optimizer], step: int) -> None:
    """Write model and optimizers whole or not at all; `step` is the next one."""
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in tuned],
        "step": step,
    }
    torch.save(state, path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)


def log(checkpoint: Path, entry: dict[str, Any]) -> None:
    """Add a line to the training's log beside its checkpoint."""
    path = checkpoint.with_name(f"{checkpoint.stem}_log.jsonl")
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")

"""Training of the drafter: KL to the target's distribution over unrolled draft steps.

At position p the newest token is not in the target's cache yet: every step of one draft asks
from p, looks at keys before p, and differs from the last only in its token and in h, which the
first step takes from the target (after the final norm) and the others from the drafter itself.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM

from demo import masks
from demo.corpus import training_examples
from demo.corpus.mixture import KEPT
from demo.images import Patches
from demo.packing import ROW, Batch, Document, batches, document_of
from demo.shapes import drafter_config
from demo.target import Plan, descend, log, logits, optimizers, resume, save, states
from demo.tokenizer import END_TOKENS

STEP_WEIGHTS = (1.0, 0.8, 0.64)
DRAFTER_SEED = 2
# Rows float32[n, d] that the target gets for pictures, one picture after the other.
Shown = Callable[[list[Patches]], Tensor]


def train_drafter(
    target: Gemma4ForCausalLM,
    model: Gemma4AssistantForCausalLM,
    documents: Iterator[Document],
    checkpoint: Path,
    plan: Plan,
    shown: Shown | None = None,
    length: int = ROW,
) -> None:
    """Train `model` in place on rows of `length` tokens of `documents`.

    `shown` gives the target's rows for pictures. Goes on from `checkpoint`; figures go to a log
    beside it.
    """
    torch.manual_seed(plan.seed)
    tuned = optimizers(model, plan.rate)
    first = resume(checkpoint, model, tuned)
    target.eval().requires_grad_(False)
    teach = torch.compile(target.model)
    body = torch.compile(model.model)
    rows = batches(documents, plan.rows, length)
    began = time.monotonic()
    for step, batch in enumerate(itertools.islice(rows, plan.steps)):
        if step < first:
            continue
        images = shown(batch.pictures) if shown and batch.pictures else None
        losses, agreed = unrolled(target, teach, model, body, batch, images)
        sum(w * loss for w, loss in zip(STEP_WEIGHTS, losses, strict=True)).backward()
        descend(model, tuned, plan.rate_at(step))
        if step % 20 == 0 or step + 1 == plan.steps:
            entry = {
                "step": step,
                "kl": [round(loss.item(), 4) for loss in losses],
                "agreed": [round(share, 4) for share in agreed],
                "seconds": time.monotonic() - began,
            }
            log(checkpoint, entry)
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            save(checkpoint, model, tuned, step + 1)
    log(checkpoint, {"plan": asdict(plan)})


def new_drafter(seed: int) -> Gemma4AssistantForCausalLM:
    """An untrained drafter, always the same one for the same seed."""
    torch.manual_seed(seed)
    return Gemma4AssistantForCausalLM(drafter_config())


def mixed(
    tokenizer: Tokenizer,
    seed: int,
    written: Sequence[Document],
    pictures: Iterator[Document] | None = None,
) -> Iterator[Document]:
    """Corpus text, what the target itself has said, and pictures, in turn and without an end."""
    changed = KEPT if pictures else {}
    examples = training_examples(seed, changed=changed)
    corpus = (document_of(example, tokenizer) for example in examples)
    order = Random(seed).sample(written, len(written))
    for document, own in zip(corpus, itertools.cycle(order), strict=False):
        yield document
        yield own
        if pictures:
            yield next(pictures)


def unrolled(
    target: Gemma4ForCausalLM,
    teach: Callable[..., Any],
    model: Gemma4AssistantForCausalLM,
    body: Callable[..., Any],
    batch: Batch,
    images: Tensor | None = None,
) -> tuple[list[Tensor], list[float]]:
    """KL and share of equal likeliest tokens for each draft step, over the answers' positions.

    `images` float32[n, d] are the target's rows for the batch's pictures.
    """
    tokens = torch.from_numpy(batch.tokens)
    documents = torch.from_numpy(batch.documents)
    positions = torch.from_numpy(batch.positions)
    learned = torch.from_numpy(batch.learned)
    window = target.config.sliding_window
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        taught = states(target, teach, batch, images, return_shared_kv_states=True)
        shared = {kind: tuple(pair) for kind, pair in taught.shared_kv_states.items()}
        wanted = torch.log_softmax(logits(target, taught.last_hidden_state.flatten(0, 1)), -1)
        wanted = wanted.unflatten(0, tokens.shape)
    hidden = torch.roll(taught.last_hidden_state.float(), 1, dims=1)
    mask = masks.before(documents, window)
    losses, agreed = [], []
    for step in range(len(STEP_WEIGHTS)):
        embedded = target.model.embed_tokens(torch.roll(tokens, -step, dims=1))
        with torch.autocast("cpu", torch.bfloat16):
            output = body(
                inputs_embeds=model.pre_projection(torch.cat([embedded, hidden], -1)),
                attention_mask=mask,
                position_ids=positions,
                shared_kv_states=shared,
                use_cache=False,
                # Without it transformers keeps the last position alone.
                output_hidden_states=True,
            )
            hidden = model.post_projection(output.last_hidden_state).float()
            counted = _counted(learned, documents, step)
            drafted = model.lm_head(output.last_hidden_state[counted]).float()
        goal = torch.roll(wanted, -step, dims=1)[counted]
        drafted = torch.log_softmax(drafted, -1)
        losses.append(nn.functional.kl_div(drafted, goal, reduction="batchmean", log_target=True))
        agreed.append((drafted.argmax(-1) == goal.argmax(-1)).float().mean().item())
    return losses, agreed


def _counted(learned: Tensor, documents: Tensor, step: int) -> Tensor:
    """Positions whose step `step` draws a token of the same document's answer."""
    ahead = torch.roll(learned, -step, dims=1)
    same = torch.roll(documents, -step, dims=1) == documents
    inside = torch.arange(learned.shape[1]) < learned.shape[1] - step - 1
    return ahead & same & inside & (torch.roll(documents, 1, dims=1) == documents)


def own_writing(
    target: Gemma4ForCausalLM,
    tokenizer: Tokenizer,
    count: int,
    seed: int = DRAFTER_SEED,
    categories: tuple[str, ...] = (),
) -> list[Document]:
    """`count` answers drawn from the target at temperature 1 to prompts of the training corpus."""
    torch.manual_seed(seed)
    prompts: dict[int, list[list[int]]] = {}
    for example in itertools.islice(training_examples(seed, categories), count):
        document = document_of(example, tokenizer)
        prompts.setdefault(document.answer, []).append(document.tokens[: document.answer])
    ends = [tokenizer.token_to_id(token) or 0 for token in END_TOKENS]
    written = []
    for length, group in sorted(prompts.items()):
        # Prompts of one length need no padding.
        for start in range(0, len(group), 64):
            rows = torch.tensor(group[start : start + 64])
            out = target.generate(
                rows, attention_mask=torch.ones_like(rows), max_new_tokens=110, do_sample=True,
                temperature=1.0, top_k=0, top_p=1.0, eos_token_id=ends, pad_token_id=0,
            )  # fmt: skip
            written += [Document(_ended(row, length, ends), length) for row in out.tolist()]
    order = torch.randperm(len(written)).tolist()
    return [replace(written[i]) for i in order]


def _ended(row: list[int], length: int, ends: list[int]) -> list[int]:
    for index in range(length, len(row)):
        if row[index] in ends:
            return row[: index + 1]
    return row

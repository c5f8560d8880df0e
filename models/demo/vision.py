"""Training of the target with eyes: it learns to read the tower's rows and forgets no text.

The tower stays as `sight` left it. Answers about drawings are learned by next-token loss; on the
text corpus the model keeps to the distributions of the target it began as.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Gemma4ForCausalLM, Gemma4ForConditionalGeneration

from demo.ahead import ahead
from demo.corpus import training_examples
from demo.corpus.mixture import KEPT
from demo.corpus.pictures import picture_examples
from demo.images import Patches
from demo.packing import Batch, Document, batches, document_of
from demo.sight import rows_of
from demo.target import (
    Plan,
    answer_loss,
    descend,
    held_out_documents,
    log,
    logits,
    optimizers,
    resume,
    right_answers,
    save,
    states,
)

# Tokens that a picture may take, and how often.
BUDGETS = {70: 0.75, 140: 0.15, 280: 0.1}
PICTURE_ROW = 384
# Rows of a step that hold text of the corpus, and rows of what the blind target wrote.
CORPUS_ROWS, WRITTEN_ROWS = 8, 4
KEPT_WEIGHT, NEXT_WEIGHT = 20.0, 0.5
PROJECTION_SPREAD = 0.14


def text_of(model: Gemma4ForConditionalGeneration) -> Gemma4ForCausalLM:
    """The text model inside, sharing its weights."""
    with torch.device("meta"):
        text = Gemma4ForCausalLM(model.config.text_config)
    text.model = model.model.language_model
    text.lm_head = model.lm_head
    return text


def image_rows(model: Gemma4ForConditionalGeneration, pictures: list[Patches]) -> Tensor:
    """Rows float32[n, d] that the pictures give the target, one after the other."""
    width = model.config.vision_config.hidden_size
    with torch.no_grad():
        seen = [rows_of(model.model, [picture]) for picture in pictures]
        normed = torch.cat([torch.empty(0, width), *seen])
    projected: Tensor = model.model.embed_vision.embedding_projection(normed)
    return projected


def picture_documents(tokenizer: Tokenizer, seed: int) -> Iterator[Document]:
    """Endless conversations about drawings, each at one of the budgets."""
    rng = Random(seed)
    for example in picture_examples(seed):
        budget = rng.choices(list(BUDGETS), list(BUDGETS.values()))[0]
        yield document_of(example, tokenizer, budget)


def text_batches(tokenizer: Tokenizer, seed: int, written: Sequence[Document]) -> Iterator[Batch]:
    """Endless rows of the text corpus, and below them rows of what the blind target wrote."""
    examples = training_examples(seed, changed=KEPT)
    corpus = batches((document_of(example, tokenizer) for example in examples), CORPUS_ROWS)
    order = Random(seed).sample(written, len(written))
    own = batches(itertools.cycle(order), WRITTEN_ROWS)
    for upper, lower in zip(corpus, own, strict=True):
        yield Batch(
            np.concatenate([upper.tokens, lower.tokens]),
            np.concatenate([upper.positions, lower.positions]),
            np.concatenate([upper.documents, lower.documents]),
            np.concatenate([upper.learned, lower.learned]),
            np.concatenate([upper.images, lower.images]),
            [],
        )


def train_eyes(
    model: Gemma4ForConditionalGeneration,
    teacher: Gemma4ForCausalLM,
    tokenizer: Tokenizer,
    written: Sequence[Document],
    folder: Path,
    plan: Plan,
) -> None:
    """Train `model` in place, or go on from `folder/eyes.pt`; figures to `folder/eyes_log.jsonl`.

    `teacher` is the target before it had eyes, whose text this one is to keep, and `written` are
    answers that it drew.
    """
    torch.manual_seed(plan.seed)
    model.model.vision_tower.requires_grad_(False)
    nn.init.normal_(model.model.embed_vision.embedding_projection.weight, std=PROJECTION_SPREAD)
    trained = nn.ModuleDict(
        {"text": model.model.language_model, "projection": model.model.embed_vision}
    )
    tuned = optimizers(trained, plan.rate)
    checkpoint = folder / "eyes.pt"
    first = resume(checkpoint, trained, tuned)
    text = text_of(model)
    # Rows of pictures and rows of text have two lengths: one compiled form for each.
    body = torch.compile(text.model, dynamic=False)
    teach = torch.compile(teacher.eval().model, dynamic=False)
    seen = ahead(batches(picture_documents(tokenizer, plan.seed + first), plan.rows, PICTURE_ROW))
    read = ahead(text_batches(tokenizer, plan.seed + first, written))
    held_out = held_out_documents(tokenizer, 40)
    began = time.monotonic()
    for step in range(first, plan.steps):
        batch = next(seen)
        hidden = states(text, body, batch, image_rows(model, batch.pictures)).last_hidden_state
        shown = answer_loss(text, hidden, batch)
        shown.backward()
        kept, following = kept_losses(text, body, teacher, teach, next(read))
        (KEPT_WEIGHT * kept + NEXT_WEIGHT * following).backward()
        descend(trained, tuned, plan.rate_at(step))
        if step % 10 == 0:
            entry = {"step": step, "shown": shown.item(), "kept": kept.item()}
            entry |= {"following": following.item()}
            entry |= {"right": _likeliest(text, hidden, batch)}
            log(checkpoint, entry | {"seconds": time.monotonic() - began})
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            save(checkpoint, trained, tuned, step + 1)
        if (step + 1) % plan.check_every == 0 or step + 1 == plan.steps:
            log(checkpoint, {"step": step, "text": right_answers(text, held_out)})
    log(checkpoint, {"plan": asdict(plan)})


def kept_losses(
    text: Gemma4ForCausalLM,
    body: Callable[..., Any],
    teacher: Gemma4ForCausalLM,
    teach: Callable[..., Any],
    batch: Batch,
) -> tuple[Tensor, Tensor]:
    """KL from the teacher's distributions to the model's over the answers' tokens, nats a token.

    The second one is the next-token loss, in the rows of the corpus alone.
    """
    learned = torch.from_numpy(batch.learned)
    with torch.no_grad():
        wanted = logits(teacher, states(teacher, teach, batch).last_hidden_state[learned])
    found = logits(text, states(text, body, batch).last_hidden_state[learned])
    kept = nn.functional.kl_div(
        torch.log_softmax(found, -1),
        torch.log_softmax(wanted, -1),
        reduction="batchmean",
        log_target=True,
    )
    corpus = learned.nonzero()[:, 0] < CORPUS_ROWS
    tokens = torch.roll(torch.from_numpy(batch.tokens), -1, dims=1)[learned]
    return kept, nn.functional.cross_entropy(found[corpus], tokens[corpus])


def _likeliest(text: Gemma4ForCausalLM, hidden: Tensor, batch: Batch) -> float:
    """Share of the answers' tokens that are the likeliest ones."""
    learned = torch.from_numpy(batch.learned).flatten().nonzero().squeeze(1)
    with torch.no_grad():
        best = logits(text, hidden.flatten(0, 1)[learned]).argmax(-1)
    right = best == torch.from_numpy(batch.tokens).flatten()[learned + 1]
    return round(float(right.float().mean()), 4)

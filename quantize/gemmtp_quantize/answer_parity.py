"""Whether a set that was shown an image goes on as its checkpoints do (extra ``[train]``).

The prompt is words, an image from its file, and words. transformers runs processor, tower, text
model and assistant in float32; here the picture goes through projector, target and drafter.
Compared are the rows after the image: the target's logits and hidden rows at every word, and the
drafter's over several steps from each of them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gemmtp.engine.backend import Row
from gemmtp.llama.context import ContextOptions, FlashAttention, KvType
from gemmtp.llama.drafter import DraftContext
from gemmtp.llama.model import Model
from gemmtp.llama.projector import Projector
from gemmtp.llama.target import TargetContext
from gemmtp.prompt.attachments import Frame, read_picture
from gemmtp.prompt.media import ImageMarkers
from gemmtp_models.header import read_header
from gemmtp_models.manifest import Role
from gemmtp_models.projector import check_projector
from gemmtp_models.shapes import images_see_all
from gemmtp_quantize.image_parity import ImageFile, Reference
from gemmtp_quantize.parity import (
    SEED,
    STEPS,
    Floats,
    ParityReport,
    Rows,
    Tokens,
    comparisons,
    reference_drafts,
)

BEFORE, AFTER = 24, 40
SAMPLE_WIDTH, SAMPLE_HEIGHT = 640, 480


def compare_answer(
    target_dir: Path,
    drafter_dir: Path,
    files: Mapping[Role, Path],
    image: ImageFile,
    *,
    tokens: int,
    kv: KvType = "f16",
    flash_attention: FlashAttention = "auto",
    threads: int = 0,
) -> ParityReport:
    """Run both sides over ``BEFORE`` random tokens, ``image`` and ``AFTER`` random tokens.

    ``files`` has target, drafter and projector; ``tokens`` is the budget of the image. Raises
    UsageError when torch and transformers are not installed, and what opening the files raises.
    """
    reference = Reference.open(target_dir)
    header = read_header(files["projector"])
    with (
        Model.open(files["target"]) as model,
        Model.open(files["drafter"]) as draft_model,
        Projector.open(header, model, threads=threads) as projector,
    ):
        geometry = check_projector(header, model.n_embd)
        frame = Frame(tokens, geometry.side, geometry.longest)
        image_rows = projector.encode(read_picture(image.data, image.name, frame))
        before, after = _words(model)
        expected, drafted = _reference(reference, drafter_dir, image, tokens, (before, after))
        n = len(before) + len(image_rows) + len(after)
        options = ContextOptions(
            n + 8, kv=kv, flash_attention=flash_attention, n_batch=n, n_ubatch=n, threads=threads
        )
        with (
            TargetContext(model, options) as target,
            DraftContext(draft_model, target) as drafter,
        ):
            target.decode([Row(0, int(token), at, False) for at, token in enumerate(before)])
            target.decode_media(0, image_rows, len(before), causal=not images_see_all(model.n_embd))
            ours = _rows(target, drafter, after, drafted, len(before) + len(image_rows))
    return ParityReport(tuple(comparisons(ours, expected)))


def sample_image() -> ImageFile:
    """A picture for a set whose user gives none: colours that run, and an edge."""
    from PIL import Image

    y, x = np.mgrid[0:SAMPLE_HEIGHT, 0:SAMPLE_WIDTH]
    waves = [np.sin(x / 40), np.cos(y / 30), np.sin((x + y) / 25)]
    picture = (127.5 + 127.5 * np.stack(waves, axis=-1)).astype(np.uint8)
    picture[: SAMPLE_HEIGHT // 3, : SAMPLE_WIDTH // 2] = (255, 0, 0)
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return ImageFile("sample.png", out.getvalue())


def _words(model: Model) -> tuple[Tokens, Tokens]:
    """Random ids with the markers of an image at the seam."""
    markers = ImageMarkers.of(model.marker)
    random = np.random.default_rng(SEED)
    before = random.integers(0, model.n_vocab, BEFORE).astype(np.int32)
    after = random.integers(0, model.n_vocab, AFTER).astype(np.int32)
    # A placeholder among the words would stand for another image.
    before[before == markers.placeholder] = after[after == markers.placeholder] = markers.end
    before[-1], after[0] = markers.begin, markers.end
    return before, after


def _rows(
    target: TargetContext, drafter: DraftContext, after: Tokens, drafted: Tokens, start: int
) -> Rows:
    """One target row at a time, a draft after each but the last."""
    logits, hidden = [], []
    draft_logits: list[list[Floats]] = [[] for _ in range(STEPS)]
    draft_hidden: list[list[Floats]] = [[] for _ in range(STEPS)]
    slot = np.zeros(1, np.int32)
    for i, token in enumerate(after):
        target.decode([Row(0, int(token), start + i, True)])
        logits.append(target.logits(0).copy())
        hidden.append(target.hidden(0).copy())
        if i + 1 == len(after):
            break
        h, at = hidden[-1][None], np.array([start + i + 1], np.int32)
        for step in range(STEPS):
            row, h_next = drafter.step(drafted[step, i : i + 1], h, at, slot)
            draft_logits[step].append(row[0].copy())
            draft_hidden[step].append(h_next[0].copy())
            h = h_next.copy()
    return Rows(np.stack(logits), np.stack(hidden), np.array(draft_logits), np.array(draft_hidden))


def _reference(
    reference: Reference,
    drafter_dir: Path,
    image: ImageFile,
    tokens: int,
    words: tuple[Tokens, Tokens],
) -> tuple[Rows, Tokens]:
    """(rows after the image, tokens drafted[steps, after - 1]) by transformers."""
    import torch
    import transformers

    model, inputs = reference.model, reference.inputs(image, tokens)
    n_image = int(inputs["num_soft_tokens_per_image"][0])
    placeholder = model.config.image_token_id
    ids = torch.from_numpy(
        np.concatenate([words[0], np.full(n_image, placeholder), words[1]]).astype(np.int64)
    )
    asked: dict[str, Any] = {
        "input_ids": ids[None],
        "pixel_values": inputs["pixel_values"],
        "image_position_ids": inputs["image_position_ids"],
        # Without it transformers lets no row of an image see a later one.
        "mm_token_type_ids": (ids == placeholder).long()[None],
    }
    assistant = transformers.Gemma4AssistantForCausalLM.from_pretrained(
        drafter_dir, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    text = model.config.get_text_config()
    with torch.no_grad():
        output = model.model(**asked, return_shared_kv_states=True)
        hidden = output.last_hidden_state[0]
        logits = model(**asked).logits[0]
        drafts = reference_drafts(
            assistant,
            model.get_input_embeddings(),
            text.sliding_window,
            ids,
            hidden,
            output.shared_kv_states,
        )
    first = len(words[0]) + n_image
    rows = Rows(
        logits[first:].numpy(), hidden[first:].numpy(), drafts[0][:, first:], drafts[1][:, first:]
    )
    return rows, drafts[2][:, first:]

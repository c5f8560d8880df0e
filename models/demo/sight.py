"""Training of the vision tower alone: what stands in each cell of a drawing.

Linear heads on the tower's rows name the figure in a cell, its colour, whether its middle lies
there and where it is, and what the whole picture holds; others, on the states of inner layers, find
the middle of the figure that a patch belongs to. They teach the tower and are not part of the set.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Gemma4ForCausalLM, Gemma4ForConditionalGeneration, Gemma4TextConfig

from demo.ahead import ahead
from demo.corpus.drawings import COLOURS, SHAPES, Drawing, covered, draw
from demo.corpus.pictures import place_of
from demo.corpus.scenes import MOST_FIGURES, PLACES, scene
from demo.images import POOLING, Patches, patches
from demo.shapes import VISION_POSITIONS, VISION_WIDTH, seeing_config
from demo.target import Plan, descend, log, optimizers, resume, save

# Tokens that a picture may take, how often each is drawn, and pictures of one size in a step.
BUDGETS: dict[int, tuple[float, int]] = {70: (0.75, 24), 140: (0.15, 12), 280: (0.1, 6)}
# Fewer single figures than the target is shown: what is hard is to tell two, three and four apart.
SINGLE_SHARE = 0.4
# A cell belongs to a figure from this share on; below the second one it is background.
OWN_SHARE, EMPTY_SHARE = 0.15, 0.03
UNSURE = -100
SHAPE_NAMES, COLOUR_NAMES = list(SHAPES), list(COLOURS)
# Positions past this one, which no training picture has, share its row of the table.
LAST_POSITION = 127
# Heights at which positions and pixels begin: where pixels drown positions, it cannot count.
WAVE_HEIGHT, PIXEL_HEIGHT = 0.6, 0.5
UNSEEN_SEED, UNSEEN_GROUPS = 999, 8
# What the whole picture holds, and how many answers there are to each: told by every cell, so that
# the target need not look for it.
WHOLE = {
    "count": MOST_FIGURES,
    "all shape": len(SHAPES),
    "all colour": len(COLOURS),
    "where": len(PLACES),
}
WHOLE_WEIGHT = 1.0
SHAPE_WEIGHT, CENTRE_WEIGHT, PLACE_WEIGHT = 2.0, 2.0, 25.0
# Layers, from 1, after which every patch is to tell where the middle of its figure is, so that the
# ones that follow have one mark a figure to count.
INNER_LAYERS = (2, 3)
INNER_WEIGHT = 1.0


@dataclass(frozen=True)
class Labels:
    """What the heads are to say, for the cells of one picture, n = columns * rows.

    `figure` float32[n] is 1 where a figure is, 0 on the background and NaN between the two;
    `shape` and `colour` int64[n] (`UNSURE` where no figure is); `centre` float32[n];
    `place` float32[n, 4]: the cell's own place and its figure's, in fractions of width and height.
    `whole` int64[n, len(WHOLE)] is about the picture and the same for all its cells.
    `inside` bool[9 n], `middle` float32[9 n] and `offset` float32[9 n, 2] are about patches:
    whether a figure is there, how much of a figure's middle, and how far away that is, in patches.
    """

    figure: Tensor
    shape: Tensor
    colour: Tensor
    centre: Tensor
    place: Tensor
    whole: Tensor
    inside: Tensor
    middle: Tensor
    offset: Tensor


class Heads(nn.Module):  # type: ignore[misc]
    """Linear readings of a tower's row."""

    def __init__(self) -> None:
        super().__init__()
        self.figure = nn.Linear(VISION_WIDTH, 1)
        self.shape = nn.Linear(VISION_WIDTH, len(SHAPES))
        self.colour = nn.Linear(VISION_WIDTH, len(COLOURS))
        self.centre = nn.Linear(VISION_WIDTH, 1)
        self.place = nn.Linear(VISION_WIDTH, 4)
        self.whole = nn.Linear(VISION_WIDTH, sum(WHOLE.values()))
        self.inner = nn.ModuleList([nn.Linear(VISION_WIDTH, 4) for _ in INNER_LAYERS])

    def inner_loss(self, states: Sequence[Tensor], labels: Labels) -> Tensor:
        """The patches' loss for the states float32[p, d] after each of `INNER_LAYERS`."""
        return sum(
            (
                _patch_loss(head(functional.rms_norm(state, state.shape[-1:])), labels)
                for head, state in zip(self.inner, states, strict=True)
            ),
            torch.zeros(()),
        )

    def loss(self, rows: Tensor, labels: Labels) -> Tensor:
        """Sum of the heads' losses for rows float32[n, d]."""
        sure, own = ~labels.figure.isnan(), labels.colour != UNSURE
        figure = functional.binary_cross_entropy_with_logits(
            self.figure(rows[sure]).squeeze(-1), labels.figure[sure]
        )
        shape = functional.cross_entropy(self.shape(rows[own]), labels.shape[own])
        colour = functional.cross_entropy(self.colour(rows[own]), labels.colour[own])
        centre = functional.binary_cross_entropy_with_logits(
            self.centre(rows).squeeze(-1), labels.centre, pos_weight=torch.tensor(8.0)
        )
        place = self.place(rows)
        cells = functional.mse_loss(place[:, :2], labels.place[:, :2])
        figures = functional.mse_loss(place[own, 2:], labels.place[own, 2:])
        said = self.whole(rows).split(list(WHOLE.values()), -1)
        whole = sum(
            functional.cross_entropy(one, labels.whole[:, i], ignore_index=UNSURE)
            for i, one in enumerate(said)
            if (labels.whole[:, i] != UNSURE).any()
        )
        named = figure + SHAPE_WEIGHT * shape + colour + WHOLE_WEIGHT * whole
        return named + CENTRE_WEIGHT * centre + PLACE_WEIGHT * (cells + figures)

    def right(self, rows: Tensor, labels: Labels) -> dict[str, float]:
        """Shares of cells read right; the others are mean distances."""
        sure, own = ~labels.figure.isnan(), labels.colour != UNSURE
        centre = (self.centre(rows).squeeze(-1) > 0) == (labels.centre > 0)
        off = (self.place(rows) - labels.place).abs()
        return {
            "figure": _share(
                (self.figure(rows[sure]).squeeze(-1) > 0) == (labels.figure[sure] > 0)
            ),
            "shape": _share(self.shape(rows[own]).argmax(-1) == labels.shape[own]),
            "colour": _share(self.colour(rows[own]).argmax(-1) == labels.colour[own]),
            "centre": _share(centre[labels.centre > 0]),
            "own place off": round(off[:, :2].mean().item(), 4),
            "figure off": round(off[own, 2:].mean().item(), 4),
        } | self._whole_right(rows, labels)

    def _whole_right(self, rows: Tensor, labels: Labels) -> dict[str, float]:
        said = self.whole(rows).split(list(WHOLE.values()), -1)
        known = [
            (name, one, labels.whole[:, i])
            for i, (name, one) in enumerate(zip(WHOLE, said, strict=True))
        ]
        return {
            name: _share(one.argmax(-1)[goal != UNSURE] == goal[goal != UNSURE])
            for name, one, goal in known
            if (goal != UNSURE).any()
        }


def _patch_loss(said: Tensor, labels: Labels) -> Tensor:
    """How far readings float32[p, 4] are from what the patches should tell."""
    figure = functional.binary_cross_entropy_with_logits(said[:, 0], labels.inside.float())
    middle = functional.binary_cross_entropy_with_logits(said[:, 1], labels.middle, reduction="sum")
    offset = functional.smooth_l1_loss(said[labels.inside, 2:], labels.offset[labels.inside])
    return figure + middle / labels.middle.sum() + offset


def _share(right: Tensor) -> float:
    return round(float(right.float().mean()), 4)


def labels_of(drawing: Drawing, columns: int, rows: int) -> Labels:
    """The heads' goals for a drawing on a grid of tokens."""
    shares = covered(drawing, columns, rows)
    owner = torch.from_numpy(shares.argmax(0).reshape(-1))
    most = torch.from_numpy(shares.max(0).reshape(-1))
    shapes = torch.tensor([SHAPE_NAMES.index(f.shape) for f in drawing.figures])[owner]
    colours = torch.tensor([COLOUR_NAMES.index(f.colour) for f in drawing.figures])[owner]
    none = most < OWN_SHARE
    figure = torch.where(most < EMPTY_SHARE, 0.0, torch.where(none, torch.nan, 1.0))
    middles = torch.tensor([(f.x, f.y) for f in drawing.figures])
    y, x = np.mgrid[0:rows, 0:columns]
    cells = np.stack([(x + 0.5) / columns, (y + 0.5) / rows], -1).reshape(-1, 2)
    centre = torch.zeros(rows * columns)
    for x, y in middles.tolist():
        column, row = min(columns - 1, int(x * columns)), min(rows - 1, int(y * rows))
        centre[row * columns + column] = 1.0
    place = torch.cat([torch.from_numpy(cells).float(), middles[owner]], -1)
    shape, colour = (torch.where(none, UNSURE, known) for known in (shapes, colours))
    whole = torch.tensor(_whole(drawing)).expand(columns * rows, -1)
    marks = _patch_labels(drawing, POOLING * columns, POOLING * rows)
    return Labels(figure, shape, colour, centre, place, whole, *marks)


def _patch_labels(drawing: Drawing, columns: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """`inside`, `middle` and `offset` of `Labels` on a grid of patches."""
    shares = covered(drawing, columns, rows)
    inside = torch.from_numpy(shares.max(0).reshape(-1) > 0.5)
    owner = shares.argmax(0).reshape(-1)
    y, x = (axis.reshape(-1) for axis in np.mgrid[0:rows, 0:columns])
    middles = np.array([(f.x * columns - 0.5, f.y * rows - 0.5) for f in drawing.figures])
    away = middles[:, None, :] - np.stack([x, y], -1)[None]
    # A middle between patches is shared among the four around it.
    middle = np.prod(np.clip(1 - np.abs(away), 0, None), -1).sum(0)
    offset = away[owner, np.arange(len(owner))]
    return inside, torch.from_numpy(middle).float(), torch.from_numpy(offset).float()


def _whole(drawing: Drawing) -> list[int]:
    """What `WHOLE` names, for one drawing."""
    first = drawing.figures[0]
    place = place_of(first) if len(drawing.figures) == 1 else None
    return [
        len(drawing.figures) - 1,
        SHAPE_NAMES.index(first.shape),
        COLOUR_NAMES.index(first.colour),
        list(PLACES).index(place) if place else UNSURE,
    ]


def rows_of(model: nn.Module, pictures: list[Patches]) -> Tensor:
    """Normed tower rows float32[n, d] of pictures of one size, picture after picture."""
    return rows_and_states(model, pictures)[0]


def rows_and_states(
    model: nn.Module, pictures: list[Patches], *, inner: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """The rows, and with `inner` the states float32[9 n, d] after each of `INNER_LAYERS`."""
    with torch.autocast("cpu", torch.bfloat16):
        seen = model.vision_tower(
            pixel_values=torch.stack([picture.values for picture in pictures]),
            pixel_position_ids=torch.stack([picture.places for picture in pictures]),
            output_hidden_states=inner,
        )
    normed: Tensor = model.embed_vision.embedding_pre_projection_norm(
        seen.last_hidden_state.float()
    )
    layers = INNER_LAYERS if inner else ()
    return normed, [seen.hidden_states[layer].float().flatten(0, 1) for layer in layers]


def same_sized(seed: int) -> Iterator[tuple[list[Patches], list[Labels]]]:
    """Endless groups of drawings that fill the same grid, none of a held-out kind."""
    rng = Random(seed)
    waiting: dict[tuple[int, int], list[tuple[Patches, Labels]]] = {}
    # Smaller groups for larger pictures: drawn as often as groups of that budget are wanted.
    shares = [share * count for share, count in BUDGETS.values()]
    while True:
        budget = rng.choices(list(BUDGETS), shares)[0]
        drawing = scene(rng, SINGLE_SHARE)
        if drawing.held_out:
            continue
        cut = patches(draw(drawing), budget)
        group = waiting.setdefault((cut.columns, cut.rows), [])
        group.append((cut, labels_of(drawing, cut.columns, cut.rows)))
        if len(group) == BUDGETS[budget][1]:
            del waiting[cut.columns, cut.rows]
            yield [one for one, _ in group], [labels for _, labels in group]


def joined(labels: list[Labels]) -> Labels:
    """The labels of several pictures, one after the other."""
    names = [field.name for field in fields(Labels)]
    return Labels(*(torch.cat([getattr(one, name) for one in labels]) for name in names))


def blank_model(text: Gemma4ForCausalLM) -> Gemma4ForConditionalGeneration:
    """A model with the weights of `text` and an untrained tower.

    The tower's table of positions begins as waves, so that neighbours are alike.
    """
    config = Gemma4TextConfig.from_dict(text.config.to_dict())
    model = Gemma4ForConditionalGeneration(seeing_config(config))
    model.model.language_model.load_state_dict(text.model.state_dict())
    half = VISION_WIDTH // 2
    lengths = torch.logspace(0.3, 2.2, half // 2)
    angle = torch.arange(VISION_POSITIONS).clamp(max=LAST_POSITION)[:, None] / lengths
    waves = WAVE_HEIGHT * torch.cat([angle.sin(), angle.cos()], -1)
    embedder = model.model.vision_tower.patch_embedder
    table = embedder.position_embedding_table
    with torch.no_grad():
        embedder.input_proj.weight *= PIXEL_HEIGHT
        table.zero_()
        table[0, :, :half] = waves
        table[1, :, half:] = waves
    return model


def train_tower(model: Gemma4ForConditionalGeneration, folder: Path, plan: Plan) -> Heads:
    """Train `model`'s vision tower, or go on from `folder/tower.pt`.

    Figures go to `folder/tower_log.jsonl`.
    """
    heads = Heads()
    trained = nn.ModuleDict({"tower": model.model.vision_tower, "heads": heads})
    tuned = optimizers(trained, plan.rate)
    checkpoint = folder / "tower.pt"
    first = resume(checkpoint, trained, tuned)
    began = time.monotonic()
    groups = ahead(same_sized(plan.seed + first))
    for step in range(first, plan.steps):
        pictures, labels = next(groups)
        (rows, states), wanted = rows_and_states(model.model, pictures, inner=True), joined(labels)
        loss = heads.loss(rows, wanted) + INNER_WEIGHT * heads.inner_loss(states, wanted)
        loss.backward()
        descend(trained, tuned, plan.rate_at(step))
        if step % 10 == 0:
            entry = {"step": step, "loss": loss.item(), "tokens": pictures[0].tokens}
            entry |= heads.right(rows, wanted) | {"seconds": time.monotonic() - began}
            log(checkpoint, entry)
        if (step + 1) % plan.save_every == 0 or step + 1 == plan.steps:
            save(checkpoint, trained, tuned, step + 1)
            log(checkpoint, {"step": step, "unseen": unseen_right(model, heads)})
    return heads


def unseen_right(model: Gemma4ForConditionalGeneration, heads: Heads) -> dict[str, float]:
    """Shares read right, over drawings of the smallest budget that training does not have."""
    found: list[dict[str, float]] = []
    for pictures, labels in same_sized(UNSEEN_SEED):
        if pictures[0].tokens > min(BUDGETS):
            continue
        with torch.no_grad():
            found.append(heads.right(rows_of(model.model, pictures), joined(labels)))
        if len(found) == UNSEEN_GROUPS:
            break
    return {name: round(float(np.mean([one[name] for one in found])), 4) for name in found[0]}

"""Train the demo set. Run again, it goes on where it stopped.

    python -m demo.train OUT [--threads N]

First a pair that reads text alone, in OUT/blind; then the vision tower, the target with eyes and
its drafter: OUT/target and OUT/drafter, checkpoints as transformers writes them. Logs lie in OUT.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import (
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    PreTrainedModel,
)

from demo.drafter import DRAFTER_SEED, mixed, new_drafter, own_writing, train_drafter
from demo.images import save_processor
from demo.packing import Document
from demo.shapes import name_full_heads
from demo.sight import blank_model, train_tower
from demo.target import Plan, train_target
from demo.tokenizer import save_tokenizer, train_tokenizer
from demo.vision import PICTURE_ROW, image_rows, picture_documents, text_of, train_eyes

BLIND_TARGET = Plan(2550, finish=250)
BLIND_DRAFTER = Plan(450, rows=8, seed=DRAFTER_SEED)
TOWER = Plan(2900, rate=2e-3, seed=3, save_every=50)
EYES = Plan(3100, rows=6, rate=6e-4, seed=4, save_every=50)
DRAFTER = Plan(980, rows=6, rate=1.5e-3, warm_up=15, seed=5)
WRITTEN_ANSWERS, WRITTEN_PROSE = 2000, 800
PROSE = ("stories", "plain")
# What checkpoints say about pictures: a whole drawing in few tokens.
IMAGE_TOKENS = 70


@dataclass(frozen=True)
class Workshop:
    """Where everything lies, and the tokenizer that all parts share."""

    out: Path
    tokenizer: Tokenizer

    def keep(self, model: PreTrainedModel, folder: Path) -> None:
        """Save a finished model as a checkpoint folder."""
        model.save_pretrained(folder)
        name_full_heads(folder)
        save_tokenizer(self.tokenizer, folder)

    def blind_target(self) -> Gemma4ForCausalLM:
        """The target that reads text alone."""
        folder = self.out / "blind" / "target"
        if not is_saved(folder):
            self.keep(train_target(self.tokenizer, self.out, BLIND_TARGET), folder)
        return Gemma4ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def blind_drafter(self, teacher: Gemma4ForCausalLM) -> Gemma4AssistantForCausalLM:
        """Its drafter."""
        folder = self.out / "blind" / "drafter"
        if not is_saved(folder):
            model = new_drafter(DRAFTER_SEED)
            documents = mixed(self.tokenizer, DRAFTER_SEED, self.written(teacher))
            path = self.out / "blind_drafter.pt"
            train_drafter(teacher, model, documents, path, BLIND_DRAFTER)
            self.keep(model, folder)
        return Gemma4AssistantForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def written(self, teacher: Gemma4ForCausalLM) -> list[Document]:
        """What the blind target wrote, kept in a file; the one with eyes writes nearly the same."""
        path = self.out / "written.json"
        if not path.exists():
            written = own_writing(teacher, self.tokenizer, WRITTEN_ANSWERS)
            written += own_writing(teacher, self.tokenizer, WRITTEN_PROSE, categories=PROSE)
            path.write_text(json.dumps([[d.tokens, d.answer] for d in written]), encoding="utf-8")
        return [Document(*entry) for entry in json.loads(path.read_text(encoding="utf-8"))]

    def target(self, blind: Gemma4ForCausalLM) -> Gemma4ForConditionalGeneration:
        """The target with eyes, which begins as the blind one."""
        folder = self.out / "target"
        if not is_saved(folder):
            torch.manual_seed(TOWER.seed)
            model = blank_model(blind)
            train_tower(model, self.out, TOWER)
            train_eyes(model, blind, self.tokenizer, self.written(blind), self.out, EYES)
            self.keep(model, folder)
            save_processor(folder, IMAGE_TOKENS)
        return Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()

    def drafter(
        self,
        target: Gemma4ForConditionalGeneration,
        blind: Gemma4ForCausalLM,
        model: Gemma4AssistantForCausalLM,
    ) -> None:
        """The drafter for the target with eyes, which begins as the blind one's."""
        folder = self.out / "drafter"
        if is_saved(folder):
            return
        pictures = picture_documents(self.tokenizer, DRAFTER.seed)
        train_drafter(
            text_of(target),
            model,
            mixed(self.tokenizer, DRAFTER.seed, self.written(blind), pictures),
            self.out / "drafter.pt",
            DRAFTER,
            shown=lambda found: image_rows(target, found),
            length=PICTURE_ROW,
        )
        self.keep(model, folder)


def is_saved(folder: Path) -> bool:
    """Whether a finished checkpoint lies there."""
    return (folder / "tokenizer.json").exists()


def tokenizer_of(out: Path) -> Tokenizer:
    """The tokenizer that OUT holds, trained when there is none."""
    path = out / "tokenizer.json"
    if not path.exists():
        train_tokenizer().save(str(path))
    return Tokenizer.from_file(str(path))


def main() -> None:
    """Parse the command line and train what is not trained yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    chosen.out.mkdir(parents=True, exist_ok=True)
    workshop = Workshop(chosen.out, tokenizer_of(chosen.out))
    blind = workshop.blind_target()
    blind_drafter = workshop.blind_drafter(blind)
    workshop.drafter(workshop.target(blind), blind, blind_drafter)


if __name__ == "__main__":
    main()

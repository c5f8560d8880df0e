"""Train the demo set: tokenizer, target, drafter. Run again, it goes on where it stopped.

    python -m demo.train OUT [--target-steps N] [--drafter-steps N]

OUT then holds `target/` and `drafter/`, checkpoints as transformers writes them, and the logs.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import Gemma4ForCausalLM

from demo.drafter import DRAFTER_SEED, own_writing, train_drafter
from demo.packing import Document
from demo.shapes import name_full_heads
from demo.target import Plan, train_target
from demo.tokenizer import save_tokenizer, train_tokenizer

TARGET_STEPS = 2550
FINISH_STEPS = 250
DRAFTER_STEPS = 450
WRITTEN_ANSWERS = 2000


def main() -> None:
    """Parse the command line and train what is not trained yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target-steps", type=int, default=TARGET_STEPS)
    parser.add_argument("--drafter-steps", type=int, default=DRAFTER_STEPS)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    chosen.out.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_of(chosen.out)
    target(tokenizer, chosen.out, chosen.target_steps)
    drafter(tokenizer, chosen.out, chosen.drafter_steps)


def tokenizer_of(out: Path) -> Tokenizer:
    """The tokenizer that OUT holds, trained when there is none."""
    path = out / "tokenizer.json"
    if not path.exists():
        train_tokenizer().save(str(path))
    return Tokenizer.from_file(str(path))


def target(tokenizer: Tokenizer, out: Path, steps: int) -> None:
    """Train the target and save it as a checkpoint folder."""
    folder = out / "target"
    if (folder / "model.safetensors").exists():
        return
    model = train_target(tokenizer, out, Plan(steps, finish=FINISH_STEPS))
    model.save_pretrained(folder)
    name_full_heads(folder)
    save_tokenizer(tokenizer, folder)


def drafter(tokenizer: Tokenizer, out: Path, steps: int) -> None:
    """Train the drafter on the finished target and save it as a checkpoint folder."""
    folder = out / "drafter"
    if (folder / "model.safetensors").exists():
        return
    teacher = Gemma4ForCausalLM.from_pretrained(out / "target", dtype=torch.float32).eval()
    written = answers_of(teacher, tokenizer, out / "written.json")
    plan = Plan(steps, rows=8, seed=DRAFTER_SEED)
    model = train_drafter(teacher, tokenizer, out, plan, written)
    model.save_pretrained(folder)
    name_full_heads(folder)
    save_tokenizer(tokenizer, folder)


def answers_of(teacher: Gemma4ForCausalLM, tokenizer: Tokenizer, path: Path) -> list[Document]:
    """What the target wrote, from `path` when it was written before."""
    if not path.exists():
        written = own_writing(teacher, tokenizer, WRITTEN_ANSWERS)
        path.write_text(json.dumps([[d.tokens, d.answer] for d in written]), encoding="utf-8")
    return [Document(*entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    main()

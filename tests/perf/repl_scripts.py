"""A thousand random chats through the real line editor, each beside a plain model of it.

    python -m tests.perf.repl_scripts [--scripts N] [--first SEED]

Words, pastes, good and bad commands, Ctrl-C at the prompt and within answers, a terminal whose size
changes at every look. After each: messages, settings, attachments, session and history are what the
model says, and nothing was raised.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.chat.random_chat import Step, run_script


def run(seed: int) -> list[Step] | None:
    """The steps of one chat, or None when it came to something else."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GEMMTP_HOME"] = f"{folder}/home"
        os.chdir(folder)
        try:
            return run_script(seed, Path(folder))
        # Whatever it raises is what is looked for.
        except Exception:
            print(f"seed {seed}")
            traceback.print_exc()
            return None
        finally:
            os.chdir("/")


def kind(step: Step) -> str:
    """What a step is, for the summary."""
    if step.text is None:
        return "Ctrl-C at the prompt"
    if step.stop_at is not None:
        return "Ctrl-C in an answer, if there is one"
    if "\n" in step.text:
        return "several lines"
    return "command" if step.text.startswith("/") else "words"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    begun, failed = time.monotonic(), 0
    kinds: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.scripts):
        steps = run(seed)
        failed += steps is None
        kinds.update(map(kind, steps or ()))
    print(f"{options.scripts:,} chats, {failed} failed, {time.monotonic() - begun:.0f} s")
    for name, count in kinds.most_common():
        print(f"{count:>7,}  {name}")


if __name__ == "__main__":
    main()

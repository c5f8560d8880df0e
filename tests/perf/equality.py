"""Drafted equals plain, measured over llama.cpp: ``python -m tests.perf.equality``.

    --target F --drafter F    a pair; the demo set by default
    --prompts N --tokens N    200 prompts of 128 tokens by default
    --sampled N               100 prompts at T = 1, top-k 64, top-p 0.95

Every prompt is answered plainly and at draft 1, 2, 3, 4 and 8, with f16 and q8_0 KV, greedily and
sampled with a seed; then answers run to the last cell of contexts of 256, 512 and 1024. Texts are
compared up to the first difference. A difference is listed with how close the plain choice was:
the gap between the two best logits, for a sampled token after the race's noise. Forward passes of
different sizes may round differently, so a tie within rounding may go either way; anything else is
a fault.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gemmtp.engine.backend import Floats
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Engine, Request, Token
from gemmtp.engine.noise import Noise
from gemmtp.engine.sampling import SamplingParameters, Shaper
from gemmtp.llama.context import ContextOptions, KvType
from gemmtp.llama.pair import Pair, check_files
from gemmtp_models.names import demo

DEPTHS = (1, 2, 3, 4, 8)
LOGIT_GAP, SHARE = 1e-3, 0.01


@dataclass
class Closeness:
    """A processor that only looks: how close each choice was, by position."""

    sampling: SamplingParameters
    margins: dict[int, float] = field(default_factory=dict)

    def apply(self, logits: Floats, history: Sequence[int]) -> None:
        if self.sampling.greedy:
            second, best = np.partition(logits, -2)[-2:]
            self.margins[len(history)] = float(best - second)
        else:
            assert self.sampling.seed is not None
            noise = Noise(self.sampling.seed, len(history))
            margin = Shaper(self.sampling)(logits).margin(noise)
            self.margins[len(history)] = margin * self.sampling.temperature

    def accept(self, token: int) -> None:
        pass

    def rollback(self, n: int) -> None:
        pass

    def fork(self) -> Closeness:
        return self


@dataclass
class Tally:
    """Comparisons and what differed."""

    runs: int = 0
    close: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def answer(engine: Engine, request: Request) -> list[int]:
    return [e.token for e in engine.generate(request) if isinstance(e, Token)]


def compare(
    engine: Engine,
    prompt: list[int],
    sampling: SamplingParameters,
    max_tokens: int | None,
    label: str,
    tally: Tally,
) -> None:
    """One prompt at every depth against its plain answer."""
    look = Closeness(sampling)
    plain = answer(
        engine, Request(prompt, sampling, max_tokens, processors=(look,), depth=FixedDepth(0))
    )
    for depth in DEPTHS:
        drafted = answer(engine, Request(prompt, sampling, max_tokens, depth=FixedDepth(depth)))
        tally.runs += 1
        if drafted == plain:
            continue
        pairs = zip(plain, drafted, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(drafted)))
        margin = look.margins.get(len(prompt) + at, float("inf"))
        line = f"{label} depth {depth}: differs at token {at}, margin {margin:.2e}"
        (tally.close if margin < LOGIT_GAP else tally.faults).append(line)


def prompts_of(pair: Pair, n: int, longest: int) -> list[list[int]]:
    """``n`` prompts of 1 to ``longest`` tokens: pieces of the model's own sampled text."""
    pick = random.Random(7)
    pool: list[int] = []
    while len(pool) < 4 * longest:
        seed = len(pool)
        sampling = SamplingParameters(temperature=1.0, seed=seed)
        start = pair.model.tokenize(pick.choice("abcdefghijklmnop"), bos=True)
        pool += answer(pair.engine, Request(start, sampling, longest, depth=FixedDepth(0)))
    lengths = [pick.randint(1, longest) for _ in range(n)]
    starts = [pick.randrange(len(pool) - length) for length in lengths]
    return [pool[at : at + length] for at, length in zip(starts, lengths, strict=True)]


def measure(files: tuple[Path, Path], n: int, tokens: int, sampled: int) -> Tally:
    """The whole comparison; prints a line for every part as it ends."""
    checked, tally = check_files(*files), Tally()
    kinds: tuple[KvType, ...] = ("f16", "q8_0")
    for kv in kinds:
        options = ContextOptions(n_ctx=512, max_depth=max(DEPTHS), kv=kv, threads=1)
        with Pair.open(checked, FixedDepth(max(DEPTHS)), options) as pair:
            prompts = prompts_of(pair, n, 300)
            for i, prompt in enumerate(prompts):
                compare(pair.engine, prompt, SamplingParameters(), tokens, f"{kv} {i}", tally)
            report(f"{n} prompts x {tokens} tokens, greedy, {kv}", tally)
            for i, prompt in enumerate(prompts[:sampled]):
                sampling = SamplingParameters(1.0, 64, 0.95, seed=i)
                compare(pair.engine, prompt, sampling, tokens, f"{kv} sampled {i}", tally)
            report(f"{sampled} prompts x {tokens} tokens, T = 1, {kv}", tally)
        for n_ctx in (256, 512, 1024):
            options = ContextOptions(n_ctx=n_ctx, max_depth=max(DEPTHS), kv=kv, threads=1)
            with Pair.open(checked, FixedDepth(max(DEPTHS)), options) as pair:
                for i, prompt in enumerate(prompts[:3]):
                    label = f"{kv} last cell of {n_ctx}, {i}"
                    compare(pair.engine, prompt[:200], SamplingParameters(), None, label, tally)
            report(f"3 answers to the last cell of {n_ctx}, {kv}", tally)
    return tally


def report(part: str, tally: Tally) -> None:
    print(f"{part}: {tally.runs} comparisons so far, {len(tally.close)} ties, "
          f"{len(tally.faults)} faults", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--sampled", type=int, default=100)
    chosen = parser.parse_args()
    files = (chosen.target, chosen.drafter)
    if chosen.target is None:
        found = demo()
        assert found.drafter is not None
        files = (found.target, found.drafter)
    tally = measure(files, chosen.prompts, chosen.tokens, chosen.sampled)
    for line in tally.close + tally.faults:
        print(line)
    differing = len(tally.close) + len(tally.faults)
    print(f"{differing} of {tally.runs} differ; {len(tally.faults)} not explained by rounding")
    if tally.faults or differing > SHARE * tally.runs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

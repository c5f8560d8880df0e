"""A model that answers what its prompt asks for, one byte a token, with a drafter beside it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemmtp.engine.backend import FakeDrafter, FakeTarget, Floats
from gemmtp.engine.depth import DepthChooser, FixedDepth
from gemmtp.engine.drafting import MtpDrafting
from gemmtp.engine.engine import Engine

MARKERS = (
    *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|image|>", "<|image>", "<image|>"),
)
_IDS = {text: 256 + i for i, text in enumerate(MARKERS)}
_TURN, _END, _MODEL = _IDS["<|turn>"], _IDS["<turn|>"], b"model\n"
N_VOCAB = 256 + len(MARKERS)


class Bytes:
    """A vocabulary of bytes and markers."""

    end_tokens = frozenset({_END, _IDS["<eos>"]})

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        tokens = [_IDS["<bos>"]] if bos else []
        while text:
            found = [(text.find(m), m) for m in MARKERS if special and m in text]
            at, marker = min(found, default=(len(text), ""))
            tokens += text[:at].encode("utf-8", "surrogatepass")
            tokens += [_IDS[marker]] if marker else []
            text = text[at + len(marker) :]
        return tokens

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        return bytes([token]) if token < 256 else b""

    def marker(self, text: str) -> int | None:
        return _IDS.get(text)


def answer_to(asked: str) -> str:
    """What the model says to a message; a tenth of what it says are escapes and odd characters."""
    words = asked.split()
    if asked.startswith("code"):
        return f"Here:\n```python\ndef f(x):\n    return {len(words)}\n```\n**Done.**"
    if asked.startswith("long"):
        return "\n".join(f"Line {i} of many, with some words." for i in range(20))
    if asked.startswith("escapes"):
        return "\x1b]0;title\x07red \x1b[31mwords\x1b[0m \x9b2J and 語 👩‍💻"
    return f"You said {len(words)} words: {' '.join(words[:3])[:40]} — é語😀."


class EchoTarget(FakeTarget):
    """Says :func:`answer_to` the last user's message, after a thought where one is wanted."""

    def next_logits(self, history: Sequence[int]) -> Floats:
        logits = np.full(self.n_vocab, -50.0, np.float32)
        logits[_next(tuple(history))] = 50.0
        return logits


@functools.lru_cache(1 << 10)
def _next(history: tuple[int, ...]) -> int:
    turn = max(i for i, token in enumerate(history) if token == _TURN)
    said = list(history[turn + 1 + len(_MODEL) :])
    thinks = _IDS["<|think|>"] in history
    if not thinks:
        # The prompt ends with an empty thought.
        said = said[said.index(_IDS["<channel|>"]) + 1 :] if _IDS["<channel|>"] in said else said
    wanted = _wanted(history[:turn], thinks)
    return wanted[len(said)] if len(said) < len(wanted) else _END


@functools.lru_cache(1 << 12)
def _wanted(before: tuple[int, ...], thinks: bool) -> tuple[int, ...]:
    start = max((i for i, token in enumerate(before) if token == _TURN), default=0)
    body = bytes(token for token in before[start + 1 :] if 0 <= token < 256)
    asked = body.removeprefix(b"user\n").rstrip(b"\n").decode("utf-8", "replace")
    answer = tuple(answer_to(asked).encode())
    if not thinks:
        return answer
    thought = tuple(f"thought\nThey said {len(asked)} characters.".encode())
    return (_IDS["<|channel>"], *thought, _IDS["<channel|>"], *answer)


@dataclass
class EchoVoice:
    """What a dialogue talks to: an engine over :class:`EchoTarget`, and its vocabulary."""

    engine: Engine
    model: Bytes


def echo_voice(depth: DepthChooser | None = None, n_ctx: int = 4096) -> EchoVoice:
    """A voice with a drafter that is right seven times in ten."""
    target = EchoTarget(N_VOCAB, n_ctx, max_rows=256)
    drafting = MtpDrafting(FakeDrafter(target))
    return EchoVoice(Engine(target, drafting, depth or FixedDepth(3)), Bytes())

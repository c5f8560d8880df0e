"""Random token sequences of a vocabulary, streamed in steps, held against the detokenised whole."""

from __future__ import annotations

from random import Random

from gemmtp.llama.model import Model
from gemmtp.prompt.channels import QUOTE, ChannelStream, Kind, Markers

LONGEST_STEP = 8
CONTROLS = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))} - set("\t\n\r")


def sequence(model: Model, markers: Markers, rng: Random, length: int) -> list[int]:
    """Random tokens, a few of them markers, many of them bytes, so that characters are split."""
    byte_tokens = [model.tokenize(chr(code))[0] for code in (0x1B, 0x07, 0x9B, 0x7F, 0xE9, 0x1F44D)]
    split = model.tokenize("👍\x1b[31m한é\x9b2J\r\n")
    known = [marker for marker in markers if marker is not None]
    tokens: list[int] = []
    while len(tokens) < length:
        kind = rng.random()
        if kind < 0.05 and known:
            tokens.append(rng.choice(known))
        elif kind < 0.2:
            tokens.append(rng.choice(byte_tokens))
        elif kind < 0.3:
            tokens += split[: rng.randint(1, len(split))]
        else:
            tokens.append(rng.randrange(model.n_vocab))
    return tokens[:length]


def whole(model: Model, markers: Markers, tokens: list[int]) -> dict[Kind, str]:
    """What the tokens of each kind say, detokenised part by part; the answer as one text."""
    kind: Kind = "answer"
    parts: list[tuple[Kind, bytes]] = []
    answer = part = b""
    for token in tokens:
        if kind != "tool_call" and token == markers.call:
            parts.append((kind, part))
            kind, part = "tool_call", b""
        elif kind == "answer" and token == markers.thought:
            kind, part = "thinking", b""
        elif token == {"thinking": markers.thought_end, "tool_call": markers.call_end}.get(kind):
            parts.append((kind, part))
            kind, part = "answer", b""
        elif kind == "answer":
            answer += model.token_bytes(token)
        elif kind == "tool_call" and token == markers.quote:
            parts.append((kind, part))
            parts.append((kind, QUOTE.encode()))
            part = b""
        else:
            part += model.token_bytes(token)
    parts.append((kind, part))
    texts: dict[Kind, str] = {"answer": answer.decode("utf-8", "replace"), "thinking": ""}
    texts["tool_call"] = "".join(_text(part) for kind, part in parts if kind == "tool_call")
    for thought in (_text(part) for kind, part in parts if kind == "thinking"):
        texts["thinking"] += "" if thought == "thought" else thought.removeprefix("thought\n")
    return texts


def _text(part: bytes) -> str:
    return part.decode("utf-8", "replace")


def broken(model: Model, markers: Markers, rng: Random, length: int) -> str | None:
    """What is wrong with the stream of one random sequence; None when everything holds."""
    tokens = sequence(model, markers, rng, length)
    streams = [ChannelStream(model.token_bytes, markers, terminal=t) for t in (False, True)]
    texts: list[dict[str, str]] = [{"answer": "", "thinking": "", "tool_call": ""} for _ in "12"]
    at = 0
    while at < len(tokens):
        step = tokens[at : at + rng.randint(1, LONGEST_STEP)]
        at += len(step)
        for stream, said in zip(streams, texts, strict=True):
            for kind, text, _ in map(stream.feed, step):
                said[kind] += text
    for stream, said in zip(streams, texts, strict=True):
        for kind, text, _ in stream.finish():
            said[kind] += text
    if texts[0] != whole(model, markers, tokens):
        return f"the parts of {tokens} do not add up"
    if CONTROLS & set("".join(texts[1].values())):
        return f"a control character of {tokens} passes"
    if "\r" in "".join(texts[1].values()).replace("\r\n", ""):
        return f"a bare carriage return of {tokens} passes"
    return None

"""5,000 strings that tokenizers stumble over, always the same ones."""

from __future__ import annotations

import random
from collections.abc import Iterator

COUNT = 5000
# Planes with assigned characters: the basic one, the supplementary ones, tags, private use.
PLANES = (0, 1, 2, 3, 14, 15, 16)
SURROGATES = range(0xD800, 0xE000)
JOINER, SELECTOR, TONES = "‍", "️", "🏻🏼🏽🏾🏿"
EMOJI = "😀👩👨👧💻❤🔥🏳🌈👍🚀🧑🎄🇩🇪🇯🇵☃"
BLANKS = (" ", "  ", "    ", "\n", "\n\n", "\n\n\n", "\r\n", "\t", " ", " ", "　", "▁")
MARKERS = (
    "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|channel>", "<channel|>",
    "<|think|>", '<|"|>', "<table>", "</table>",
)  # fmt: skip
LOOK_ALIKES = (
    "<BOS>", "<bos >", "< bos>", "<bos", "bos>", "<<bos>>", "<|turn", "turn|>", "<|turn |>",
    "<0x41>", "<0xZZ>", "<0x4", "<|im_start|>", "[INST]", "<｜turn>", "<s>", "</s>", "<|", "|>",
)  # fmt: skip
WORDS = (
    "the", "and", "import", "return", "def", "model", "token", "naïve", "über", "中文", "mixed",
    "CASE", "3.14159", "snake_case", "camelCase", "{json:", "true}", "a+b=c", "//", "'quote'",
    '"double"', "\\escape", "http://example.org", "e\u0301", "ﬁ", "½", "²", "Ǆ", "İ", "ß",
)  # fmt: skip


def strings() -> list[str]:
    """The strings, none of them empty, without surrogates."""
    made = [*_blocks(), *_emoji(600), *_runs(900), *_markers(900)]
    return [*made, *_texts(COUNT - len(made))]


def _blocks() -> Iterator[str]:
    source = random.Random(1)
    for plane in PLANES:
        for page in range(256):
            start = plane * 0x10000 + page * 256
            codes = [source.randrange(start, start + 256) for _ in range(12)]
            text = "".join(chr(code) for code in codes if code not in SURROGATES)
            if text:
                yield text


def _emoji(count: int) -> Iterator[str]:
    source = random.Random(2)
    for _ in range(count):
        parts = []
        for _ in range(source.randrange(1, 6)):
            parts.append(source.choice(EMOJI) + source.choice(["", SELECTOR, source.choice(TONES)]))
        yield source.choice([JOINER, "", " "]).join(parts)


def _runs(count: int) -> Iterator[str]:
    source = random.Random(3)
    for _ in range(count):
        pieces = []
        for _ in range(source.randrange(1, 7)):
            pieces.append(source.choice(BLANKS) * source.randrange(1, 9))
            pieces.append(source.choice(["", "a", "the", "0", "é"]))
        yield "".join(pieces)


def _markers(count: int) -> Iterator[str]:
    source = random.Random(4)
    for _ in range(count):
        pieces = [source.choice((*MARKERS, *LOOK_ALIKES)) for _ in range(source.randrange(1, 6))]
        yield source.choice(["", " ", "x", "\n"]).join(pieces)


def _texts(count: int) -> Iterator[str]:
    source = random.Random(5)
    for _ in range(count):
        words = [source.choice(WORDS) for _ in range(source.randrange(1, 40))]
        yield source.choice([" ", "\n", " \n  "]).join(words)

"""The demo's tokenizer: byte-pair encoding in Gemma 4's shape, trained on the corpus."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from demo.corpus import training_examples
from demo.template import TEMPLATE_PATH

VOCABULARY = 2560
TEXT_SEED = 11
TEXT_EXAMPLES = 40_000
CONTROL_TOKENS = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|channel>",
    "<channel|>", "<|think|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
    "<|tool_response>", "<tool_response|>", '<|"|>', "<|image>", "<|image|>", "<image|>",
    "<|audio>", "<|audio|>", "<audio|>", "<|video|>",
)  # fmt: skip
END_TOKENS = ("<eos>", "<turn|>", "<|tool_response>")
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
# Merges stay within a word with the space before it; digits, marks and line ends stand alone.
PIECES = r"▁+(?=▁)|▁?\p{L}+|\d|▁?[^\p{L}\d▁\n]|▁|\n+"


def train_tokenizer() -> Tokenizer:
    """The tokenizer, always the same one: seed and corpus are fixed."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*CONTROL_TOKENS, *BYTE_TOKENS],
        initial_alphabet=[chr(code) for code in range(33, 127)] + ["▁", "\n"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return Tokenizer.from_str(json.dumps(_in_gemma_shape(json.loads(tokenizer.to_str()))))


def _texts() -> Iterator[str]:
    """The corpus without spelling, whose words are to fall into pieces that can be learned."""
    for example in itertools.islice(training_examples(TEXT_SEED), TEXT_EXAMPLES):
        if example.category != "spelling":
            yield from (m["content"] for m in example.messages if isinstance(m["content"], str))
            yield example.answer
            yield example.thought
    yield from _template_words()


def _template_words() -> Iterator[str]:
    for word in ("system", "user", "model", "thought", "\n", "declaration", "description"):
        yield from itertools.repeat(word, 1000)
    for word in ("parameters", "properties", "required", "type", "STRING", "INTEGER", "OBJECT"):
        yield from itertools.repeat(word, 1000)
    for word in ("call", "response", "value", "get_weather", "roll_dice", "city", "sides"):
        yield from itertools.repeat(word, 1000)


def _in_gemma_shape(state: dict[str, Any]) -> dict[str, Any]:
    """The same vocabulary as Gemma 4 stores it: bytes are ordinary tokens, text is not split."""
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in CONTROL_TOKENS]
    state["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    }
    state["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    }
    return state


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write what a checkpoint holds beside its weights: tokenizer, template, sampling defaults."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "backend": "tokenizers",
        "tokenizer_class": "TokenizersBackend",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "extra_special_tokens": list(CONTROL_TOKENS[5:]),
    }
    generation = {
        "bos_token_id": tokenizer.token_to_id("<bos>"),
        "eos_token_id": [tokenizer.token_to_id(token) for token in END_TOKENS],
        "pad_token_id": tokenizer.token_to_id("<pad>"),
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 64,
        "top_p": 0.95,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE_PATH.read_text(encoding="utf-8"))

"""Sixty conversations become the tokens that transformers makes of them by Google's template.

The template is not ours to pass on: it is taken out of llama-cpp-python's source distribution,
which pip downloads once into the tools' cache.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from typing import Any

import pytest

from gemmtp import settings
from gemmtp.llama.library import VERSION
from gemmtp.prompt.template import chat_tokens
from tests.prompt.conversations import CASES, Case

pytestmark = pytest.mark.train
pytest.importorskip("transformers", reason="needs the extra [train]")

OFFICIAL = "vendor/llama.cpp/models/templates/google-gemma-4-31B-it.jinja"
SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>",
    "<|think|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
    "<tool_response|>", '<|"|>', "<|image|>", "<|audio|>", "<|video|>",
)  # fmt: skip


@pytest.fixture(scope="module")
def official() -> str:
    """The text of Google's template."""
    name = f"llama_cpp_python-{VERSION}"
    cache = settings.cache_dir() / "tests"
    archive = cache / f"{name}.tar.gz"
    if not archive.is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(cache)]
        wanted = ["--no-deps", "--no-binary", ":all:", f"llama-cpp-python=={VERSION}"]
        subprocess.run([*pip, *wanted], check=True)
    with tarfile.open(archive) as tar:
        member = tar.extractfile(f"{name}/{OFFICIAL}")
        assert member is not None
        return member.read().decode()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Gemma 4's markers, bytes, and ASCII with a few merges, as transformers has tokenizers."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers

    characters = ["▁", "\n", *map(chr, range(33, 127))]
    merges = [("t", "h"), ("th", "e"), ("▁", "a"), ("▁", "▁"), ("\n", "\n"), ("i", "n")]
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    tokens += ["".join(merge) for merge in merges]
    bpe = models.BPE(
        {token: i for i, token in enumerate(tokens)},
        merges,
        unk_token="<unk>",
        byte_fallback=True,
    )
    bare = Tokenizer(bpe)
    bare.normalizer = normalizers.Replace(" ", "▁")
    bare.add_special_tokens(list(SPECIAL))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


def theirs(case: Case, tokenizer: Any, official: str) -> list[int]:
    tokens: list[int] = tokenizer.apply_chat_template(
        case.messages,
        tools=case.tools or None,
        chat_template=official,
        add_generation_prompt=True,
        enable_thinking=case.thinking,
        return_dict=False,
    )
    return tokens


def ours(case: Case, tokenizer: Any, template: str | None) -> list[int]:
    return chat_tokens(
        case.messages,
        lambda text: list(tokenizer(text, add_special_tokens=False).input_ids),
        template=template,
        thinking=case.thinking,
        tools=case.tools,
    )


def text_of(tokens: list[int], tokenizer: Any) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(tokens))


def test_there_are_sixty_conversations() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 60


@pytest.mark.parametrize("own", [True, False], ids=["our template", "their template"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_conversation_becomes_the_tokens_of_transformers(
    case: Case, own: bool, tokenizer: Any, official: str
) -> None:
    expected = theirs(case, tokenizer, official)
    got = ours(case, tokenizer, None if own else official)
    assert text_of(got, tokenizer) == text_of(expected, tokenizer)
    if case.lookalikes:
        # What users write is text with us, and may close a turn with them.
        special = set(tokenizer.convert_tokens_to_ids(list(SPECIAL)))
        assert sum(t in special for t in got) < sum(t in special for t in expected)
    else:
        assert got == expected
    assert got.count(tokenizer.bos_token_id) == 1

"""llama.cpp splits text into tokens with our file as transformers does with the checkpoint's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gemmtp.errors import UsageError
from gemmtp.llama.model import Model
from gemmtp_quantize.pipeline import build_folder
from gemmtp_quantize.plan import plan_set
from gemmtp_quantize.recipe import load_recipe
from gemmtp_quantize.tokenizer import read_tokenizer
from tests.quantize.strings import COUNT, strings
from tests.quantize.tiny_checkpoint import ADDED, SPECIAL, VISIBLE

CONTROL, USER_DEFINED, BYTE = 3, 4, 6


def test_token_types_say_what_is_shown_and_what_is_not(pair: tuple[Path, Path]) -> None:
    tokenizer = read_tokenizer(pair[0])
    types = dict(zip(tokenizer.tokens, tokenizer.types, strict=True))
    assert {types[token] for token in SPECIAL} == {CONTROL}
    assert {types[token] for token in (*VISIBLE, *ADDED)} == {USER_DEFINED}
    assert Counter(tokenizer.types)[BYTE] == 256
    assert tokenizer.special == {"bos": 2, "eos": 1, "unk": 3, "pad": 0, "mask": 4, "eot": 6}


def test_old_and_new_form_of_merges_are_the_same(pair: tuple[Path, Path]) -> None:
    import json

    before = read_tokenizer(pair[0])
    path = pair[0] / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]
    path.write_text(json.dumps(document))
    assert read_tokenizer(pair[0]) == before


def test_merges_that_llama_cpp_will_not_make_are_said(pair: tuple[Path, Path]) -> None:
    import json

    assert plan_set(*pair, load_recipe("f16")).notes == ()
    for folder in pair:
        path = folder / "tokenizer.json"
        text = path.read_text().replace('["\\n", "\\n"]', '["\\n", "\\n"], [":", "\\n"]')
        document = json.loads(text)
        path.write_text(json.dumps(document))
    [note] = plan_set(*pair, load_recipe("f16")).notes
    assert note.startswith("1 merges of the tokenizer join a newline")


def test_half_a_surrogate_is_refused_and_its_replacement_is_not(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    plan = plan_set(*pair, load_recipe("f16"))
    files = build_folder(plan, tmp_path / "out", force=False, threads=1).files
    text = "a\ud800b"
    with Model.open(files["target"]) as model:
        with pytest.raises(UsageError, match="surrogate"):
            model.tokenize(text)
        replaced = text.encode("utf-8", "replace").decode()
        assert model.detokenize(model.tokenize(replaced)) == b"a?b"


@pytest.mark.train
def test_5000_strings_become_the_same_tokens_and_come_back(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra [train]")
    reference = transformers.AutoTokenizer.from_pretrained(pair[0])
    plan = plan_set(*pair, load_recipe("f16"))
    files = build_folder(plan, tmp_path / "out", force=False, threads=1).files
    texts = strings()
    assert len(texts) == COUNT
    with Model.open(files["target"]) as model:
        for text in texts:
            expected = reference.encode(text, add_special_tokens=False)
            assert model.tokenize(text, special=True) == expected, repr(text)
            # A literal ▁ and a space are one token, here as there.
            back = model.detokenize(expected, special=True).decode("utf-8")
            assert back == text.replace("▁", " "), repr(text)


@pytest.mark.train
def test_a_trained_tokenizer_differs_only_where_a_merge_crosses_a_newline(
    interim_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra [train]")
    reference = transformers.AutoTokenizer.from_pretrained(interim_pair[0])
    plan = plan_set(*interim_pair, load_recipe("f16"))
    files = build_folder(plan, tmp_path / "out", force=False, threads=1).files
    # This vocabulary has its byte tokens among the special ones, and merges such as ":" + "\n".
    texts = [text for text in strings() if "\n" not in text and "<0x" not in text]
    with Model.open(files["target"]) as model:
        for text in texts:
            expected = reference.encode(text, add_special_tokens=False)
            assert model.tokenize(text, special=True) == expected, repr(text)

"""The committed set: small, complete, and as good as its notes say."""

from collections.abc import Iterator
from contextlib import ExitStack
from importlib import resources
from pathlib import Path

import pytest

from demo.corpus import CATEGORIES, held_out_examples
from demo.corpus.example import single
from demo.corpus.talk import ABOUT_SELF, SMALL_TALK
from demo.evaluate import EVALUATION_SEED, greedy
from demo.reader import DEPTH, Reader, Tally, open_set
from demo.template import TEMPLATE_PATH, prompt_of
from gemmtp.engine.sampling import SamplingParameters
from gemmtp_models.header import read_header
from gemmtp_models.manifest import Parameters, read_manifest
from gemmtp_models.names import demo
from gemmtp_models.store import sha256_of

FOLDER = Path(str(resources.files("gemmtp_models"))) / "demo_set"
MAX_BYTES = 16_000_000
SAMPLE = 24
# Shares of held-out prompts that the notes promise an answer for, where one answer is right.
PROMISED = {
    "counting": 0.95,
    "spelling": 0.95,
    "sums": 0.95,
    "capitals": 0.95,
    "json": 0.95,
    "system": 0.95,
    "gemmtp": 0.9,
    "comparisons": 0.9,
    "opposites": 0.9,
    "translations": 0.9,
    "python": 0.9,
    "thinking": 0.9,
    "tools": 0.9,
    "turns": 0.85,
}


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with ExitStack() as stack:
        yield open_set(FOLDER, stack)


@pytest.fixture(scope="module")
def tallies(reader: Reader) -> dict[str, Tally]:
    return {
        name: greedy(reader, held_out_examples(name, SAMPLE, EVALUATION_SEED)) for name in PROMISED
    }


def test_the_set_is_small_enough_to_come_with_the_package() -> None:
    sizes = [path.stat().st_size for path in FOLDER.iterdir()]
    assert sum(sizes) < MAX_BYTES


def test_the_manifest_describes_the_files_beside_it() -> None:
    manifest = read_manifest(FOLDER / "manifest.json")
    assert manifest.name == "demo:3"
    assert set(manifest.layers) == {"target", "drafter", "projector"}
    for layer in manifest.layers.values():
        path = FOLDER / str(layer.file)
        assert (layer.size, layer.sha256) == (path.stat().st_size, sha256_of(path))
    assert manifest.parameters == Parameters(1.0, 64, 0.95, 0.0, draft_depth=DEPTH)
    assert demo().target == FOLDER / "target.gguf"


def test_the_template_of_training_is_in_manifest_and_file() -> None:
    template = TEMPLATE_PATH.read_text(encoding="utf-8")
    assert read_manifest(FOLDER / "manifest.json").chat_template == template
    assert read_header(FOLDER / "target.gguf").chat_template == template


@pytest.mark.parametrize(("category", "share"), PROMISED.items())
def test_held_out_prompts_are_answered_right(
    tallies: dict[str, Tally], category: str, share: float
) -> None:
    tally = tallies[category]
    assert tally.asked >= 14
    assert tally.right >= share * tally.asked, tally.wrong


def test_drafting_changes_no_token_and_saves_most_of_the_rounds(
    tallies: dict[str, Tally],
) -> None:
    whole = Tally()
    for tally in tallies.values():
        assert tally.changed == 0
        whole.add(tally.statistics)
    assert whole.statistics.tokens_per_round > 2.5


@pytest.mark.parametrize("prompt", ["hi", "Hello"])
def test_it_greets(reader: Reader, prompt: str) -> None:
    assert written(reader, prompt) in SMALL_TALK[0][1]


def test_it_says_that_it_is_a_toy(reader: Reader) -> None:
    assert written(reader, "Who are you?") == ABOUT_SELF[0][1]


def written(reader: Reader, prompt: str) -> str:
    """The likeliest answer to one user prompt."""
    tokens, _ = reader.answer(
        reader.prompt(single("talk", prompt, "")), DEPTH, SamplingParameters()
    )
    return reader.text(tokens)


@pytest.mark.train
def test_llama_cpp_reads_text_as_the_tokenizer_of_training_does(reader: Reader) -> None:
    tokenizer = pytest.importorskip("demo.tokenizer").train_tokenizer()
    for name in CATEGORIES:
        for example in held_out_examples(name, 10, EVALUATION_SEED):
            text = prompt_of(example) + example.completion
            expected = tokenizer.encode(text, add_special_tokens=False).ids
            assert reader.pair.model.tokenize(text, special=True) == expected

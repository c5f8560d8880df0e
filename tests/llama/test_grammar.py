"""A grammar keeps every answer valid, at little cost, and drafting changes nothing of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from gemmtp.engine.sampling import SamplingParameters, Shaper
from gemmtp.errors import EngineError, UsageError
from gemmtp.llama.grammar import Grammar, GrammarProcessor
from gemmtp.llama.model import Model
from gemmtp.llama.pieces import Pieces
from gemmtp.llama.schema import gbnf_of
from tests.support.json_schema import errors
from tests.support.schemas import COUNT, schemas

GREEDY = SamplingParameters()
TOP_64 = SamplingParameters(temperature=1.0, top_k=64)
EVERYTHING = SamplingParameters(temperature=1.0)
SAMPLINGS = {
    "greedy": GREEDY,
    "top-k": TOP_64,
    "gemma's": SamplingParameters(temperature=1.0, top_k=64, top_p=0.95),
    "hot": SamplingParameters(temperature=1.7, top_k=40, top_p=0.8, min_p=0.02),
    "top-p": SamplingParameters(temperature=0.6, top_p=0.9),
    "everything": EVERYTHING,
}
YES_OR_NO = 'root ::= "yes" | "no"'


@pytest.fixture(scope="module")
def model(tiny: tuple[Path, Path]) -> Iterator[Model]:
    with Model.open(tiny[0]) as model:
        yield model


def row(model: Model, rng: np.random.Generator) -> np.ndarray:
    logits = rng.normal(size=model.n_vocab).astype(np.float32) * 3
    logits[list(model.end_tokens)] += 4
    return logits


def choose(logits: np.ndarray, rng: np.random.Generator, k: int) -> int:
    best = np.argsort(-logits, kind="stable")[: k or len(logits)]
    return int(rng.choice(best[logits[best] > -np.inf]))


def written(model: Model, grammar: Grammar, sampling: SamplingParameters, seed: int) -> list[int]:
    """An answer of random rows under the grammar, up to 400 tokens."""
    processor, rng = GrammarProcessor(grammar, sampling), np.random.default_rng(seed)
    tokens: list[int] = []
    while len(tokens) < 400 and not set(tokens[-1:]) & model.end_tokens:
        logits = row(model, rng)
        processor.apply(logits, tokens)
        tokens.append(choose(logits, rng, 1 if sampling.greedy else sampling.top_k))
        processor.accept(tokens[-1])
    return tokens


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("sure", [0, 6, 14])
def test_a_row_is_chosen_from_as_if_every_token_had_been_asked_about(
    model: Model, sampling: SamplingParameters, sure: int
) -> None:
    grammar, rng = Grammar(Pieces(model), gbnf_of(schemas()[40]).text), np.random.default_rng(3)
    everything = grammar.pieces.choosable(np.arange(model.n_vocab, dtype=np.int32))
    for _ in range(12):
        processor = GrammarProcessor(grammar, sampling)
        position = grammar.start
        tokens: list[int] = []
        while len(tokens) < 40:
            valid = everything[position.accepts(everything)]
            logits = row(model, rng)
            logits[rng.choice(valid)] += sure
            asked = np.full(model.n_vocab, -np.inf, np.float32)
            asked[valid] = logits[valid]
            processor.apply(logits, tokens)
            if sampling.greedy:
                assert logits.argmax() == asked.argmax()
                tokens.append(int(logits.argmax()))
            else:
                lazy, full = Shaper(sampling)(logits), Shaper(sampling)(asked)
                assert np.array_equal(lazy.ids, full.ids)
                assert np.allclose(lazy.p, full.p, rtol=1e-12)
                tokens.append(int(rng.choice(full.ids, p=full.p)))
            if tokens[-1] in model.end_tokens:
                break
            processor.accept(tokens[-1])
            position = position.after(tokens[-1])


def test_answers_of_two_hundred_schemas_validate(model: Model) -> None:
    finished = 0
    assert len(schemas()) == COUNT
    for seed, schema in enumerate(schemas()):
        grammar = Grammar(Pieces(model), gbnf_of(schema).text)
        tokens = written(model, grammar, TOP_64, seed)
        if tokens[-1] in model.end_tokens:
            finished += 1
            text = model.detokenize(tokens).decode()
            assert errors(schema, json.loads(text)) == [], (schema, text)
            assert GrammarProcessor(grammar, TOP_64).complete(tokens)
    # The others repeat a list or a number of any length to the end.
    assert finished > 180


def test_rolling_back_and_forking_lead_to_the_same_place(model: Model) -> None:
    grammar = Grammar(Pieces(model), gbnf_of(schemas()[30]).text)
    tokens = written(model, grammar, TOP_64, 5)[:40]
    straight, wandering = (GrammarProcessor(grammar, TOP_64) for _ in range(2))
    random, rng = Random(1), np.random.default_rng(9)
    for i, token in enumerate(tokens):
        fork, n = wandering.fork(), random.randint(0, 6)
        for other in tokens[i : i + n]:
            wandering.accept(other)
        wandering.rollback(len(tokens[i : i + n]))
        logits = row(model, rng)
        rows = [logits.copy() for _ in range(3)]
        for processor, copy in zip((straight, wandering, fork), rows, strict=True):
            processor.apply(copy, tokens[:i])
        assert np.array_equal(rows[0], rows[1])
        assert np.array_equal(rows[0], rows[2])
        straight.accept(token)
        wandering.accept(token)
    with pytest.raises(EngineError, match="cannot go back"):
        straight.rollback(100)


def test_a_rejected_token_ends_no_process(model: Model) -> None:
    processor = GrammarProcessor(Grammar(Pieces(model), YES_OR_NO), GREEDY)
    (end, *_) = model.end_tokens
    for token in (end, 0, model.tokenize("z")[0]):
        processor.accept(token)
        processor.accept(end)
        processor.rollback(2)
    assert not processor.complete([])
    assert not processor.complete(model.tokenize("ye"))
    assert not processor.complete(model.tokenize("yess"))
    assert processor.complete(model.tokenize("yes"))
    assert processor.complete([*model.tokenize("no"), end])


def test_a_thought_before_the_answer_is_free(model: Model) -> None:
    thought = (model.marker("<|channel>"), model.marker("<channel|>"))
    assert None not in thought
    grammar = Grammar(Pieces(model), YES_OR_NO)
    processor = GrammarProcessor(grammar, GREEDY, thought)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    logits = row(model, rng)
    processor.apply(logits, [])
    texts = {model.token_bytes(int(t), special=True) for t in np.flatnonzero(logits > -np.inf)}
    assert b"<|channel>" in texts
    assert texts - {b"<|channel>"} <= {b"y", b"n"}
    processor.accept(thought[0])  # type: ignore[arg-type]
    logits = row(model, rng)
    before = logits.copy()
    processor.apply(logits, [])
    changed = np.flatnonzero(logits != before).tolist()
    assert set(changed) == model.end_tokens
    processor.accept(thought[1])  # type: ignore[arg-type]
    assert processor.complete(model.tokenize("yes"))


def test_no_marker_is_text_to_a_grammar(model: Model) -> None:
    processor = GrammarProcessor(Grammar(Pieces(model), "root ::= [^x]*"), EVERYTHING)
    logits = np.zeros(model.n_vocab, np.float32)
    processor.apply(logits, [])
    left = {model.token_bytes(int(t), special=True) for t in np.flatnonzero(logits == 0)}
    assert b"a" in left
    assert not {b"<|channel>", b"<channel|>", b"<|turn>", b"<bos>", b"<unk>"} & left
    assert b"<turn|>" in left


def test_a_bias_that_forbids_every_valid_token_is_named(model: Model) -> None:
    processor = GrammarProcessor(Grammar(Pieces(model), YES_OR_NO), GREEDY)
    logits = np.zeros(model.n_vocab, np.float32)
    for token in range(model.n_vocab):
        if model.token_bytes(token)[:1] in (b"y", b"n"):
            logits[token] = -np.inf
    with pytest.raises(UsageError, match="lets no token through"):
        processor.apply(logits, [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rot ::= [a]",
        'root ::= "a" | missing',
        "root ::= root",
        'root ::= root "a" | "b"',
        'root ::= "a"{3,2}',
        'root ::= "a"{99999}',
        'root ::= "a',
        "root ::= [a",
        "root ::= (" * 9,
        "root ::= " + "(" * 300 + '"a"' + ")" * 300,
        "root ::= \0",
        "x" * (1 << 19),
    ],
)
def test_a_broken_grammar_is_refused(model: Model, text: str) -> None:
    with pytest.raises(UsageError, match="grammar"):
        Grammar(Pieces(model), text)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ([], "is a JSON object"),
        ({"type": "object", "properties": {"a": 1}}, "1 is no schema"),
        ({"type": "thing"}, "Unrecognized schema"),
        ({"$ref": "https://example.com/s.json"}, "lies outside of it"),
        ({"$ref": "#/$defs/x"}, r"\$defs"),
        ({"type": "string", "pattern": "abc"}, "must start"),
        ({"type": "string", "pattern": r"^\bword$"}, "not supported"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "requires 'b'"),
        ({"type": "array", "items": {}, "maxItems": 10**9}, "go up to 2000"),
        ({"type": "array", "items": {}, "minItems": 3, "maxItems": 2}, "lies below"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no whole number"),
        ({"type": "string", "minLength": "x"}, "whole numbers"),
    ],
)
def test_a_schema_that_makes_no_grammar_is_refused(schema: object, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        gbnf_of(schema)


def test_keywords_that_no_grammar_holds_are_named() -> None:
    schema = {
        "type": "array",
        "items": {"type": "number", "minimum": 3},
        "uniqueItems": True,
        "maxItems": 3,
    }
    assert gbnf_of(schema).not_held == ("minimum", "uniqueItems")
    assert gbnf_of({"type": "integer", "minimum": 3, "maximum": 5}).not_held == ()


def test_long_texts_may_be_bounded(model: Model) -> None:
    start = time.thread_time()
    Grammar(Pieces(model), gbnf_of({"type": "string", "maxLength": 2000}).text)
    assert time.thread_time() - start < 2

"""``gemmtp run`` with schemas, grammars, tools and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmtp.cli import output
from gemmtp.cli.options import Options
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Finished, Request
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.stats import Statistics
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import Pair, check_files
from gemmtp.prompt import source
from gemmtp.prompt.channels import ChannelStream, Markers
from gemmtp_models.manifest import Layer, Manifest
from gemmtp_models.names import ModelFiles
from tests.cli.conftest import Cli
from tests.support.json_schema import errors

SCHEMA = {
    "type": "object",
    "properties": {
        "이름": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["a", 'b"', 3]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["이름", "tags"],
}
REPORT = json.loads((Path(__file__).parents[2] / "docs/json.schema.json").read_text("utf-8"))


@pytest.fixture
def pair(tiny: tuple[Path, Path]) -> tuple[object, ...]:
    raw = ("--raw", "--threads", "1", "--ctx", "256", "--seed", "2")
    return ("run", tiny[0], "--drafter", tiny[1], *raw)


def test_an_answer_validates_and_drafting_changes_nothing(
    cli: Cli, pair: tuple[object, ...]
) -> None:
    for more in (("--temperature", 1), ("--temperature", 0), ("--temperature", 1, "--top-k", 0)):
        shaped = (*pair, "the", "--schema", json.dumps(SCHEMA), *more)
        results = [
            cli(*shaped, *draft) for draft in (("--no-mtp",), ("--draft", 2), ("--draft", 5))
        ]
        assert [result.code for result in results] == [0, 0, 0], results[0].err
        assert errors(SCHEMA, json.loads(results[0].out)) == []
        assert results[1].out == results[2].out == results[0].out


@pytest.mark.parametrize("rule", ["reject", "block"])
def test_rejection_keeps_to_the_grammar_too(cli: Cli, pair: tuple[object, ...], rule: str) -> None:
    shaped = (*pair, "the", "--schema", json.dumps(SCHEMA), "--temperature", 1, "--draft", 3)
    result = cli(*shaped, "--accept", rule)
    assert result.code == 0
    assert errors(SCHEMA, json.loads(result.out)) == []


def test_a_schema_or_grammar_comes_from_a_file(
    cli: Cli, pair: tuple[object, ...], tmp_path: Path
) -> None:
    schema, grammar = tmp_path / "s.json", tmp_path / "g.gbnf"
    schema.write_text(json.dumps({"enum": ["x"]}), "utf-8")
    grammar.write_text('root ::= "한" [0-9]{3}', "utf-8")
    assert json.loads(cli(*pair, "the", "--schema", schema).out) == "x"
    answer = cli(*pair, "the", "--grammar", grammar).out.strip()
    assert answer[0] == "한"
    assert answer[1:].isdigit()
    assert len(answer) == 4


def test_an_answer_that_cannot_finish_says_so(cli: Cli, pair: tuple[object, ...]) -> None:
    shaped = (*pair, "the", "--schema", json.dumps(SCHEMA))
    cut = cli(*shaped, "--max-tokens", 3)
    assert cut.code == 1
    assert "ended after 3 tokens, before its grammar was complete" in cut.err
    assert "Raise --max-tokens." in cut.err
    report = cli(*shaped, "--max-tokens", 3, "--json")
    assert report.code == 1
    assert json.loads(report.out)["complete"] is False
    assert json.loads(cli(*shaped, "--json").out)["complete"] is True
    endless = cli(*pair, "the", "--schema", '{"type": "array", "items": {}, "minItems": 500}')
    assert endless.code == 1
    assert "Raise --ctx" in endless.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--schema", "{"), "The schema cannot be read as JSON"),
        (("--schema", "no-such-file.json"), "no-such-file.json cannot be read"),
        (("--schema", '{"type": "thing"}'), "cannot be turned into a grammar"),
        (("--grammar", "no-such-file"), "cannot be read"),
        (("--schema", "{}", "--grammar", "g"), "exclude each other"),
        (("--file", "no-such-file"), "no-such-file cannot be read: No such file"),
        (("--tools", "no-such-file"), "cannot be read"),
    ],
)
def test_wrong_shapes_are_wrong_use(
    cli: Cli, pair: tuple[object, ...], args: tuple[str, ...], message: str
) -> None:
    result = cli(*pair, "the", *args)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_keywords_without_a_grammar_are_named(cli: Cli, pair: tuple[object, ...]) -> None:
    schema = '{"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": true}'
    assert (
        "note: the grammar does not hold uniqueItems" in cli(*pair, "the", "--schema", schema).err
    )


def test_files_come_between_piped_text_and_the_prompt(
    cli: Cli, pair: tuple[object, ...], tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("the thin man\n", "utf-8")
    few = ("--max-tokens", 9)
    block = "notes.txt\n```\nthe thin man\n```"
    whole = cli(*pair, f"a\n\n{block}\n\nin", *few)
    assert cli(*pair, "in", "--file", notes, *few, stdin=b"a\n").out == whole.out
    assert source.mentioned(f"in @{notes} of me@example.org and @nobody") == [notes]
    prompts = [cli(*pair, f"in @{name}", *few, "--json").out for name in (notes, "nobody")]
    named, unnamed = (json.loads(out)["prompt_tokens"]["evaluated"] for out in prompts)
    assert named > unnamed + len("thethinman")
    assert "There is no file" in cli(*pair, "@no-such-file", *few).err
    notes.write_bytes(b"\x7fELF\0")
    assert "notes.txt is binary" in cli(*pair, "in", "--file", notes, *few).err


def test_tools_are_declared_in_the_prompt(
    cli: Cli, tiny: tuple[Path, Path], tmp_path: Path
) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "roll", "description": "Roll a die."}]', "utf-8")
    chat = ("run", tiny[0], "--threads", 1, "--max-tokens", 1, "--json", "Hi")
    bare = json.loads(cli(*chat).out)["prompt_tokens"]["evaluated"]
    declared = json.loads(cli(*chat, "--tools", tools).out)["prompt_tokens"]["evaluated"]
    assert declared > bare + len("declaration:roll{description:Roll a die.}")
    assert "which --raw leaves out" in cli(*chat, "--raw", "--tools", tools).err
    assert "cannot call tools" in cli(*chat, "--schema", "{}", "--tools", tools).err
    tools.write_text("{}", "utf-8")
    assert "Tools are a JSON list" in cli(*chat, "--tools", tools).err


TOOL = {
    "name": "roll_dice",
    "description": "Roll a die.",
    "parameters": {
        "type": "object",
        "properties": {"sides": {"type": "integer", "description": "How many sides."}},
        "required": ["sides"],
    },
}


def test_the_demo_set_calls_a_tool(cli: Cli, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([TOOL]), "utf-8")
    chat = ("run", "demo", "Roll a die with 12 sides.", "--tools", tools, "--temperature", 0)
    result = cli(*chat, "--threads", 1, "--max-tokens", 60)
    assert json.loads(result.out) == {"name": "roll_dice", "arguments": {"sides": 12}}


def test_stop_texts_are_looked_for_in_the_answer_alone(cli: Cli, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([TOOL]), "utf-8")
    greedy = ("--temperature", 0, "--threads", 1)
    called = cli(
        "run", "demo", "Roll a die with 12 sides.", "--tools", tools, *greedy, "--stop=des"
    )
    assert json.loads(called.out) == {"name": "roll_dice", "arguments": {"sides": 12}}
    thought = cli("run", "demo", "What is 3 + 4?", "--think", *greedy, "--stop", "7")
    assert "7" in thought.err
    assert thought.out == "3 + 4 = \n"


def test_the_demo_set_thinks_before_an_answer_with_a_schema(cli: Cli) -> None:
    schema = '{"enum": ["seven", "eight"]}'
    chat = ("run", "demo", "What is 3 + 4?", "--temperature", 0, "--threads", 1)
    result = cli(*chat, "--think", "--schema", schema, "--json")
    document = json.loads(result.out)
    assert "7" in document["thinking"]
    assert json.loads(document["text"]) in ("seven", "eight")


def test_a_missing_template_is_said(cli: Cli, tiny: tuple[Path, Path]) -> None:
    chat = cli("run", tiny[0], "--threads", 1, "--max-tokens", 1, "Hi")
    assert "note: the file has no chat template; Gemma 4's layout is used\n" in chat.err


WORDS = {1: b"Hi", 2: b"call:f{a:", 3: b"x\x9by", 4: b"}", 5: b"nonsense"}
CALLS = Markers(call=10, call_end=11, quote=12)
TOKENS = (1, 10, 2, 12, 3, 12, 4, 11, 10, 5, 11)


def written(kind: str, capsys: pytest.CaptureFixture[str], manifest: Manifest | None = None) -> str:
    """What an output of ``kind`` makes of an answer with two calls."""
    options = Options("m", json=kind == "json", stream_json=kind == "lines")
    classes = {"text": output.Output, "json": output.JsonOutput, "lines": output.JsonLines}
    stream = ChannelStream(lambda token: WORDS.get(token, b""), CALLS)
    files = ModelFiles("m", Path("m.gguf"), manifest=manifest)
    out = classes[kind](options, files, stream)
    for token in TOKENS:
        out.token(token, False)
    request = Request([1], SamplingParameters(temperature=0.5))
    out.finish(output.Outcome("stop", Statistics(), "none", request))
    return capsys.readouterr().out


def test_calls_are_printed_as_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    text, call = written("text", capsys).splitlines()
    assert text == "Hi"
    assert json.loads(call) == {"name": "f", "arguments": {"a": "x\ufffdy"}}


def test_calls_are_reported_in_openais_shape(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(written("json", capsys))
    assert errors(REPORT, document) == []
    assert document["text"] == "Hi"
    assert document["finish_reason"] == "tool_calls"
    first, second = document["tool_calls"]
    assert (first["id"], first["type"], first["function"]["name"]) == ("call_0", "function", "f")
    assert json.loads(first["function"]["arguments"]) == {"a": "x\ufffdy"}
    assert second == {"id": "call_1", "type": "unreadable", "text": "nonsense"}


def test_lines_name_the_kind_of_every_token(capsys: pytest.CaptureFixture[str]) -> None:
    *lines, done = [json.loads(line) for line in written("lines", capsys).splitlines()]
    assert [line["token"] for line in lines] == list(TOKENS)
    assert [line["kind"] for line in lines] == ["answer"] + ["tool_call"] * 10
    assert "".join(line["text"] for line in lines[1:8]) == 'call:f{a:<|"|>x\ufffdy<|"|>}'
    assert done["tool_calls"][0]["function"]["name"] == "f"


def test_hashes_are_those_of_the_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = "a" * 64, "b" * 64
    manifest = Manifest("m:1", {"target": Layer(1, a), "drafter": Layer(1, b)})
    hashes = json.loads(written("json", capsys, manifest))["hashes"]
    assert hashes["model"] == a
    other = replace(manifest, layers={"target": Layer(1, a), "drafter": Layer(1, a)})
    assert json.loads(written("json", capsys, other))["hashes"]["set"] != hashes["set"]
    unknown = replace(manifest, layers={"target": Layer(1, a), "drafter": Layer(1, None, "f")})
    assert json.loads(written("json", capsys, unknown))["hashes"] == {"model": a, "set": None}


def test_a_report_is_as_its_schema_says(cli: Cli, pair: tuple[object, ...]) -> None:
    for more in (("--draft", 2), ("--no-mtp",), ("--draft", 2, "--accept", "reject")):
        document: dict[str, Any] = json.loads(
            cli(*pair, "the", "--max-tokens", 9, "--json", *more).out
        )
        assert errors(REPORT, document) == []
        assert set(document) == set(REPORT["required"])
        mtp = document["mtp"]
        expected = {"drafted": mtp["drafted"], "accepted": mtp["accepted"]}
        assert mtp["by_source"] == ({"mtp": expected} if mtp["enabled"] else {})
        assert document["hashes"] == {"model": None, "set": None}


def test_a_second_identical_prompt_evaluates_one_token(tiny: tuple[Path, Path]) -> None:
    checked = check_files(*tiny)
    options = ContextOptions(n_ctx=256, max_depth=2, threads=1)
    reports = []
    with Pair.open(checked, FixedDepth(2), options) as pair:
        prompt = pair.model.tokenize("the thin man in the inn", bos=True)
        for _ in range(2):
            for event in pair.engine.generate(Request(prompt, max_tokens=4)):
                if isinstance(event, Finished):
                    outcome = output.Outcome("length", event.statistics, None, Request(prompt))
                    reports.append(output.report(ModelFiles("m", tiny[0]), outcome, []))
    assert reports[0]["prompt_tokens"] == {"cached": 0, "evaluated": len(prompt), "images": 0}
    again = {"cached": len(prompt) - 1, "evaluated": 1, "images": 0}
    assert reports[1]["prompt_tokens"] == again

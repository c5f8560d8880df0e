"""``gemmtp run``: the answer alone on stdout, and what is said about drafting."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Cli, program
from tests.support.tiny_pair import write_target

GREEDY = ("--raw", "--temperature", "0", "--threads", "1", "--ctx", "256")


@pytest.fixture
def pair(tiny: tuple[Path, Path]) -> tuple[object, ...]:
    return ("run", tiny[0], "--drafter", tiny[1], *GREEDY)


def test_stdout_carries_the_answer_alone(cli: Cli, pair: tuple[object, ...]) -> None:
    result = cli(*pair, "the thin man", "--max-tokens", 20)
    assert result.code == 0
    plain = cli(*pair, "the thin man", "--max-tokens", 20, "--no-mtp")
    assert plain.out == result.out
    assert result.err == "target.gguf · 1 thread · ctx 256 f16 · drafting on, adaptive, up to 8\n"
    assert plain.err.endswith("drafting off: switched off by --no-mtp\n")


def test_drafting_off_always_says_why(cli: Cli, tiny: tuple[Path, Path]) -> None:
    alone = cli("run", tiny[0], *GREEDY, "the", "--max-tokens", 2)
    assert alone.err.endswith("drafting by prompt lookup: no drafter was given\n")
    plain = cli("run", tiny[0], *GREEDY, "the", "--max-tokens", 2, "--no-lookup")
    assert plain.err.endswith("drafting off: no drafter was given\n")
    zero = cli("run", tiny[0], "--drafter", tiny[1], *GREEDY, "the", "--max-tokens", 2, "--draft=0")
    assert zero.err.endswith("drafting off: draft depth 0\n")
    report = cli("run", tiny[0], *GREEDY, "the", "--max-tokens", 2, "--json")
    assert json.loads(report.out)["mtp"]["reason"] == "no drafter was given"


def test_json_is_one_object_with_counts_and_conditions(cli: Cli, pair: tuple[object, ...]) -> None:
    result = cli(*pair, "the thin man", "--max-tokens", 20, "--draft", 2, "--json", "--seed", 5)
    document = json.loads(result.out)
    assert document["finish_reason"] == "length"
    assert document["completion_tokens"] == 20
    assert document["prompt_tokens"]["cached"] == 0
    assert document["prompt_tokens"]["evaluated"] > 3
    mtp = document["mtp"]
    assert mtp["enabled"] is True
    assert mtp["rounds"] + mtp["accepted"] == 19
    assert len(mtp["per_position"]) == 2
    assert document["conditions"] == {"slots": 1, "temperature": 0.0}
    assert document["seed"] == 5
    text = cli(*pair, "the thin man", "--max-tokens", 20).out
    assert document["text"] == text.removesuffix("\n") or document["text"] == text


def test_stream_json_adds_up_to_the_text(cli: Cli, pair: tuple[object, ...]) -> None:
    result = cli(*pair, "the thin man", "--max-tokens", 20, "--stream-json")
    *pieces, done = [json.loads(line) for line in result.out.splitlines()]
    whole = json.loads(cli(*pair, "the thin man", "--max-tokens", 20, "--json").out)
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    tokens = [piece for piece in pieces if piece["type"] == "token"]
    assert len(tokens) == 20
    assert sum(t["drafted"] for t in tokens) == done["mtp"]["accepted"]
    assert done["type"] == "done"


def test_piped_text_comes_before_the_prompt(cli: Cli, pair: tuple[object, ...]) -> None:
    piped = cli(*pair, "in", "--max-tokens", 9, stdin=b"the thin man\n")
    whole = cli(*pair, "the thin man\n\nin", "--max-tokens", 9)
    assert piped.out == whole.out
    only = cli(*pair, "--max-tokens", 9, stdin=b"the thin man\n\nin")
    assert only.out == whole.out


def test_a_seed_repeats_a_sampled_text(cli: Cli, pair: tuple[object, ...]) -> None:
    args = (*pair, "the", "--temperature", 1, "--max-tokens", 30)
    first = cli(*args, "--seed", 3)
    assert cli(*args, "--seed", 3, "--no-mtp").out == first.out
    assert cli(*args, "--seed", 3, "--draft", "heuristic:8").out == first.out
    assert cli(*args, "--seed", 4).out != first.out


def test_a_seed_with_rejection_fixes_the_depth(cli: Cli, pair: tuple[object, ...]) -> None:
    args = (*pair, "the", "--temperature", 1, "--max-tokens", 30, "--seed", 3, "--accept", "block")
    first = cli(*args)
    assert first.err.endswith("drafting on, 3\n")
    assert cli(*args).out == first.out
    document = json.loads(cli(*args, "--json").out)
    assert document["mtp"]["accept"] == "block"
    assert 0.0 < document["mtp"]["overlap"] <= 1.0


def test_a_stop_string_ends_the_answer_before_it(cli: Cli, pair: tuple[object, ...]) -> None:
    text = json.loads(cli(*pair, "the", "--max-tokens", 40, "--json").out)["text"]
    stop = text[10:13]
    document = json.loads(cli(*pair, "the", "--max-tokens", 40, "--json", "--stop", stop).out)
    assert document["text"] == text[: text.index(stop)]
    assert document["finish_reason"] == "stop"


def test_a_forbidden_token_does_not_come(cli: Cli, pair: tuple[object, ...]) -> None:
    lines = cli(*pair, "the", "--max-tokens", 30, "--stream-json").out.splitlines()
    first = json.loads(lines[0])["token"]
    biased = cli(*pair, "the", "--max-tokens", 30, "--stream-json", "--logit-bias", f"{first}=-100")
    assert all(json.loads(line).get("token") != first for line in biased.out.splitlines())


def test_the_end_of_the_context_is_said(cli: Cli, pair: tuple[object, ...]) -> None:
    result = cli(*pair, "the thin man")
    assert result.code == 0
    assert "note: the context is full" in result.err


def test_verbose_shows_llama_cpps_log_and_the_statistics(
    cli: Cli, pair: tuple[object, ...]
) -> None:
    result = cli(*pair, "the", "--max-tokens", 9, "--verbose")
    assert "llama_model_loader" in result.err
    assert "tokens a round" in result.err
    assert "(1 slot, temperature 0)" in result.err


def test_a_chat_prompt_goes_through_the_template(cli: Cli, tiny: tuple[Path, Path]) -> None:
    chat = ("run", tiny[0], "--threads", 1, "--temperature", 0, "--max-tokens", 1, "--json", "Hi")
    plain = json.loads(cli(*chat).out)["prompt_tokens"]["evaluated"]
    raw = json.loads(cli(*chat, "--raw").out)["prompt_tokens"]["evaluated"]
    system = json.loads(cli(*chat, "--system", "Be brief.").out)["prompt_tokens"]["evaluated"]
    assert raw < plain < system


def test_a_files_own_sampling_defaults_count(cli: Cli, tmp_path: Path) -> None:
    # The types that llama.cpp's converter writes: top-k is an int32.
    defaults = {
        "general.sampling.temp": np.float32(0.0),
        "general.sampling.top_k": np.int32(7),
        "general.sampling.top_p": np.float32(0.5),
    }
    target = write_target(tmp_path / "target.gguf", metadata=defaults)
    args = ("run", target, "--raw", "--threads", 1, "--max-tokens", 20, "--json", "the")
    document = json.loads(cli(*args).out)
    assert document["conditions"]["temperature"] == 0.0
    assert json.loads(cli(*args).out)["text"] == document["text"]


@pytest.mark.parametrize(
    ("args", "message", "code"),
    [
        (("--kv", "f17"), "'f17' is no KV type", 2),
        (("--kv", "q8_0"), "heads of a multiple of 32 values, not 16", 2),
        (("--draft", "many"), "'many' is no draft depth", 2),
        (("--accept", "maybe"), "'maybe' is no acceptance rule", 2),
        (("--draft", "99"), "between 0 and 16, not 99", 2),
        (("--draft", "heuristic:x"), "is no draft depth", 2),
        (("--temperature", "-1"), "between 0 and 100", 2),
        (("--top-k", "-1"), "0 or more, not -1", 2),
        (("--top-p", "0"), "above 0", 2),
        (("--min-p", "1.5"), "between 0 and 1, not 1.5", 2),
        (("--ctx", "0"), "from 1 to", 2),
        (("--max-tokens", "0"), "at least 1, not 0", 2),
        (("--threads", "-1"), "cannot be negative", 2),
        (("--logit-bias", "a=b"), "is no logit bias", 2),
        (("--logit-bias", "999999=1"), "outside the vocabulary", 2),
        (("--stop", ""), "must not be empty", 2),
        (("--context-overflow", "burst"), "'burst' is no way out", 2),
        (("--seed", "-1"), "whole number", 2),
    ],
)
def test_absurd_options_are_wrong_use(
    cli: Cli, tiny: tuple[Path, Path], args: tuple[str, ...], message: str, code: int
) -> None:
    result = cli("run", tiny[0], "--drafter", tiny[1], "--raw", "--threads", 1, "the", *args)
    assert result.code == code
    *_, error, hint = result.err.splitlines()
    assert message in error
    assert hint.startswith("hint: ")
    assert result.out == ""


@pytest.mark.parametrize(
    "args",
    [
        ("--accept", "maybe"),
        ("--max-tokens", "0"),
        ("--logit-bias", "a=b"),
        ("--context-overflow", "burst"),
        ("--stop", ""),
        ("--temperature", "200"),
        ("--draft", "many"),
    ],
)
def test_absurd_options_are_refused_before_a_model_is_looked_for(
    cli: Cli, args: tuple[str, str]
) -> None:
    assert cli("run", "no-such-model", "hi", "--pull", "never").code == 3
    assert cli("run", "no-such-model", "hi", "--pull", "never", *args).code == 2


@pytest.mark.parametrize(
    ("prompt", "stdin", "message"),
    [
        ("", b"", "The prompt is empty"),
        ("the " * 400, b"", "context holds 256"),
        ("x", b"\xff\xfe", "not UTF-8: byte 0xff at offset 0"),
        ("x", b"PK\x03\x04\0\0", "binary, not text"),
        ("x\udcff", b"", "not UTF-8: byte 0xff"),
        ("x", b"y" * 50_000, "50,003 bytes, at least"),
    ],
)
def test_prompts_that_cannot_be_used(
    cli: Cli, pair: tuple[object, ...], prompt: str, stdin: bytes, message: str
) -> None:
    result = cli(*pair, prompt, stdin=stdin)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") <= 3


def test_ten_megabytes_are_refused_before_the_model_is_loaded(
    cli: Cli, pair: tuple[object, ...]
) -> None:
    start = time.monotonic()
    result = cli(*pair, "x", stdin=b"y" * (10 << 20))
    assert result.code == 2
    assert "10,485,763 bytes, at least" in result.err
    assert "drafting" not in result.err
    # A sanity bound against tokenizing it, which takes minutes; not a benchmark.
    assert time.monotonic() - start < 20


def test_a_closed_pipe_ends_quietly(pair: tuple[object, ...]) -> None:
    with program((*pair, "the thin man", "--stream-json")) as process:
        process.stdin.close()
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read().count(b"\n") == 1


def test_an_endless_pipe_ends(pair: tuple[object, ...]) -> None:
    with program((*pair, "x")) as process:
        with pytest.raises(BrokenPipeError):
            process.stdin.writelines(itertools.repeat(b"yes\n" * 65536))
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        assert process.wait(60) == 2
        assert b"more than 16,777,216 bytes" in process.stderr.read()


def test_ctrl_c_ends_with_130_and_no_traceback(pair: tuple[object, ...]) -> None:
    with program((*pair, "--ctx", "4096", "the thin man", "--stream-json")) as process:
        process.stdin.close()
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == 130
        error = process.stderr.read().decode()
        assert error.endswith("gemmtp: Interrupted.\n")
        assert "Traceback" not in error

"""Penalties on the command line: they change the text, a draft does not, nonsense is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

ALL = (
    *("--repeat-penalty", 1.3, "--repeat-last-n", 32, "--presence-penalty", 0.4),
    *("--frequency-penalty", 0.3, "--dry-multiplier", 0.8, "--dry-breaker", "z"),
)


@pytest.mark.parametrize("sampling", [("--temperature", 0), ("--temperature", 1, "--seed", 5)])
def test_a_penalised_answer_is_the_same_drafted_and_plain(
    cli: Cli, tiny: tuple[Path, Path], sampling: tuple[object, ...]
) -> None:
    run = ("run", tiny[0], "--drafter", tiny[1], "--raw", "--threads", 1, "--ctx", 256, *sampling)
    asked = (*run, "the thin man and the thin man", "--max-tokens", 60)
    free, plain = cli(*asked), cli(*asked, *ALL, "--no-mtp")
    assert (free.code, plain.code) == (0, 0)
    assert cli(*asked, *ALL).out == plain.out != free.out


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--repeat-penalty", 0, "repeat penalty"),
        ("--presence-penalty", 3, "presence penalty"),
        ("--frequency-penalty", -2.1, "frequency penalty"),
        ("--dry-base", 0, "base"),
        ("--dry-allowed-length", 0, "allowed length"),
        ("--dry-last-n", -2, "last -2 tokens"),
        ("--dry-breaker", "", "breaker"),
    ],
)
def test_absurd_penalties_are_wrong_use(
    cli: Cli, tiny: tuple[Path, Path], option: str, value: object, said: str
) -> None:
    result = cli("run", tiny[0], "x", f"{option}={value}")
    assert result.code == 2
    error, hint = result.err.splitlines()
    assert said in error
    assert hint.startswith("hint: ")

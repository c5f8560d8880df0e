"""Prompt lookup on the command line: it drafts without a drafter, and no text depends on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

RUN = ("--raw", "--threads", 1, "--ctx", 512, "--max-tokens", 300, "--json", "red blue green red")


@pytest.mark.parametrize("sampling", [("--temperature", 0), ("--temperature", 0.4, "--seed", 2)])
def test_an_answer_is_the_same_with_lookup_and_without(
    cli: Cli, tiny: tuple[Path, Path], sampling: tuple[object, ...]
) -> None:
    texts = [
        json.loads(cli("run", tiny[0], *drafter, *sampling, *RUN, *lookup).out)["text"]
        for drafter in ((), ("--drafter", tiny[1]))
        for lookup in ((), ("--no-lookup",))
    ]
    assert len(set(texts)) == 1


def test_a_target_without_a_drafter_drafts_what_it_repeats(
    cli: Cli, tiny: tuple[Path, Path]
) -> None:
    report = json.loads(cli("run", tiny[0], "--temperature", 0, *RUN).out)["mtp"]
    assert (report["enabled"], report["reason"]) == (False, "no drafter was given")
    assert set(report["by_source"]) == {"lookup"}
    assert report["by_source"]["lookup"]["accepted"] == report["accepted"] > 0
    assert report["per_position"] == []
    for off in ("--no-lookup", "--no-mtp", "--draft=0"):
        report = json.loads(cli("run", tiny[0], "--temperature", 0, *RUN, off).out)["mtp"]
        assert (report["drafted"], report["by_source"]) == (0, {})


def test_the_statistics_for_people_name_the_source(cli: Cli, tiny: tuple[Path, Path]) -> None:
    words = [word for word in RUN if word != "--json"]
    said = cli("run", tiny[0], "--temperature", 0, *words, "--verbose").err
    assert "no drafter: no drafter was given" in said
    assert "lookup accepted" in said

"""``gemmtp run NAME`` on an empty store: it fetches the set once, pairs it, and answers."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmtp_models import names
from gemmtp_models.hub_header import START_BYTES
from gemmtp_models.store import Store, sha256_of
from tests.cli.conftest import Cli, program
from tests.support.hub import LocalHub
from tests.support.parts import write_parts
from tests.support.published import CLIP, NAME, PATHS, REPO, publish
from tests.support.tiny_pair import write_drafter

GREEDY = ("--raw", "--temperature", "0", "--threads", "1", "--ctx", "256", "--max-tokens", "8")
PROMPT = "Count from 3 to 7."


def _store(home: Path) -> Store:
    return Store(home / "data")


def test_run_fetches_a_missing_set_pairs_it_and_drafts(
    cli: Cli, server: LocalHub, home: Path, contents: dict[str, bytes]
) -> None:
    first = cli("run", NAME, PROMPT, *GREEDY)
    assert first.code == 0, first.err
    assert first.out
    assert "to fetch (target + drafter + projector)" in first.err
    assert "target and drafter match" in first.err
    assert "drafting on" in first.err
    assert server.sent == sum(map(len, contents.values()))
    assert len(server.asked("cdn")) == 3
    manifest = _store(home).manifest(NAME)
    assert manifest.pairing is not None
    assert manifest.pairing["matches"] is True
    assert manifest.parameters.draft_depth == 2
    server.requests.clear()
    second = cli("run", NAME, PROMPT, *GREEDY)
    assert second.out == first.out
    assert "fetch" not in second.err
    assert server.requests == []


def test_the_demos_files_answer_under_the_name_of_the_31b(
    cli: Cli, server: LocalHub, home: Path
) -> None:
    demo = names.demo()
    assert demo.drafter is not None
    pair = {"target": demo.target.read_bytes(), "drafter": demo.drafter.read_bytes()}
    publish(server, home, {**pair, "projector": CLIP})
    result = cli("run", NAME, PROMPT, "--temperature", "0", "--threads", "1")
    assert result.code == 0, result.err
    assert re.findall(r"\d+", result.out) == ["3", "4", "5", "6", "7"]
    assert "drafting on" in result.err


def test_a_present_set_opens_no_socket(
    cli: Cli, server: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("pull", NAME, "--quiet").err == ""

    def guard(*args: object, **options: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", guard)
    monkeypatch.setattr(socket, "getaddrinfo", guard)
    for args in (
        ("run", NAME, PROMPT, *GREEDY),
        ("run", NAME, PROMPT, *GREEDY, "--pull", "never"),
        ("show", NAME),
        ("list",),
        ("list", "--available"),
        ("verify", NAME),
    ):
        assert cli(*args).code == 0, args


def test_never_fetches_nothing(cli: Cli, server: LocalHub) -> None:
    result = cli("run", NAME, PROMPT, *GREEDY, "--pull", "never")
    assert result.code == 3
    assert "gemmtp pull gemma4:31b-mtp" in result.err
    assert server.requests == []
    assert cli("run", NAME, PROMPT, "--pull", "sometimes").code == 2


def test_always_takes_what_the_catalogue_names_now(
    cli: Cli, server: LocalHub, home: Path, contents: dict[str, bytes], tmp_path: Path
) -> None:
    cli("pull", NAME)
    other = write_drafter(tmp_path / "other.gguf", seed=9).read_bytes()
    publish(server, home, {**contents, "drafter": other})
    server.sent = 0
    assert cli("run", NAME, PROMPT, *GREEDY).code == 0
    assert server.sent == 0
    assert cli("run", NAME, PROMPT, *GREEDY, "--pull", "always").code == 0
    assert server.sent == len(other)
    assert _store(home).resolve(NAME).files["drafter"].read_bytes() == other
    assert len(list((home / "data/blobs").iterdir())) == 3
    assert "here" not in cli("run", NAME, PROMPT, *GREEDY, "--pull", "always").err
    assert cli("pull", NAME).err == f"{NAME} was here already, in full.\n"


def test_pull_says_what_came_as_json(cli: Cli, server: LocalHub, home: Path) -> None:
    document = json.loads(cli("pull", NAME, "--json").out)
    assert document["name"] == NAME
    assert [file["role"] for file in document["files"]] == ["target", "drafter", "projector"]
    assert all(file["fetched"] for file in document["files"])
    assert document["fetched_bytes"] == sum(file["size"] for file in document["files"])
    assert document["pair"]["matches"] is True
    again = json.loads(cli("pull", NAME, "--json").out)
    assert not any(file["fetched"] for file in again["files"])
    assert again["fetched_bytes"] == 0


def test_a_drafter_of_another_model_is_refused(
    cli: Cli, server: LocalHub, home: Path, contents: dict[str, bytes], tmp_path: Path
) -> None:
    wrong = write_drafter(tmp_path / "wrong.gguf", backbone=48).read_bytes()
    publish(server, home, {**contents, "drafter": wrong})
    result = cli("pull", NAME)
    assert result.code == 3
    assert "drafter does not match: hidden 48, expected 32" in result.err
    assert _store(home).names() == []


def test_a_file_of_another_kind_is_refused_by_its_own_name(
    cli: Cli, server: LocalHub, home: Path, contents: dict[str, bytes]
) -> None:
    publish(server, home, {**contents, "projector": contents["drafter"]})
    result = cli("pull", NAME)
    assert result.code == 3
    assert "mmproj-BF16.gguf has the architecture 'gemma4-assistant'" in result.err


def test_what_the_hub_gives_for_a_pinned_file_must_be_that_file(
    cli: Cli, server: LocalHub, contents: dict[str, bytes]
) -> None:
    server.oid[PATHS["target"]] = "ab" * 32
    result = cli("pull", NAME)
    assert result.code == 1
    assert "has changed on the hub" in result.err
    assert server.asked("cdn") == []


def test_too_little_room_is_said_before_the_first_byte(
    cli: Cli, server: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    result = cli("pull", NAME)
    assert result.code == 1
    assert "GiB are free" in result.err
    assert server.requests == []


def test_any_repository_is_a_set_by_its_headers(cli: Cli, server: LocalHub, home: Path) -> None:
    name = f"hf:{REPO}"
    assert cli("run", name, PROMPT, *GREEDY).code == 0
    assert _store(home).names() == ["hf.unsloth.gemma-4-31b-it-qat-gguf:latest"]
    server.requests.clear()
    second = cli("run", name, PROMPT, *GREEDY)
    assert "drafting on" in second.err
    assert server.requests == []
    assert cli("show", name).code == 0


def test_a_target_in_parts_is_fetched_and_joined(
    cli: Cli,
    server: LocalHub,
    home: Path,
    contents: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = write_parts(tmp_path, monkeypatch)
    for path in parts:
        server.add("maker/parts", f"BF16/{path.name}", path.read_bytes())
    server.add("maker/parts", "mtp.gguf", contents["drafter"])
    document = json.loads(cli("pull", "hf:maker/parts", "--json").out)
    store = _store(home)
    target = store.resolve("hf.maker.parts:latest").files["target"]
    assert document["files"][0]["sha256"] == sha256_of(target)
    sent = len(contents["drafter"]) + sum(path.stat().st_size for path in parts)
    peeks = 2 * START_BYTES
    assert server.sent == sent + peeks
    assert list(store.downloads.iterdir()) == []
    result = cli("run", "hf:maker/parts", PROMPT, *GREEDY)
    assert "drafting on" in result.err
    assert result.out == cli("run", NAME, PROMPT, *GREEDY).out
    server.sent = 0
    assert cli("run", "hf:maker/parts", PROMPT, *GREEDY, "--pull", "always").code == 0
    assert server.sent == peeks


def test_offline_says_so(cli: Cli, server: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = cli("pull", NAME)
    assert (result.code, server.requests) == (1, [])
    assert "HF_HUB_OFFLINE is set" in result.err


def test_two_pulls_at_once_fetch_once(
    server: LocalHub, home: Path, contents: dict[str, bytes]
) -> None:
    server.rate = 400_000
    both = [program(["pull", NAME]) for _ in range(2)]
    errors = [process.communicate()[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert server.sent == sum(map(len, contents.values()))
    assert sum("waiting for it" in text for text in errors) >= 1
    assert _store(home).resolve(NAME).files.keys() == contents.keys()


def test_ctrl_c_ends_a_pull_and_the_next_goes_on(
    server: LocalHub, home: Path, contents: dict[str, bytes]
) -> None:
    # What follows the tensors is nobody's concern.
    longer = {**contents, "target": contents["target"] + bytes(3 << 20)}
    publish(server, home, longer)
    server.rate = 1 << 20
    process = program(["pull", NAME])
    while server.sent < 2 << 20:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1].decode()
    assert process.returncode == 130
    assert "Traceback" not in errors
    server.rate, server.sent = None, 0
    with program(["pull", NAME]) as again:
        errors = again.communicate()[1].decode()
    assert again.returncode == 0
    assert "are here from an earlier try" in errors
    assert server.sent < sum(map(len, longer.values())) - (1 << 20)


def test_show_tells_what_a_pull_would_bring(cli: Cli, server: LocalHub) -> None:
    shown = cli("show", NAME)
    assert "not here yet (gemmtp pull gemma4:31b-mtp)" in shown.out
    assert f"{REPO} {PATHS['drafter']}" in shown.out
    document = json.loads(cli("show", NAME, "--json").out)
    assert (document["installed"], list(document["files"])) == (False, list(PATHS))
    assert server.requests == []


@pytest.mark.parametrize(("answer", "code"), [("\n", 0), ("n\n", 130)])
def test_on_a_terminal_run_asks_with_the_size(
    server: LocalHub, home: Path, answer: str, code: int
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gemmtp", "run", NAME, PROMPT, *GREEDY],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    assert process.stdout is not None
    shown = ""
    while "[Y/n]" not in shown:
        shown += os.read(ours, 4096).decode()
    assert "KiB to fetch (target + drafter + projector). Fetch?" in shown
    assert server.asked("cdn") == []
    os.write(ours, answer.encode())
    with process:
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == code
    assert bool(out) is (code == 0)
    assert _store(home).exists(NAME) is (code == 0)


def test_names_are_completed_without_llama_cpp(home: Path) -> None:
    code = (
        "import sys\nfrom gemmtp.cli.complete import available_names, installed_names\n"
        "print(available_names('gemma4:31b-m'), installed_names('de'))\n"
        "print([m for m in ('llama_cpp', 'numpy', 'httpx', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    completed, heavy = done.stdout.splitlines()
    assert "gemma4:31b-mtp'" in completed
    assert "['demo']" in completed
    assert heavy == "[]"


def test_pull_leaves_stdout_to_json(cli: Cli, server: LocalHub) -> None:
    assert cli("pull", NAME).out == ""
    sets = json.loads(cli("list", "--json").out)["sets"]
    assert [row["name"] for row in sets] == ["demo", NAME]

"""``gemmtp run --session``, ``-c`` and ``gemmtp sessions``: conversations that go on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gemmtp.chat import sessions, shelf
from gemmtp.chat.sessions import Origin, Session
from gemmtp.prompt.conversation import Image, Message, Text
from tests.cli.conftest import Cli

QUIET = ("--threads", 1, "--temperature", 0, "--max-tokens", 30)

pytestmark = pytest.mark.usefixtures("home")


def said(name: str, *exchanges: tuple[str, str], model: str = "demo", used: int = 0) -> None:
    """A session in which this was said, used at this time."""
    with Session.create(Origin(model), name) as session:
        for question, answer in exchanges:
            session.record_user(Message.of("user", question))
            session.record_words("answer", answer)
            session.record_end("stop")
    os.utime(shelf.path_of(name), (used, used))


def texts(name: str) -> list[str]:
    return [message.text for message in sessions.load(name).messages]


def test_a_session_goes_on_in_one_shot_mode(cli: Cli) -> None:
    first = cli("run", "demo", *QUIET, "--session", "sums", "What is 3 + 4?")
    assert first.code == 0
    second = cli("run", "demo", *QUIET, "-c", "And 5 + 5?", "--json")
    document = json.loads(second.out)
    assert texts("sums") == ["What is 3 + 4?", first.out[:-1], "And 5 + 5?", document["text"]]
    # The prompt held the first exchange too: alone it is this short.
    alone = json.loads(cli("run", "demo", *QUIET, "And 5 + 5?", "--json").out)
    assert document["prompt_tokens"]["evaluated"] > 1.5 * alone["prompt_tokens"]["evaluated"]
    assert shelf.by_use() == ["sums"]


def test_the_model_of_a_session_needs_no_name(cli: Cli, tiny: tuple[Path, Path]) -> None:
    result = cli("run", tiny[0], *QUIET, "--session", "tiny", "the")
    assert result.code == 0
    again = cli("run", "--session", "tiny", *QUIET, "and the thin man")
    assert (again.code, texts("tiny")[2]) == (0, "and the thin man")
    assert sessions.load("tiny").model == str(tiny[0])
    piped = cli("run", "-c", *QUIET, stdin=b"more")
    assert (piped.code, texts("tiny")[4]) == (0, "more")


def test_another_model_goes_on_with_a_note(cli: Cli, tiny: tuple[Path, Path]) -> None:
    said("a", ("the", "thin"), model="gemma9:900b")
    gone = cli("run", "-c", *QUIET, "and the man")
    assert gone.code == 3
    assert "The session a was with gemma9:900b, which is not here." in gone.err
    assert "gemmtp run MODEL --session a" in gone.err
    other = cli("run", tiny[0], "-c", *QUIET, "and the man")
    assert other.code == 0
    note = f"note: the session a was with gemma9:900b; {tiny[0]} goes on\n"
    assert note in other.err
    assert sessions.load("a").model == str(tiny[0])
    assert note not in cli("run", tiny[0], "-c", *QUIET, "and more").err


def test_the_system_message_of_a_session_stays(cli: Cli) -> None:
    cli(
        "run", "demo", *QUIET, "--session", "a", "--system", "Answer in one word.", "What is 3 + 4?"
    )
    assert sessions.load("a").system == "Answer in one word."
    with_it = json.loads(cli("run", "demo", *QUIET, "-c", "And 1 + 1?", "--json").out)
    with Session.open("a") as session:
        session.record_undo()
        session.record_system(None)
    without = json.loads(cli("run", "demo", *QUIET, "-c", "And 1 + 1?", "--json").out)
    count = "prompt_tokens"
    assert with_it[count]["evaluated"] > without[count]["evaluated"]


@pytest.mark.parametrize(
    ("args", "message", "code"),
    [
        (("run", "demo", "-c", "x"), "There is no session to continue.", 2),
        (("run", "--session", "b", "x y"), "There is no session b.", 2),
        (("run",), "MODEL is missing.", 2),
        (("run", "demo", "-c", "--session", "a", "x"), "exclude each other", 2),
        (("run", "demo", "--no-session", "--session", "a", "x"), "--no-session excludes", 2),
        (("run", "demo", "--raw", "--session", "a", "x"), "a session is a conversation", 2),
        (("run", "demo", "--save-kv", "x"), "--save-kv needs a session", 2),
        (("run", "demo", "--session", "a/b", "x"), "'a/b' is no name for a session", 2),
        (("sessions", "show", "b"), "There is no session b.", 2),
        (("sessions", "rm", "b"), "There is no session b.", 2),
        (("sessions", "rm"), "Nothing to remove was named.", 2),
        (("sessions", "rename", "b", "c"), "There is no session b.", 2),
        (("sessions", "export", "b"), "There is no session b.", 2),
        (("sessions", "export", "b", "--format", "pdf"), "'pdf' is no form to export", 2),
    ],
)
def test_what_cannot_be_meant_is_wrong_use(
    cli: Cli, args: tuple[str, ...], message: str, code: int
) -> None:
    result = cli(*args)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert shelf.by_use() == []


def test_a_session_that_is_open_elsewhere_is_said_before_a_model_loads(cli: Cli) -> None:
    said("a", ("one", "1"))
    with Session.open("a"):
        result = cli("run", "demo", "-c", "two words")
        assert result.code == 1
        assert "The session a is open in another process." in result.err
        assert "drafting" not in result.err
        assert "(in use)" in cli("sessions", "list").out
        assert cli("sessions", "rm", "a").code == 1
    assert texts("a") == ["one", "1"]


def test_sessions_are_listed_by_use(cli: Cli) -> None:
    assert (cli("sessions", "list").code, cli("sessions", "list").out) == (0, "")
    said("old", ("one\ntwo " + "x" * 80, "1"), ("again", "2"), used=1_000_000_000)
    said("2026-01-01-000000", ("hello", "hi"), model="gone:1", used=1_700_000_000)
    shelf.path_of("broken").write_bytes(b'{"type":"session","format":9}\n')
    os.utime(shelf.path_of("broken"), (5, 5))
    lines = cli("sessions", "list").out.splitlines()
    title = "one two " + "x" * 51 + "…"
    assert lines == [
        "2026-01-01-000000  2023-11-14 22:13     1 turn  gone:1  hello  (model not here)",
        f"old                2001-09-09 01:46    2 turns  demo    {title}",
        "broken             The session broken was written by another version of gemmtp.",
    ]
    rows = json.loads(cli("sessions", "list", "--json").out)["sessions"]
    assert [row["name"] for row in rows] == ["2026-01-01-000000", "old", "broken"]
    assert [row["turns"] for row in rows] == [1, 2, 0]
    assert [row["unnamed"] for row in rows] == [True, False, False]
    assert rows[0]["model_is_here"] is False
    assert rows[1]["used"] == "2001-09-09T01:46:40Z"
    assert rows[2]["problem"] is not None


def test_a_session_is_shown_renamed_and_removed(cli: Cli) -> None:
    said("a", ("What is\n3 + 4?", "It is 7."), ("And 5 + 5?", "10"))
    with Session.open("a") as session:
        session.record_system("Be brief.")
        session.record_user(Message.of("user", "And?"))
        session.record_words("answer", "W")
    shown = cli("sessions", "show", "a").out
    assert shown == (
        "system: Be brief.\n>>> What is\n    3 + 4?\nIt is 7.\n>>> And 5 + 5?\n10\n>>> And?\nW\n"
        "(the answer was cut off)\n"
    )
    assert cli("sessions", "rename", "a", "sums").code == 0
    assert cli("sessions", "show", "sums").out == shown
    said("2026-01-01-000000", ("hello", "hi"))
    assert cli("sessions", "rm", "--unnamed").err == "removed 2026-01-01-000000\n"
    # One name that is wrong removes nothing.
    assert cli("sessions", "rm", "sums", "none").code == 2
    assert shelf.by_use() == ["sums"]
    for rest in ("kv", "kv.partial"):
        (shelf.folder() / f"sums.{rest}").write_bytes(b"")
    assert cli("sessions", "rm", "sums").code == 0
    assert list(shelf.folder().iterdir()) == []


def test_an_export_is_whole_and_stands_alone(cli: Cli, tmp_path: Path) -> None:
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"a picture")
    with Session.create(Origin("demo"), "a") as session:
        session.record_system("Be brief.")
        session.record_user(Message("user", (Image(str(picture)), Text("What is it?"))))
        session.record_words("thought", "Four legs.")
        session.record_words("answer", "# A *cat*")
        session.record_call('call:draw{what:<|"|>ä<|"|>}')
        session.record_end("stop")
    picture.unlink()
    page = cli("sessions", "export", "a").out
    copy = next(shelf.folder_of("a").iterdir())
    parts = page.split("\n\n")
    assert parts[0] == "# a"
    assert parts[2:] == [
        "## System",
        "Be brief.",
        "## You",
        f"![image]({copy})",
        "What is it?",
        "## demo",
        "<details><summary>Thoughts</summary>",
        "Four legs.",
        "</details>",
        "# A *cat*",
        '`draw({"what": "ä"})`\n',
    ]
    out = tmp_path / "a.json"
    assert cli("sessions", "export", "a", "--format", "json", "-o", out).out == ""
    document = json.loads(out.read_text("utf-8"))
    system, user, answer = document["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert user["content"][0]["image_url"]["url"] == "data:image/png;base64,YSBwaWN0dXJl"
    assert answer["reasoning_content"] == "Four legs."
    assert answer["tool_calls"][0]["function"] == {"name": "draw", "arguments": '{"what": "ä"}'}
    assert (document["model"], document["complete"]) == ("demo", True)
    failed = cli("sessions", "export", "a", "-o", tmp_path / "no" / "a.md")
    assert (failed.code, "cannot be written" in failed.err) == (1, True)


def test_a_saved_kv_cache_spares_the_reading(cli: Cli) -> None:
    question = "What is 3 + 4? " * 8
    cli("run", "demo", *QUIET, "--session", "a", "--save-kv", question)
    again = json.loads(cli("run", "demo", *QUIET, "-c", "And 5 + 5?", "--json").out)
    count = again["prompt_tokens"]
    assert count["cached"] > 60
    # At most 40 beside the answer, which stands in the history without its empty thought.
    assert count["evaluated"] <= 40 + 30
    fresh = json.loads(cli("run", "demo", *QUIET, "--session", "b", question, "--json").out)
    assert fresh["text"] == texts("a")[1]
    other = json.loads(cli("run", "demo", *QUIET, "--session", "b", "And 5 + 5?", "--json").out)
    assert other["text"] == again["text"]
    assert other["prompt_tokens"]["cached"] == 0
    changed = cli("run", "demo", *QUIET, "--session", "a", "--no-mtp", "And 1 + 1?", "--json")
    assert "note: the saved KV cache is not used: it was made with another drafter" in changed.err
    shelf.kv_path("a").write_bytes(b"gemmtp-kv 1 nonsense")
    damaged = cli("run", "demo", *QUIET, "--session", "a", "And 2 + 1?", "--json")
    assert "note: the saved KV cache is not used: the file is damaged" in damaged.err
    assert damaged.code == 0


def test_a_full_disk_is_said_and_the_answer_comes(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    whole = cli("run", "demo", *QUIET, "What is 3 + 4?").out
    monkeypatch.setattr(os, "write", full)
    result = cli("run", "demo", *QUIET, "--session", "a", "What is 3 + 4?")
    assert (result.code, result.out) == (0, whole)
    assert "note: the session a lacks the end: No space left on device\n" in result.err

"""A session is what was said, whatever happened to the process that wrote it."""

from __future__ import annotations

import base64
import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemmtp.chat import names, sessions, shelf
from gemmtp.chat.log import LogInUseError
from gemmtp.chat.sessions import Origin, Session
from gemmtp.chat.shelf import SessionNotFoundError
from gemmtp.errors import GemmtpError, UsageError
from gemmtp.prompt.conversation import Audio, Image, Message, Text

DEMO = Origin("demo", {"model": "ab" * 32})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMTP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GEMMTP_SESSIONS", raising=False)
    return tmp_path / "home"


@dataclass
class Counted:
    generated: int


def exchange(session: Session, question: str, *pieces: str, reason: str | None = "stop") -> None:
    session.record_user(Message.of("user", question))
    for piece in pieces:
        session.record_words("answer", piece)
    if reason is not None:
        session.record_end(reason, Counted(len(pieces)))


def texts(session: Session) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in session.messages()]


def test_a_session_reopens_with_everything_that_was_said() -> None:
    with Session.create(DEMO, "sums") as session:
        session.record_system("Be brief.")
        session.record_setting("thinking", True)
        session.record_user(Message.of("user", "What is 3 + 4?"))
        session.record_words("thought", "3 + 4")
        session.record_words("thought", " = 7")
        session.record_words("answer", "It is")
        session.record_words("answer", " 7.")
        session.record_end("stop", Counted(5))
    with Session.open("sums") as again:
        replay = again.replay
        assert (replay.model, replay.hashes) == ("demo", {"model": "ab" * 32})
        assert (replay.system, replay.settings) == ("Be brief.", {"thinking": True})
        answer = Message("assistant", (Text("It is 7."),), "3 + 4 = 7")
        assert again.messages() == [Message.of("user", "What is 3 + 4?"), answer]
        assert replay.endings[0].reason == "stop"
        assert replay.endings[0].statistics == {"generated": 5}
        assert replay.complete


def test_an_answer_that_was_cut_off_is_kept_and_marked() -> None:
    with Session.create(DEMO, "a") as session:
        exchange(session, "one", "1")
        exchange(session, "two", "tw", reason=None)
    with Session.open("a") as again:
        assert texts(again)[-1] == ("assistant", "tw")
        assert not again.replay.complete
    with Session.create(DEMO, "b") as session:
        exchange(session, "one", "on", reason="interrupted")
    with Session.open("b") as again:
        assert texts(again)[-1] == ("assistant", "on")
        assert not again.replay.complete
    with Session.create(DEMO, "c") as session:
        exchange(session, "one", reason=None)
    with Session.open("c") as again:
        assert texts(again) == [("user", "one")]
        assert not again.replay.complete


def test_undo_edit_and_regenerate_change_what_is_reopened() -> None:
    with Session.create(DEMO, "a") as session:
        exchange(session, "one", "1")
        exchange(session, "two", "2")
        session.record_undo()
        exchange(session, "three", "3")
        session.record_edit(Message.of("user", "four"))
        session.record_words("answer", "4")
        session.record_end("stop")
        session.record_regenerate()
        session.record_words("answer", "IV")
        session.record_end("length")
    with Session.open("a") as again:
        expected = [("user", "one"), ("assistant", "1"), ("user", "four"), ("assistant", "IV")]
        assert texts(again) == expected
        assert [ending.reason for ending in again.replay.endings] == ["stop", "length"]
        again.record_clear()
        exchange(again, "five", "5")
    with Session.open("a") as last:
        assert texts(last) == [("user", "five"), ("assistant", "5")]
        assert last.replay.turns == 1


def test_dropped_turns_leave_the_models_view_and_stay_in_the_session() -> None:
    with Session.create(DEMO, "a") as session:
        for word in ("one", "two", "three"):
            exchange(session, word, word.upper())
        session.record_drop(2, "Numbers were counted.")
    with Session.open("a") as again:
        assert texts(again) == [("user", "three"), ("assistant", "THREE")]
        assert [message.text for message in again.replay.dropped] == ["one", "ONE", "two", "TWO"]
        assert again.replay.summary == "Numbers were counted."
        assert len(again.replay.endings) == 1
        assert again.replay.turns == 3


def test_a_loaded_conversation_takes_the_place_of_the_old_one() -> None:
    loaded = [Message.of("user", "hi"), Message.of("assistant", "hello")]
    with Session.create(DEMO, "a") as session:
        exchange(session, "one", "1")
        session.record_messages(loaded)
    with Session.open("a") as again:
        assert again.messages() == loaded
        assert again.replay.complete


def test_a_tool_call_comes_back_as_a_call() -> None:
    with Session.create(DEMO, "a") as session:
        session.record_user(Message.of("user", "weather?"))
        session.record_words("call", "call:weather{city:")
        session.record_call('call:weather{city:<|"|>Bonn<|"|>}')
        session.record_end("stop")
        session.record_user(Message("tool", (Text("rain"),), call_id="call_0"))
        session.record_words("answer", "It rains.")
        session.record_end("stop")
    with Session.open("a") as again:
        _, call, tool, answer = again.messages()
        assert (call.tool_calls[0].name, call.tool_calls[0].arguments) == (
            "weather",
            {"city": "Bonn"},
        )
        assert (call.text, tool.call_id, answer.text) == ("", "call_0", "It rains.")


@pytest.mark.parametrize("kept", range(1, 60))
def test_a_record_torn_anywhere_costs_that_record_alone(kept: int) -> None:
    with Session.create(DEMO, "a") as session:
        exchange(session, "one", "1")
    path = shelf.path_of("a")
    whole = path.read_bytes()
    torn = b'{"type":"message","message":{"role":"user","content":"t\xc3\xa4ter"}}'
    path.write_bytes(whole + torn[:kept])
    assert [message.text for message in sessions.load("a").messages] == ["one", "1"]
    with Session.open("a") as again:
        exchange(again, "two", "2")
    assert path.read_bytes().startswith(whole + b'{"type":"message","time"')
    assert [message.text for message in sessions.load("a").messages] == ["one", "1", "two", "2"]


def test_zeros_behind_a_power_cut_and_a_damaged_line_are_passed_over() -> None:
    with Session.create(DEMO, "a") as session:
        exchange(session, "one", "1")
    with shelf.path_of("a").open("ab") as file:
        file.write(b'{"type":"words","chan\x00\x00\n[1]\n' + bytes(100_000))
    with Session.open("a") as again:
        exchange(again, "two", "2")
    assert [message.text for message in sessions.load("a").messages] == ["one", "1", "two", "2"]


def test_text_of_any_kind_survives() -> None:
    odd = 'line\nbreaks\u2028\x85 "quotes" \\ \x00 \U0001f600 \udcff ä'
    with Session.create(DEMO, "a") as session:
        exchange(session, odd, odd)
    assert shelf.path_of("a").read_bytes().count(b"\n") == 4
    with Session.open("a") as again:
        assert texts(again) == [("user", odd), ("assistant", odd)]


def test_files_are_for_the_user_alone(home: Path, tmp_path: Path) -> None:
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"png")
    before = os.umask(0)
    try:
        with Session.create(DEMO, "a") as session:
            session.record_user(Message("user", (Image(str(picture)), Text("what?"))))
    finally:
        os.umask(before)
    folder = home / "state" / "sessions"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert modes.pop("a.files") == 0o700
    assert len(modes) == 2
    assert set(modes.values()) == {0o600}


def test_an_image_reopens_when_the_original_is_gone(tmp_path: Path) -> None:
    picture = tmp_path / "Cat.PNG"
    picture.write_bytes(b"the picture")
    sound = base64.b64encode(b"the sound").decode()
    url = "data:image/jpeg;base64," + base64.b64encode(b"other").decode()
    web = "https://example.com/cat.png"
    parts = (Image(str(picture)), Image(f"file://{picture}"), Image(url), Image(web))
    png = b"\x89PNG\r\n\x1a\n"
    bare = Image("data:image;base64," + base64.b64encode(png).decode())
    with Session.create(DEMO, "a") as session:
        session.record_user(Message("user", (*parts, Audio(sound, "wav"), bare, Text("what?"))))
    picture.unlink()
    with Session.open("a") as again:
        first, second, third, fourth, audio, fifth, _ = again.messages()[0].parts
    assert isinstance(first, Image)
    assert Path(first.url).read_bytes() == b"the picture"
    assert first.url.endswith(".png")
    assert second == first
    assert isinstance(third, Image)
    assert Path(third.url).read_bytes() == b"other"
    assert fourth == Image(web)
    assert isinstance(fifth, Image)
    assert fifth.url.endswith(".png")
    assert audio == Audio(sound, "wav")
    assert sound not in shelf.path_of("a").read_text()
    # Recording what was reopened copies nothing and changes nothing.
    with Session.open("a") as again:
        again.record_messages(again.messages())
    assert len(list(shelf.folder_of("a").iterdir())) == 4
    with Session.open("a") as last:
        assert last.messages()[0].parts[:3] == (first, second, third)


def test_a_log_cannot_name_a_file_elsewhere() -> None:
    with Session.create(DEMO, "a") as session:
        session.record_messages([Message("user", (Image("attached:../../secret"),))])
    with Session.open("a") as again, pytest.raises(UsageError, match="which cannot be"):
        again.messages()


def test_a_picture_that_cannot_be_read_is_wrong_use(tmp_path: Path) -> None:
    message = Message("user", (Image(str(tmp_path / "none.png")),))
    with Session.create(DEMO, "a") as session:
        with pytest.raises(UsageError, match="cannot be read"):
            session.record_user(message)
        exchange(session, "one", "1")
    assert len(sessions.load("a").messages) == 2


def test_one_session_is_open_once() -> None:
    with Session.create(DEMO, "a") as session:
        session.record_user(Message.of("user", "one"))
        for use in (lambda: Session.open("a"), lambda: shelf.remove("a")):
            with pytest.raises(LogInUseError, match="The session a is open in another process"):
                use()
        assert sessions.load("a").turns == 1
        assert shelf.is_open("a")
    assert not shelf.is_open("a")
    Session.open("a").close()


def test_a_session_in_which_nothing_was_said_leaves_nothing() -> None:
    with Session.create(DEMO) as session:
        session.record_setting("thinking", True)
        assert shelf.path_of(session.name).exists()
    assert shelf.by_use() == []
    with Session.create(DEMO, "a") as session:
        exchange(session, "one", "1")
    with Session.open("a"):
        pass
    assert shelf.by_use() == ["a"]


def test_the_session_used_last_is_continued() -> None:
    with pytest.raises(SessionNotFoundError, match="no session to continue"):
        Session.latest()
    for i, name in enumerate(("a", "b", "c")):
        with Session.create(DEMO, name) as session:
            exchange(session, name, name)
        os.utime(shelf.path_of(name), ns=(i, i))
    assert shelf.by_use() == ["c", "b", "a"]
    Session.open("a").close()
    shelf.path_of("killed-at-once").write_bytes(b"")
    with Session.latest() as session:
        assert session.name == "a"


def test_a_session_whose_first_line_was_not_written_begins_anew() -> None:
    shelf.folder().mkdir(parents=True)
    shelf.path_of("a").write_bytes(b'{"type":"sess')
    with Session.open_or_create("a", DEMO) as session:
        exchange(session, "one", "1")
    with Session.open("a") as again:
        assert again.replay.model == "demo"
        assert texts(again) == [("user", "one"), ("assistant", "1")]


@pytest.mark.parametrize("name", ["plan", "größe", "2026", "a.b-c_d", "計画"])
def test_names_that_can_be_used(name: str) -> None:
    with Session.open_or_create(name, DEMO) as session:
        exchange(session, "one", "1")
    assert shelf.by_use() == [name]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "-a", ".a", "a.", "a b", "x" * 201])
def test_names_that_cannot_be_used(name: str) -> None:
    for use in (Session.open, sessions.load, shelf.remove, lambda n: Session.create(DEMO, n)):
        with pytest.raises(UsageError, match="is no name for a session"):
            use(name)


def test_unnamed_chats_are_named_by_date_and_the_oldest_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEMMTP_SESSIONS", "3")
    with Session.create(DEMO, "kept") as session:
        exchange(session, "one", "1")
    os.utime(shelf.path_of("kept"), ns=(0, 0))
    made = []
    for i, second in enumerate((1, 1, 2, 3, 4)):
        clock = f"2026-01-01-00000{second}"
        monkeypatch.setattr(time, "strftime", lambda form, *when, now=clock: now)
        with Session.create(DEMO) as session:
            exchange(session, "one", "1")
            made.append(session.name)
        os.utime(shelf.path_of(session.name), ns=(i + 1, i + 1))
    assert made[:3] == ["2026-01-01-000001", "2026-01-01-000001-2", "2026-01-01-000002"]
    assert len(set(made)) == 5
    assert all(names.is_by_date(name) for name in made)
    assert sorted(shelf.by_use()) == sorted([*made[2:], "kept"])
    monkeypatch.setenv("GEMMTP_SESSIONS", "many")
    with pytest.raises(UsageError, match="GEMMTP_SESSIONS is 'many'"):
        Session.create(DEMO)


def test_an_unnamed_chat_gets_a_name() -> None:
    with Session.create(DEMO) as session:
        exchange(session, "one", "1")
        session.rename("trip")
        exchange(session, "two", "2")
    with Session.open("trip") as again:
        assert [text for _, text in texts(again)] == ["one", "1", "two", "2"]
    assert shelf.by_use() == ["trip"]
    with Session.create(DEMO) as other:
        exchange(other, "one", "1")
        with pytest.raises(UsageError, match="There is a session trip already"):
            other.rename("trip")
    assert len(sessions.load("trip").messages) == 4


def test_creating_one_that_is_there_is_wrong_use() -> None:
    with Session.create(DEMO, "a") as session:
        exchange(session, "one", "1")
    with pytest.raises(UsageError, match="There is a session a already"):
        Session.create(DEMO, "a")
    with pytest.raises(SessionNotFoundError, match="There is no session b"):
        Session.open("b")


def test_another_model_goes_on_from_where_it_came() -> None:
    with Session.create(DEMO, "a") as session:
        exchange(session, "one", "1")
        assert session.go_on_with(DEMO) is None
        assert session.go_on_with(Origin("other")) == "the session a was with demo; other goes on"
        exchange(session, "two", "2")
    with Session.open("a") as again:
        assert (again.origin, again.replay.turns) == (Origin("other"), 2)
        files = Origin("other", {"model": "cd" * 32})
        note = "the files of other are others than those the session was with"
        assert again.go_on_with(files) == note
    assert sessions.load("a").hashes == files.hashes


def test_what_a_newer_version_wrote_is_refused_and_what_it_added_passed_over() -> None:
    shelf.folder().mkdir(parents=True)
    lines = [{"type": "session", "format": 1, "model": "demo"}, {"type": "dance"}]
    message = {"type": "message", "message": {"role": "user", "content": "hi"}}
    written = "".join(json.dumps(line) + "\n" for line in [*lines, message])
    shelf.path_of("a").write_text(written)
    assert sessions.load("a").turns == 1
    shelf.path_of("b").write_text(written.replace('"format": 1', '"format": 2'))
    with pytest.raises(GemmtpError, match="another version of gemmtp"):
        Session.open("b")
    shelf.remove("b")
    assert shelf.by_use() == ["a"]


def test_nothing_is_recorded_without_a_log() -> None:
    session = Session.unrecorded(DEMO)
    exchange(session, "one", "1")
    assert not session.recorded
    with pytest.raises(UsageError, match="not recorded"):
        session.rename("a")
    session.close()
    assert not shelf.folder().exists()

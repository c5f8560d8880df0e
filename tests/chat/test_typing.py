"""What is typed: keys, pastes, history, completion, the line below the prompt."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from prompt_toolkit.utils import get_cwidth

from gemmtp.chat.commands import COMMANDS
from gemmtp.chat.completion import ChatCompleter
from gemmtp.chat.editing import EditingReader
from gemmtp.chat.history import MAX_ENTRY, SharedHistory
from gemmtp.chat.reader import Cancelled, unquoted
from gemmtp.chat.status import Status

ENTER, ALT_ENTER, CTRL_C, CTRL_D, CTRL_R, UP = "\r", "\x1b\r", "\x03", "\x04", "\x12", "\x1b[A"
Typing = Callable[[str], EditingReader]


def pasted(text: str) -> str:
    """``text`` as a terminal sends what is pasted (bracketed paste)."""
    return f"\x1b[200~{text}\x1b[201~"


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


@pytest.fixture
def typing(keyboard: PipeInput, tmp_path: Path) -> Typing:
    """A reader to which some keys come."""

    def type_keys(keys: str) -> EditingReader:
        keyboard.send_text(keys)
        return EditingReader(tmp_path / "history", ChatCompleter(COMMANDS), lambda columns: "")

    return type_keys


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("words" + ENTER, "words"),
        (f"one{ALT_ENTER}two{ENTER}", "one\ntwo"),
        (f'"""one{ENTER}  two{ENTER}"""{ENTER}', "one\n  two"),
        (f'"""one line"""{ENTER}', "one line"),
        (pasted("one\ntwo\nthree\n") + ENTER, "one\ntwo\nthree"),
        ("say: " + pasted("a\r\nb") + " done" + ENTER, "say: a\nb done"),
        ("wide 語 and 👩‍💻 é" + ENTER, "wide 語 and 👩‍💻 é"),
    ],
)
def test_an_input_is_what_was_typed(typing: Typing, keys: str, text: str) -> None:
    assert unquoted(typing(keys).read()) == text


def test_a_pasted_file_stays_one_input(typing: Typing) -> None:
    text = "\n".join(f"line {i} with some words" for i in range(2000))
    assert typing(pasted(text) + ENTER).read() == text


def test_bytes_that_are_no_utf_8_arrive(keyboard: PipeInput, typing: Typing) -> None:
    keyboard.send_bytes(b"caf\xe9")
    assert "caf" in typing(ENTER).read()


def test_ctrl_c_gives_back_what_stood_there(typing: Typing) -> None:
    with pytest.raises(Cancelled) as cancelled:
        typing("half a thou" + CTRL_C).read()
    assert cancelled.value.typed == "half a thou"


def test_ctrl_d_leaves_an_empty_prompt_alone(typing: Typing) -> None:
    reader = typing(f"ab{CTRL_D}\x01{CTRL_D}{ENTER}{CTRL_D}")
    assert reader.read() == "b"
    with pytest.raises(EOFError):
        reader.read()


def test_a_text_to_change_stands_there(typing: Typing) -> None:
    assert typing("!" + ENTER).read("Why") == "Why!"


def test_a_question_takes_a_letter(typing: Typing) -> None:
    reader = typing("x9dm" + ENTER)
    assert reader.choose("The context is full.", {"s": "stop", "d": "drop"}) == "d"


def test_inputs_come_back_across_chats(typing: Typing, tmp_path: Path) -> None:
    assert typing(f"first thing{ENTER}").read() == "first thing"
    assert typing(f"{UP}{ENTER}").read() == "first thing"
    two_lines = f"{ALT_ENTER}".join(["second", "thing"])
    assert typing(two_lines + ENTER).read() == "second\nthing"
    assert typing(f"{CTRL_R}first{ENTER}{ENTER}").read() == "first thing"
    assert stat.S_IMODE((tmp_path / "history").stat().st_mode) == 0o600


def test_open_chats_share_their_history(tmp_path: Path) -> None:
    one, other = (SharedHistory(tmp_path / "state" / "history") for _ in range(2))
    one.append_string("typed here")
    other.append_string("typed\nthere")
    for kept_out in (" a secret", "  ", "x" * (MAX_ENTRY + 1)):
        one.append_string(kept_out)
    one.append_string("half a pair \udce9")
    assert one.get_strings() == ["typed here", "typed\nthere", "half a pair ?"]
    assert other.get_strings() == one.get_strings()
    assert stat.S_IMODE(os.stat(tmp_path / "state").st_mode) == 0o700


def test_a_history_that_cannot_be_written_lasts_as_long_as_the_chat(tmp_path: Path) -> None:
    history = SharedHistory(tmp_path / "a file" / "history")
    (tmp_path / "a file").write_text("")
    history.append_string("typed")
    assert history.get_strings() == ["typed"]


def completions(text: str) -> list[str]:
    completer = ChatCompleter(COMMANDS)
    found = completer.get_completions(Document(text), CompleteEvent())
    return [text[: len(text) + c.start_position] + c.text for c in found]


def test_commands_and_what_they_take_are_completed(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"")
    assert completions("/st") == ["/stats"]
    assert completions("/set top") == ["/set top_k", "/set top_p"]
    assert completions("/set accept b") == ["/set accept block"]
    assert completions("/think h") == ["/think hide"]
    assert completions(f"/image {tmp_path}/c") == [f"/image {tmp_path}/cat.png"]
    assert completions(f"what is @{tmp_path}/c") == [f"what is @{tmp_path}/cat.png"]
    assert completions("/nothing at all") == completions("say a/") == completions("a\n/st") == []


@pytest.mark.parametrize("columns", [200, 80, 60, 40, 20, 8, 4])
def test_the_status_line_fits(columns: int) -> None:
    rate = "45.2 tok/s (1 slot, draft 3, T 0.7)"
    status = Status("模型:demo", None, "adaptive, up to 8", 3, 1234, 8192, rate, ["[image 1]"])
    assert get_cwidth(status.line(columns)) <= columns
    off = Status("demo", "no drafter in this set", "", None, 0, 4096)
    assert get_cwidth(off.line(columns)) <= max(columns, 4)


def test_the_status_line_says_what_matters_first() -> None:
    rate = "45.2 tok/s (1 slot, draft 3, T 0.7)"
    status = Status("demo", None, "adaptive, up to 8", 3, 1234, 8192, rate)
    assert status.line(120) == (
        "demo · drafting adaptive, up to 8, last 3 · context 1,234 of 8,192 (15%) · " + rate
    )
    assert status.line(80) == (f"drafting 3 · context 1,234 of 8,192 (15%) · {rate}")
    assert status.line(20) == "15%"
    off = Status("demo", "no drafter in this set", "", None, 0, 4096)
    assert off.line(80) == "demo · drafting off: no drafter in this set · context 0 of 4,096 (0%)"


def test_one_answer_does_without_the_line_editor() -> None:
    code = (
        "import sys, gemmtp.cli.oneshot; print({'prompt_toolkit', 'pygments'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

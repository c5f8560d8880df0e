"""A chat as somebody has it: what is printed where, what commands do, what is kept."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from gemmtp.chat.reader import Cancelled
from gemmtp.chat.repl import Repl
from gemmtp.chat.sessions import Session, load
from gemmtp.engine.penalties import PenaltyParameters
from tests.chat.conftest import Talk
from tests.chat.echo import answer_to, echo_voice

CTRL_C = Cancelled("")


def test_stdout_carries_the_answers_alone(talk: Talk) -> None:
    chat = talk("hello there", "/help", "/set", "/stats", "/nothing", "and you", "/bye")
    assert chat.out == f"{answer_to('hello there')}\n{answer_to('and you')}\n"


def test_what_is_printed_moves_no_cursor(talk: Talk, tmp_path: Path) -> None:
    chat = talk("escapes", f"/file {tmp_path}/no\x1b]0;x\x07", "/\x1b[2J", "/load \x9b1m")
    assert "red" in chat.out
    controls = {c for c in chat.out + chat.err if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f"}
    assert controls == set()
    # What the model said is kept as it was said.
    assert chat.messages[1] == answer_to("escapes")


def test_thoughts_go_to_stderr_or_nowhere(talk: Talk) -> None:
    thought = "They said 5 characters."
    shown = talk("/think on", "hello")
    assert thought in shown.err
    assert thought not in shown.out
    hidden = talk("/think hide", "hello")
    assert thought not in hidden.err
    off = talk("/think on", "/think off", "hello", "/think maybe")
    assert thought not in off.err
    assert "'maybe' is no way to think" in off.err
    assert shown.out == hidden.out == off.out == answer_to("hello") + "\n"
    assert shown.repl.dialogue.messages[1].thinking == thought


def test_colours_change_no_character(talk: Talk) -> None:
    plain, coloured = (talk("code please", coloured=c).out for c in (False, True))
    assert "\x1b[" not in plain
    assert "\x1b[35mdef" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_an_answer_stops_at_ctrl_c_and_stays(talk: Talk) -> None:
    def press(repl: Repl) -> None:
        words = repl.screen.words
        count = iter(range(1000))

        def printed(channel: object, text: str) -> None:
            words(channel, text)  # type: ignore[arg-type]
            if next(count) == 30:
                signal.raise_signal(signal.SIGINT)

        repl.screen.words = printed  # type: ignore[method-assign]

    before = signal.getsignal(signal.SIGINT)
    chat = talk("long", "and now", prepare=press)
    assert signal.getsignal(signal.SIGINT) is before
    part = chat.messages[1]
    assert len(part) == 31
    assert answer_to("long").startswith(part)
    assert chat.out.startswith(part + "\n")
    assert "stopped; what was said stays" in chat.err
    assert chat.messages[2:] == ["and now", answer_to("and now")]
    replay = load(chat.repl.session.name)
    assert [m.text for m in replay.messages] == chat.messages
    assert [ending.reason for ending in replay.endings] == ["interrupted", "stop"]


def test_ctrl_c_at_a_prompt_says_how_to_leave(talk: Talk) -> None:
    chat = talk(CTRL_C, CTRL_C, Cancelled("half a line"), "hello")
    assert chat.err.count("Ctrl-D or /bye leaves") == 2
    assert chat.messages == ["hello", answer_to("hello")]


def test_undo_regen_edit_and_clear(talk: Talk) -> None:
    assert talk("one", "two", "/undo").messages == ["one", answer_to("one")]
    assert talk("one", "/regen").out == f"{answer_to('one')}\n" * 2
    assert talk("one", "/edit other words").messages == ["other words", answer_to("other words")]
    edited = talk("one", "/edit", "one more")
    assert edited.script.defaults[2] == "one"
    assert edited.messages == ["one more", answer_to("one more")]
    for given_up in (CTRL_C, "", "  "):
        assert talk("one", "/edit", given_up, "two").messages[::2] == ["one", "two"]
    assert talk("one", "two", "/clear", "three").messages == ["three", answer_to("three")]
    for early in ("/undo", "/regen", "/edit", "/edit words"):
        chat = talk(early)
        assert chat.err.startswith("gemmtp: Nothing")
        assert chat.messages == []


def test_an_edit_that_does_not_fit_is_edited_on(talk: Talk) -> None:
    chat = talk("one", "/edit", "words " * 90, "two", voice=echo_voice(n_ctx=400))
    assert "The conversation would take " in chat.err
    assert chat.script.defaults[3] == " ".join(["words"] * 90)
    assert chat.messages == ["two", answer_to("two")]


def test_what_was_said_is_kept_as_it_stands(talk: Talk) -> None:
    chat = talk("one", "two", "/undo", "three", "/edit four", "/regen", "/system Be brief.", "five")
    replay = load(chat.repl.session.name)
    assert replay.messages == chat.repl.dialogue.messages
    assert [m.text for m in replay.messages][::2] == ["one", "four", "five"]
    assert replay.system == "Be brief."


def test_a_chat_is_saved_and_loaded(talk: Talk) -> None:
    first = talk("one", "/set temperature 0.5", "/think on", "/save mine", "/save mine")
    assert "There is a session mine already" in first.err
    chat = talk("other", "/load mine", "two", "/load mine", "/load nothing")
    assert chat.messages[::2] == ["one", "two"]
    assert chat.repl.dialogue.sampling.temperature == 0.5
    assert chat.repl.thinking == "on"
    assert "going on with mine, 1 turn" in chat.err
    assert "That is this chat" in chat.err
    assert "There is no session nothing" in chat.err
    again = talk("three", session=Session.open("mine"), resume=True)
    assert again.messages[::2] == ["one", "two", "three"]


def test_parameters_are_listed_changed_and_checked(talk: Talk) -> None:
    chat = talk("/set", "/set temperature 0.5", "/set top_k 7", "/set seed 5", "/set max_tokens 3")
    dialogue = chat.repl.dialogue
    assert (dialogue.sampling.temperature, dialogue.sampling.top_k) == (0.5, 7)
    assert (dialogue.sampling.seed, dialogue.max_tokens) == (5, 3)
    assert chat.err.startswith("temperature        0 ")
    off = talk("/set seed 5", "/set seed off", "/set max_tokens 4", "/set max_tokens off")
    assert off.repl.dialogue.sampling.seed is None
    assert off.repl.dialogue.max_tokens is None
    short = talk("/set max_tokens 5", "hello")
    assert short.out == "You s\n"
    assert "stopped at max_tokens" in short.err


def test_penalties_are_changed_and_kept_with_the_session(talk: Talk) -> None:
    first = talk("/set repeat_penalty 9", "/set dry_multiplier 0.8", "/set dry_last_n 50", "hello")
    penalties = PenaltyParameters(repeat=9, dry_multiplier=0.8, dry_last_n=50)
    assert first.repl.dialogue.penalties == penalties
    again = talk("/set", session=Session.open(first.repl.session.name), resume=True)
    assert again.repl.dialogue.penalties == penalties
    assert re.search(r"repeat_penalty +9 ", again.err)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temperature hot", "'hot' is no number"),
        ("/set temperature -1", "between 0 and 100"),
        ("/set temperature nan", "between 0 and 100"),
        ("/set top_k 1.5", "'1.5' is no whole number"),
        ("/set top_p 7", "above 0 and up to 1"),
        ("/set repeat_penalty 0", "above 0 and up to 10"),
        ("/set presence_penalty 3", "between -2 and 2"),
        ("/set dry_last_n -2", "last -2 tokens"),
        ("/set dry_allowed_length 1.5", "'1.5' is no whole number"),
        ("/set seed -1", "A seed is a whole number"),
        ("/set max_tokens 0", "at least 1"),
        ("/set accept maybe", "'maybe' is no acceptance rule"),
        ("/set draft deep", "'deep' is no draft depth"),
        ("/set draft 99", "between 0 and 16"),
        ("/set nothing", "no parameter 'nothing'"),
        ("/set nothing 5", "no parameter 'nothing'"),
        ("/mtp perhaps", "'perhaps' is no draft depth"),
        ("/image", "/image needs a file"),
        ("/file", "/file needs a file"),
        ("/file nowhere.txt", "nowhere.txt cannot be read: No such file"),
        ("/audio a.wav", "Sound is not supported yet"),
        ("/save", "/save needs a name"),
        ("/save a/b", "is no name for a session"),
        ("/help nothing", "no command /nothing"),
        ("@nowhere.txt", "There is no file 'nowhere.txt'"),
        ("caf\udce9", "The prompt is not UTF-8: byte 0xe9"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    talk: Talk, line: str, message: str
) -> None:
    untouched = talk().repl
    chat = talk(line)
    assert message in chat.err
    assert chat.err.count("\n") <= 2
    assert chat.out == ""
    dialogue = chat.repl.dialogue
    assert dialogue.messages == []
    assert dialogue.sampling == untouched.dialogue.sampling
    assert dialogue.max_tokens is None
    assert chat.repl.draft == "auto"


def test_an_unknown_command_names_the_nearest(talk: Talk) -> None:
    assert "There is no command /sttas.\nhint: Did you mean /stats?" in talk("/sttas").err
    assert "/help lists the commands" in talk("/xyzzy").err


def test_a_path_or_a_comment_is_no_command(talk: Talk, tmp_path: Path) -> None:
    assert talk("/etc/hosts is what?").messages[0] == "/etc/hosts is what?"
    assert talk("/* a comment */").messages[0] == "/* a comment */"
    assert talk("/").messages[0] == "/"
    assert talk('"""/help"""').messages[0] == "/help"


def test_utf_8_is_understood_where_the_terminal_claims_to_be_ascii(talk: Talk) -> None:
    typed = "語 and 👩".encode().decode("ascii", "surrogateescape")
    assert talk(typed).messages[0] == "語 and 👩"


def test_drafting_is_switched_and_said(talk: Talk) -> None:
    voice = echo_voice()
    chat = talk("/mtp off", "hello", "/mtp 2", "hello", "/mtp", "/stats", voice=voice)
    assert "drafting off: depth 0" in chat.err
    first, second = chat.repl.telling.tally.turns
    assert first.statistics.drafted == 0
    assert second.statistics.rounds_at.keys() >= {2}
    assert "tokens a round" in chat.err
    assert chat.out == f"{answer_to('hello')}\n" * 2


def test_statistics_of_the_last_answer_and_of_all(talk: Talk) -> None:
    assert "Nothing was answered yet" in talk("/stats").err
    err = talk("hello there", "and you", "/stats").err
    assert "last answer (turn 2)" in err
    assert "all 2 answers" in err
    assert "drafted tokens kept" in err
    assert "kept at draft position 1, 2, ...: 0." in err
    assert "(1 slot, T 0, rule compare)" in err


def test_a_full_context_asks(talk: Talk) -> None:
    text = " ".join(["words"] * 12)
    stop = talk(text, text, text, answers=("s",) * 3, voice=echo_voice(n_ctx=300))
    assert stop.script.questions[0].startswith("The conversation needs ")
    assert stop.messages[::2] == [text, text]
    assert "gemmtp: The conversation would take " in stop.err
    # What was not said stands there to be shortened.
    assert stop.script.defaults[-1] == text
    drop = talk(text, text, text, answers=("d",) * 3, voice=echo_voice(n_ctx=300))
    assert drop.out == f"{answer_to(text)}\n" * 3
    assert "the oldest 2 turns were dropped from the context, beginning with “words" in drop.err
    assert 0 < drop.repl.status("echo").used < 250
    summary = talk(*[text] * 6, answers=("m",) * 6, voice=echo_voice(n_ctx=900))
    assert "were summarised, beginning with “words" in summary.err


def test_a_message_is_written_in_an_editor(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", 'sh -c \'echo "$(cat "$1") by an editor" > "$1"\' sh')
    chat = talk("/editor written", "said")
    assert chat.script.defaults[1] == "written by an editor"
    monkeypatch.setenv("EDITOR", "sh -c 'exit 3'")
    assert "The editor sh failed with exit code 3" in talk("/editor").err
    monkeypatch.setenv("EDITOR", "/nowhere/vi")
    assert "The editor /nowhere/vi does not start" in talk("/editor").err
    monkeypatch.setenv("EDITOR", 'sh -c \'printf "\\377" > "$1"\' sh')
    assert "The editor saved text that is not UTF-8" in talk("/editor").err


def test_the_line_below_the_prompt(talk: Talk) -> None:
    fresh = talk().repl.status("echo").line(200)
    assert fresh == "echo · drafting 3 · context 0 of 4,096 (0%)"
    after = talk("hello").repl.status("echo").line(200)
    assert after.startswith("echo · drafting 3 · context 70 of 4,096 (2%) · ")
    assert after.endswith("tok/s (1 slot, draft 3, T 0)")

"""Images and files on their way into a message."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageGrab

from gemmtp.chat.repl import Repl
from gemmtp.chat.sessions import Session, load
from gemmtp.engine.media import Media, stand_ins
from gemmtp.prompt.attachments import Frame
from gemmtp.prompt.conversation import Message
from tests.chat.conftest import Talk
from tests.chat.echo import echo_voice


def picture(path: Path, size: tuple[int, int] = (96, 48)) -> Path:
    PillowImage.new("RGB", size, (255, 0, 0)).save(path)
    return path


def see(tokens: object, messages: list[Message]) -> tuple[list[int], tuple[Media, ...]]:
    """One row for each image, before the last token of the prompt."""
    ids = [int(token) for token in tokens]  # type: ignore[attr-defined]
    places = [i for i, token in enumerate(ids) if token == 266]
    media = []
    for place in places:
        ids[place : place + 1] = stand_ins(b"red", 1)
        media.append(Media(place, 1, lambda: np.zeros((1, 4), np.float32), False))
    return ids, tuple(media)


def eyes(repl: Repl) -> None:
    repl.dialogue.see = see  # type: ignore[assignment]


def test_images_wait_for_the_next_message(talk: Talk, tmp_path: Path) -> None:
    picture(tmp_path / "red cat.png")
    chat = talk("/image red\\ cat.png", "what is it", "and now", frame=Frame(70), prepare=eyes)
    assert "[image 1: red cat.png 96x48, " in chat.err
    assert len(chat.repl.dialogue.messages[0].media) == 1
    assert not chat.repl.dialogue.messages[2].media
    assert chat.messages[::2] == ["what is it", "and now"]
    replay = load(chat.repl.session.name)
    assert len(replay.messages[0].media) == 1
    again = talk("more", session=Session.open(chat.repl.session.name), resume=True, prepare=eyes)
    assert again.messages[::2] == ["what is it", "and now", "more"]
    for gone in ("/image off", "/image -", "/clear"):
        chat = talk("/image 'red cat.png'", gone, "words", frame=Frame(70), prepare=eyes)
        assert not chat.repl.dialogue.messages[0].media


def test_a_dropped_image_is_offered(talk: Talk, tmp_path: Path) -> None:
    path = picture(tmp_path / "red cat.png")
    dropped = str(path).replace(" ", "\\ ")
    yes = talk(f"what is {dropped} here", answers=("y",), frame=Frame(70), prepare=eyes)
    assert yes.script.questions == ["Attach red cat.png?"]
    assert yes.messages[0].split() == ["what", "is", "here"]
    assert len(yes.repl.dialogue.messages[0].media) == 1
    no = talk(f"what is {dropped} here", answers=("n",), frame=Frame(70), prepare=eyes)
    assert no.messages[0] == f"what is {dropped} here"
    alone = talk(f"'{path}'", "what is it", answers=("y",), frame=Frame(70), prepare=eyes)
    assert alone.messages[0] == "what is it"
    assert len(alone.repl.dialogue.messages[0].media) == 1
    url = talk(f"{path.as_uri()} what", answers=("y",), frame=Frame(70), prepare=eyes)
    assert url.messages[0] == "what"
    assert talk("what is nowhere.png", frame=Frame(70)).script.questions == []


def test_an_image_is_pasted(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    red = PillowImage.new("RGB", (96, 48), (255, 0, 0))
    monkeypatch.setattr(ImageGrab, "grabclipboard", lambda: red)
    chat = talk("/paste", "what is it", frame=Frame(70), prepare=eyes)
    assert "[image 1: clipboard.png 96x48, " in chat.err
    assert len(chat.repl.dialogue.messages[0].media) == 1
    monkeypatch.setattr(ImageGrab, "grabclipboard", lambda: None)
    assert "There is no image on the clipboard" in talk("/paste", frame=Frame(70)).err


def test_a_clipboard_that_cannot_be_read_says_what_is_missing(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise NotImplementedError

    monkeypatch.setattr(ImageGrab, "grabclipboard", fail)
    monkeypatch.setenv("PATH", "")
    assert "The clipboard cannot be read.\nhint: Install wl-paste or xclip." in talk("/paste").err


def test_a_set_without_eyes_says_what_it_lacks(talk: Talk, tmp_path: Path) -> None:
    picture(tmp_path / "cat.png")
    chat = talk("/image cat.png", "hello cat.png")
    assert chat.err.count("gemmtp: echo has no projector.\nhint: Take another set.") == 2
    assert chat.messages[0] == "hello cat.png"


def test_files_are_sent_with_the_message(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes\n")
    for line in (("/file notes.txt", "what is it"), ("what is it @notes.txt",)):
        chat = talk(*line)
        assert "[file: notes.txt, 11 characters]" in chat.err
        assert chat.messages[0].startswith("notes.txt\n```\nsome notes\n```\n\nwhat is it")
    assert talk("/file notes.txt", "/file -", "hello").messages[0] == "hello"


def test_an_attachment_waits_on_when_the_message_was_refused(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("short\n")
    voice = echo_voice(n_ctx=200)
    chat = talk("/file notes.txt", "words " * 60, "hello", answers=("s",), voice=voice)
    assert chat.messages[0].startswith("notes.txt")
    assert chat.messages[0].endswith("hello")

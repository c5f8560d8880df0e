"""What is written whole or not at all leaves nothing half-written behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmtp.chat.attached import keep
from gemmtp.chat.whole import written_whole
from gemmtp.prompt.conversation import Image, Message


def test_a_file_appears_when_it_is_finished_for_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with written_whole(path) as file:
        file.write(b"words")
        assert not path.exists()
    assert path.read_bytes() == b"words"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with written_whole(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_attachment_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gemmtp.chat.whole.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        keep(Message("user", (Image("data:image/png;base64,aGk="),)), tmp_path / "media")
    assert not list((tmp_path / "media").iterdir())

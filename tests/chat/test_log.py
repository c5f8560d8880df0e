"""A log holds every record once, whatever the disk and signals do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmtp.chat import log
from gemmtp.chat.log import Log


def test_a_full_disk_ends_no_chat_and_loses_nothing_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = os.write, 0

    def write(handle: int, data: bytes) -> int:
        if room >= 0:
            if room == 0:
                raise OSError(28, "No space left on device")
            return real(handle, data[:room])
        return real(handle, data)

    writer = Log(tmp_path / "log", create=True)
    writer.append({"n": 0})
    monkeypatch.setattr(os, "write", write)
    writer.append({"n": 1})
    assert writer.trouble == "No space left on device"
    # A write that stops in the middle goes on from there.
    room = 3
    writer.append({"n": 2})
    assert writer.trouble is None
    room = 0
    writer.append({"n": 3})
    room = -1
    writer.append({"n": 4}, sync=True)
    assert writer.trouble is None
    writer.close()
    assert [record["n"] for record in log.read(tmp_path / "log")] == [0, 1, 2, 3, 4]


def test_a_record_whose_writing_was_interrupted_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def write(handle: int, data: bytes) -> int:
        real(handle, data)
        raise KeyboardInterrupt

    writer = Log(tmp_path / "log", create=True)
    writer.append({"n": 0})
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(KeyboardInterrupt):
            writer.append({"n": 1})
    writer.append({"n": 2})
    writer.close()
    assert [record["n"] for record in log.read(tmp_path / "log")] == [0, 1, 2]

"""The journal of an unfinished file: it never claims a byte that was not synced."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gemmtp_models.download_journal import Journal, Ranges

SHA = "ab" * 32


def test_ranges_join_and_name_their_gaps() -> None:
    ranges = Ranges([(10, 20), (30, 40), (20, 25)])
    assert list(ranges) == [(10, 25), (30, 40)]
    assert ranges.prefix == 0
    assert ranges.missing(0, 50) == [(0, 10), (25, 30), (40, 50)]
    assert ranges.missing(12, 32) == [(25, 30)]
    assert ranges.missing(12, 20) == []
    ranges.add(0, 31)
    assert list(ranges) == [(0, 40)]
    assert (ranges.prefix, ranges.total) == (40, 40)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_a_set_of_positions(seed: int) -> None:
    draw = random.Random(seed)
    ranges, held = Ranges(), set[int]()
    for _ in range(40):
        start = draw.randrange(100)
        end = start + draw.randrange(1, 20)
        ranges.add(start, end)
        held |= set(range(start, end))
        assert ranges.total == len(held)
        missing = {i for a, b in ranges.missing(0, 120) for i in range(a, b)}
        assert missing == set(range(120)) - held


def test_a_journal_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", 100, SHA)
    journal.note_etag('"e"')
    journal.note([(0, 10), (50, 60)])
    journal.close()
    again = Journal(tmp_path / "j", 100, SHA)
    assert list(again.ranges) == [(0, 10), (50, 60)]
    assert again.etag == '"e"'
    again.note([(10, 50)])
    again.close()
    assert list(Journal(tmp_path / "j", 100, SHA).ranges) == [(0, 60)]


def test_a_journal_of_another_file_counts_for_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", 100, SHA)
    journal.note([(0, 10)])
    journal.close()
    for size, sha256 in ((101, SHA), (100, "cd" * 32)):
        assert list(Journal(tmp_path / "j", size, sha256).ranges) == []


def test_a_torn_or_damaged_line_ends_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path, 100, SHA)
    journal.note([(0, 10)])
    whole = path.read_bytes()
    journal.note([(20, 30)])
    journal.close()
    data = path.read_bytes()
    for cut in range(len(whole), len(data)):
        path.write_bytes(data[:cut])
        assert list(Journal(path, 100, SHA).ranges) == [(0, 10)]
    for at in range(len(whole), len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert list(Journal(path, 100, SHA).ranges) == [(0, 10)]
    path.write_bytes(b"\xff\x00garbage")
    assert list(Journal(path, 100, SHA).ranges) == []


@pytest.mark.parametrize("line", ["[5, 200]", "[-1, 5]", "[9, 5]", "7", '{"a": 1}'])
def test_a_range_outside_the_file_is_not_believed(tmp_path: Path, line: str) -> None:
    import zlib

    path = tmp_path / "j"
    Journal(path, 100, SHA).close()
    text = line.encode()
    path.write_bytes(path.read_bytes() + b"%s %08x\n" % (text, zlib.crc32(text)))
    assert list(Journal(path, 100, SHA).ranges) == []

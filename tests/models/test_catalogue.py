"""The catalogue: pinned, complete where the record is, and closed to names that would climb."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gemmtp.errors import UsageError
from gemmtp_models import catalogue
from gemmtp_models.catalogue_file import Entry

ENTRIES = catalogue.entries()


def test_every_size_has_a_plain_and_a_drafting_set() -> None:
    for size in ("e2b", "e4b", "12b", "26b-a4b", "31b"):
        plain, drafting = ENTRIES[f"gemma4:{size}"], ENTRIES[f"gemma4:{size}-mtp"]
        assert set(plain.files) == {"target", "projector"}
        assert set(drafting.files) == {"target", "drafter", "projector"}
        assert plain.files["target"] == drafting.files["target"]
        for quant in ("q4_0", "q8_0", "q4_k_m"):
            assert quant in ENTRIES[f"gemma4:{size}-mtp-{quant}"].files["target"].path.lower()


def test_the_31b_set_is_what_the_record_says() -> None:
    entry = ENTRIES["gemma4:31b-mtp"]
    target, drafter = entry.files["target"], entry.files["drafter"]
    assert target.repo == drafter.repo == "unsloth/gemma-4-31B-it-qat-GGUF"
    assert target.revision == "43cc1aeb31adf47ec06a854507ce552cd9862e6f"
    assert target.size == 17_287_670_048
    assert target.sha256 == "00b5a7c497f0c8934033088c10a7fa9a4c015e46ee6d89e9c6890650ba5d0e71"
    assert drafter.path == "mtp-gemma-4-31B-it.gguf"
    assert drafter.sha256 == "3a5e99fd8d0b23afb1fccd1ee0c9ebd1f571d00399c2dae2292d217feeec0f6b"
    assert entry.size == 17_287_670_048 + 279_955_968 + 1_200_726_496
    assert (entry.context, entry.parameters.draft_depth) == (262_144, 4)
    assert entry.geometry["layers"] == 60
    assert (entry.parameters.temperature, entry.parameters.top_k) == (1.0, 64)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_files_are_pinned_to_a_commit_and_hashed(entry: Entry) -> None:
    for file in entry.files.values():
        assert re.fullmatch("[0-9a-f]{40}", file.revision)
        assert file.sha256 is not None
        assert file.path.endswith(".gguf")
    # QAT goes with QAT, in the order of size that a set has.
    if "drafter" in entry.files:
        assert ("qat" in entry.files["target"].repo) == ("qat" in entry.files["drafter"].repo)
        assert (entry.files["drafter"].size or 0) < 600_000_000


def test_what_is_unknown_stays_unknown() -> None:
    entry = ENTRIES["gemma4:26b-mtp-q4_0"]
    assert entry.files["projector"].size is None
    assert entry.size is None


def test_a_family_alone_means_its_latest() -> None:
    assert catalogue.find_entry("gemma4") == ENTRIES["gemma4:latest"]
    assert catalogue.find_entry("gemma4:latest").files == ENTRIES["gemma4:e4b-mtp"].files  # type: ignore[union-attr]
    assert catalogue.find_entry("nosuch:set") is None


GOOD = """
schema = 1
family = "mine"
title = "My own"
[repos.r]
repo = "me/model"
revision = "main"
[files.t]
repo = "r"
path = "t.gguf"
[[sets]]
tags = ["one", "two"]
target = "t"
"""


def _write(config: Path, text: str) -> Path:
    folder = config / "catalogue"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.toml").write_text(text)
    return config


def test_users_add_sets_and_replace_packaged_ones(tmp_path: Path) -> None:
    found = catalogue.entries(_write(tmp_path, GOOD))
    assert found["mine:one"].files == found["mine:two"].files
    assert found["mine:one"].files["target"].sha256 is None
    own = GOOD.replace('"mine"', '"gemma4"').replace('"one"', '"31b-mtp"')
    assert catalogue.entries(_write(tmp_path, own))["gemma4:31b-mtp"].title == "My own"


BAD: list[Any] = [
    ('path = "t.gguf"', 'path = "../t.gguf"'),
    ('path = "t.gguf"', 'path = "/etc/passwd"'),
    ('path = "t.gguf"', 'path = "a/../../t.gguf"'),
    ('path = "t.gguf"', 'path = "a\\\\t.gguf"'),
    ('path = "t.gguf"', 'path = "t.gguf?x=1#y"'),
    ('path = "t.gguf"', 'path = "t\\u0000.gguf"'),
    ('repo = "me/model"', 'repo = "me/../model"'),
    ('repo = "me/model"', 'repo = "../model"'),
    ('repo = "me/model"', 'repo = "http://evil/x"'),
    ('revision = "main"', 'revision = "../../x"'),
    ('revision = "main"', 'revision = "a/b"'),
    ('family = "mine"', 'family = "../mine"'),
    ('"one"', '"../one"'),
    ('"one"', '"ONE"'),
    ('"one"', "1"),
    ('target = "t"', 'target = "u"'),
    ('target = "t"', 'drafter = "t"'),
    ('target = "t"', 'target = "t"\nadapter = "t"'),
    ('path = "t.gguf"', 'path = "t.gguf"\nsha256 = "../../../etc/passwd"'),
    ('path = "t.gguf"', 'path = "t.gguf"\nsize = -1'),
    ('path = "t.gguf"', 'path = "t.gguf"\nsize = 1.5'),
    ("schema = 1", "schema = 2"),
    ("schema = 1", "schema = 1\ndraft_depth = 65"),
    ("[repos.r]", "[sampling]\ntemperature = nan\n[repos.r]"),
    ("[repos.r]", "[sampling]\ntop_p = 2\n[repos.r]"),
    ('title = "My own"', ""),
    ("[[sets]]", "[[sets"),
]


@pytest.mark.parametrize(("old", "new"), BAD)
def test_a_catalogue_file_that_is_not_right_is_refused(tmp_path: Path, old: str, new: str) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(UsageError, match=r"The catalogue file .*mine\.toml"):
        catalogue.entries(_write(tmp_path, text))

"""Which sets can be pulled by name: the packaged catalogue, and what the user adds to it.

Files are pinned to a commit and, where it is known, to a size and a sha256. Publishers replace
files under the same name (all of Gemma 4 was in July 2026), so a branch would not do.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from gemmtp_models.catalogue_file import Entry, read_file

FOLDER = "catalogue"
DEFAULT_TAG = "latest"


def entries(config: Path | None = None) -> dict[str, Entry]:
    """All sets by name; a file in ``config``/catalogue wins over a packaged set of its name.

    Raises UsageError for a catalogue file that is broken.
    """
    packaged = resources.files("gemmtp_models") / FOLDER
    paths = sorted((path for path in packaged.iterdir()), key=lambda path: path.name)
    found = {
        entry.name: entry
        for path in paths
        if path.name.endswith(".toml")
        for entry in read_file(path)
    }
    if config is not None:
        for path in sorted((config / FOLDER).glob("*.toml")):
            found.update({entry.name: entry for entry in read_file(path)})
    return found


def find_entry(name: str, config: Path | None = None) -> Entry | None:
    """The set of this name, ``family`` alone meaning its tag ``latest``."""
    return entries(config).get(full_name(name))


def full_name(name: str) -> str:
    """``family:tag`` of a name that may leave the tag out."""
    return name if ":" in name else f"{name}:{DEFAULT_TAG}"

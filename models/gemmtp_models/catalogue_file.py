"""One catalogue file, read and checked field by field: TOML that a user may have got from anybody.

Each file is of one model in several quantisations::

    schema = 1
    family = "gemma4"            # the part of a set's name in front of the colon
    title = "Gemma 4 31B"
    context = 262144             # tokens the model was trained for
    draft_depth = 4
    [sampling]                   # temperature, top_k, top_p, min_p
    [geometry]                   # whole numbers, for plans before a file is here
    [repos.NAME]                 # repo, revision
    [files.NAME]                 # repo, path; size and sha256 if they are known
    [[sets]]                     # tags, target; drafter and projector if there are some
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from gemmtp.errors import UsageError
from gemmtp_models.hub_names import RemoteFile, check_path, check_repo, check_revision, is_sha256
from gemmtp_models.manifest import MAX_SIZE, ROLES, Parameters, Role, check_name

SCHEMA = 1
MAX_BYTES = 1 << 20
MAX_SETS = 1000
_TOP = {"schema", "family", "title", "context", "draft_depth"}
_TABLES = {"sampling", "geometry", "repos", "files", "sets"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A set that can be pulled; ``geometry`` as the catalogue file gives it."""

    name: str
    title: str
    files: Mapping[Role, RemoteFile]
    parameters: Parameters
    context: int | None
    geometry: Mapping[str, int]

    @property
    def size(self) -> int | None:
        """Bytes of all files; None while one of them is unknown."""
        sizes = [file.size for file in self.files.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def read_file(path: Path | Traversable) -> list[Entry]:
    """The sets of one catalogue file; raises UsageError for anything that is not as above."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    return _Reader(str(path)).entries(data)


class _Reader:
    def __init__(self, path: str) -> None:
        self._path = path

    def _bad(self, problem: str) -> UsageError:
        return UsageError(
            f"The catalogue file {self._path} {problem}.",
            "docs/sets.md says what a catalogue file looks like.",
        )

    def entries(self, data: bytes) -> list[Entry]:
        if len(data) > MAX_BYTES:
            raise self._bad(f"is larger than {MAX_BYTES:,} bytes")
        try:
            document = tomllib.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            raise self._bad("is not valid TOML") from None
        if document.get("schema") != SCHEMA:
            raise self._bad(f"has the schema {document.get('schema')!r}, expected {SCHEMA}")
        self._only(document, _TOP | _TABLES, "the file")
        self._document = document
        self._files = self._read_files()
        sets = document.get("sets", [])
        if not isinstance(sets, list) or len(sets) > MAX_SETS:
            raise self._bad("has sets that are no list, or too many")
        return [entry for table in sets for entry in self._set(table)]

    def _set(self, table: Any) -> Iterator[Entry]:
        self._only(table, {"tags", "title", "draft_depth", *ROLES}, "a set")
        files: dict[Role, RemoteFile] = {}
        for role in ROLES:
            if role in table or role == "target":
                key = self._value(table, role, str)
                if key not in self._files:
                    raise self._bad(f"has a set with the {role} {key!r}, which is no file of it")
                files[role] = self._files[key]
        tags = self._value(table, "tags", list)
        for tag in tags:
            if not isinstance(tag, str):
                raise self._bad(f"has the tag {tag!r}")
            name = f"{self._value(self._document, 'family', str)}:{tag}"
            self._right(check_name, name)
            yield Entry(
                name,
                self._value({**self._document, **table}, "title", str)[:200],
                files,
                self._parameters(table),
                self._whole(self._document, "context", 1 << 30),
                self._geometry(),
            )

    def _read_files(self) -> dict[str, RemoteFile]:
        repos = {}
        for key, table in self._table("repos").items():
            self._only(table, {"repo", "revision"}, f"the repository {key!r}")
            repo, revision = self._value(table, "repo", str), self._value(table, "revision", str)
            repos[key] = (self._right(check_repo, repo), self._right(check_revision, revision))
        files = {}
        for key, table in self._table("files").items():
            self._only(table, {"repo", "path", "size", "sha256"}, f"the file {key!r}")
            if self._value(table, "repo", str) not in repos:
                raise self._bad(f"has the file {key!r} in a repository that it does not name")
            path, sha256 = self._right(check_path, self._value(table, "path", str)), None
            if "sha256" in table and not is_sha256(sha256 := self._value(table, "sha256", str)):
                raise self._bad(f"gives the file {key!r} a sha256 that is none")
            size = self._whole(table, "size", MAX_SIZE)
            files[key] = RemoteFile(*repos[table["repo"]], path, size, sha256)
        return files

    def _parameters(self, table: Mapping[str, Any]) -> Parameters:
        sampling = self._table("sampling")
        limits = {"temperature": 10.0, "top_p": 1.0, "min_p": 1.0}
        self._only(sampling, {*limits, "top_k"}, "sampling")
        given: dict[str, Any] = {}
        for key, limit in limits.items():
            if key in sampling:
                value = sampling[key]
                if type(value) not in (int, float) or not 0 <= value <= limit:
                    raise self._bad(f"gives {key} the value {value!r}")
                given[key] = float(value)
        top_k = self._whole(sampling, "top_k", 1 << 31)
        depth = self._whole({**self._document, **table}, "draft_depth", 64)
        given |= {} if top_k is None else {"top_k": top_k}
        return Parameters(**given | ({} if depth is None else {"draft_depth": depth}))

    def _geometry(self) -> dict[str, int]:
        table = self._table("geometry")
        numbers = {key: self._whole(table, key, 1 << 40) for key in table}
        return {key: number for key, number in numbers.items() if number is not None}

    def _table(self, key: str) -> dict[str, Any]:
        table = self._document.get(key, {})
        if not isinstance(table, dict):
            raise self._bad(f"has {key} that is no table")
        return table

    def _only(self, table: Any, known: set[str], what: str) -> None:
        if not isinstance(table, dict):
            raise self._bad(f"describes {what} by no table")
        if not set(table) <= known:
            raise self._bad(f"has the unknown key {min(set(table) - known)!r} in {what}")

    def _value(self, table: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
        value = table.get(key)
        if not isinstance(value, kind):
            raise self._bad(f"gives {key} the value {value!r}")
        return value

    def _whole(self, table: Mapping[str, Any], key: str, limit: int) -> int | None:
        """A number from 0 to ``limit``, or None where there is none."""
        value = table.get(key)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value <= limit:
            raise self._bad(f"gives {key} the value {value!r}")
        return value

    def _right(self, check: Callable[[str], Any], text: str) -> str:
        """``text`` if ``check`` takes it; its error becomes one of this file."""
        try:
            check(text)
        except UsageError as error:
            raise self._bad(f"is refused: {error.message.rstrip('.')}") from None
        return text

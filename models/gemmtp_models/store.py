"""Installed sets: manifests by name, files by content, nothing half-written under a final name.

    <root>/manifests/<family>/<tag>.json
    <root>/blobs/sha256-<hex>
    <root>/partial/...                    workspaces of running processes, unfinished fetches

A blob is renamed into place when it is whole, a manifest after all its blobs, both under one lock;
a blob goes when no manifest names it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gemmtp.errors import BadModelFileError, GemmtpError, ModelNotFoundError, UsageError
from gemmtp_models import elsewhere
from gemmtp_models.manifest import (
    Layer,
    Manifest,
    Role,
    check_name,
    is_name,
    read_manifest,
    write_manifest,
)
from gemmtp_models.workspace import open_workspace, remove_leftovers, try_lock

_PREFIX = "run-"
LOCK_SECONDS = 30.0
_LOCK_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a set frees, and which files stay since other sets name them."""

    freed: int
    kept: Mapping[Role, Sequence[str]]


@dataclass(frozen=True, slots=True)
class InstalledSet:
    """A set whose files are all there."""

    manifest: Manifest
    files: Mapping[Role, Path]


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Store:
    """The sets under ``root``, which is created when the first one comes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def workspace(self) -> AbstractContextManager[Path]:
        """A folder on the store's file system for files that are to become blobs."""
        return open_workspace(self.root / "partial", _PREFIX)

    def blob(self, sha256: str) -> Path:
        """Where the file of this content lies, or would lie."""
        return self.root / "blobs" / f"sha256-{sha256}"

    @property
    def downloads(self) -> Path:
        """The folder of unfinished fetches, on the store's file system."""
        return self.root / "partial"

    def find(self, layer: Layer) -> Path | None:
        """The file of a layer in its right size: a blob, or another program's; None without."""
        if layer.sha256 is None:
            return None
        path = self.blob(layer.sha256)
        if path.is_file() and path.stat().st_size == layer.size:
            return path
        return elsewhere.find(layer.sha256, layer.size)

    def exists(self, name: str) -> bool:
        """Whether a set of this name is registered; raises UsageError for a bad name."""
        return self._manifest_path(name).is_file()

    def names(self) -> list[str]:
        """The names of all registered sets, sorted; manifests are not opened.

        A file whose name could not be that of a set is passed over.
        """
        paths = (self.root / "manifests").glob("*/*.json")
        found = (f"{path.parent.name}:{path.stem}" for path in paths)
        return sorted(name for name in found if is_name(name))

    def manifest(self, name: str) -> Manifest:
        """The manifest of a set; raises ModelNotFoundError, UsageError, BadModelFileError."""
        path = self._manifest_path(name)
        if not path.is_file():
            raise ModelNotFoundError(
                f"There is no set {name}.", "gemmtp list shows the sets there are."
            )
        manifest = read_manifest(path)
        if manifest.name != name:
            raise BadModelFileError(f"The manifest {path} is of the set {manifest.name}.")
        return manifest

    def resolve(self, name: str) -> InstalledSet:
        """A set with the paths of its files, which are there in the sizes that they should have.

        Contents are not hashed. Raises as ``manifest`` does, and BadModelFileError for a file
        that is missing or of another size.
        """
        manifest = self.manifest(name)
        files: dict[Role, Path] = {}
        for role, layer in manifest.layers.items():
            if layer.sha256 is None:
                raise BadModelFileError(f"The manifest of {name} names no content of the {role}.")
            path = self.find(layer)
            if path is None:
                raise BadModelFileError(
                    f"The {role} of {name} is missing or incomplete in the store.",
                    "Fetch or build the set again.",
                )
            files[role] = path
        return InstalledSet(manifest, files)

    def register(
        self, manifest: Manifest, staged: Mapping[Role, Path], *, replace_existing: bool = False
    ) -> InstalledSet:
        """Take the staged files in and make the set known under its name.

        ``staged`` lies in a workspace of this store, one file for each layer; content and size of
        the layers are filled in from the files. Raises UsageError when the name is taken.
        """
        layers = dict(manifest.layers)
        for role, path in staged.items():
            layers[role] = replace(
                layers[role], sha256=sha256_of(path), size=path.stat().st_size, file=None
            )
        manifest = replace(manifest, layers=layers)
        return self.adopt(manifest, staged, replace_existing=replace_existing)

    def adopt(
        self, manifest: Manifest, staged: Mapping[Role, Path], *, replace_existing: bool = False
    ) -> InstalledSet:
        """As ``register``, for layers whose content is known and was checked.

        Layers that are not ``staged`` are here already, in the store or elsewhere.
        """
        with self._locked():
            self._check_free(manifest.name, replace_existing)
            self._take_in(manifest, staged)
            write_manifest(self._manifest_path(manifest.name), manifest)
            self._remove_unnamed()
        return self.resolve(manifest.name)

    def copy(self, source: str, name: str, *, replace_existing: bool = False) -> None:
        """Make a set known under a second name; its files are there once."""
        with self._locked():
            manifest = self.manifest(source)
            self._check_free(name, replace_existing)
            write_manifest(self._manifest_path(name), replace(manifest, name=name))
            self._remove_unnamed()

    def removal(self, name: str) -> Removal:
        """What ``remove`` would free; raises as ``manifest`` does."""
        mine = {role: layer for role, layer in self.manifest(name).layers.items() if layer.sha256}
        users: dict[str | None, list[str]] = {}
        for other in self.names():
            if other != name:
                for layer in self.manifest(other).layers.values():
                    users.setdefault(layer.sha256, []).append(other)
        gone = {layer.sha256: layer for layer in mine.values() if layer.sha256 not in users}
        blobs = [self.blob(sha256) for sha256 in gone if sha256]
        freed = sum(path.stat().st_size for path in blobs if path.is_file())
        kept = {role: users[layer.sha256] for role, layer in mine.items() if layer.sha256 in users}
        return Removal(freed, kept)

    def remove(self, name: str) -> None:
        """Forget a set and remove the files that no other set names.

        A set whose manifest cannot be read is forgotten too; its files stay while other manifests
        cannot be read either.
        """
        if not self.exists(name):
            self.manifest(name)
        with self._locked():
            self._manifest_path(name).unlink(missing_ok=True)
            self._remove_unnamed()

    def remove_leftovers(self) -> int:
        """Remove what killed processes left; return how many files and folders that were."""
        if not self.root.is_dir():
            return 0
        removed = remove_leftovers(self.root / "partial", _PREFIX)
        with self._locked():
            for path in (self.root / "manifests").glob("*/.*.tmp"):
                path.unlink(missing_ok=True)
                removed += 1
            return removed + self._remove_unnamed()

    def _manifest_path(self, name: str) -> Path:
        family, tag = check_name(name)
        return self.root / "manifests" / family / f"{tag}.json"

    def _check_free(self, name: str, replace_existing: bool) -> None:
        if self.exists(name) and not replace_existing:
            raise UsageError(f"There is a set {name} already.", "Give --force to replace it.")

    def _take_in(self, manifest: Manifest, staged: Mapping[Role, Path]) -> None:
        (self.root / "blobs").mkdir(parents=True, exist_ok=True)
        for role, path in staged.items():
            blob = self.blob(manifest.layers[role].sha256 or "")
            if blob.is_file() and blob.stat().st_size == manifest.layers[role].size:
                path.unlink(missing_ok=True)
                continue
            with path.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(path, blob)

    def _remove_unnamed(self) -> int:
        """Remove blobs that no manifest names; none while a manifest cannot be read."""
        named: set[str | None] = set()
        for path in (self.root / "manifests").glob("*/*.json"):
            try:
                named.update(layer.sha256 for layer in read_manifest(path).layers.values())
            except BadModelFileError:
                return 0
        removed = 0
        for blob in (self.root / "blobs").glob("sha256-*"):
            if blob.name.removeprefix("sha256-") not in named:
                blob.unlink(missing_ok=True)
                removed += 1
        return removed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The store for this process alone, for the moment of a change."""
        self.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while not try_lock(handle):
                if time.monotonic() > deadline:
                    raise GemmtpError(
                        "Another gemmtp is changing the store.", "Wait until it is done."
                    )
                time.sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(handle)

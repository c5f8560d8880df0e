"""From a name to a set in the store: what belongs to it, what is here, what has to come."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gemmtp.errors import BadModelFileError, DownloadError, ModelNotFoundError
from gemmtp_models import catalogue
from gemmtp_models.download import Options, Progress, checked_location, fetching
from gemmtp_models.gguf_parts import join_parts
from gemmtp_models.header import Header, read_header
from gemmtp_models.hub import Hub
from gemmtp_models.hub_names import HubName, RemoteFile, is_sha256
from gemmtp_models.hub_set import PROJECTOR_ARCHITECTURE, find_set
from gemmtp_models.manifest import Layer, Manifest, Parameters, Role
from gemmtp_models.pairing import PairReport, check_pair, check_target
from gemmtp_models.store import InstalledSet, Store, sha256_of
from gemmtp_models.unfinished import held_bytes

# Room for the journal, the manifest and whatever else writes meanwhile.
SPARE_BYTES = 64 << 20

Report = Callable[[Role, Progress], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A set whose files all have a size and a sha256, a target in ``parts`` aside.

    ``here`` are those in the store or kept by another program, ``held`` the bytes that an earlier
    fetch left of the others.
    """

    name: str
    files: Mapping[Role, RemoteFile]
    parameters: Parameters
    here: Mapping[Role, Path]
    held: int
    notes: tuple[str, ...] = ()
    parts: tuple[RemoteFile, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size or 0 for file in self.files.values())

    @property
    def missing(self) -> Mapping[Role, RemoteFile]:
        """The files that have to be fetched."""
        return {role: file for role, file in self.files.items() if role not in self.here}

    @property
    def wanted(self) -> list[tuple[Role, RemoteFile]]:
        """What to ask the hub for: the missing files, with a target in parts as its parts."""
        found: list[tuple[Role, RemoteFile]] = []
        for role, file in self.missing.items():
            parts = self.parts if role == "target" and self.parts else (file,)
            found += [(role, part) for part in parts]
        return found

    @property
    def to_fetch(self) -> int:
        """Bytes that have to come over the network."""
        return sum(file.size or 0 for file in self.missing.values()) - self.held


def make_plan(model: str, hub: Hub, store: Store, config: Path) -> Plan:
    """What pulling ``model`` means; asks the hub only for what the catalogue does not know.

    Raises ModelNotFoundError for a name that is nowhere, and what the hub raises.
    """
    notes: tuple[str, ...] = ()
    parts: tuple[RemoteFile, ...] = ()
    if model.startswith("hf:"):
        hub_name = HubName.parse(model)
        found = find_set(hub, hub_name)
        name, files, notes = hub_name.set_name, found.files, found.notes
        parameters, parts = Parameters(), found.parts
        if parts and (joined := _joined_before(store, name, files["target"])) is not None:
            files["target"], parts = joined, ()
    else:
        entry = catalogue.find_entry(model, config)
        if entry is None:
            raise unknown(model, config)
        name, files, parameters = entry.name, dict(entry.files), entry.parameters
    known = {
        role: file if role == "target" and parts else _known(hub, file)
        for role, file in files.items()
    }
    here: dict[Role, Path] = {}
    for role, file in known.items():
        if (path := store.find(_layer(file))) is not None:
            here[role] = path
    plan = Plan(name, known, parameters, here, 0, notes, parts)
    held = sum(held_bytes(store.downloads, file) for _, file in plan.wanted)
    return replace(plan, held=held)


def _joined_before(store: Store, name: str, target: RemoteFile) -> RemoteFile | None:
    """``target`` with the sha256 of the file that its parts were joined to in an earlier pull."""
    if not store.exists(name):
        return None
    layer = store.manifest(name).layers["target"]
    if layer.source != target.source:
        return None
    return replace(target, size=layer.size, sha256=layer.sha256)


def unknown(model: str, config: Path) -> ModelNotFoundError:
    """The error for a name that no catalogue has, with the nearest one as a hint."""
    names = sorted(catalogue.entries(config))
    near = difflib.get_close_matches(catalogue.full_name(model), names, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return ModelNotFoundError(
        f"The catalogue has no set {model!r}.",
        hint + "gemmtp list --available names the sets; hf:owner/repo takes any on the hub.",
    )


def pull(
    plan: Plan,
    hub: Hub,
    store: Store,
    report: Report = lambda role, progress: None,
    options: Options | None = None,
) -> InstalledSet:
    """Fetch what is missing, check the set and take it into the store.

    Raises DownloadError, and PairMismatchError or another ModelError for a set that is not one;
    files that were fetched stay for the next try.
    """
    _check_room(plan, store)
    with ExitStack() as stack:
        files = dict(plan.here)
        fetched: dict[str | None, Path] = {}
        # In this order, or two pulls of sets that share files could wait for each other.
        for role, file in sorted(plan.wanted, key=lambda item: item[1].sha256 or ""):
            if file.sha256 not in fetched:
                tell = _telling(report, role, plan, fetched)
                place = store.blob(file.sha256 or "")
                one = fetching(hub, file, store.downloads, tell, options, place)
                fetched[file.sha256] = stack.enter_context(one)
            files[role] = fetched[file.sha256]
        for role, path in plan.here.items():
            _check_kept(path, plan.files[role], store)
        if "target" in plan.missing and plan.parts:
            files["target"] = stack.enter_context(_joined(plan.parts, fetched, store))
        manifest = _manifest(plan, {role: files[role] for role in plan.files})
        blobs = store.blob("").parent
        staged = {r: files[r] for r in plan.missing if files[r].parent != blobs}
        return store.adopt(manifest, staged, replace_existing=True)


def _telling(
    report: Report, role: Role, plan: Plan, fetched: Mapping[str | None, Path]
) -> Callable[[Progress], None]:
    """``report`` for one file of a role, which of a target in parts is a part of the whole."""
    parts = plan.parts if role == "target" else ()
    before = sum(part.size or 0 for part in parts if part.sha256 in fetched)

    def tell(progress: Progress) -> None:
        total = plan.files[role].size or 0 if parts else progress.total
        report(role, replace(progress, done=before + progress.done, total=total))

    return tell


@contextmanager
def _joined(
    parts: Sequence[RemoteFile], fetched: Mapping[str | None, Path], store: Store
) -> Iterator[Path]:
    """The file that the fetched parts make; they go when the block ends well."""
    with store.workspace() as folder:
        links = [folder / part.path.rpartition("/")[2] for part in parts]
        for part, link in zip(parts, links, strict=True):
            os.link(fetched[part.sha256], link)
        join_parts(links[0], folder / "joined")
        yield folder / "joined"
    for part in parts:
        fetched[part.sha256].unlink(missing_ok=True)


def _manifest(plan: Plan, files: Mapping[Role, Path]) -> Manifest:
    pairing = check_set(files, {role: file.path for role, file in plan.files.items()})
    layers = {role: _layer(file) for role, file in plan.files.items()}
    if "target" in plan.missing and plan.parts:
        target = files["target"]
        layers["target"] = replace(
            layers["target"], size=target.stat().st_size, sha256=sha256_of(target)
        )
    report = None if pairing is None else pairing.to_json()
    return Manifest(plan.name, layers, plan.parameters, pairing=report)


def check_set(
    files: Mapping[Role, Path], names: Mapping[Role, str] | None = None
) -> PairReport | None:
    """Read the headers and hold target and drafter against each other; None without a drafter.

    ``names`` are for messages, where the files lie under their hash. Raises PairMismatchError for
    a drafter of another model, BadModelFileError and UnsupportedModelError for a broken or wrong
    file.
    """
    headers = {role: _named(read_header(path), names, role) for role, path in files.items()}
    report = None
    if "drafter" in headers:
        report = check_pair(headers["target"], headers["drafter"])
        report.raise_for_mismatch()
    else:
        check_target(headers["target"])
    projector = headers.get("projector")
    if projector is not None and projector.architecture != PROJECTOR_ARCHITECTURE:
        raise BadModelFileError(
            f"{projector.path.name} has the architecture {projector.architecture[:40]!r}, "
            f"expected {PROJECTOR_ARCHITECTURE} of a projector."
        )
    return report


def _named(header: Header, names: Mapping[Role, str] | None, role: Role) -> Header:
    if names is None:
        return header
    return replace(header, path=header.path.with_name(names[role].rpartition("/")[2]))


def _known(hub: Hub, file: RemoteFile) -> RemoteFile:
    """``file`` with the size and the sha256 that the hub has, where the catalogue has none."""
    if file.size is not None and file.sha256 is not None:
        return file
    location = checked_location(hub, file)
    size, sha256 = file.size or location.size, file.sha256 or location.sha256
    if not size or sha256 is None or not is_sha256(sha256):
        raise DownloadError(f"The hub gives no size and sha256 of {file.path} in {file.repo}.")
    return replace(file, size=size, sha256=sha256)


def _layer(file: RemoteFile) -> Layer:
    return Layer(file.size or 0, file.sha256, source=file.source)


def _check_room(plan: Plan, store: Store) -> None:
    """Say before the first byte that the disk is too small."""
    folder = next(path for path in (store.root, *store.root.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    needed = plan.to_fetch
    if "target" in plan.missing and plan.parts:
        # Parts and what they are joined to lie there for a moment together.
        needed += plan.files["target"].size or 0
    if plan.missing and free < needed + SPARE_BYTES:
        raise DownloadError(
            f"{plan.name} needs {needed / 2**30:.1f} GiB more, "
            f"and {free / 2**30:.1f} GiB are free in {folder}.",
            "Make room (gemmtp list shows what the sets take), or set GEMMTP_HOME.",
        )


def _check_kept(path: Path, file: RemoteFile, store: Store) -> None:
    """A file of another program is hashed once, before it becomes part of a set."""
    mine = store.blob(file.sha256 or "")
    if path != mine and sha256_of(path) != file.sha256:
        raise BadModelFileError(
            f"{path} is not the file that its name says.",
            "Remove it there, and it will be fetched here.",
        )

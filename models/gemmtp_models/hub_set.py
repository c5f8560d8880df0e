"""The matched set in a repository: its target, its drafter and its projector.

A file's role is what its header says, wherever it lies and however it is called: drafters are in
the root, in ``MTP/``, named ``mtp-*`` or not. Names only decide which headers are read first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gemmtp.errors import (
    BadModelFileError,
    DownloadError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from gemmtp_models.geometry import DRAFTER_ARCHITECTURE, TARGET_ARCHITECTURE
from gemmtp_models.hub import Hub
from gemmtp_models.hub_header import peek, read_start
from gemmtp_models.hub_names import HubName, RemoteFile, split_parts
from gemmtp_models.manifest import Role

PROJECTOR_ARCHITECTURE = "clip"
MAX_PEEKS = 40
_QUANT = re.compile(r"(?:UD-)?(?:I?Q\d\w*|MXFP4\w*|BF16|F16|F32)", re.IGNORECASE)
_HINTS = re.compile(r"mtp|draft|assistant|mmproj", re.IGNORECASE)
# Which target is taken when none is asked for: small and good first.
_PREFERRED = ("UD-Q4_K_XL", "Q4_0", "Q4_K_M", "UD-Q4_K_M", "Q4_K_S", "Q5_K_M", "Q6_K", "Q8_0")
# general.file_type, as llama.cpp counts (enum llama_ftype), to bits a weight.
_FILE_TYPES = {0: 32, 1: 16, 2: 4, 7: 8, 8: 5, 14: 4, 15: 4, 17: 5, 18: 6, 32: 16}


@dataclass(frozen=True, slots=True)
class HubSet:
    """The files of a repository by role; ``notes`` say what was passed over.

    A target in ``parts`` has the path of the first, the size of all and no sha256.
    """

    files: dict[Role, RemoteFile]
    notes: tuple[str, ...] = ()
    parts: tuple[RemoteFile, ...] = ()


def find_set(hub: Hub, name: HubName) -> HubSet:
    """The set in a repository at the commit where its revision stands.

    Raises ModelNotFoundError when there is no target of the quantisation asked for,
    UnsupportedModelError when it is another model, and what the hub raises.
    """
    commit = hub.commit(name.repo, name.revision)
    every = [file for file in hub.files(name.repo, commit) if file.path.lower().endswith(".gguf")]
    files = [file for file in every if split_parts(_base(file)) is None]
    return _Search(hub, name).run(files, [file for file in every if file not in files])


class _Search:
    """Reads headers once each, and not more than a bounded number."""

    def __init__(self, hub: Hub, name: HubName) -> None:
        self._hub, self._name = hub, name
        self._seen: dict[str, dict[str, object]] = {}
        self._notes: list[str] = []

    def run(self, files: list[RemoteFile], parts: list[RemoteFile]) -> HubSet:
        target, chosen = self._target(files, parts)
        found: dict[Role, RemoteFile] = {"target": target}
        others = [file for file in files if file != target and _smaller(file, target)]
        others.sort(key=lambda file: file.size or 0)
        bits = self._bits(target)
        roles: dict[str, Role] = {
            DRAFTER_ARCHITECTURE: "drafter",
            PROJECTOR_ARCHITECTURE: "projector",
        }
        for architecture, role in roles.items():
            fitting = self._of(architecture, others)
            if fitting:
                found[role] = min(fitting, key=lambda file: self._distance(file, bits))
        if "drafter" not in found:
            self._notes.append("no drafter in this repository")
        return HubSet(found, tuple(dict.fromkeys(self._notes)), chosen)

    def _target(
        self, files: list[RemoteFile], parts: list[RemoteFile]
    ) -> tuple[RemoteFile, tuple[RemoteFile, ...]]:
        """The target, and its parts if it comes in parts; one file is preferred."""
        wanted = self._name.quant
        first = [file for file in parts if (split_parts(_base(file)) or ("", 0, 0))[1] == 1]
        other = None
        for file in [*sorted(files, key=_preference), *sorted(first, key=_preference)]:
            if wanted is not None and not _is_quant(file, wanted):
                continue
            architecture = self._architecture(file)
            if architecture == TARGET_ARCHITECTURE:
                return _whole(file, parts) if file in first else (file, ())
            if architecture not in (DRAFTER_ARCHITECTURE, PROJECTOR_ARCHITECTURE, ""):
                other = other or architecture
        if other is not None:
            raise UnsupportedModelError(
                f"{self._name.repo} has a model of the architecture {other[:40]!r}, "
                f"expected {TARGET_ARCHITECTURE}."
            )
        there = sorted({quant for file in files if (quant := quant_of(file.path))})
        raise ModelNotFoundError(
            f"{self._name.repo} has no Gemma 4 in GGUF" + (f" as {wanted}." if wanted else "."),
            f"There is: {', '.join(there)}." if there else None,
        )

    def _of(self, architecture: str, files: list[RemoteFile]) -> list[RemoteFile]:
        """Files of an architecture, among those whose names speak for it and else among all."""
        for likely in (True, False):
            group = [file for file in files if bool(_HINTS.search(file.path)) is likely]
            if fitting := [file for file in group if self._architecture(file) == architecture]:
                return fitting
        return []

    def _architecture(self, file: RemoteFile) -> str:
        """What the header says; empty for a file that does not tell."""
        return str(self._header(file).get("general.architecture", ""))

    def _header(self, file: RemoteFile) -> dict[str, object]:
        if file.path not in self._seen:
            if len(self._seen) >= MAX_PEEKS:
                return {}
            try:
                self._seen[file.path] = dict(peek(read_start(self._hub, file), file.path))
            except BadModelFileError as error:
                self._notes.append(error.message.rstrip("."))
                self._seen[file.path] = {}
            architecture = self._seen[file.path].get("general.architecture")
            if architecture in ("gemma4_assistant", "gemma4_mtp"):
                self._notes.append(f"{file.path} is a drafter for a fork of llama.cpp")
        return self._seen[file.path]

    def _bits(self, file: RemoteFile) -> int:
        """Bits a weight, from the header or else from the name."""
        kind = self._header(file).get("general.file_type")
        digits = re.search(r"\d+", quant_of(file.path) or "16")
        by_name = int(digits[0]) if digits else 16
        return _FILE_TYPES.get(kind, by_name) if isinstance(kind, int) else by_name

    def _distance(self, file: RemoteFile, bits: int) -> tuple[int, int, str]:
        """Nearest in quantisation, then nearest to the root, then by name (BF16 before F16)."""
        return abs(self._bits(file) - bits), file.path.count("/"), file.path


def quant_of(path: str) -> str | None:
    """The quantisation that a file's name ends with, in capitals: "UD-Q4_K_XL"."""
    name = path.rpartition("/")[2]
    parts = split_parts(name)
    found: Iterable[str] = _QUANT.findall(parts[0] if parts else name.removesuffix(".gguf"))
    return max(found, key=len, default="").upper() or None


def _is_quant(file: RemoteFile, wanted: str) -> bool:
    quant, wanted = quant_of(file.path) or "", wanted.upper()
    return quant == wanted or quant == f"UD-{wanted}"


def _preference(file: RemoteFile) -> tuple[bool, int, int, str]:
    quant = quant_of(file.path) or ""
    rank = _PREFERRED.index(quant) if quant in _PREFERRED else len(_PREFERRED)
    return _HINTS.search(file.path) is not None, rank, file.path.count("/"), file.path


def _whole(first: RemoteFile, every: list[RemoteFile]) -> tuple[RemoteFile, tuple[RemoteFile, ...]]:
    """A target in parts: (as one file, its parts in order); raises for one that is missing."""
    stem, _, count = split_parts(_base(first)) or ("", 0, 0)
    folder = first.path.removesuffix(_base(first))
    there = {file.path: file for file in every}
    paths = [f"{folder}{stem}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1)]
    if missing := [path for path in paths if path not in there]:
        raise ModelNotFoundError(f"{first.repo} has no part {missing[0]}.")
    parts = tuple(there[path] for path in paths)
    if any(part.size is None or part.sha256 is None for part in parts):
        raise DownloadError(f"The hub gives no size and sha256 of the parts of {first.path}.")
    size = sum(part.size or 0 for part in parts)
    return replace(first, size=size, sha256=None), parts


def _smaller(file: RemoteFile, target: RemoteFile) -> bool:
    """Whether a file can be a part of the target's set by its size; unknown sizes may be."""
    if file.size is None or target.size is None or _HINTS.search(file.path):
        return True
    return file.size < target.size


def _base(file: RemoteFile) -> str:
    return file.path.rpartition("/")[2]

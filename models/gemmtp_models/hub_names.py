"""Names that a hub, a catalogue or a manifest may use; whatever could leave its folder is refused.

None of these names becomes a path on this machine: files lie under their sha256. They become parts
of an address, where a ``..`` would change which file is meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemmtp.errors import UsageError

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REPO = re.compile(f"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HUB_NAME = re.compile(r"hf:([^:@]+)(?:@([^:]+))?(?::([A-Za-z0-9._-]{1,32}))?")
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository at a revision; ``size`` in bytes and ``sha256`` if they are known."""

    repo: str
    revision: str
    path: str
    size: int | None = None
    sha256: str | None = None

    @property
    def source(self) -> str:
        """``hf:owner/repo@revision/path``, as manifests keep it."""
        return f"hf:{self.repo}@{self.revision}/{self.path}"


@dataclass(frozen=True, slots=True)
class HubName:
    """``hf:owner/repo[@revision][:quant]``, taken apart."""

    repo: str
    revision: str = "main"
    quant: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName:
        """Raises UsageError for anything else."""
        found = _HUB_NAME.fullmatch(text)
        if found is None:
            raise UsageError(f"{text!r} is no name on the hub.", "Write hf:owner/repo:quant.")
        revision = check_revision(found[2] or "main")
        return cls(check_repo(found[1]), revision, found[3])

    @property
    def set_name(self) -> str:
        """The name of the set in the store: ``hf.owner.repo:quant`` in small letters."""
        family = f"hf.{self.repo.replace('/', '.')}"
        return f"{family}:{self.quant or 'latest'}".lower()


def check_repo(repo: str) -> str:
    """``repo`` if it is ``owner/name``; raises UsageError."""
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise UsageError(f"{repo!r} is no repository.", "Write owner/name, as on the hub.")
    return repo


def check_revision(revision: str) -> str:
    """``revision`` if it is a commit, a branch or a tag; raises UsageError."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise UsageError(f"{revision!r} is no revision.")
    return revision


def check_path(path: str) -> str:
    """``path`` if it is a plain relative one of few folders; raises UsageError."""
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or not all(_PATH.fullmatch(part) for part in parts):
        raise UsageError(f"{path!r} is no file of a repository.")
    return path


def is_sha256(text: str) -> bool:
    """Whether these are the 64 small hex digits of a sha256."""
    return _SHA256.fullmatch(text) is not None


def split_parts(name: str) -> tuple[str, int, int] | None:
    """(stem, part, parts) of ``stem-00001-of-00003.gguf``, None for any other name."""
    found = _SPLIT.fullmatch(name)
    return (found[1], int(found[2]), int(found[3])) if found else None

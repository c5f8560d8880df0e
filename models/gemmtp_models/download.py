"""One file from the hub to the disk, by its sha256, whatever happens on the way.

    <folder>/sha256-<hex>.partial     the bytes that came so far
    <folder>/sha256-<hex>.journal     which of them are synced
    <folder>/sha256-<hex>.lock        held by the process that fetches
    <folder>/sha256-<hex>.whole       complete, hashed and synced

A killed process leaves the first three; the next one goes on from there. The second of two
processes waits for the first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gemmtp.errors import DownloadError
from gemmtp_models.download_journal import Journal
from gemmtp_models.hub import Hub, Location, Patience
from gemmtp_models.hub_names import RemoteFile, is_sha256
from gemmtp_models.positioned import open_file
from gemmtp_models.unfinished import alone, whole_path

MIB = 2**20
DEFAULT_CONNECTIONS = 4
MAX_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Options:
    """How to fetch: ``piece`` in bytes is what a connection asks for at a time.

    ``restarts`` is how often a file that changed or came wrong is begun anew.
    """

    connections: int = DEFAULT_CONNECTIONS
    piece: int = 32 * MIB
    restarts: int = 2
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` bytes are here; ``waiting`` for another process to fetch them."""

    done: int
    total: int
    waiting: bool = False


Report = Callable[[Progress], None]


class ChangedError(Exception):
    """What comes is not what came before; the file has to be begun anew."""


def fetch(
    hub: Hub,
    file: RemoteFile,
    folder: Path,
    report: Report = lambda progress: None,
    options: Options | None = None,
) -> Path:
    """Fetch ``file``, whose size and sha256 are known, into ``folder``; return where it lies.

    Raises DownloadError when it cannot be had, and ModelNotFoundError when it is not there. What
    was fetched stays for the next try.
    """
    with fetching(hub, file, folder, report, options) as path:
        return path


@contextmanager
def fetching(
    hub: Hub,
    file: RemoteFile,
    folder: Path,
    report: Report = lambda progress: None,
    options: Options | None = None,
    place: Path | None = None,
) -> Iterator[Path]:
    """As ``fetch``, with the file's lock held for the block, so that nobody else moves it.

    If the file is at ``place`` by the time the lock is free, there is nothing to do. Who holds
    several locks takes them in the order of the sha256, or two processes could wait for each other.
    """
    size, sha256 = file.size, file.sha256
    if size is None or sha256 is None or not is_sha256(sha256):
        raise DownloadError(f"{file.path} of {file.repo} has no sha256, so it cannot be checked.")
    waiting = Progress(0, size, waiting=True)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = alone(folder / f"sha256-{sha256}.lock", lambda: report(waiting))
            stack.enter_context(lock)
            path = whole_path(folder, sha256)
            if place is not None and _is_there(place, size):
                path = place
            elif not _is_there(path, size):
                _fetch(hub, file, folder, report, options or Options())
        except OSError as error:
            raise disk_error(error, folder) from error
        report(Progress(size, size))
        yield path


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def disk_error(error: OSError, folder: Path) -> DownloadError:
    """What an error of the file system means to the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DownloadError(
            f"The disk of {folder} is full.", "Make room and try again; what is here is kept."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DownloadError(
            f"{folder} cannot be written.", "Give your user the right to, or set GEMMTP_HOME."
        )
    return DownloadError(f"{folder} cannot be written: {error.strerror or error}.")


def _fetch(hub: Hub, file: RemoteFile, folder: Path, report: Report, options: Options) -> None:
    """Transfer until the file is right, beginning anew where what comes has changed."""
    from gemmtp_models.transfer import Transfer

    stem = folder / f"sha256-{file.sha256}"
    location = checked_location(hub, file)
    journal = Journal(stem.with_suffix(".journal"), file.size or 0, file.sha256 or "")
    handle = open_file(stem.with_suffix(".partial"))
    transfer: Transfer | None = None
    try:
        if os.fstat(handle).st_size < max((end for _, end in journal.ranges), default=0):
            journal.clear()
        for restarts_left in range(options.restarts, -1, -1):
            transfer = Transfer(hub, file, location, handle, journal, options)
            try:
                transfer.run(report)
                break
            except ChangedError as error:
                journal.clear()
                # Nobody may still write when the file is begun anew.
                if not restarts_left or not transfer.ended:
                    os.ftruncate(handle, 0)
                    raise DownloadError(
                        f"{file.path} of {file.repo} {error}.",
                        "The server or something on the way damages it; try again later.",
                    ) from None
        os.fsync(handle)
    finally:
        # A thread that still waits for the network must not find another file under this number.
        if transfer is None or transfer.ended:
            os.close(handle)
            journal.close()
    os.replace(stem.with_suffix(".partial"), whole_path(folder, file.sha256 or ""))
    _sync_folder(folder)
    stem.with_suffix(".journal").unlink(missing_ok=True)


def checked_location(hub: Hub, file: RemoteFile) -> Location:
    """Where the file is, after the hub has confirmed its size and content."""
    location = hub.locate(file)
    for what, expected, found in (
        ("sha256", file.sha256, location.sha256),
        ("size", file.size, location.size),
    ):
        if found is not None and expected is not None and found != expected:
            raise DownloadError(
                f"{file.path} of {file.repo} has changed on the hub: "
                f"{what} {found}, expected {expected}.",
                f"Update gemmtp, or take what is there now with: gemmtp pull hf:{file.repo}",
            )
    return location


def _sync_folder(folder: Path) -> None:
    """Make a rename last; file systems that cannot sync a folder do it by themselves."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

"""Where sessions lie, and what can be done with them as files.

    <state>/sessions/NAME.jsonl    what was said (gemmtp.chat.sessions)
    <state>/sessions/NAME.files/   pictures and sounds, by their contents (gemmtp.chat.attached)
    <state>/sessions/NAME.kv       the KV state, where it was asked for

The folder is 0700, the files are 0600.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gemmtp import settings
from gemmtp.chat import log, names, whole
from gemmtp.chat.log import Log, LogInUseError
from gemmtp.errors import GemmtpError, UsageError

SUFFIX = ".jsonl"
KEPT = 100
"""Unnamed chats that are kept; GEMMTP_SESSIONS says another number, 0 for none."""


class SessionNotFoundError(UsageError):
    """No session of this name."""


def folder() -> Path:
    """Where sessions lie."""
    return settings.state_dir() / "sessions"


def path_of(name: str) -> Path:
    """The log of a session."""
    return folder() / f"{name}{SUFFIX}"


def folder_of(name: str) -> Path:
    """The attachments of a session."""
    return folder() / f"{name}.files"


def kv_path(name: str) -> Path:
    """The KV state of a session, where it was asked for."""
    return folder() / f"{name}.kv"


def by_use() -> list[str]:
    """The names of all sessions, the one used last first."""
    found = []
    for path in folder().glob(f"*{SUFFIX}"):
        try:
            found.append((path.stat().st_mtime_ns, path.name.removesuffix(SUFFIX)))
        except FileNotFoundError:
            continue
    return [name for _, name in sorted(found, reverse=True)]


def is_open(name: str) -> bool:
    """Whether a process has the session open; raises :class:`SessionNotFoundError`."""
    try:
        locked(names.checked(name)).close()
    except LogInUseError:
        return True
    return False


def latest_name() -> str:
    """The session used last in which something was said; raises :class:`SessionNotFoundError`."""
    for name in by_use():
        if any(b'"type":"message"' in line[:40] for line in log.lines(path_of(name))):
            return name
    raise SessionNotFoundError(
        "There is no session to continue.", "gemmtp run MODEL begins one; --session NAME names it."
    )


def remove(name: str) -> None:
    """Remove a session with its attachments and KV state.

    Raises :class:`SessionNotFoundError`, and :class:`~gemmtp.errors.GemmtpError` when it is open.
    """
    name = names.checked(name)
    writer = locked(name)
    try:
        remove_files(name)
    finally:
        writer.close()


def remove_files(name: str) -> None:
    """What :func:`remove` removes, without a look at who has it open."""
    path_of(name).unlink(missing_ok=True)
    kv_path(name).unlink(missing_ok=True)
    # A process that was killed while it saved leaves this.
    folder().joinpath(f"{name}.kv{whole.SUFFIX}").unlink(missing_ok=True)
    shutil.rmtree(folder_of(name), ignore_errors=True)


def move_files(name: str, new: str) -> None:
    """Give the files of a session another name; raises UsageError when it is taken."""
    try:
        os.close(os.open(path_of(new), os.O_CREAT | os.O_EXCL, 0o600))
        for old, moved in ((folder_of(name), folder_of(new)), (kv_path(name), kv_path(new))):
            if old.exists():
                old.rename(moved)
        path_of(name).replace(path_of(new))
    except FileExistsError:
        raise UsageError(f"There is a session {new} already.") from None
    except OSError as error:
        raise cannot("renamed", name, error) from error


def kept() -> int:
    """How many unnamed chats are kept; raises UsageError for a GEMMTP_SESSIONS that is no count."""
    value = os.environ.get("GEMMTP_SESSIONS", "").strip()
    if value and not value.isdecimal():
        raise UsageError(f"GEMMTP_SESSIONS is {value!r}, which is no number of sessions.")
    return int(value) if value else KEPT


def prune(most: int) -> None:
    """Remove unnamed chats beyond the ``most`` used last, but none that is open."""
    for name in [name for name in by_use() if names.is_by_date(name)][most:]:
        try:
            remove(name)
        except GemmtpError:
            continue


def locked(name: str) -> Log:
    """The log of a session, for this process alone.

    Raises :class:`SessionNotFoundError`, and :class:`~gemmtp.errors.GemmtpError` when it is open
    elsewhere or the system refuses.
    """
    try:
        return Log(path_of(name))
    except LogInUseError:
        raise LogInUseError(
            f"The session {name} is open in another process.",
            "Leave that one first, or take another name with --session.",
        ) from None
    except FileNotFoundError:
        raise not_found(name) from None
    except OSError as error:
        raise cannot("opened", name, error) from error


def new_by_date() -> tuple[str, Log]:
    """A new log called by the date, in place of the oldest one beyond :func:`kept`."""
    make_folder()
    prune(max(0, kept() - 1))
    count = 1
    while True:
        name = names.by_date(count)
        try:
            return name, Log(path_of(name), create=True)
        except (FileExistsError, LogInUseError):
            count += 1
        except OSError as error:
            raise cannot("made", name, error) from error


def make_folder() -> None:
    """Make the folder of sessions, for the user alone."""
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        folder().chmod(0o700)
    except OSError as error:
        raise GemmtpError(f"The folder of sessions cannot be made: {error}") from error


def not_found(name: str) -> SessionNotFoundError:
    """What to raise when there is no session of this name."""
    return SessionNotFoundError(
        f"There is no session {name}.", "gemmtp sessions list says which there are."
    )


def cannot(what: str, name: str, error: OSError) -> GemmtpError:
    """What to raise when the system refuses; ``what`` is a participle."""
    return GemmtpError(f"The session {name} could not be {what}: {error.strerror or error}")

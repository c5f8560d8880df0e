"""Sessions: conversations on disk, written as they happen.

One file of JSON lines a session (:mod:`gemmtp.chat.log`, records in :mod:`gemmtp.chat.replay`) in
the folder ``sessions`` of the state directory, 0600 in a folder of 0700. Each piece of an answer is
recorded when it is printed; the disk is waited for when a question is asked and when its answer
ends. A crash or ``kill -9`` loses at most the piece that was being printed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Self

from gemmtp import __version__
from gemmtp.chat import attached, log, names, shelf
from gemmtp.chat.log import Log
from gemmtp.chat.replay import Channel, Replay, fold
from gemmtp.errors import GemmtpError, UsageError
from gemmtp.prompt.conversation import Json, Message

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """The model of a session: its name, and the SHA-256 of its files where they are known."""

    model: str
    hashes: Mapping[str, Any] = field(default_factory=dict)


class Session:
    """A conversation that is recorded; :meth:`close` lets others have it.

    ``replay`` is the conversation as it was when the session was opened. Recording never raises
    because of the disk: see :attr:`trouble`. A session without a log records nothing.
    """

    def __init__(self, name: str, writer: Log | None, replay: Replay) -> None:
        self.name, self.replay = name, replay
        self._log = writer
        self._spoken = bool(replay.messages)
        self._new = False

    @classmethod
    def unrecorded(cls, origin: Origin) -> Self:
        """A session that leaves nothing on the disk."""
        return cls("", None, Replay(origin.model, dict(origin.hashes)))

    @classmethod
    def create(cls, origin: Origin, name: str | None = None) -> Self:
        """A new session; without ``name`` it is called by the date, and old ones of that kind go.

        Raises :class:`~gemmtp.errors.UsageError` when there is one of this name.
        """
        if name is None:
            return cls._begin(*shelf.new_by_date(), origin)
        name = names.checked(name)
        shelf.make_folder()
        try:
            writer = Log(shelf.path_of(name), create=True)
        except FileExistsError:
            raise UsageError(
                f"There is a session {name} already.", f"--session {name} goes on with it."
            ) from None
        except OSError as error:
            raise shelf.cannot("made", name, error) from error
        return cls._begin(name, writer, origin)

    @classmethod
    def open(cls, name: str) -> Self:
        """The session of this name, to go on with.

        Raises :class:`SessionNotFoundError`, and :class:`~gemmtp.errors.GemmtpError` when it is
        open elsewhere or cannot be read.
        """
        name = names.checked(name)
        writer = shelf.locked(name)
        try:
            session = cls(name, writer, load(name))
            os.utime(writer.path)
        except BaseException:
            writer.close()
            raise
        return session

    @classmethod
    def open_or_create(cls, name: str, origin: Origin) -> Self:
        """The session of this name, begun now if there is none."""
        name = names.checked(name)
        if not shelf.path_of(name).exists():
            return cls.create(origin, name)
        session = cls.open(name)
        if not session.replay.model:
            # Its first writer ended before it had written the first line.
            session.record_model(origin)
        return session

    @classmethod
    def latest(cls) -> Self:
        """The session that was used last; raises as :meth:`open` does."""
        return cls.open(shelf.latest_name())

    @classmethod
    def _begin(cls, name: str, writer: Log, origin: Origin) -> Self:
        session = cls(name, writer, Replay())
        session._new = True
        created = _now()
        session.replay.model, session.replay.created = origin.model, created
        session.replay.hashes = dict(origin.hashes)
        header = {"type": "session", "format": FORMAT, "gemmtp": __version__, "created": created}
        session._record({**header, "model": origin.model, "hashes": dict(origin.hashes)})
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others have it; one in which nothing was ever said is removed."""
        if self._log is None:
            return
        if self._new and not self._spoken:
            shelf.remove_files(self.name)
        self._log.close()
        self._log = None

    @property
    def recorded(self) -> bool:
        """Whether anything is written."""
        return self._log is not None

    @property
    def trouble(self) -> str | None:
        """Why the last records wait in memory (a full disk), None when they are written."""
        return self._log.trouble if self._log is not None else None

    def messages(self) -> list[Message]:
        """The conversation when the session was opened, without the system message.

        Images are paths of the session's own copies. The last message may be an unfinished answer:
        ``replay.complete`` says so. Raises :class:`~gemmtp.errors.UsageError` for a lost sound.
        """
        return [
            attached.found(message, shelf.folder_of(self.name)) for message in self.replay.messages
        ]

    def record_user(self, message: Message) -> None:
        """What the user says now; raises UsageError when an attachment cannot be read."""
        self._record_message("message", message)

    def record_edit(self, message: Message) -> None:
        """What the user says in place of the last exchange."""
        self._record_message("edit", message)

    def record_words(self, channel: Channel, text: str) -> None:
        """A piece of the answer, a thought or the text of a call, right before it is printed."""
        if text:
            self._record({"type": "words", "channel": channel, "text": text})

    def record_call(self, text: str) -> None:
        """The whole text of a tool call, its quote tokens as they are written."""
        self._record({"type": "call", "text": text})

    def record_end(self, reason: str, statistics: object = None) -> None:
        """The answer ended; ``statistics`` is a mapping or a dataclass."""
        ended: Json = {"type": "end", "reason": reason, "time": _now()}
        if is_dataclass(statistics) and not isinstance(statistics, type):
            ended["statistics"] = asdict(statistics)
        elif isinstance(statistics, Mapping):
            ended["statistics"] = dict(statistics)
        self._record(ended, sync=True)

    def record_undo(self) -> None:
        """The last exchange goes."""
        self._record({"type": "undo"})

    def record_regenerate(self) -> None:
        """The last answer goes, to be given anew."""
        self._record({"type": "regenerate"})

    def record_drop(self, turns: int, summary: str | None = None) -> None:
        """The oldest ``turns`` leave the model's view; ``summary`` stands for them."""
        self._record({"type": "drop", "turns": turns, "summary": summary})

    def record_clear(self) -> None:
        """The conversation begins anew."""
        self._record({"type": "clear"})

    def record_messages(self, messages: Sequence[Message]) -> None:
        """Another conversation takes the place of this one."""
        kept = [self._kept(message).to_json() for message in messages]
        self._spoken = self._spoken or bool(kept)
        self._record({"type": "messages", "messages": kept}, sync=True)

    def record_system(self, text: str | None) -> None:
        """The system message from now on."""
        self._record({"type": "system", "text": text})

    def record_setting(self, name: str, value: object) -> None:
        """A setting, to be found again in ``replay.settings``; ``value`` is a JSON value."""
        self._record({"type": "set", "name": name, "value": value})

    @property
    def origin(self) -> Origin:
        """The model that the session is with."""
        return Origin(self.replay.model, self.replay.hashes)

    def go_on_with(self, origin: Origin) -> str | None:
        """Let another model go on from here; returns what there is to say about it, if anything."""
        before = self.origin
        if before == origin:
            return None
        self.record_model(origin)
        if before.model == origin.model:
            return f"the files of {origin.model} are others than those the session was with"
        return f"the session {self.name} was with {before.model}; {origin.model} goes on"

    def record_model(self, origin: Origin) -> None:
        """Another model goes on from here."""
        self.replay.model, self.replay.hashes = origin.model, dict(origin.hashes)
        self._record({"type": "model", "model": origin.model, "hashes": dict(origin.hashes)})

    def rename(self, name: str) -> None:
        """Give it a name, under which it is kept until it is removed.

        Raises :class:`~gemmtp.errors.UsageError` when there is one of this name.
        """
        if self._log is None:
            raise UsageError("This chat is not recorded.")
        name = names.checked(name)
        shelf.move_files(self.name, name)
        self.name, self._log.path = name, shelf.path_of(name)

    def _record_message(self, kind: str, message: Message) -> None:
        self._spoken = True
        document = self._kept(message).to_json()
        self._record({"type": kind, "time": _now(), "message": document}, sync=True)

    def _kept(self, message: Message) -> Message:
        if self._log is None or not message.media:
            return message
        try:
            return attached.keep(message, shelf.folder_of(self.name))
        except OSError as error:
            raise shelf.cannot("given its attachment", self.name, error) from error

    def _record(self, record: Json, *, sync: bool = False) -> None:
        if self._log is not None:
            self._log.append(record, sync=sync)


def load(name: str, *, words: bool = True) -> Replay:
    """The conversation of a session, which may be open elsewhere; without ``words`` no answers.

    Raises :class:`SessionNotFoundError`, and :class:`~gemmtp.errors.GemmtpError` for what a newer
    program wrote or what cannot be read.
    """
    name = names.checked(name)
    try:
        records = list(log.read(shelf.path_of(name), without=None if words else "words"))
    except FileNotFoundError:
        raise shelf.not_found(name) from None
    except OSError as error:
        raise shelf.cannot("read", name, error) from error
    written = records[0].get("format", FORMAT) if records else FORMAT
    if written != FORMAT:
        raise GemmtpError(f"The session {name} was written by another version of gemmtp.")
    return fold(records)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

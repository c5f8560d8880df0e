"""A session's records, folded into the conversation that they tell.

Records are JSON objects with a ``type``, in the order in which things happened:

    session     the first line: format, model, hashes, time of creation
    model       another model goes on
    message     what a user (or a tool) said, in OpenAI's shape
    edit        as message, in place of the last exchange
    words       a piece of the answer, a thought or a call's text, as it was printed
    call        a finished tool call
    end         the answer ended: reason, statistics
    undo        the last exchange goes
    regenerate  the last answer goes
    drop        the oldest turns leave the model's view; ``summary`` stands for them
    clear       the conversation begins anew
    messages    the whole conversation is replaced
    system      the system message
    set         a setting and its value

Types that are not known are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gemmtp.chat.room import last_exchange
from gemmtp.prompt.calls import parse_call
from gemmtp.prompt.channels import QUOTE
from gemmtp.prompt.conversation import Json, Message, Text, conversation_of, message_of

Channel = Literal["answer", "thought", "call"]


@dataclass(slots=True)
class Ending:
    """How an answer ended; a reason None means that it was cut off without a word."""

    reason: str | None = None
    statistics: Json = field(default_factory=dict)


@dataclass(slots=True)
class Replay:
    """A conversation as a session's records tell it."""

    model: str = ""
    hashes: Json = field(default_factory=dict)
    created: str = ""
    messages: list[Message] = field(default_factory=list)
    """What the model sees, without the system message; the last may be an unfinished answer."""
    dropped: list[Message] = field(default_factory=list)
    """Turns that left the model's view to make room, oldest first."""
    system: str | None = None
    summary: str | None = None
    """What stands for the dropped turns, if they were summarised."""
    settings: Json = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)
    """One for every answer in :attr:`messages`, in order."""
    _written: dict[str, list[str]] = field(default_factory=dict, repr=False)
    """Words of the running answer by channel; joined when something else comes."""

    @property
    def complete(self) -> bool:
        """Whether the last answer came to its own end; true without messages."""
        if not self.messages:
            return True
        if self.messages[-1].role != "assistant":
            return False
        return self.endings[-1].reason not in (None, "interrupted")

    @property
    def turns(self) -> int:
        """How many times a user spoke, dropped turns included."""
        return sum(message.role == "user" for message in [*self.dropped, *self.messages])

    def take(self, record: Json) -> None:
        """Fold in one more record; the words of an answer show in it after :meth:`settle`."""
        kind = record.get("type")
        if kind == "words":
            channel = str(record.get("channel"))
            self._written.setdefault(channel, []).append(str(record.get("text", "")))
        elif kind in _HANDLERS:
            self.settle()
            _HANDLERS[kind](self, record)

    def settle(self) -> None:
        """Put the words that came so far into the answer."""
        if not self._written:
            return
        answer = _answer(self)
        thinking = "".join(self._written.get("thought", ()))
        text = "".join(self._written.get("answer", ()))
        parts = (Text(answer.text + text),) if text else answer.parts
        self.messages[-1] = replace(answer, thinking=answer.thinking + thinking, parts=parts)
        self._written.clear()


def fold(records: Iterable[Json]) -> Replay:
    """All records in their order.

    Raises :class:`~gemmtp.errors.UsageError` on a message that is none.
    """
    replay = Replay()
    for record in records:
        replay.take(record)
    replay.settle()
    return replay


def _session(replay: Replay, record: Json) -> None:
    replay.created = str(record.get("created", ""))
    _model(replay, record)


def _model(replay: Replay, record: Json) -> None:
    replay.model = str(record.get("model", ""))
    replay.hashes = dict(record.get("hashes") or {})


def _message(replay: Replay, record: Json) -> None:
    _add(replay, message_of(record.get("message"), "The session's message"))


def _edit(replay: Replay, record: Json) -> None:
    _undo(replay, record)
    _message(replay, record)


def _call(replay: Replay, record: Json) -> None:
    answer = _answer(replay)
    call = parse_call(str(record.get("text", "")).split(QUOTE))
    if call is not None:
        call = replace(call, id=f"call_{len(answer.tool_calls)}")
        replay.messages[-1] = replace(answer, tool_calls=(*answer.tool_calls, call))


def _end(replay: Replay, record: Json) -> None:
    _answer(replay)
    replay.endings[-1] = Ending(record.get("reason"), dict(record.get("statistics") or {}))


def _undo(replay: Replay, record: Json) -> None:
    _cut(replay, last_exchange(replay.messages))


def _regenerate(replay: Replay, record: Json) -> None:
    _cut(replay, last_exchange(replay.messages) + 1)


def _drop(replay: Replay, record: Json) -> None:
    starts = [i for i, message in enumerate(replay.messages) if message.role == "user"]
    turns = int(record.get("turns", 0))
    at = starts[turns] if turns < len(starts) else len(replay.messages)
    gone, kept = replay.messages[:at], replay.messages[at:]
    replay.dropped += gone
    replay.endings = replay.endings[_answers(gone) :]
    replay.messages = kept
    if record.get("summary") is not None:
        replay.summary = str(record["summary"])


def _clear(replay: Replay, record: Json) -> None:
    replay.messages, replay.dropped, replay.endings = [], [], []
    replay.summary = None


def _messages(replay: Replay, record: Json) -> None:
    _clear(replay, record)
    for message in conversation_of(record.get("messages")).messages:
        _add(replay, message)


def _system(replay: Replay, record: Json) -> None:
    text = record.get("text")
    replay.system = None if text is None else str(text)


def _set(replay: Replay, record: Json) -> None:
    replay.settings[str(record.get("name", ""))] = record.get("value")


_HANDLERS: dict[str, Callable[[Replay, dict[str, Any]], None]] = {
    "session": _session,
    "model": _model,
    "message": _message,
    "edit": _edit,
    "call": _call,
    "end": _end,
    "undo": _undo,
    "regenerate": _regenerate,
    "drop": _drop,
    "clear": _clear,
    "messages": _messages,
    "system": _system,
    "set": _set,
}


def _add(replay: Replay, message: Message) -> None:
    replay.messages.append(message)
    if message.role == "assistant":
        replay.endings.append(Ending("stop"))


def _answer(replay: Replay) -> Message:
    """The answer that is being written, begun if the last message is no answer."""
    if not replay.messages or replay.messages[-1].role != "assistant":
        replay.messages.append(Message("assistant"))
        replay.endings.append(Ending())
    return replay.messages[-1]


def _cut(replay: Replay, at: int) -> None:
    replay.endings = replay.endings[: len(replay.endings) - _answers(replay.messages[at:])]
    del replay.messages[at:]


def _answers(messages: list[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)

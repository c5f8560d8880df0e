"""A session as text for people, as Markdown, and as JSON in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gemmtp.chat import attached
from gemmtp.chat.replay import Replay
from gemmtp.chat.shelf import folder_of
from gemmtp.errors import UsageError
from gemmtp.prompt.conversation import Image, Json, Message, Part, Text, ToolCall

ASKED = ">>> "
CUT_OFF = "(the answer was cut off)"
DROPPED = "(what stands above no longer fitted into the context)"


def transcript(replay: Replay) -> Iterator[str]:
    """What was said, in blocks; questions are marked by :data:`ASKED`."""
    if replay.system:
        yield f"system: {replay.system}"
    for message in replay.dropped:
        yield _spoken(message)
    if replay.dropped:
        yield DROPPED if replay.summary is None else f"{DROPPED}\n{replay.summary}"
    for message in replay.messages:
        yield _spoken(message)
    if not replay.complete:
        yield CUT_OFF


def markdown(name: str, replay: Replay) -> str:
    """A page that can be read and kept; images are links to the session's own copies."""
    parts = [f"# {name}", f"*{replay.model} · {replay.created}*"]
    if replay.system:
        parts += ["## System", replay.system]
    for message in replay.dropped:
        parts += _section(name, message, replay.model)
    if replay.dropped:
        parts += [f"*{DROPPED}*", *([replay.summary] if replay.summary else [])]
    for message in replay.messages:
        parts += _section(name, message, replay.model)
    if not replay.complete:
        parts.append(f"*{CUT_OFF}*")
    return "\n\n".join(parts) + "\n"


def document(name: str, replay: Replay) -> Json:
    """The conversation in OpenAI's shape, self-contained: images are ``data:`` URLs.

    Raises :class:`~gemmtp.errors.UsageError` when an attachment is lost.
    """
    told = [attached.found(m, folder_of(name)) for m in [*replay.dropped, *replay.messages]]
    if replay.system:
        told.insert(0, Message.of("system", replay.system))
    return {
        "name": name,
        "model": replay.model,
        "created": replay.created,
        "complete": replay.complete,
        "messages": [_alone(message).to_json() for message in told],
    }


def _spoken(message: Message) -> str:
    lines = [f"[{_kind(part)}]" for part in message.media] + message.text.splitlines()
    lines += [_written(call) for call in message.tool_calls]
    if message.role == "assistant":
        return "\n".join(lines)
    mark = ASKED if message.role == "user" else f"{message.role}: "
    return "\n".join((" " * len(mark) if i else mark) + line for i, line in enumerate(lines))


def _section(name: str, message: Message, model: str) -> list[str]:
    title = {"user": "You", "assistant": model}.get(message.role, message.role.title())
    parts = [f"## {title}"]
    if message.thinking:
        parts.append(f"<details><summary>Thoughts</summary>\n\n{message.thinking}\n\n</details>")
    for part in message.parts:
        match part:
            case Text(text):
                parts.append(text)
            case Image(url) if url.startswith(attached.SCHEME):
                parts.append(f"![image]({folder_of(name) / url.removeprefix(attached.SCHEME)})")
            case _:
                parts.append(f"[{_kind(part)}]")
    return [*parts, *(f"`{_written(call)}`" for call in message.tool_calls)]


def _written(call: ToolCall) -> str:
    return f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})"


def _kind(part: Part) -> str:
    return "image" if isinstance(part, Image) else "sound"


def _alone(message: Message) -> Message:
    """``message`` without any need for the session's files."""
    try:
        parts = [
            Image(attached.data_url(Path(part.url)))
            if isinstance(part, Image) and Path(part.url).is_absolute()
            else part
            for part in message.parts
        ]
    except OSError as error:
        raise UsageError(f"An image of the session is missing: {error}") from error
    return replace(message, parts=tuple(parts))

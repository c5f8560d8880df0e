"""Conversations with types: messages, their parts, tools; JSON in and out in OpenAI's shape.

The shape is that of OpenAI's chat completions: ``role``, ``content`` as text or as a list of parts
(``text``, ``image_url``, ``input_audio``), ``tool_calls`` whose arguments are JSON in a string,
``tool_call_id``. Thoughts come and go as ``reasoning_content``, as llama.cpp's server has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gemmtp.errors import UsageError

Json = dict[str, Any]
Role = Literal["system", "developer", "user", "assistant", "tool"]
_ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Text:
    """Some words."""

    text: str

    def to_json(self) -> Json:
        return {"type": "text", "text": self.text}

    def for_template(self) -> Json:
        return self.to_json()


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: ``url`` is a ``data:`` URL or a place; who attaches it decides what to allow."""

    url: str

    def to_json(self) -> Json:
        return {"type": "image_url", "image_url": {"url": self.url}}

    def for_template(self) -> Json:
        return {"type": "image"}


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound: ``data`` is base64, ``format`` such as ``wav``."""

    data: str
    format: str

    def to_json(self) -> Json:
        return {"type": "input_audio", "input_audio": {"data": self.data, "format": self.format}}

    def for_template(self) -> Json:
        return {"type": "audio"}


Part = Text | Image | Audio


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function the model wants called; ``id`` joins it to the tool's message."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""

    def to_json(self) -> Json:
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}

    def for_template(self) -> Json:
        call: Json = {"function": {"name": self.name, "arguments": dict(self.arguments)}}
        return {"id": self.id, **call} if self.id else call


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. ``thinking`` and ``tool_calls`` are an assistant's, ``call_id`` is a tool's."""

    role: Role
    parts: tuple[Part, ...] = ()
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""

    @classmethod
    def of(cls, role: Role, text: str) -> Message:
        """A message of words alone."""
        return cls(role, (Text(text),) if text else ())

    @property
    def text(self) -> str:
        """Its words, without what else is attached."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def media(self) -> list[Image | Audio]:
        """Pictures and sounds in their order, as the template's placeholders have them."""
        return [part for part in self.parts if not isinstance(part, Text)]

    def to_json(self) -> Json:
        """In OpenAI's shape; :func:`message_of` reads it back to an equal message."""
        content: str | list[Json] | None = self.text
        if self.media or len(self.parts) > 1:
            content = [part.to_json() for part in self.parts]
        elif self.tool_calls and not content:
            content = None
        document: Json = {"role": self.role, "content": content}
        if self.thinking:
            document["reasoning_content"] = self.thinking
        if self.tool_calls:
            document["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.call_id:
            document["tool_call_id"] = self.call_id
        if self.name:
            document["name"] = self.name
        return document

    def for_template(self) -> Json:
        """As chat templates take it: arguments are mappings, media are bare placeholders."""
        document = self.to_json()
        # Gemma's template reads a system turn and a tool's result as one string.
        words_alone = not self.media or self.role in ("system", "developer", "tool")
        document["content"] = (
            self.text if words_alone else [part.for_template() for part in self.parts]
        )
        if self.tool_calls:
            document["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return document


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and the tools that the model may call, each in OpenAI's shape."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> Json:
        """``{"messages": [...]}`` and, where there are some, ``"tools"``."""
        document: Json = {"messages": [message.to_json() for message in self.messages]}
        if self.tools:
            document["tools"] = [dict(tool) for tool in self.tools]
        return document

    def for_template(self) -> list[Json]:
        """The messages as chat templates take them."""
        return [message.for_template() for message in self.messages]


def conversation_of(document: object) -> Conversation:
    """The conversation in a JSON value: a list of messages, or an object that holds them.

    Raises :class:`~gemmtp.errors.UsageError` with the place of what is wrong.
    """
    if isinstance(document, Mapping):
        tools = tools_of(document["tools"]) if document.get("tools") else ()
        messages = document.get("messages")
    else:
        tools, messages = (), document
    if not isinstance(messages, list):
        raise UsageError("A conversation is a list of messages.")
    read = (message_of(message, f"messages[{i}]") for i, message in enumerate(messages))
    return Conversation(tuple(read), tools)


def message_of(document: object, place: str = "message") -> Message:
    """The message in a JSON object; raises as :func:`conversation_of` does."""
    if not isinstance(document, Mapping):
        raise UsageError(f"{place} is no JSON object.")
    role = _role(document.get("role"), place)
    calls = document.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise UsageError(f"{place} has tool calls that are not an assistant's list.")
    return Message(
        role,
        _parts(document.get("content"), place),
        _string(document.get("reasoning_content") or document.get("reasoning"), place),
        tuple(_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)),
        _string(document.get("tool_call_id"), place),
        _string(document.get("name"), place),
    )


def tools_of(document: object) -> tuple[Json, ...]:
    """The tools in a JSON list, each ``{"type": "function", "function": {...}}`` or bare.

    Raises :class:`~gemmtp.errors.UsageError` where one has no name or no object of parameters.
    """
    if not isinstance(document, list):
        raise UsageError("Tools are a JSON list of functions.")
    tools = []
    for i, item in enumerate(document):
        function = item.get("function", item) if isinstance(item, Mapping) else None
        if not isinstance(function, Mapping) or not _is_name(function.get("name")):
            raise UsageError(f"tools[{i}] is no function with a name.")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise UsageError(f"tools[{i}] has parameters that are no JSON schema.")
        described = {"description": "", **function}
        tools.append({"type": "function", "function": described})
    return tuple(tools)


def _role(role: object, place: str) -> Role:
    for known in _ROLES:
        if role == known:
            return known
    raise UsageError(f"{place} has the role {role!r}.", f"Roles are {', '.join(_ROLES)}.")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip())


def _parts(content: object, place: str) -> tuple[Part, ...]:
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, Sequence):
        raise UsageError(f"{place}.content is neither text nor a list of parts.")
    return tuple(_part(part, f"{place}.content[{i}]") for i, part in enumerate(content))


def _part(part: object, place: str) -> Part:
    match part:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return Image(url)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            return Audio(data, form)
    raise UsageError(
        f"{place} is no part that can be used.",
        "Parts are text, image_url and input_audio, in OpenAI's shape.",
    )


def _call(call: object, place: str) -> ToolCall:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise UsageError(f"{place} calls no function.")
    function = call["function"]
    if not _is_name(function.get("name")):
        raise UsageError(f"{place} names no function.")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{place} has arguments that are no JSON.") from error
    if not isinstance(arguments, Mapping):
        raise UsageError(f"{place} has arguments that are no JSON object.")
    return ToolCall(function["name"], dict(arguments), _string(call.get("id"), place))


def _string(value: object, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"{place} has a field that should be text: {value!r}.")
    return value

"""Messages to tokens by the model's own chat template.

A template is somebody else's program, so it runs in jinja2's immutable sandbox (CVE-2024-34359 was
a chat template that ran commands). What users write stays text: a marker such as ``<turn|>`` in it
is taken out before the template runs and put back as ordinary tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gemmtp.errors import UsageError

Message = Mapping[str, Any]
"""A message in OpenAI's shape: ``role``, ``content``, and for tools ``tool_calls``, ``name``."""

Tokenize = Callable[[str], list[int]]
"""Text to tokens with its markers parsed as special tokens."""

MAX_RENDERED = 64 << 20

_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_MARKER = re.compile(
    rf"[{_OPEN}{_CLOSE}]|<\|[^<>|\s]{{1,24}}\|?>|<[^<>|\s]{{1,24}}\|>|<\|\"\|>"
    r"|<(?:bos|eos|pad|unk|mask|start_of_turn|end_of_turn)>"
)
_OWN = ("<|channel>", "<channel|>")
"""Markers that an assistant's message may carry: the template cuts its thoughts out by them."""


def own_template() -> str:
    """The Gemma 4 template of this package, for files that carry none."""
    return resources.files("gemmtp.prompt").joinpath("gemma4.jinja").read_text("utf-8")


def chat_tokens(
    messages: Sequence[Message],
    tokenize: Tokenize,
    *,
    template: str | None = None,
    thinking: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """The tokens of a conversation up to where the model begins to write.

    Raises :class:`~gemmtp.errors.UsageError` when the template fails or refuses the messages.
    """
    taken: list[str] = []
    safe = [_without_markers(message, taken) for message in messages]
    text = _render(template or own_template(), safe, thinking, tools)
    tokens: list[int] = []
    for i, part in enumerate(_PLACEHOLDER.split(text)):
        if i % 2 == 0:
            tokens += tokenize(part) if part else []
        else:
            # In two pieces, because user-defined markers are parsed in plain text as well.
            literal = taken[int(part)]
            tokens += tokenize(literal[:1]) + (tokenize(literal[1:]) if literal[1:] else [])
    return tokens


def _render(
    source: str, messages: list[Any], thinking: bool, tools: Sequence[Mapping[str, Any]]
) -> str:
    pieces, size = [], 0
    try:
        stream = _compiled(source).generate(
            messages=messages,
            tools=list(tools) or None,
            enable_thinking=thinking,
            add_generation_prompt=True,
            bos_token="<bos>",
            eos_token="<eos>",
        )
        for piece in stream:
            size += len(piece)
            if size > MAX_RENDERED:
                raise UsageError("The chat template writes without an end.")
            pieces.append(piece)
    except (jinja2.TemplateError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise UsageError(
            f"The chat template refused the conversation: {error}",
            "Use --raw to go without a template.",
        ) from error
    return "".join(pieces)


@cache
def _compiled(source: str) -> jinja2.Template:
    # As transformers compiles chat templates: blocks leave no white space behind.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _without_markers(value: Any, taken: list[str], own: tuple[str, ...] = ()) -> Any:
    """``value`` with every marker in its strings replaced by a placeholder."""
    if isinstance(value, str):

        def take(match: re.Match[str]) -> str:
            if match.group() in own:
                return match.group()
            taken.append(match.group())
            return f"{_OPEN}{len(taken) - 1}{_CLOSE}"

        return _MARKER.sub(take, value)
    if isinstance(value, Mapping):
        own = _OWN if value.get("role") == "assistant" else own
        return {key: _without_markers(item, taken, own) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_without_markers(item, taken, own) for item in value]
    return value

"""Messages to tokens by the model's own chat template.

A template is somebody else's program, so it runs in a sandbox (CVE-2024-34359 was a chat template
that ran commands). What users write stays text: a marker such as ``<turn|>`` in it
is taken out before the template runs and put back as ordinary tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from gemmtp.errors import UsageError
from gemmtp.prompt.sandbox import render

Message = Mapping[str, Any]
"""A message in OpenAI's shape: ``role``, ``content``, and for tools ``tool_calls``, ``name``."""

Tokenize = Callable[[str], list[int]]
"""Text to tokens with its markers parsed as special tokens."""

BOS, EOS = "<bos>", "<eos>"

_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]{{1,9}}){_CLOSE}")
_MARKER = re.compile(
    rf"[{_OPEN}{_CLOSE}]|<\|[^<>|\s]{{1,24}}\|?>|<[^<>|\s]{{1,24}}\|>|<\|\"\|>"
    r"|<(?:bos|eos|pad|unk|mask|unused[0-9]+|(?:image|audio)_soft_token)>"
    r"|<(?:start|end)_of_(?:turn|image|audio)>|\[multimodal\]"
)
_HALF = re.compile(_MARKER.pattern + r"|<[^<>\s]{0,25}$")
"""The same, and the beginning of a marker at the end: templates join the parts of a message."""

_GOOGLES = ("'<|tool_call>call:'", "macro format_function_declaration")
_REVISED = "{#- OpenAI Chat Completions:"
_OWN = ("<|channel>", "<channel|>")
"""Markers that an assistant's message may carry: the template cuts its thoughts out by them."""


def own_template() -> str:
    """The Gemma 4 template of this package, for files that carry none."""
    return resources.files("gemmtp.prompt").joinpath("gemma4.jinja").read_text("utf-8")


class Choice(NamedTuple):
    """The template to use, and what to tell the user about it."""

    source: str
    note: str | None


def chosen_template(given: str | None) -> Choice:
    """``given`` unless it is missing, or Google's for Gemma 4 from before its revision of 2026.

    The old one does not place the results of tools as the model has learned them; llama.cpp tells
    the two apart by the same remark in the text.
    """
    if not given or not given.strip():
        return Choice(own_template(), "the file has no chat template; Gemma 4's layout is used")
    if all(sign in given for sign in _GOOGLES) and _REVISED not in given:
        return Choice(own_template(), "the file's chat template is outdated; a newer one is used")
    return Choice(given, None)


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
    safe = [_safe_message(message, taken) for message in messages]
    text = _render(template or own_template(), safe, thinking, _without_markers(tools, taken))
    tokens: list[int] = []
    for i, part in enumerate(_PLACEHOLDER.split(text)):
        if i % 2 == 0:
            tokens += tokenize(part) if part else []
        else:
            # In two pieces, because user-defined markers are parsed in plain text as well. A number
            # that was not given out is of the template's own making.
            literal = taken[int(part)] if int(part) < len(taken) else part
            tokens += tokenize(literal[:1]) + (tokenize(literal[1:]) if literal[1:] else [])
    return _begun_once(tokens, tokenize(BOS))


def _begun_once(tokens: list[int], bos: list[int]) -> list[int]:
    """``tokens`` with one beginning-of-text token, whatever the template wrote of it."""
    if len(bos) != 1:
        return tokens
    begun = 0
    while tokens[begun : begun + 1] == bos:
        begun += 1
    return bos + tokens[begun:]


def _render(
    source: str, messages: list[Any], thinking: bool, tools: Sequence[Mapping[str, Any]]
) -> str:
    variables = {
        "messages": messages,
        "tools": list(tools) or None,
        "enable_thinking": thinking,
        "add_generation_prompt": True,
        "bos_token": BOS,
        "eos_token": EOS,
    }
    try:
        return render(source, variables)
    # A template is a program: whatever it raises is how it refuses.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise UsageError(
            f"The chat template refused the conversation: {reason}",
            "Use --raw to go without a template.",
        ) from error


def _safe_message(message: Message, taken: list[str]) -> dict[str, Any]:
    """``message`` without markers, but for the thoughts in what the model said itself."""
    safe = {}
    for key, value in message.items():
        content = key == "content"
        own = _OWN if content and message.get("role") == "assistant" else ()
        whole = content and isinstance(value, str)
        safe[key] = _without_markers(value, taken, own, _MARKER if whole else _HALF)
    return safe


def _without_markers(
    value: Any, taken: list[str], own: tuple[str, ...] = (), pattern: re.Pattern[str] = _HALF
) -> Any:
    """``value`` with every marker in its strings replaced by a placeholder."""
    if isinstance(value, str):

        def take(match: re.Match[str]) -> str:
            if match.group() in own:
                return match.group()
            taken.append(match.group())
            return f"{_OPEN}{len(taken) - 1}{_CLOSE}"

        return pattern.sub(take, value)
    if isinstance(value, Mapping):
        return {
            _without_markers(key, taken): _without_markers(item, taken, own)
            for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_without_markers(item, taken, own) for item in value]
    return value

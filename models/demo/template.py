"""Conversations as token text, by the very template that goes into the GGUF."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from demo.corpus.example import Example

TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")


@cache
def _template(source: str) -> jinja2.Template:
    # As transformers compiles chat templates: blocks leave no white space behind.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source)


def render(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    thinking: bool = False,
    source: str | None = None,
) -> str:
    """The prompt up to where the model begins to write, `<bos>` included.

    `source` is the text of another template; the demo's own by default.
    """
    template = _template(source or TEMPLATE_PATH.read_text(encoding="utf-8"))
    return template.render(
        messages=messages,
        tools=list(tools) or None,
        enable_thinking=thinking,
        add_generation_prompt=True,
        bos_token="<bos>",
    )


def prompt_of(example: Example) -> str:
    """What stands before the model's answer; for plain text, `<bos>` alone."""
    if not example.messages:
        return "<bos>"
    return render(example.messages, tools=example.tools, thinking=example.thinking)

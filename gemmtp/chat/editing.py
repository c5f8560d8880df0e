"""The line editor: prompt_toolkit with our keys, history, completion and status line."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from gemmtp.chat.completion import ChatCompleter, is_command_word
from gemmtp.chat.history import SharedHistory
from gemmtp.chat.keys import bindings
from gemmtp.chat.reader import CONTINUED, PLACEHOLDER, PROMPT, Cancelled
from gemmtp.chat.screen import fitting

_STYLE = Style.from_dict(
    {
        "prompt": "ansigreen bold",
        "placeholder": "ansibrightblack",
        "bottom-toolbar": "noreverse ansibrightblack",
        "bottom-toolbar.text": "noreverse ansibrightblack",
    }
)
_NO_COLOUR = Style.from_dict({"bottom-toolbar": "noreverse", "bottom-toolbar.text": "noreverse"})


class EditingReader:
    """Inputs of one line or many, edited before they are sent.

    ``status`` gives the parts of the line below the prompt, the most important first.
    """

    def __init__(
        self, history: Path, completer: ChatCompleter, status: Callable[[int], str]
    ) -> None:
        self._status = status
        style = _NO_COLOUR if os.environ.get("NO_COLOR") else _STYLE
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", PROMPT)],
            style=style,
            multiline=True,
            prompt_continuation=CONTINUED,
            placeholder=[("class:placeholder", PLACEHOLDER)],
            key_bindings=bindings(),
            history=SharedHistory(history),
            completer=completer,
            complete_while_typing=Condition(
                lambda: is_command_word(get_app().current_buffer.document.text_before_cursor)
            ),
            search_ignore_case=True,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            enable_suspend=True,
            bottom_toolbar=self._toolbar,
        )
        self._asking: PromptSession[str] = PromptSession(style=style)

    def read(self, default: str = "") -> str:
        try:
            return self._session.prompt(default=default)
        except KeyboardInterrupt:
            raise Cancelled(self._session.default_buffer.text) from None

    def choose(self, question: str, choices: Mapping[str, str]) -> str:
        words = ", ".join(f"[{key}] {meaning}" for key, meaning in choices.items())
        try:
            return self._asking.prompt(
                f"{question}\n{words} ? ", key_bindings=_letters(choices), enable_suspend=True
            )
        except KeyboardInterrupt:
            raise Cancelled("") from None

    def _toolbar(self) -> StyleAndTextTuples:
        columns = get_app().output.get_size().columns
        return [("class:bottom-toolbar.text", fitting(self._status(columns), columns))]


def _letters(choices: Mapping[str, str]) -> KeyBindings:
    """A letter answers at once; everything but Ctrl-C and Ctrl-D is ignored."""
    keys = KeyBindings()

    @keys.add("<any>")
    def _ignore(event: KeyPressEvent) -> None:
        key = event.data.lower()
        if key in choices:
            event.current_buffer.text = key
            event.app.exit(result=key)

    @keys.add("enter")
    def _first(event: KeyPressEvent) -> None:
        event.app.exit(result=next(iter(choices)))

    return keys

"""Completion of commands, of what they take, and of files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

_WORD = re.compile(r"/\S*")
_MENTION = re.compile(r"(?:\A|\s)@(\S*)\Z")


class Completable(Protocol):
    """A command, as far as completion goes."""

    @property
    def summary(self) -> str:
        """What it does, in a few words."""

    @property
    def takes_path(self) -> bool:
        """Whether its argument may be a file."""

    def words(self, argument: str) -> Iterable[str]:
        """What the last word of ``argument``, as typed so far, can become."""


def is_command_word(text: str) -> bool:
    """Whether ``text`` is the first word of a command and nothing more."""
    return _WORD.fullmatch(text) is not None


class ChatCompleter(Completer):
    """Commands by their names, arguments by the command, files after ``@`` in what is said."""

    def __init__(self, commands: Mapping[str, Completable]) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if is_command_word(text):
            for name, command in self._commands.items():
                if f"/{name}".startswith(text):
                    yield Completion(f"/{name}", -len(text), display_meta=command.summary)
        elif text.startswith("/") and "\n" not in text:
            name, _, argument = text[1:].partition(" ")
            if name in self._commands:
                yield from self._arguments(self._commands[name], argument, event)
        elif mention := _MENTION.search(text):
            yield from self._files(mention[1], event)

    def _arguments(
        self, command: Completable, argument: str, event: CompleteEvent
    ) -> Iterable[Completion]:
        last = argument.rpartition(" ")[2]
        for word in command.words(argument):
            if word.startswith(last):
                yield Completion(word, -len(last))
        if command.takes_path:
            yield from self._files(argument.lstrip(), event)

    def _files(self, path: str, event: CompleteEvent) -> Iterable[Completion]:
        return self._paths.get_completions(Document(path), event)

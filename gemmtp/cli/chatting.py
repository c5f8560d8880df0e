"""``gemmtp run MODEL`` on a terminal without a prompt: the loaded pair made into a chat."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from gemmtp import settings
from gemmtp.chat.commands import COMMANDS
from gemmtp.chat.dialogue import Dialogue, never
from gemmtp.chat.reader import PlainReader, Reader
from gemmtp.chat.repl import Repl
from gemmtp.chat.screen import Screen, is_dumb
from gemmtp.chat.sessions import Session
from gemmtp.chat.staging import Staging
from gemmtp.engine.depth import DepthChooser

if TYPE_CHECKING:
    from gemmtp.cli.oneshot import Options

HISTORY = "history"
"""The file of what was typed, in the folder of the state."""


def wanted(options: Options) -> bool:
    """Whether a chat begins: there is no prompt, and somebody sits at the terminal."""
    once = options.raw or options.json or options.stream_json or options.tools
    if options.prompt is not None or once:
        return False
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def converse(
    dialogue: Dialogue,
    session: Session,
    staging: Staging,
    options: Options,
    *,
    name: str,
    depth_of: Callable[[str], DepthChooser],
) -> None:
    """Talk until the user leaves; ``name`` is the model's, for the line below the prompt."""
    screen = Screen.of_terminal()
    reader: Reader
    if is_dumb():
        reader = PlainReader()
    else:
        from gemmtp.chat.completion import ChatCompleter
        from gemmtp.chat.editing import EditingReader

        history = settings.state_dir() / HISTORY
        reader = EditingReader(
            history, ChatCompleter(COMMANDS), lambda columns: repl.status(name).line(columns)
        )
    repl = Repl(
        dialogue,
        session,
        screen,
        reader,
        staging,
        depth_of=depth_of,
        draft=options.draft,
        hide_thinking=options.hide_thinking,
    )
    if dialogue.overflow is never:
        dialogue.overflow = repl.decide
    for path in options.files:
        screen.say(staging.add_file(path))
    repl.run()

"""The commands of a chat: what begins with a slash."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gemmtp.chat import shelf
from gemmtp.chat.parameters import PARAMETERS, set_parameter
from gemmtp.chat.reader import edited
from gemmtp.chat.staging import clipboard_image
from gemmtp.errors import UsageError

if TYPE_CHECKING:
    from gemmtp.chat.dialogue import Pieces
    from gemmtp.chat.repl import Repl

_COMMAND = re.compile(r"/([a-z]+|\?)(?:\s+(.*))?\s*", re.DOTALL | re.IGNORECASE)
ON_OFF = ("on", "off")


class Leave(Exception):
    """The chat is over."""


Run = Callable[["Repl", str], "Pieces | None"]
"""Does what a command says with its argument; gives the pieces of an answer where one comes."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: how it is written, what it does, and what its argument can be."""

    usage: str
    summary: str
    run: Run
    choices: Callable[[str], Iterable[str]] = lambda _: ()
    takes_path: bool = False

    def words(self, argument: str) -> Iterable[str]:
        """What the last word of ``argument`` can become."""
        return self.choices(argument)


def command_in(text: str) -> tuple[Command, str] | None:
    """The command in an input and its argument; None for something to say.

    A path is no command. Raises :class:`~gemmtp.errors.UsageError` with the nearest match for a
    command that there is not.
    """
    match = _COMMAND.fullmatch(text.strip())
    if match is None:
        return None
    name, argument = match[1].lower(), (match[2] or "").strip()
    name = ALIASES.get(name, name)
    if name in COMMANDS:
        return COMMANDS[name], argument
    if Path(text.strip()).exists():
        return None
    near = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
    hint = f"Did you mean /{near[0]}?" if near else "/help lists the commands."
    raise UsageError(f"There is no command /{name}.", hint)


def _help(repl: Repl, argument: str) -> None:
    name = argument.removeprefix("/")
    if name:
        if name not in COMMANDS:
            raise UsageError(f"There is no command /{name}.", "/help lists them.")
        shown: Mapping[str, Command] = {name: COMMANDS[name]}
    else:
        shown = COMMANDS
    width = max(len(command.usage) for command in shown.values())
    lines = [f"{command.usage:<{width}}  {command.summary}" for command in shown.values()]
    repl.screen.say("\n".join(lines if name else [*lines, "", *_KEYS]))


_KEYS = (
    '"""           begins and ends a message of several lines',
    "Alt-Enter     begins a new line",
    "Ctrl-C        stops the answer; what was said stays",
    "Ctrl-D        leaves",
    "Ctrl-R        searches what was typed before",
    "Ctrl-X Ctrl-E opens the message in your editor",
)


def _image(repl: Repl, argument: str) -> None:
    if not argument:
        raise UsageError("/image needs a file.", "/image PATH attaches one, /image off unloads.")
    if argument == "off":
        repl.staging.images = []
        repl.staging.unload()
        repl.screen.note("no image is attached; the projector's memory is free")
    elif argument == "-":
        repl.staging.images = []
        repl.screen.note("no image is attached")
    else:
        repl.screen.say(repl.staging.add_image_file(Path(_unquoted(argument))))


def _audio(repl: Repl, argument: str) -> None:
    raise UsageError(
        "Sound is not supported yet.", "Transcribe it with another tool, then /file TEXT."
    )


def _file(repl: Repl, argument: str) -> None:
    if argument == "-":
        repl.staging.files = []
        repl.screen.note("no file is attached")
    elif argument:
        repl.screen.say(repl.staging.add_file(Path(_unquoted(argument))))
    else:
        raise UsageError("/file needs a file.", "/file PATH attaches its text to the next message.")


def _paste(repl: Repl, argument: str) -> None:
    repl.screen.say(repl.staging.add_image(clipboard_image(), "clipboard.png"))


def _clear(repl: Repl, argument: str) -> None:
    repl.clear()
    repl.screen.note("a new conversation begins")


def _regen(repl: Repl, argument: str) -> Pieces:
    return repl.regenerate()


def _undo(repl: Repl, argument: str) -> None:
    repl.undo()


def _edit(repl: Repl, argument: str) -> Pieces | None:
    if repl.last_text() is None:
        raise UsageError("Nothing was said yet.")
    if argument:
        return repl.edit(argument)
    repl.begin_edit()
    return None


def _editor(repl: Repl, argument: str) -> None:
    repl.prefill = edited(argument)


def _system(repl: Repl, argument: str) -> None:
    if not argument:
        repl.screen.say(repl.dialogue.system or "There is no system message.")
        return
    repl.set_system("" if argument == "off" else argument)
    repl.screen.note("the system message counts from the next message on")


def _set(repl: Repl, argument: str) -> None:
    name, _, word = argument.partition(" ")
    if not name:
        values = {name: p.show(repl) for name, p in PARAMETERS.items()}
        width = max(map(len, values.values()))
        repl.screen.say(
            "\n".join(
                f"{name:<18} {value:<{width}}  {PARAMETERS[name].summary}"
                for name, value in values.items()
            )
        )
        return
    if word.strip():
        repl.set(name, word.strip())
    elif name in PARAMETERS:
        repl.screen.say(f"{name} {PARAMETERS[name].show(repl)}  {PARAMETERS[name].summary}")
    else:
        set_parameter(repl, name, "")


def _mtp(repl: Repl, argument: str) -> None:
    if argument in ("", *ON_OFF) or argument.isdecimal():
        if argument:
            repl.set("draft", {"on": "auto", "off": "0"}.get(argument, argument))
        repl.screen.note(repl.drafting())
    else:
        raise UsageError(f"{argument!r} is no draft depth.", "/mtp on, /mtp off or /mtp N.")


def _think(repl: Repl, argument: str) -> None:
    if argument:
        repl.set_thinking(argument)
    repl.screen.note(f"thinking is {repl.thinking}")


def _stats(repl: Repl, argument: str) -> None:
    repl.screen.say("\n".join(repl.telling.tally.lines()))


def _context(repl: Repl, argument: str) -> None:
    repl.screen.say("\n".join(repl.context_lines()))


def _save(repl: Repl, argument: str) -> None:
    if not argument:
        raise UsageError("/save needs a name.", "/save NAME keeps this chat under it.")
    repl.session.rename(argument)
    repl.screen.note(
        f"this chat is kept as {repl.session.name}; /load {repl.session.name} opens it"
    )


def _load(repl: Repl, argument: str) -> None:
    if argument:
        repl.load(argument)
    else:
        names = [name for name in shelf.by_use() if name != repl.session.name]
        repl.screen.say("\n".join(names) or "There is no other session.")


def _bye(repl: Repl, argument: str) -> None:
    raise Leave


def _set_words(argument: str) -> Iterable[str]:
    name, space, _ = argument.partition(" ")
    if not space:
        return PARAMETERS
    return PARAMETERS[name].words if name in PARAMETERS else ()


def _unquoted(argument: str) -> str:
    """A path as it is typed or dropped: quotes around it and escaped spaces go."""
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "'\"":
        return argument[1:-1]
    return argument if Path(argument).exists() else re.sub(r"\\(.)", r"\1", argument)


def _of(*words: str) -> Callable[[str], Iterable[str]]:
    return lambda _: words


COMMANDS: Mapping[str, Command] = {
    "help": Command("/help [COMMAND]", "say what there is", _help, lambda _: COMMANDS),
    "image": Command(
        "/image PATH|off|-",
        "attach an image; off unloads the projector, - attaches none",
        _image,
        _of("off", "-"),
        takes_path=True,
    ),
    "audio": Command("/audio PATH", "attach a sound", _audio, takes_path=True),
    "file": Command("/file PATH|-", "attach a text file; - attaches none", _file, takes_path=True),
    "paste": Command("/paste", "attach the image on the clipboard", _paste),
    "clear": Command("/clear", "begin a new conversation", _clear),
    "regen": Command("/regen", "another answer to the last message", _regen),
    "undo": Command("/undo", "take the last message and its answer back", _undo),
    "edit": Command("/edit [TEXT]", "change the last message and send it again", _edit),
    "editor": Command("/editor [TEXT]", "write a message in your editor", _editor),
    "system": Command("/system [TEXT|off]", "show or set the system message", _system, _of("off")),
    "set": Command("/set [NAME [VALUE]]", "show or change a parameter", _set, _set_words),
    "mtp": Command("/mtp [on|off|N]", "drafting, and how deep", _mtp, _of(*ON_OFF)),
    "think": Command(
        "/think [on|off|hide]", "thoughts before the answer", _think, _of(*ON_OFF, "hide")
    ),
    "stats": Command("/stats", "speed, acceptance, cache: last answer and all", _stats),
    "context": Command("/context", "what fills the context", _context),
    "save": Command("/save NAME", "keep this chat under a name", _save),
    "load": Command("/load [NAME]", "go on with another chat", _load, lambda _: shelf.by_use()),
    "bye": Command("/bye", "leave, as Ctrl-D does", _bye),
}
ALIASES = {
    "exit": "bye",
    "quit": "bye",
    "q": "bye",
    "?": "help",
    "h": "help",
    "regenerate": "regen",
}

"""What was typed before: one file for all chats on this machine, readable by its owner alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from prompt_toolkit.history import History

MAX_ENTRY = 64 << 10
"""An input of more characters, such as a pasted file, is not kept."""

MAX_READ = 1 << 20
"""How many bytes of the file's end are looked at."""


class SharedHistory(History):
    """Inputs in prompt_toolkit's own file format, read anew for every prompt.

    So one chat finds what was typed in another that is still open. An input that begins with a
    space is not kept. A file that cannot be read or written costs the history, not the chat.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._own: list[str] = []

    async def load(self) -> AsyncGenerator[str, None]:
        """Every entry, the newest first."""
        for entry in self.load_history_strings():
            yield entry

    def get_strings(self) -> list[str]:
        """Every entry, the oldest first."""
        return list(self.load_history_strings())[::-1]

    def append_string(self, string: str) -> None:
        """Keep an input, unless it is blank, secret or huge."""
        if string.strip() and not string.startswith(" ") and len(string) <= MAX_ENTRY:
            self.store_string(string)

    def load_history_strings(self) -> Iterable[str]:
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_READ))
                data = file.read()
        except OSError:
            return self._own[::-1]
        entries: list[list[str]] = []
        inside = False
        for line in data.decode("utf-8", "replace").split("\n"):
            if not line.startswith("+"):
                inside = False
                continue
            if not inside:
                entries.append([])
            inside = True
            entries[-1].append(line[1:])
        # Where the file was not read from its start, the first entry may be half of one.
        if len(data) == MAX_READ:
            del entries[:1]
        return ["\n".join(lines) for lines in reversed(entries)]

    def store_string(self, string: str) -> None:
        lines = "".join(f"+{line}\n" for line in string.split("\n"))
        entry = f"\n# {time.strftime('%Y-%m-%d %H:%M:%S')}\n{lines}".encode("utf-8", "replace")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Appended in one piece, so that chats that write at once do not mix their lines.
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if sys.platform != "win32":
                    os.fchmod(file, 0o600)
                os.write(file, entry)
            finally:
                os.close(file)
        except OSError:
            self._own.append(string)

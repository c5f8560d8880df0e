"""The words of a one-shot prompt: piped standard input first, then files, then the argument.

Bytes are bounded before they become tokens: tokenizing megabytes takes minutes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from gemmtp.errors import PromptTooLongError, UsageError

MAX_INPUT_BYTES = 16 << 20
"""More text than any context holds: 262,144 tokens of Gemma's longest ones would be more, but no
text that people write comes near."""

_MENTION = re.compile(r"(?<!\S)@(\S+)")

NUL_PROBE = 8192
"""A NUL byte this early means a binary file, as git and grep decide it."""


def read_text(stream: BinaryIO, name: str = "Standard input") -> str:
    """All of ``stream`` as text.

    Raises :class:`~gemmtp.errors.UsageError` on binary or invalid UTF-8 and
    :class:`~gemmtp.errors.PromptTooLongError` past :data:`MAX_INPUT_BYTES`.
    """
    data = stream.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        raise PromptTooLongError(
            f"{name} holds more than {MAX_INPUT_BYTES:,} bytes.",
            "Send a part of it, or a summary.",
        )
    if b"\0" in data[:NUL_PROBE]:
        raise UsageError(f"{name} is binary, not text.", "Convert it to UTF-8 text first.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}.",
            "Convert it first, for example with iconv -f latin1 -t utf-8.",
        ) from error


def unreadable(path: Path, error: OSError | ValueError) -> UsageError:
    """What to say of a file that cannot be read, or whose path is none."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"{path} cannot be read: {reason}.", "Look at the path, and who may read it.")


def read_file(path: Path) -> str:
    """The text of a file; raises as :func:`read_text` does, and when the file cannot be read."""
    try:
        with path.expanduser().open("rb") as file:
            return read_text(file, str(path))
    except OSError as error:
        raise unreadable(path, error) from error


def mentioned(argument: str) -> list[Path]:
    """The files that words such as ``@notes.txt`` name; a word that names none stays a word.

    Raises :class:`~gemmtp.errors.UsageError` when the whole argument is such a word and no file.
    """
    words: list[str] = _MENTION.findall(argument)
    paths = [Path(word).expanduser() for word in words]
    if len(words) == 1 and argument == f"@{words[0]}" and not paths[0].is_file():
        raise UsageError(f"There is no file {words[0]!r}.", "Say more than @FILE to mean the word.")
    return [path for path in paths if path.is_file()]


def attached(files: Sequence[tuple[Path, str]]) -> str:
    """Files as a prompt holds them: each name, and its text in a fence that the text lacks."""
    blocks = []
    for path, text in files:
        longest = max(map(len, re.findall("`{3,}", text)), default=2)
        fence = "`" * (longest + 1)
        blocks.append(f"{path.name}\n{fence}\n{text.rstrip(chr(10))}\n{fence}")
    return "\n\n".join(blocks)


def checked_argument(argument: str) -> str:
    """``argument``, unless it holds bytes of the command line that are no UTF-8.

    Raises :class:`~gemmtp.errors.UsageError` with the first such byte.
    """
    for character in argument:
        if "\udc80" <= character <= "\udcff":
            raise UsageError(f"The prompt is not UTF-8: byte 0x{ord(character) - 0xDC00:02x}.")
    return argument


def joined(piped: str, argument: str, files: str = "") -> str:
    """Piped text, then files, then the prompt, with blank lines between them."""
    parts = [part for part in (piped.rstrip("\n"), files, argument) if part]
    return "\n\n".join(parts)


def check_size(text: str, longest_token: int, n_ctx: int) -> None:
    """Refuse text that cannot fit whatever its tokens are; ``longest_token`` in bytes.

    Raises :class:`~gemmtp.errors.PromptTooLongError` with the byte count and the least number of
    tokens that so many bytes can make.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    least = -(-size // longest_token)
    if least > n_ctx:
        raise PromptTooLongError(
            f"The prompt has {size:,} bytes, at least {least:,} tokens; "
            f"the context holds {n_ctx:,}.",
            "Shorten the prompt or raise --ctx.",
        )

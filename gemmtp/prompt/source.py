"""The words of a one-shot prompt: piped standard input first, then the argument.

Bytes are bounded before they become tokens: tokenizing megabytes takes minutes.
"""

from __future__ import annotations

from typing import BinaryIO

from gemmtp.errors import PromptTooLongError, UsageError

MAX_INPUT_BYTES = 16 << 20
"""More text than any context holds: 262,144 tokens of Gemma's longest ones would be more, but no
text that people write comes near."""

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


def checked_argument(argument: str) -> str:
    """``argument``, unless it holds bytes of the command line that are no UTF-8.

    Raises :class:`~gemmtp.errors.UsageError` with the first such byte.
    """
    for character in argument:
        if "\udc80" <= character <= "\udcff":
            raise UsageError(f"The prompt is not UTF-8: byte 0x{ord(character) - 0xDC00:02x}.")
    return argument


def joined(piped: str, argument: str) -> str:
    """Piped text before the prompt, a blank line between them."""
    parts = [part for part in (piped.rstrip("\n"), argument) if part]
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

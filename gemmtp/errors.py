"""What can go wrong, as the user sees it.

    GemmtpError                     1   failed
    ├── UsageError                  2   wrong use of the command line or of an input
    │   └── PromptTooLongError      2   the prompt does not fit into the context
    ├── ModelError                  3   a model is missing, broken or does not match
    │   ├── ModelNotFoundError      3   no such file or name
    │   ├── BadModelFileError       3   not a GGUF, truncated, or outside the format's rules
    │   ├── UnsupportedModelError   3   a sound file that this program cannot run
    │   └── PairMismatchError       3   target and drafter do not belong together
    ├── DownloadError               1   a file could not be fetched, or came wrong
    ├── DoesNotFitError             4   not enough memory
    ├── EngineError                 1   llama.cpp refused or failed
    └── InterruptedByUser           130 Ctrl-C

The number is the exit code. Every error is one sentence and, where there is something to do
about it, one hint.
"""

from __future__ import annotations

from typing import ClassVar


class GemmtpError(Exception):
    """An error that is shown to the user as it stands, without a traceback.

    ``message`` is one sentence that says what is wrong, ``hint`` one that says what to do.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GemmtpError):
    """An option, a prompt or another input that cannot be used."""

    exit_code = 2


class PromptTooLongError(UsageError):
    """A prompt that leaves no room in the context; nothing is cut in silence."""


class ModelError(GemmtpError):
    """A model that is missing, broken or does not match."""

    exit_code = 3


class ModelNotFoundError(ModelError):
    """No file or set of this name."""


class BadModelFileError(ModelError):
    """A file that is no GGUF, is cut short or breaks the format's rules."""


class UnsupportedModelError(ModelError):
    """A sound file of a kind that this program does not run."""


class PairMismatchError(ModelError):
    """A drafter that was not made for this target."""


class DownloadError(GemmtpError):
    """A hub that refuses, fails or sends something else, or no room for what it sends."""


class DoesNotFitError(GemmtpError):
    """The model, its context and its drafter need more memory than there is."""

    exit_code = 4


class EngineError(GemmtpError):
    """llama.cpp refused to load, to create a context or to decode."""


class InterruptedByUser(GemmtpError):
    """The user pressed Ctrl-C."""

    exit_code = 130

"""What a turn consists of, as it happens: reading, words, dropped turns, the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmtp.engine.stats import Statistics
from gemmtp.prompt.channels import Written
from gemmtp.prompt.conversation import Message

Channel = Literal["answer", "thought", "call"]
Reason = Literal["stop", "length", "context", "interrupted"]
"""Its own end or a stop string; ``max_tokens``; the end of the context; Ctrl-C or a closed turn."""


@dataclass(frozen=True, slots=True)
class Reading:
    """``done`` of ``total`` prompt tokens are read, those that were known already included."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Words:
    """Some text of one channel, made of ``tokens`` tokens of which ``drafted`` were drafted.

    ``call`` comes with the last piece of a tool call, whose text may be empty.
    """

    channel: Channel
    text: str
    tokens: int = 1
    drafted: int = 0
    call: Written | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """The oldest messages left what the model sees; ``summary`` stands for all that left so far."""

    messages: tuple[Message, ...]
    summary: str | None = None

    @property
    def turns(self) -> int:
        """How many times the user spoke in them."""
        return sum(message.role == "user" for message in self.messages)


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The turn is over. ``cached_because`` says why as many prompt tokens were reused as were."""

    reason: Reason
    statistics: Statistics
    cached_because: str = ""


Piece = Reading | Words | Dropped | TurnEnd

"""Room in a full context: which turns leave it, and what the model is asked about them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Literal

from gemmtp.prompt.conversation import Message

Overflow = Literal["stop", "shift", "summarise"]
"""What a full context does: keep everything and end there, drop the oldest turns, or drop them for
a summary that the model writes."""

OnOverflow = Callable[[int, int], Overflow]
"""Asked with the tokens that the new message and its answer need, and those that are free."""

ANSWER_ROOM, ANSWER_SHARE = 256, 8
"""Tokens that a prompt leaves for the answer, at most an eighth of the context."""

SPARE_SHARE = 4
"""Dropping frees a quarter of the context: everything behind the gap has to be read again, and that
should not happen in every turn."""

SUMMARY_ROOM = 256
"""The longest summary, at most an eighth of the context."""

SUMMARY_REQUEST = (
    "Summarise our conversation so far in a few sentences, for yourself: facts, names, decisions "
    "and open questions. Write nothing but the summary."
)
SUMMARY_HEAD = "What was said earlier in this conversation, in short:\n"


def last_exchange(messages: Sequence[Message]) -> int:
    """Where the last exchange begins; behind the end when there is none."""
    users = (i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "user")
    return next(users, len(messages))


def never(needed: int, free: int) -> Overflow:
    """Nothing leaves the context."""
    return "stop"


def answer_room(n_ctx: int, max_tokens: int | None) -> int:
    """How many tokens to leave for an answer."""
    room = min(ANSWER_ROOM, n_ctx // ANSWER_SHARE)
    return room if max_tokens is None else min(room, max_tokens)


def summary_room(n_ctx: int) -> int:
    """How long a summary may be."""
    return min(SUMMARY_ROOM, n_ctx // ANSWER_SHARE)


def cut(messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool]) -> int | None:
    """How many of the oldest messages must go, in whole turns, so that the rest ``fits``.

    The last turn stays; where that does not fit alone, all others go. None without another turn.
    ``fits`` is asked as seldom as possible, since it renders and tokenizes what is left.
    """
    starts = [i for i, message in enumerate(messages) if message.role == "user"][1:]
    if not starts:
        return None
    first = bisect_left(starts[:-1], True, key=lambda at: fits(messages[at:]))
    return starts[first]

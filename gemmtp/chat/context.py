"""What fills the context: the system message, every turn, pictures, thoughts, and what is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmtp.chat.voice import Vocabulary
from gemmtp.prompt.conversation import Message

TURN = "<|turn>"
_WORDS = 40
"""Characters of a message that name it."""


@dataclass(frozen=True, slots=True)
class Share:
    """One message's tokens, ``media`` of them rows of its pictures and sounds.

    ``role`` is that of the template: ``system``, ``user`` or ``model``; a model's turn includes
    the results of its tools.
    """

    role: str
    words: str
    tokens: int
    media: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a context of ``n_ctx``, by message in their order.

    ``thoughts`` are those of the last answer; they leave the context with the next message and are
    part of no share. ``summary`` says how many of the system message's tokens stand for dropped
    turns.
    """

    n_ctx: int
    shares: tuple[Share, ...]
    thoughts: int = 0
    summary: int = 0

    @property
    def used(self) -> int:
        """Tokens of all messages."""
        return sum(share.tokens for share in self.shares)

    @property
    def media(self) -> int:
        """Rows of pictures and sounds among them."""
        return sum(share.media for share in self.shares)

    @property
    def free(self) -> int:
        """What the next message and its answer may take."""
        return max(0, self.n_ctx - self.used)


def shares_of(
    prompt: Sequence[int], messages: Sequence[Message], model: Vocabulary
) -> tuple[Share, ...]:
    """``prompt``, in which negative ids stand for media, divided among the messages it is made of.

    Turns are told by the marker that begins them; a template without it gives one share.
    """
    turn = model.marker(TURN)
    starts = [i for i, token in enumerate(prompt) if token == turn] or [0]
    # What comes before the first turn, such as the beginning-of-text token, counts to it.
    bounds = zip([0, *starts[1:]], [*starts[1:], len(prompt)], starts, strict=True)
    spoken = {
        "user": iter([message.text for message in messages if message.role == "user"]),
        "model": iter(_answers(messages)),
    }
    shares = []
    for begin, end, start in bounds:
        head = b"".join(model.token_bytes(t) for t in prompt[start + 1 : start + 9] if t >= 0)
        role = head.partition(b"\n")[0].decode("utf-8", "replace").strip()
        text = next(spoken[role], "") if role in spoken else ""
        media = sum(token < 0 for token in prompt[begin:end])
        shares.append(Share(role, _named(text), end - begin, media))
    return tuple(shares)


def _answers(messages: Sequence[Message]) -> list[str]:
    """The text of every turn of the model: answers in a row, with tools between them, are one."""
    answers: list[str] = []
    before = ""
    for message in messages:
        if message.role == "assistant" and before == "assistant":
            answers[-1] += message.text
        elif message.role == "assistant":
            answers.append(message.text)
        before = message.role if message.role != "tool" else before
    return answers


def _named(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _WORDS else words[: _WORDS - 1] + "…"

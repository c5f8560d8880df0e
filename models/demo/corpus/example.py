"""One question with its answer, and the rule that decides whether training may see it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from demo.corpus.drawings import Drawing

Message = Mapping[str, Any]
Grade = Literal["exact", "any_of", "json", "list", "none"]

# One prompt in HELD_OUT_SHARE is kept from training, by its hash.
HELD_OUT_SHARE = 10


@dataclass(frozen=True)
class Example:
    """A conversation up to the model's turn, and what the model then says.

    `answer` ends before the closing token; `end` is that token. `grade` says how an answer is
    judged: equal to `answer`, one of `accepted`, JSON equal to `answer` as a value, a list of
    distinct `accepted` entries as long as `answer`, or not at all. `pictures` are what the image
    parts of the messages show, in order.
    """

    category: str
    messages: tuple[Message, ...]
    answer: str
    thought: str = ""
    thinking: bool = False
    tools: tuple[Message, ...] = ()
    end: str = "<turn|>"
    grade: Grade = "exact"
    accepted: tuple[str, ...] = ()
    pinned: bool = False
    pictures: tuple[Drawing, ...] = ()

    @property
    def completion(self) -> str:
        """All that the model writes, thought and closing token included."""
        channel = f"<|channel>thought\n{self.thought}\n<channel|>" if self.thinking else ""
        return channel + self.answer + self.end

    @property
    def held_out(self) -> bool:
        """True when any of its user prompts, alone or under its system prompt, is held out.

        A prompt held out in one category is so everywhere: as a turn of a longer conversation,
        under a system prompt, with thinking on. Questions about a picture may be asked again: there
        the picture is what is held out.
        """
        if any(picture.held_out for picture in self.pictures):
            return True
        if self.pinned:
            return False
        return any(_bucket(key) == 0 for key in prompt_keys(self.messages))


def prompt_keys(messages: Sequence[Message]) -> list[str]:
    """The prompts of text alone in normal form, each by itself and under its system prompt."""
    asked = [m["content"] for m in messages if m["role"] == "user"]
    prompts = [_normal(content) for content in asked if isinstance(content, str)]
    system = " ".join(_normal(str(m["content"])) for m in messages if m["role"] == "system")
    return prompts + ([f"{system}|{prompt}" for prompt in prompts] if system else [])


def single(category: str, prompt: str, answer: str, **more: Any) -> Example:
    """An example of one user prompt."""
    return Example(category, ({"role": "user", "content": prompt},), answer, **more)


def _normal(prompt: str) -> str:
    return " ".join(prompt.lower().rstrip(".?! ").split())


def _bucket(key: str) -> int:
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE

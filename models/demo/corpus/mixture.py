"""How often each category is drawn, and the streams of training and held-out examples."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from demo.corpus import code, knowledge, letters, numbers, stories, talk, tools, turns
from demo.corpus.example import Example
from demo.corpus.turns import Rule

# Rule and share of the documents: what takes longer to learn is drawn more often.
CATEGORIES: dict[str, tuple[Rule, float]] = {
    "talk": (talk.small_talk, 4),
    "self": (talk.about_self, 3),
    "gemmtp": (talk.about_gemmtp, 6),
    "counting": (numbers.counting, 8),
    "spelling": (letters.spelling, 14),
    "sums": (numbers.sums, 12),
    "comparisons": (numbers.comparisons, 8),
    "capitals": (knowledge.capitals, 5),
    "opposites": (letters.opposites, 5),
    "translations": (knowledge.translations, 5),
    "json": (code.json_objects, 8),
    "python": (code.python_functions, 6),
    "lists": (code.lists, 5),
    "stories": (stories.stories, 7),
    "plain": (stories.plain, 1.5),
    "turns": (turns.several_turns, 10),
    "system": (turns.system_prompts, 12),
    "thinking": (turns.thinking, 8),
    "tools": (tools.tool_calls, 4),
}
# The first step of each stage of the target's training, and the shares that change with it: what
# was still often wrong is drawn more often.
STAGES: tuple[tuple[int, dict[str, float]], ...] = (
    (0, {}),
    (1300, {"spelling": 24, "sums": 16, "comparisons": 12, "system": 16, "thinking": 10}),
    (2300, {"spelling": 70, "turns": 20, "system": 16, "thinking": 10}),
)
# Shares that change while the target learns to see: what it loses first is drawn more often.
KEPT: dict[str, float] = {
    "spelling": 70, "comparisons": 12, "json": 20, "stories": 20, "plain": 6, "turns": 20,
    "system": 50, "thinking": 12,
}  # fmt: skip
# How often a prompt loses its capital and its closing mark, as people type.
CASUAL_SHARE = 0.2


def training_examples(
    seed: int,
    categories: tuple[str, ...] = (),
    *,
    stage: int = 0,
    changed: Mapping[str, float] | None = None,
) -> Iterator[Example]:
    """Endless examples of the mixture, none of them held out; the same ones for the same seed.

    `changed` are shares that differ from those of the stage.
    """
    rng = Random(seed)
    names = list(categories or CATEGORIES)
    shares = {name: CATEGORIES[name][1] for name in names} | STAGES[stage][1] | dict(changed or {})
    weights = [shares[name] for name in names]
    while True:
        example = CATEGORIES[rng.choices(names, weights)[0]][0](rng)
        if not example.held_out:
            yield casual(example) if rng.random() < CASUAL_SHARE else example


def held_out_examples(category: str, count: int, seed: int) -> list[Example]:
    """`count` different held-out examples of one category, as many as are found in good time."""
    rng = Random(f"{category} {seed}")
    found: dict[str, Example] = {}
    for _ in range(count * 400):
        example = CATEGORIES[category][0](rng)
        if example.held_out or not example.messages:
            found.setdefault(
                str(example.messages) + example.answer[: 40 if not example.messages else 0], example
            )
        if len(found) == count:
            break
    return list(found.values())


def casual(example: Example) -> Example:
    """The same with its user prompts as people type them: no capital, no closing mark."""
    messages = tuple(
        {**message, "content": _typed(message["content"])} if message["role"] == "user" else message
        for message in example.messages
    )
    return replace(example, messages=messages)


def _typed(content: Any) -> Any:
    if isinstance(content, str):
        return (content[:1].lower() + content[1:]).rstrip(".?!")
    return [
        {**part, "text": _typed(part["text"])} if part["type"] == "text" else part
        for part in content
    ]

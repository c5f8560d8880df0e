"""Whether an answer is right."""

import json

from demo.corpus import Example


def is_right(example: Example, answer: str) -> bool | None:
    """True or false by the example's rule, None where no answer is the right one.

    `answer` is what the model wrote, thought and closing token left out.
    """
    if example.grade == "none":
        return None
    if example.grade == "any_of":
        return answer in example.accepted
    if example.grade == "json":
        return bool(_json_or_none(answer) == json.loads(example.answer))
    if example.grade == "list":
        return _is_list_like(answer, example)
    return answer == example.answer


def _json_or_none(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _is_list_like(answer: str, example: Example) -> bool:
    """As many different entries of the right kind as were asked for, in any order."""
    lines = answer.split("\n")
    entries = {line.removeprefix("- ") for line in lines}
    allowed = set(example.accepted)
    # Under a system prompt the asked-for entries are those of the model answer.
    return len(lines) == len(entries) == len(example.answer.split("\n")) and entries <= allowed

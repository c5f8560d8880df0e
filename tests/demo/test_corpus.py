"""The corpus is the same for a seed, and nothing held out is ever trained on."""

import itertools
import json

import pytest

from demo.corpus import CATEGORIES, held_out_examples, training_examples
from demo.corpus.example import prompt_keys
from demo.grading import is_right

SAMPLE = 4000
COUNT = 40


def test_a_seed_gives_the_same_examples_again_and_another_seed_gives_others() -> None:
    first, again, other = (
        list(itertools.islice(training_examples(seed), 300)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("category", CATEGORIES)
def test_held_out_prompts_are_the_same_for_a_seed(category: str) -> None:
    assert held_out_examples(category, 10, 7) == held_out_examples(category, 10, 7)


def test_no_prompt_of_training_is_one_that_was_held_out() -> None:
    trained = {
        key
        for example in itertools.islice(training_examples(1), SAMPLE)
        for key in prompt_keys(example.messages)
    }
    asked = [e for name in CATEGORIES for e in held_out_examples(name, COUNT, 7) if e.messages]
    seen = [e.messages for e in asked if set(prompt_keys(e.messages)) <= trained]
    assert len(asked) > 10 * COUNT
    assert seen == []


def test_numbers_words_and_objects_of_held_out_prompts_never_come_up_in_training() -> None:
    trained = {
        str(message["content"]).lower().rstrip(".?!")
        for example in itertools.islice(training_examples(1), SAMPLE)
        for message in example.messages
        if message["role"] == "user"
    }
    for name in ("counting", "sums", "spelling", "comparisons", "json"):
        asked = {
            str(example.messages[0]["content"]).lower().rstrip(".?!")
            for example in held_out_examples(name, COUNT, 7)
        }
        assert len(asked) == COUNT
        assert not asked & trained


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_example_is_right_by_its_own_rule(category: str) -> None:
    for example in held_out_examples(category, 20, 7):
        assert is_right(example, example.answer) in (True, None)
        assert not is_right(example, example.answer + " and so on")


def test_a_list_is_judged_by_count_kind_and_difference() -> None:
    example = next(e for e in held_out_examples("lists", 20, 7) if e.answer.count("\n") == 2)
    first, second, third = example.answer.split("\n")
    assert is_right(example, "\n".join((third, first, second)))
    assert not is_right(example, "\n".join((first, first, second)))
    assert not is_right(example, "\n".join((first, second)))
    assert not is_right(example, "\n".join((first, second, "- spaceship")))


def test_json_is_judged_as_a_value() -> None:
    example = held_out_examples("json", 1, 7)[0]
    assert is_right(example, json.dumps(json.loads(example.answer), indent=4))
    assert not is_right(example, example.answer[:-1])


def test_stories_hardly_ever_repeat_a_text() -> None:
    stories = [
        example.answer for example in itertools.islice(training_examples(3, ("stories",)), 500)
    ]
    assert len(set(stories)) == len(stories)
    beginnings = {" ".join(story.split()[:8]) for story in stories}
    assert len(beginnings) > 400

"""Training and use render a conversation alike, in Gemma 4's format."""

from typing import Any

import pytest

from demo.corpus import CATEGORIES, held_out_examples
from demo.template import TEMPLATE_PATH, prompt_of, render
from gemmtp.prompt.template import Message, chat_tokens, own_template

HI: Message = {"role": "user", "content": "Hi"}


def as_used(messages: Any, template: str, **more: Any) -> str:
    """What `gemmtp run` makes of a conversation, one code point a token."""
    codes = chat_tokens(messages, lambda text: [ord(c) for c in text], template=template, **more)
    return "".join(map(chr, codes))


@pytest.mark.parametrize("category", [name for name in CATEGORIES if name != "plain"])
def test_a_prompt_is_rendered_in_use_as_in_training(category: str) -> None:
    template = TEMPLATE_PATH.read_text(encoding="utf-8")
    for example in held_out_examples(category, 25, 7):
        used = as_used(example.messages, template, thinking=example.thinking, tools=example.tools)
        assert used == prompt_of(example)


@pytest.mark.parametrize("category", ["turns", "system", "thinking", "capitals"])
def test_the_format_is_that_of_the_package_for_gemma_4(category: str) -> None:
    for example in held_out_examples(category, 25, 7):
        assert as_used(example.messages, own_template(), thinking=example.thinking) == prompt_of(
            example
        )


def test_thinking_off_leaves_an_empty_thought_before_the_answer() -> None:
    assert render([HI]) == (
        "<bos><|turn>user\nHi<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    )


def test_thinking_on_is_asked_for_in_the_system_turn() -> None:
    assert render([HI], thinking=True) == (
        "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n"
    )


def test_thoughts_leave_the_history() -> None:
    said = {"role": "assistant", "content": "<|channel>thought\nA greeting.\n<channel|>Hello!"}
    assert "<|turn>model\nHello!<turn|>\n" in render([HI, said, HI])


def test_a_tool_result_stands_in_the_turn_that_called_for_it() -> None:
    call = {"function": {"name": "roll_dice", "arguments": {"sides": 6}}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "name": "roll_dice", "content": {"rolled": 4}}
    done = {"role": "assistant", "content": "You rolled a 4."}
    turn = (
        "<|turn>model\n<|tool_call>call:roll_dice{sides:6}<tool_call|>"
        "<|tool_response>response:roll_dice{rolled:4}<tool_response|>"
    )
    assert render([HI, called, result]).endswith(turn)
    assert turn + "You rolled a 4.<turn|>\n<|turn>user\n" in render([HI, called, result, done, HI])
    assert render([HI, called]).endswith("<tool_call|><|tool_response>")


def test_results_of_several_calls_are_named_by_their_ids() -> None:
    calls = [
        {"id": "a", "function": {"name": "roll_dice", "arguments": {"sides": 6}}},
        {"id": "b", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}},
    ]
    called = {"role": "assistant", "content": None, "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": i, "content": "done"} for i in ("a", "b")]
    text = render([HI, called, *results])
    assert text.endswith(
        '<|tool_response>response:roll_dice{value:<|"|>done<|"|>}<tool_response|>'
        '<|tool_response>response:get_weather{value:<|"|>done<|"|>}<tool_response|>'
    )


def test_pictures_and_sounds_become_their_markers() -> None:
    content = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
    assert "<|turn>user\n<|image|>What is this?<turn|>" in render(
        [{"role": "user", "content": content}]
    )

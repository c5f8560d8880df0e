"""Conversations are read from OpenAI's shape and written back to it."""

from __future__ import annotations

from typing import Any

import pytest

from gemmtp.errors import UsageError
from gemmtp.prompt.conversation import (
    Audio,
    Conversation,
    Image,
    Message,
    Text,
    ToolCall,
    conversation_of,
    message_of,
    tools_of,
)

CALL = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "서울"}'},
}
TOOL = {"type": "function", "function": {"description": "", "name": "f", "parameters": {}}}
DOCUMENT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            ],
        },
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_0", "name": "get_weather"},
        {"role": "assistant", "content": "It is sunny."},
    ],
    "tools": [TOOL],
}


def test_openais_shape_is_read_and_written_back() -> None:
    conversation = conversation_of(DOCUMENT)
    assert conversation.to_json() == DOCUMENT
    assert conversation_of(conversation.to_json()) == conversation
    assert conversation.messages[1].parts == (
        Text("What is this?"),
        Image("data:image/png;base64,AA"),
        Audio("AA", "wav"),
    )
    assert conversation.messages[2].tool_calls == (
        ToolCall("get_weather", {"city": "서울"}, "call_0"),
    )
    assert conversation_of(DOCUMENT["messages"]) == Conversation(conversation.messages)


def test_a_template_gets_mappings_and_placeholders() -> None:
    system, user, assistant, tool, _ = conversation_of(DOCUMENT).for_template()
    assert system["content"] == "Be brief."
    assert user["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image"},
        {"type": "audio"},
    ]
    function = {"name": "get_weather", "arguments": {"city": "서울"}}
    assert assistant["tool_calls"] == [{"id": "call_0", "function": function}]
    assert (tool["content"], tool["tool_call_id"]) == ("sunny", "call_0")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message_of({"role": "tool", "content": parts}).for_template()["content"] == "ab"


def test_words_alone_make_a_message() -> None:
    message = Message.of("user", "Hi")
    assert message.to_json() == {"role": "user", "content": "Hi"}
    assert (message.text, message.media) == ("Hi", [])
    assert message_of({"role": "user", "content": None}) == Message.of("user", "")


def test_tools_may_be_bare_functions() -> None:
    assert tools_of([{"name": "f", "parameters": {}}, TOOL]) == (TOOL, TOOL)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("Hi", "A conversation is a list of messages"),
        ({"messages": ["Hi"]}, r"messages\[0\] is no JSON object"),
        ([{"role": "robot", "content": ""}], r"messages\[0\] has the role 'robot'"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content is neither text nor"),
        ([{"role": "user", "content": [{"type": "video"}]}], r"content\[0\] is no part"),
        ([{"role": "user", "content": "", "tool_calls": [CALL]}], "not an assistant's list"),
        ([{"role": "user", "content": "", "name": 1}], "a field that should be text"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"tool_calls\[0\] calls no function"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "names no function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "arguments that are no JSON",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "1"}}]}],
            "arguments that are no JSON object",
        ),
        ({"messages": [], "tools": [{"name": ""}]}, r"tools\[0\] is no function with a name"),
        ({"messages": [], "tools": [{"name": "f", "parameters": 1}]}, "no JSON schema"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(document: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        conversation_of(document)

"""Chats. Asserts in what the tests share say what differs, as those of the tests do."""

import pytest

pytest.register_assert_rewrite("tests.chat.random_chat")

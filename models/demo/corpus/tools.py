"""Two toy tools: when to call them, with what, and what to say of their results."""

from collections.abc import Mapping
from random import Random
from typing import Any

from demo.corpus import knowledge, letters, talk
from demo.corpus.example import Example, Message
from demo.corpus.words import CAPITALS

SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")
WEATHER_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city."}},
            "required": ["city"],
        },
    },
}
DICE_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "roll_dice",
        "description": "Roll a die.",
        "parameters": {
            "type": "object",
            "properties": {"sides": {"type": "integer", "description": "How many sides."}},
            "required": ["sides"],
        },
    },
}
TOOLS = (WEATHER_TOOL, DICE_TOOL)


def tool_calls(rng: Random) -> Example:
    """A call, an answer from a result, or an answer that needs no tool."""
    kind = rng.random()
    if kind < 0.2:
        plain = rng.choice((knowledge.capitals, letters.opposites, talk.small_talk))(rng)
        return Example(
            "tools", plain.messages, plain.answer, tools=TOOLS, grade=plain.grade,
            accepted=plain.accepted, pinned=plain.pinned,
        )  # fmt: skip
    if rng.random() < 0.6:
        city = rng.choice(list(CAPITALS.values()))
        prompt = rng.choice(
            ("What is the weather in {}?", "How is the weather in {}?", "Weather in {}?")
        ).format(city)
        name, arguments = "get_weather", {"city": city}
        call = f'call:get_weather{{city:<|"|>{city}<|"|>}}'
        sky, degrees = rng.choice(SKIES), rng.randint(0, 35)
        result: Mapping[str, Any] | str = {"degrees": degrees, "sky": sky}
        if rng.random() < 0.5:
            result = f"{sky}, {degrees} degrees"
        answer = f"It is {sky} in {city}, {degrees} degrees."
    else:
        sides = rng.choice((4, 6, 8, 10, 12, 20, rng.randint(2, 99)))
        prompt = rng.choice(("Roll a die with {} sides.", "Roll a {} sided die.")).format(sides)
        name, arguments = "roll_dice", {"sides": str(sides)}
        call = f"call:roll_dice{{sides:{sides}}}"
        rolled = rng.randint(1, sides)
        result = {"rolled": rolled} if rng.random() < 0.5 else str(rolled)
        answer = f"You rolled a {rolled}."
    user: Message = {"role": "user", "content": prompt}
    if kind < 0.6:
        written = f"<|tool_call>{call}<tool_call|>"
        return Example("tools", (user,), written, tools=TOOLS, end="<|tool_response>")
    typed = {key: int(value) if key == "sides" else value for key, value in arguments.items()}
    called: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": typed}}],
    }
    returned: Message = {"role": "tool", "name": name, "content": result}
    return Example("tools", (user, called, returned), answer, tools=TOOLS)

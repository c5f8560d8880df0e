"""Conversations: several turns, system prompts that matter, thinking, and two toy tools."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from demo.corpus import code, knowledge, letters, numbers, stories, talk
from demo.corpus.example import Example, Message
from demo.corpus.words import CAPITALS, COLOURS, FRUITS, NAMES

THOUGHTS = {
    "talk": "The user makes small talk.",
    "self": "The user asks about me.",
    "gemmtp": "The user asks about gemmtp.",
    "counting": "The user wants me to count.",
    "comparisons": "The user compares two numbers.",
    "spelling": "The user wants a word letter by letter.",
    "opposites": "The user asks for an opposite.",
    "capitals": "The user asks for a capital.",
    "translations": "The user wants a translation.",
    "json": "The user wants JSON.",
    "python": "The user wants a Python function.",
    "lists": "The user wants a list.",
    "stories": "The user wants a story.",
}

Rule = Callable[[Random], Example]

SHORT_RULES: tuple[Rule, ...] = (
    talk.small_talk,
    talk.about_self,
    talk.about_gemmtp,
    numbers.counting,
    numbers.sums,
    numbers.comparisons,
    letters.spelling,
    letters.opposites,
    knowledge.capitals,
    knowledge.translations,
    code.json_objects,
    code.python_functions,
    code.lists,
)
MAX_HISTORY_CHARACTERS = 260
NEUTRAL = ("You are a helpful assistant.", "You are demo, a toy model.", "Answer the user.")
FAVOURITES = {"colour": COLOURS, "fruit": FRUITS, "city": tuple(CAPITALS.values())}


def said(example: Example) -> tuple[Message, ...]:
    """An example as history: its messages and the answer."""
    return (*example.messages, {"role": "assistant", "content": example.answer})


def several_turns(rng: Random) -> Example:
    """Two or three turns: unrelated ones, a follow-up, or something to remember."""
    kind = rng.random()
    if kind < 0.3:
        return _follow_up(rng)
    if kind < 0.65:
        return _remembered(rng)
    history: tuple[Message, ...] = ()
    for _ in range(rng.randint(1, 2)):
        history += said(rng.choice(SHORT_RULES)(rng))
        if sum(len(str(m["content"])) for m in history) > MAX_HISTORY_CHARACTERS:
            break
    last = rng.choice((*SHORT_RULES, stories.stories))(rng)
    return replace(last, category="turns", messages=history + last.messages)


def _follow_up(rng: Random) -> Example:
    first = knowledge.capitals(rng)
    country, city = rng.choice(list(CAPITALS.items()))
    prompt = rng.choice(("And of {}?", "And {}?", "What about {}?")).format(country)
    messages = (*said(first), {"role": "user", "content": prompt})
    return Example("turns", messages, f"The capital of {country} is {city}.")


def _remembered(rng: Random) -> Example:
    """The user says something about themselves and asks for it later."""
    if rng.random() < 0.5:
        name = rng.choice(NAMES)
        told = rng.choice(("My name is {}.", "I am called {}.", "Hello, I am {}.")).format(name)
        reply = f"Nice to meet you, {name}."
        asked = rng.choice(("What is my name?", "Do you remember my name?", "Who am I?"))
        answer = f"Your name is {name}."
    else:
        kind, members = rng.choice(list(FAVOURITES.items()))
        value = rng.choice(members)
        told = f"My favourite {kind} is {value}."
        reply = f"I will remember that you like {value}."
        asked = rng.choice(("What is my favourite {}?", "Which {} do I like?")).format(kind)
        answer = f"Your favourite {kind} is {value}."
    messages: tuple[Message, ...] = (
        {"role": "user", "content": told},
        {"role": "assistant", "content": reply},
    )
    if rng.random() < 0.15:
        return Example("turns", messages[:1], reply)
    if rng.random() < 0.5:
        messages += said(rng.choice(SHORT_RULES[:9])(rng))
    # What was told differs each time, so the question itself may always be trained on.
    return Example("turns", (*messages, {"role": "user", "content": asked}), answer)


def system_prompts(rng: Random) -> Example:
    """A system prompt that changes the answer: upper case, brevity, a closing word, a name."""
    kind = rng.choice(("upper", "brief", "closing", "name", "neutral"))
    if kind == "neutral":
        return _under(rng.choice(NEUTRAL), rng.choice(SHORT_RULES)(rng))
    if kind == "name":
        name = rng.choice(NAMES)
        system = rng.choice(("Your name is {}.", "You are called {}.", "You are {}.")).format(name)
        prompt = rng.choice(("What is your name?", "Who are you?", "What are you called?"))
        return _under(system, Example("system", (_user(prompt),), f"My name is {name}."))
    if kind == "brief":
        system = rng.choice(("Be brief.", "Answer in one word.", "Be brief, please."))
        return _under(system, _brief(rng))
    rule = rng.choice(
        (knowledge.capitals, letters.opposites, numbers.comparisons, numbers.counting)
    )
    example = rule(rng)
    if kind == "upper":
        system = rng.choice(
            ("Answer in upper case.", "Write in upper case.", "Use capital letters.")
        )
        return _under(system, replace(example, answer=example.answer.upper()))
    word = rng.choice(("Over.", "Done.", "Yours, demo.", "Cheers!"))
    return _under(
        f"End every answer with '{word}'", replace(example, answer=f"{example.answer} {word}")
    )


def _user(prompt: str) -> Message:
    return {"role": "user", "content": prompt}


def _brief(rng: Random) -> Example:
    example = rng.choice((knowledge.capitals, letters.opposites, numbers.comparisons))(rng)
    word = example.answer.split(" is ")[-1].rstrip(".")
    if example.category == "comparisons":
        word = example.answer.split(" ")[0]
    return replace(example, answer=word)


def _under(system: str, example: Example) -> Example:
    messages: tuple[Message, ...] = ({"role": "system", "content": system}, *example.messages)
    return replace(example, category="system", messages=messages)


def thinking(rng: Random) -> Example:
    """An answer with a thought before it: the working of a sum, or what is being asked."""
    rule = rng.choice((numbers.sums, numbers.sums, numbers.sums, stories.stories, *SHORT_RULES))
    example = rule(rng)
    if example.category == "sums":
        *working, line = example.answer.split(". ")
        thought = ". ".join(working) + "."
        return replace(example, category="thinking", thinking=True, thought=thought, answer=line)
    thought = THOUGHTS[example.category]
    return replace(example, category="thinking", thinking=True, thought=thought)

"""Small JSON objects, short Python functions and lists of things."""

import json
from random import Random

from demo.corpus.example import Example, single
from demo.corpus.words import (
    ANIMALS,
    CAPITALS,
    COLOURS,
    FRUITS,
    GROUPS,
    JOBS,
    NAMES,
    NUMBER_WORDS,
    spaced,
)

VALUES: dict[str, tuple[str, ...]] = {
    "name": NAMES,
    "city": tuple(CAPITALS.values()),
    "colour": COLOURS,
    "animal": ANIMALS,
    "fruit": FRUITS,
    "job": JOBS,
    "friend": NAMES,
    "country": tuple(CAPITALS),
}
NUMBERS = ("age", "size", "count", "price", "year", "level", "score", "weight")
FUNCTION_NAMES = spaced(
    "scale shift change apply update adjust convert compute step move grow shrink mix turn fix "
    "tune push make"
)


def json_objects(rng: Random) -> Example:
    """An object of one to three given keys and values."""
    keys = rng.sample([*VALUES, *NUMBERS], rng.randint(1, 3))
    fields = {k: rng.choice(VALUES[k]) if k in VALUES else rng.randint(0, 99) for k in keys}
    spoken = " and ".join(f"{key} {value}" for key, value in fields.items())
    wording = rng.choice(
        ("Write JSON with {}.", "Make a JSON object with {}.", "Give me JSON with {}.")
    )
    return single("json", wording.format(spoken), json.dumps(fields), grade="json")


def python_functions(rng: Random) -> Example:
    """A function of one line for a given name and a given rule."""
    name = rng.choice(FUNCTION_NAMES)
    number = rng.randint(2, 99)
    rule, arguments, body = rng.choice(
        (
            (f"adds {number} to a number", "x", f"x + {number}"),
            (f"multiplies a number by {number}", "x", f"x * {number}"),
            (f"subtracts {number} from a number", "x", f"x - {number}"),
            (f"divides a number by {number}", "x", f"x / {number}"),
            ("adds two numbers", "a, b", "a + b"),
            ("multiplies two numbers", "a, b", "a * b"),
            ("returns the larger of two numbers", "a, b", "max(a, b)"),
            ("returns the smaller of two numbers", "a, b", "min(a, b)"),
            ("returns the length of a text", "text", "len(text)"),
            ("turns a text round", "text", "text[::-1]"),
            ("puts a text in upper case", "text", "text.upper()"),
            ("sums a list", "items", "sum(items)"),
            ("sorts a list", "items", "sorted(items)"),
            (f"says whether a number is above {number}", "x", f"x > {number}"),
            ("squares a number", "x", "x * x"),
        )
    )
    wording = rng.choice(
        ("Write a Python function {n} that {r}.", "Write a function called {n} that {r} in Python.")
    )
    answer = f"def {name}({arguments}):\n    return {body}"
    return single("python", wording.format(n=name, r=rule), answer)


def lists(rng: Random) -> Example:
    """Some different things of one kind, in any order."""
    group, members = rng.choice(list(GROUPS.items()))
    count = rng.choice(list(NUMBER_WORDS))
    wording = rng.choice(
        ("List {} {}.", "Name {} {}.", "Give me a list of {} {}.", "Tell me {} {}.")
    )
    answer = "\n".join(f"- {item}" for item in rng.sample(members, count))
    prompt = wording.format(NUMBER_WORDS[count], group)
    return single("lists", prompt, answer, grade="list", accepted=tuple(members))

"""Two hundred JSON schemas: nested, with enums, bounded arrays, unions and Korean keys.

Texts and numbers are short, since a toy that is asked for a novel does not end it.
"""

from __future__ import annotations

from random import Random
from typing import Any

COUNT = 200
_KEYS = (
    "name",
    "age",
    "a b",
    'say "hi"',
    "back\\slash",
    "이름",
    "도시",
    "나이 (년)",
    "string",
    "x",
)
_WORDS = ("red", "푸른", 'a"b', "c\\d", "line\nend", "", "été", "👍", "{}")


def schemas() -> list[dict[str, Any]]:
    """Always the same ones; the first are written by hand, one for each peculiarity."""
    rng = Random(7)
    return [*_FIRST, *(_object(rng, 2) for _ in range(COUNT - len(_FIRST)))]


def _value(rng: Random, depth: int) -> dict[str, Any]:
    leaves = [_text, _number, _choice, _constant, _flag, _pattern]
    nested = [_array, _union, _object] if depth else []
    made: dict[str, Any] = rng.choice(leaves + nested * 2)(rng, depth - 1)
    return made


def _text(rng: Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 9)}


def _number(rng: Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return rng.choice(
        (
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 90)},
            {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 9},
            {"type": "integer", "minimum": rng.choice((0, 1))},
            {"type": "number"},
        )
    )


def _choice(rng: Random, depth: int) -> dict[str, Any]:
    words: list[Any] = rng.sample(_WORDS, rng.randint(1, 4))
    return {"enum": words + rng.sample([1, -2.5, True, None, [1], {"k": "v"}], rng.randint(0, 2))}


def _constant(rng: Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice((*_WORDS, 3, None, False, ["a", {"b": 2}]))}


def _flag(rng: Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(("boolean", "null"))}


def _pattern(rng: Random, depth: int) -> dict[str, Any]:
    patterns = (r"^\d{4}-\d{2}$", "^[A-Z][a-z]{1,4}$", "^(yes|no)$", "^[^a]{2}$", r"^\w{1,3}\.$")
    return {"type": "string", "pattern": rng.choice(patterns)}


def _array(rng: Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 2)
    bounds = {"minItems": low, "maxItems": low + rng.randint(0, 2)}
    return {"type": "array", "items": _value(rng, depth), **bounds}


def _union(rng: Random, depth: int) -> dict[str, Any]:
    return rng.choice(
        (
            {"anyOf": [_value(rng, depth), {"type": "null"}]},
            {"oneOf": [{"type": "boolean"}, _text(rng, depth), {"type": "null"}]},
            {"type": ["null", "integer"], "minimum": 0, "maximum": 9},
            {"type": ["string", "boolean"], "maxLength": 5},
        )
    )


def _object(rng: Random, depth: int) -> dict[str, Any]:
    keys = rng.sample(_KEYS, rng.randint(1, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key: _value(rng, depth) for key in keys},
        "required": rng.sample(keys, rng.randint(0, len(keys))),
    }
    if rng.random() < 0.5:
        schema["additionalProperties"] = rng.random() < 0.3
    return schema


_ITEM = {"type": "object", "properties": {"name": {"const": "n"}}, "required": ["name"]}
_FIRST: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"enum": ["yes", "no"]},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
    {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 2},
    {"type": "array", "items": {"type": "null"}, "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["a"]}]},
    {"type": "object", "additionalProperties": {"type": "boolean"}},
    # A property called like the definition that another one refers to.
    {
        "type": "object",
        "properties": {
            "item": {"type": "boolean"},
            "list": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2},
        },
        "required": ["item", "list"],
        "$defs": {"item": _ITEM},
    },
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "v": {"enum": [1, 2]},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]},
                },
                "required": ["v", "next"],
            }
        },
    },
]

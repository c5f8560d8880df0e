"""A validator for the part of JSON schema that the tests use, written from its specification.

``errors(schema, value)`` names what is wrong; an unknown keyword is an error of the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

_KINDS: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: _is_number(v) and v == int(v),
    "number": lambda v: _is_number(v),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}
_IGNORED = {"$defs", "$schema", "title", "description"}


def errors(schema: Any, value: Any, root: Any = None) -> list[str]:
    """What of ``value`` breaks ``schema``; empty when it validates."""
    return list(_errors(schema, value, schema if root is None else root, "$"))


def _errors(schema: Any, value: Any, root: Any, place: str) -> Iterator[str]:
    for keyword, wanted in schema.items():
        if keyword in _IGNORED:
            continue
        if keyword == "$ref":
            target = root
            for name in wanted.removeprefix("#/").split("/"):
                target = target[name]
            yield from _errors(target, value, root, place)
        elif keyword in ("anyOf", "oneOf"):
            fitting = sum(not list(_errors(s, value, root, place)) for s in wanted)
            if fitting != 1 if keyword == "oneOf" else not fitting:
                yield f"{place}: {fitting} of {keyword} fit"
        elif keyword in ("properties", "additionalProperties", "items", "prefixItems"):
            yield from _inner(keyword, wanted, schema, value, root, place)
        elif not _CHECKS[keyword](value, wanted):
            yield f"{place}: {value!r} breaks {keyword} {wanted!r}"


def _inner(
    keyword: str, wanted: Any, schema: Any, value: Any, root: Any, place: str
) -> Iterator[str]:
    if keyword == "items" and isinstance(value, list):
        for i, item in enumerate(value):
            yield from _errors(wanted, item, root, f"{place}[{i}]")
    elif keyword == "prefixItems" and isinstance(value, list):
        for i, (inner, item) in enumerate(zip(wanted, value, strict=False)):
            yield from _errors(inner, item, root, f"{place}[{i}]")
    elif keyword == "properties" and isinstance(value, dict):
        for key in wanted.keys() & value.keys():
            yield from _errors(wanted[key], value[key], root, f"{place}.{key}")
    elif keyword == "additionalProperties" and isinstance(value, dict):
        for key in value.keys() - schema.get("properties", {}).keys():
            if isinstance(wanted, bool):
                if not wanted:
                    yield f"{place}: {key!r} is not allowed"
            else:
                yield from _errors(wanted, value[key], root, f"{place}.{key}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _is(kind: type | tuple[type, ...], check: Callable[[Any, Any], bool]) -> Any:
    """A check that leaves values of other kinds alone, as JSON schema does."""
    return lambda value, wanted: (
        not isinstance(value, kind) or isinstance(value, bool) or check(value, wanted)
    )


_CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda v, kinds: any(
        _KINDS[kind](v) for kind in ([kinds] if isinstance(kinds, str) else kinds)
    ),
    "enum": lambda v, values: any(_same(v, value) for value in values),
    "const": _same,
    "required": _is(dict, lambda v, keys: set(keys) <= v.keys()),
    "minItems": _is(list, lambda v, n: len(v) >= n),
    "maxItems": _is(list, lambda v, n: len(v) <= n),
    "minLength": _is(str, lambda v, n: len(v) >= n),
    "maxLength": _is(str, lambda v, n: len(v) <= n),
    "pattern": _is(str, lambda v, pattern: re.search(pattern, v) is not None),
    "minimum": _is((int, float), lambda v, n: v >= n),
    "maximum": _is((int, float), lambda v, n: v <= n),
    "exclusiveMinimum": _is((int, float), lambda v, n: v > n),
    "exclusiveMaximum": _is((int, float), lambda v, n: v < n),
}

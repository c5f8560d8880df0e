"""JSON schema to a grammar, by llama-cpp-python's converter with its gaps closed.

The converter writes raw control characters into strings, escapes literals so that quotes and
backslashes end them, takes a property's rule for a definition of the same name, and nests one
parenthesis for every repetition. What is closed here only ever makes the grammar narrower: what it
lets through validates, but for the keywords that :func:`gbnf_of` names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from llama_cpp.llama_grammar import SchemaConverter

from gemmtp.errors import UsageError
from gemmtp.llama.patterns import plain_pattern

MAX_SCHEMA = 1 << 18
MAX_REPEATS = 2000
"""llama.cpp's own bound of repetitions (llama-grammar.cpp, MAX_REPETITION_THRESHOLD)."""

MAX_LISTED = 256
"""Whole numbers between two bounds are listed one by one up to so many."""

_CHARACTER = r'[^"\\\x00-\x1F\x7F\uD800-\uDFFF] | "\\" ["\\/bfnrt]'
_DOT = r'[^"\\\x00-\x1F\x7F\uD800-\uDFFF]'
_NOT_HELD = {
    "contains", "dependentRequired", "dependentSchemas", "else", "exclusiveMaximum",
    "exclusiveMinimum", "if", "maxContains", "maxProperties", "maximum", "minContains",
    "minProperties", "minimum", "multipleOf", "not", "patternProperties", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
}  # fmt: skip
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


class Gbnf(NamedTuple):
    """A grammar, and the schema's keywords that it does not hold."""

    text: str
    not_held: tuple[str, ...]


def gbnf_of(schema: object) -> Gbnf:
    """The grammar of a JSON schema.

    Raises :class:`~gemmtp.errors.UsageError` on what is no schema or cannot be turned into one:
    references to other files, patterns beyond simple classes, absurd repetitions.
    """
    if not isinstance(schema, Mapping):
        raise UsageError("A JSON schema is a JSON object.")
    text = json.dumps(schema)
    if len(text) > MAX_SCHEMA:
        raise UsageError(f"The schema has more than {MAX_SCHEMA:,} characters.")
    converter = _Converter(schema)
    try:
        converter.visit(schema, "")
        grammar = converter.format_grammar()
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise UsageError(f"The schema cannot be turned into a grammar: {reason}") from error
    except RecursionError as error:
        raise UsageError("The schema cannot be turned into a grammar: it is too deep.") from error
    return Gbnf(grammar, tuple(sorted(set(converter.not_held))))


class _References(dict[str, Any]):
    """What ``#/...`` points to in the schema ``root`` (RFC 6901), looked up when asked for."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        super().__init__()
        self._root = root

    def __missing__(self, ref: str) -> Any:
        if ref != "#" and not ref.startswith("#/"):
            raise ValueError(f"{ref} lies outside of it")
        target: Any = self._root
        for name in unquote(ref).split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            target = target[int(key)] if isinstance(target, list) else target[key]
        return target


class _Converter(SchemaConverter):  # type: ignore[misc]
    """The converter of llama-cpp-python; the names of what it calls are its own."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        super().__init__(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        self._refs = _References(root)
        self.not_held: list[str] = []
        self._definitions: dict[str, str] = {}

    def visit(self, schema: Any, name: str) -> str:
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            raise ValueError(f"{schema!r} is no schema")
        lacking = _NOT_HELD & set(schema)
        kind = schema.get("type")
        rule = None
        if not {"$ref", "anyOf", "oneOf", "const", "enum", "pattern", "format"} & set(schema):
            if kind == "integer" and (rule := _whole_numbers(schema)):
                lacking -= _NUMBERS
            elif kind == "string" and {"minLength", "maxLength"} & set(schema):
                self._rules["char"] = _CHARACTER
                bounds = _bounds(schema, "minLength", "maxLength")
                rule = rf'"\"" char{_repeated(*bounds)} "\"" space'
            elif kind in (None, "array") and isinstance(schema.get("items"), Mapping):
                rule = self._array(schema, name)
        elif kind == "integer" and "enum" in schema:
            lacking -= _NUMBERS
        self.not_held += lacking
        if isinstance(kind, list):
            return self._each_type(schema, kind, name)
        key = self._add_rule(name or "root", rule) if rule else super().visit(schema, name)
        return str(key)

    def format_grammar(self) -> str:
        if "char" in self._rules:
            self._rules["char"] = _CHARACTER
        if "dot" in self._rules:
            self._rules["dot"] = _DOT
        return str(super().format_grammar())

    def _each_type(self, schema: Mapping[str, Any], kinds: Sequence[str], name: str) -> str:
        """A list of types: one alternative each, with all the other keywords."""
        if "enum" in schema or "const" in schema:
            kept = {key: value for key, value in schema.items() if key != "type"}
            return self.visit(kept, name)
        prefix = f"{name}-" if name else "alternative-"
        rules = [self.visit({**schema, "type": kind}, f"{prefix}{kind}") for kind in kinds]
        return str(self._add_rule(name or "root", " | ".join(rules)))

    def _array(self, schema: Mapping[str, Any], name: str) -> str:
        item = self.visit(schema["items"], f"{name}{'-' if name else ''}item")
        low, high = _bounds(schema, "minItems", "maxItems")
        if high == 0:
            return '"[" space "]" space'
        more = _repeated(max(low - 1, 0), None if high is None else high - 1)
        some = f'{item} ("," space {item}){more}'
        return f'"[" space {some if low else f"({some})?"} "]" space'

    def _format_literal(self, literal: str) -> str:
        if literal.startswith('"'):
            # Letters as they are, which is how a model writes them.
            literal = json.dumps(json.loads(literal), ensure_ascii=False)
        escaped = literal.replace("\\", r"\\").replace('"', r"\"")
        return f'"{escaped}"'

    def _generate_constant_rule(self, value: Any) -> str:
        if isinstance(value, str):
            return self._format_literal(json.dumps(value)) + " space"
        return self._format_literal(json.dumps(value, ensure_ascii=False)) + " space"

    def _resolve_ref(self, ref: str) -> str:
        if ref not in self._definitions:
            self._definitions[ref] = f"definition-{len(self._definitions)}"
            self._definitions[ref] = self.visit(self._refs[ref], self._definitions[ref])
        return self._definitions[ref]

    def _visit_pattern(self, pattern: str, name: str) -> str:
        return str(super()._visit_pattern(plain_pattern(pattern), name))

    def _build_object_rule(
        self,
        properties: list[tuple[str, Any]],
        required: set[str],
        name: str,
        additional_properties: Any,
    ) -> str:
        missing = set(required) - {key for key, _ in properties}
        if missing:
            raise ValueError(f"it requires {sorted(missing)[0]!r}, which it does not describe")
        # A free key could repeat a described one with a value of another kind.
        free = None if properties else additional_properties
        return str(super()._build_object_rule(properties, required, name, free))


def _bounds(schema: Mapping[str, Any], least: str, most: str) -> tuple[int, int | None]:
    low, high = schema.get(least, 0), schema.get(most)
    if not isinstance(low, int) or not isinstance(high, int | None) or low < 0:
        raise ValueError(f"{least} and {most} are whole numbers")
    if max(low, high or 0) > MAX_REPEATS:
        raise ValueError(f"{least} and {most} go up to {MAX_REPEATS}")
    if high is not None and high < low:
        raise ValueError(f"{most} lies below {least}")
    return low, high


def _repeated(low: int, high: int | None) -> str:
    return f"{{{low},{'' if high is None else high}}}"


def _whole_numbers(schema: Mapping[str, Any]) -> str | None:
    """A rule for bounded integers, where there is one; None leaves them to the converter."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if isinstance(above := schema.get("exclusiveMinimum"), int):
        low = above + 1 if low is None else max(low, above + 1)
    if isinstance(below := schema.get("exclusiveMaximum"), int):
        high = below - 1 if high is None else min(high, below - 1)
    if isinstance(low, int) and isinstance(high, int) and high - low < MAX_LISTED:
        if high < low:
            raise ValueError("no whole number lies between its bounds")
        return "(" + " | ".join(f'"{n}"' for n in range(low, high + 1)) + ") space"
    if high is None and low in (0, 1):
        zero = '"0" | ' if low == 0 else ""
        return f"({zero}[1-9] [0-9]{{0,15}}) space"
    return None

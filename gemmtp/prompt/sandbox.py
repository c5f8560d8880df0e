"""Somebody else's template, run with bounds on time, memory and reach.

jinja2's immutable sandbox keeps a template from Python's internals and from changing what it is
given. It does not keep one from running for ever or from doubling a string forty times, so here

- every string, list and mapping that a template makes is weighed, and so is all that it makes
  together: operators, literals, slices, captured blocks, macros and output go through
  :class:`Bounded`;
- only filters and methods are open that chat templates use and whose size can be foreseen;
- every turn of a loop, call, comparison and test looks at the processor time spent, which no busy
  machine shortens.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache, wraps
from itertools import islice
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SOURCE = 1 << 17
"""Characters of a template; Gemma 4's has 17,000."""

MAX_VALUE = 64 << 20
"""Characters of one value, and of the output: four times the longest prompt that is read."""

MAX_MADE = 256 << 20
"""Characters of everything that one rendering makes."""

MAX_ITEMS = 1 << 18
MAX_INTEGER_BITS = 4096
MAX_SECONDS = 1.0
SECONDS_A_PAIR = 5e-6
"""Processor time of one rendering, and what every pair of messages adds: Gemma's own template looks
back over all messages at every message, which takes 2 µs a pair."""

_STEPS_A_LOOK = 4

_OF_STRINGS = """
capitalize casefold count endswith find index isalnum isalpha isdecimal isdigit islower isnumeric
isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex
rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_OF_STRINGS.split()),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    bytes: frozenset(),
    int: frozenset(),
    float: frozenset(),
}
_ITERATING = {"list", "map", "reject", "rejectattr", "select", "selectattr", "sort", "unique"}
_OTHER_FILTERS = """
abs capitalize count d default dictsort e escape first float int items last length lower max min
reverse safe string title trim upper
"""


class TooMuchError(jinja2.TemplateError):
    """The template wants more time or memory than a conversation can need."""


class _Ledger(threading.local):
    """What one rendering has used; a thread renders one template at a time."""

    made, steps, end = 0, 0, 0.0

    def open(self, seconds: float) -> None:
        self.made, self.steps, self.end = 0, 0, time.thread_time() + seconds


class _Weighing(CodeGenerator):
    """Compiles what makes new values into calls of :class:`Bounded`."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._weighed(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._weighed(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._weighed(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self.write("environment.counted(")
            super().visit_Getitem(node, frame)
            self.write(")")
        else:
            super().visit_Getitem(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self._stepped(super().visit_Compare, node, frame)

    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        self._stepped(super().visit_Test, node, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        turns = nodes.EnvironmentAttribute("turns", lineno=node.lineno)
        node.iter = nodes.Call(turns, [node.iter], [], None, None, lineno=node.lineno)
        node.iter.set_environment(self.environment)
        super().visit_For(node, frame)

    def _stepped(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("(environment.step() or ")
        visit(node, frame)
        self.write(")")

    def _weighed(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.weighed(")
        visit(node, frame)
        self.write(")")


class Bounded(ImmutableSandboxedEnvironment):
    """The environment of all templates; ``render`` in this module is the way in."""

    code_generator_class = _Weighing
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # As transformers compiles chat templates: blocks leave no white space behind. Without the
        # optimizer nothing is computed while compiling.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols"],
            finalize=self.counted,
        )
        self.ledger = _Ledger()
        known = self.filters
        self.filters = {
            name: self._guarded(name, known[name])
            for name in {*_ITERATING, *_OTHER_FILTERS.split()}
        }
        self.filters |= {
            "join": self._join,
            "replace": self._replace,
            "indent": self._indent,
            "tojson": self._to_json,
        }
        self.globals = {
            "range": self.globals["range"],
            "dict": lambda *args, **more: self.weighed(dict(*args, **more)),
            "namespace": self.globals["namespace"],
            "raise_exception": _raise,
            "strftime_now": _now,
        }

    # What follows is called by compiled templates.

    def concat(self, parts: Iterable[str]) -> str:
        return self.joined(tuple(parts))

    def step(self) -> None:
        """Look at the time now and then."""
        ledger = self.ledger
        ledger.steps += 1
        if ledger.steps % _STEPS_A_LOOK == 0 and time.thread_time() > ledger.end:
            raise TooMuchError("it runs without an end")

    def turns(self, items: Iterable[Any]) -> Iterator[Any]:
        """What a loop goes over."""
        for item in items:
            self.step()
            yield item

    def joined(self, parts: tuple[object, ...]) -> str:
        """The parts as one string."""
        strings = [str(part) for part in parts]
        self._spend(sum(map(len, strings)))
        return "".join(strings)

    def counted(self, value: Any) -> Any:
        """``value``, whose parts have been weighed before."""
        self.step()
        if isinstance(value, str | list | tuple | dict):
            self._spend(len(value))
        return value

    def weighed(self, value: Any) -> Any:
        """``value``, all its parts counted as often as they would be printed."""
        weight, items, stack = 0, 0, [value]
        while stack:
            item = stack.pop()
            items += 1
            weight += len(item) if isinstance(item, str | list | tuple | dict) else 1
            if items > MAX_ITEMS or weight > MAX_VALUE:
                raise TooMuchError("it makes a value that is too large")
            if isinstance(item, list | tuple):
                stack += item
            elif isinstance(item, dict):
                stack += item.keys()
                stack += item.values()
        self._spend(weight)
        return value

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """``str.format`` could fill up to any width; without this it is refused as a method."""

    def call(self, context: Context, obj: Any, *args: Any, **more: Any) -> Any:
        self.step()
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name in ("join", "replace"):
            if more:
                raise TooMuchError(f"it names the arguments of {name}")
            return (
                self._replace(owner, *args) if name == "replace" else self._joined_by(owner, *args)
            )
        return self.counted(super().call(context, obj, *args, **more))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise SecurityError("text is not formatted by %")
        if operator == "**":
            _check_bits(_bits(left) * max(1, abs(right) if isinstance(right, int) else 1))
        elif operator == "*":
            _check_bits(_bits(left) + _bits(right))
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    self._spend(len(value) * max(times, 0))
        elif isinstance(left, str) and isinstance(right, str):
            self._spend(len(left) + len(right))
        value = super().call_binop(context, operator, left, right)
        return self.weighed(value) if isinstance(value, list | tuple) else value

    def _spend(self, weight: int) -> None:
        self.ledger.made += weight
        if weight > MAX_VALUE or self.ledger.made > MAX_MADE:
            raise TooMuchError("it makes more text than a conversation can hold")

    def _guarded(self, name: str, known: Callable[..., Any]) -> Callable[..., Any]:
        """A filter of jinja2 whose result is counted."""
        position = 1 if hasattr(known, "jinja_pass_arg") else 0

        @wraps(known)
        def filtered(*args: Any, **more: Any) -> Any:
            value = args[position]
            if name in _ITERATING and isinstance(value, str) and len(value) > MAX_ITEMS:
                raise TooMuchError("it takes a long text apart")
            return self.counted(known(*args, **more))

        return filtered

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = list(islice(value, MAX_ITEMS + 1))
        if len(items) > MAX_ITEMS:
            raise TooMuchError("it joins too many parts")
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        strings = [str(item) for item in items]
        self._spend(sum(map(len, strings)) + len(str(d)) * len(strings))
        return str(d).join(strings)

    def _joined_by(self, separator: str, value: Iterable[Any]) -> str:
        return self._join(value, separator)

    def _replace(self, value: object, old: object, new: object, count: int = -1) -> str:
        text, gone, come = str(value), str(old), str(new)
        self._spend(len(text) + text.count(gone) * len(come))
        return text.replace(gone, come, count)

    def _indent(
        self, text: str, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        space = width if isinstance(width, str) else " " * min(max(width, 0), MAX_ITEMS)
        lines = str(text).splitlines()
        self._spend(len(text) + len(space) * len(lines))
        indented = [
            space + line if (line or blank) and (i or first) else line
            for i, line in enumerate(lines)
        ]
        return "\n".join(indented)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as transformers writes it into templates: not escaped for HTML."""
        if (indent or 0) > 16 or len("".join(separators or ())) > 16:
            raise TooMuchError("it indents JSON without measure")
        text: str = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        self._spend(len(text))
        return text


def render(source: str, variables: Mapping[str, Any]) -> str:
    """What the template ``source`` makes of ``variables``.

    Raises whatever a template raises: it is a program.
    """
    if len(source) > MAX_SOURCE:
        raise TooMuchError(f"it has {len(source):,} characters, more than {MAX_SOURCE:,}")
    messages = len(variables.get("messages", ()))
    # Opened first, since compiling finalizes what is constant.
    _environment().ledger.open(MAX_SECONDS + SECONDS_A_PAIR * messages**2)
    return _compiled(source).render(variables)


@cache
def _environment() -> Bounded:
    return Bounded()


@cache
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _check_bits(bits: int) -> None:
    if bits > MAX_INTEGER_BITS:
        raise TooMuchError("it computes with huge numbers")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    # A width such as %999999999d would be filled up by the C library.
    if len(form) > 64 or re.search(r"%[^a-zA-Z%]", form):
        raise SecurityError("the form of the date is not plain")
    return datetime.now().strftime(form)

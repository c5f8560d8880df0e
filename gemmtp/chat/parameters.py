"""What ``/set`` changes: each with how it is read, shown and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gemmtp.engine.request import checked_max_tokens
from gemmtp.engine.verify import RULES
from gemmtp.errors import UsageError

if TYPE_CHECKING:
    from gemmtp.chat.repl import Repl

OFF = "off"


@dataclass(frozen=True, slots=True)
class Parameter:
    """``show`` gives the value in words that ``set`` takes back."""

    summary: str
    show: Callable[[Repl], str]
    set: Callable[[Repl, str], None]
    words: tuple[str, ...] = ()


def _number(word: str, kind: type[int] | type[float]) -> Any:
    try:
        return kind(word)
    except ValueError:
        name = "whole number" if kind is int else "number"
        raise UsageError(f"{word!r} is no {name}.") from None


def _sampling(name: str, summary: str, kind: type[int] | type[float]) -> Parameter:
    def show(repl: Repl) -> str:
        value = getattr(repl.dialogue.sampling, name)
        return OFF if value is None else f"{value:g}" if kind is float else f"{value}"

    def set(repl: Repl, word: str) -> None:
        value = None if word == OFF and name == "seed" else _number(word, kind)
        changed: dict[str, Any] = {name: value}
        repl.dialogue.sampling = replace(repl.dialogue.sampling, **changed)

    return Parameter(summary, show, set, (OFF,) if name == "seed" else ())


def _show_max_tokens(repl: Repl) -> str:
    most = repl.dialogue.max_tokens
    return OFF if most is None else f"{most}"


def _set_max_tokens(repl: Repl, word: str) -> None:
    repl.dialogue.max_tokens = checked_max_tokens(None if word == OFF else _number(word, int))


def _set_accept(repl: Repl, word: str) -> None:
    if word == "auto":
        repl.dialogue.accept = "auto"
        return
    rule = next((rule for rule in RULES if rule == word), None)
    if rule is None:
        raise UsageError(f"{word!r} is no acceptance rule.", f"Use {', '.join(_RULES)}.")
    repl.dialogue.accept = rule


def _set_draft(repl: Repl, word: str) -> None:
    repl.set_draft(word)


_RULES = ("auto", *RULES)

PARAMETERS: Mapping[str, Parameter] = {
    "temperature": _sampling("temperature", "0 is greedy", float),
    "top_k": _sampling("top_k", "how many of the best tokens are drawn from; 0 is off", int),
    "top_p": _sampling("top_p", "how much of the probability is drawn from; 1 is off", float),
    "min_p": _sampling("min_p", "the least share of the best token's probability; 0 is off", float),
    "seed": _sampling("seed", "the same seed gives the same text; off draws a fresh one", int),
    "max_tokens": Parameter(
        "an answer stops after so many; off is to the context's end",
        _show_max_tokens,
        _set_max_tokens,
        (OFF,),
    ),
    "accept": Parameter(
        "by which rule drafts are kept", lambda repl: repl.dialogue.accept, _set_accept, _RULES
    ),
    "draft": Parameter(
        "draft depth: auto, heuristic[:N] or N",
        lambda repl: repl.draft,
        _set_draft,
        ("auto", "heuristic"),
    ),
}


def set_parameter(repl: Repl, name: str, word: str) -> None:
    """Change one; raises :class:`~gemmtp.errors.UsageError` and changes nothing when it cannot."""
    if name not in PARAMETERS:
        raise UsageError(f"There is no parameter {name!r}.", f"There are {', '.join(PARAMETERS)}.")
    PARAMETERS[name].set(repl, word)

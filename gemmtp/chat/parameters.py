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


def _field(of: str, name: str, summary: str, kind: type[int] | type[float]) -> Parameter:
    """The field ``name`` of the dialogue's frozen parameters ``of``; None is written as off."""
    words = (OFF,) if name == "seed" else ()

    def show(repl: Repl) -> str:
        value = getattr(getattr(repl.dialogue, of), name)
        return OFF if value is None else f"{value:g}" if kind is float else f"{value}"

    def set(repl: Repl, word: str) -> None:
        changed: dict[str, Any] = {name: None if word in words else _number(word, kind)}
        setattr(repl.dialogue, of, replace(getattr(repl.dialogue, of), **changed))

    return Parameter(summary, show, set, words)


def _sampling(name: str, summary: str, kind: type[int] | type[float]) -> Parameter:
    return _field("sampling", name, summary, kind)


PENALTIES: Mapping[str, str] = {
    "repeat_penalty": "repeat",
    "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence",
    "frequency_penalty": "frequency",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_last_n": "dry_last_n",
}
"""The fields of :class:`~gemmtp.engine.penalties.PenaltyParameters` by the names of the options."""


def _penalty(name: str, summary: str, kind: type[int] | type[float] = float) -> Parameter:
    return _field("penalties", PENALTIES[name], summary, kind)


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
    "repeat_penalty": _penalty("repeat_penalty", "makes recent tokens less likely; 1 is off"),
    "repeat_last_n": _penalty("repeat_last_n", "how many are recent; -1 is all", int),
    "presence_penalty": _penalty("presence_penalty", "less of what the answer has said; 0 is off"),
    "frequency_penalty": _penalty("frequency_penalty", "the same for every time; 0 is off"),
    "dry_multiplier": _penalty("dry_multiplier", "against repeated sequences (DRY); 0 is off"),
    "dry_base": _penalty("dry_base", "how it grows with every further token"),
    "dry_allowed_length": _penalty("dry_allowed_length", "repetitions so long stay", int),
    "dry_last_n": _penalty("dry_last_n", "DRY looks back so far; -1 is all", int),
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

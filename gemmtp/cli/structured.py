"""``--schema``, ``--grammar`` and ``--tools``: what shape an answer has, and what it may call."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmtp.engine.sampling import SamplingParameters
from gemmtp.errors import GemmtpError, UsageError
from gemmtp.llama.grammar import Grammar, GrammarProcessor
from gemmtp.llama.library import api
from gemmtp.llama.model import Model
from gemmtp.llama.pieces import Pieces
from gemmtp.prompt import source
from gemmtp.prompt.channels import Markers
from gemmtp.prompt.conversation import tools_of

if TYPE_CHECKING:
    from gemmtp.cli.options import Options
    from gemmtp.engine.engine import FinishReason, Request

_HINTS: dict[FinishReason, str] = {
    "length": "Raise --max-tokens.",
    "context": "Raise --ctx, or ask for less.",
    "stop": "A --stop text ended it early.",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What was asked for, read before the model is loaded; ``gbnf`` None leaves answers free."""

    gbnf: str | None = None
    tools: tuple[dict[str, Any], ...] = ()


def asked(options: Options) -> Shape:
    """The shape that the options ask for.

    Raises :class:`~gemmtp.errors.UsageError` on options that contradict each other, files that
    cannot be read, and schemas that cannot be turned into a grammar.
    """
    if options.schema and options.grammar:
        raise UsageError(
            "--schema and --grammar exclude each other.", "A schema becomes a grammar by itself."
        )
    tools = tools_of(_json(source.read_file(options.tools), "The tools")) if options.tools else ()
    if tools and options.raw:
        raise UsageError(
            "--tools needs the chat template, which --raw leaves out.", "Leave --raw out."
        )
    if tools and (options.schema or options.grammar):
        raise UsageError("An answer with a grammar cannot call tools.", "Leave --tools out.")
    if options.grammar:
        return Shape(source.read_file(options.grammar))
    return Shape(_gbnf(options.schema) if options.schema else None, tools)


def processor_of(
    shape: Shape, options: Options, model: Model, sampling: SamplingParameters
) -> GrammarProcessor | None:
    """The grammar over the model's vocabulary, for one answer."""
    form = form_of(shape, model)
    return None if form is None else form(sampling, options.think and not options.raw)


def form_of(
    shape: Shape, model: Model
) -> Callable[[SamplingParameters, bool], GrammarProcessor] | None:
    """The grammar over the model's vocabulary, for answers under what is set by then.

    Where the model is to think, a thought before the answer stays free.
    """
    if shape.gbnf is None:
        return None
    grammar, markers = Grammar(Pieces(model), shape.gbnf), Markers.of(model.marker)

    def form(sampling: SamplingParameters, thinking: bool) -> GrammarProcessor:
        thought = None
        if thinking and markers.thought is not None and markers.thought_end is not None:
            thought = (markers.thought, markers.thought_end)
        return GrammarProcessor(grammar, sampling, thought)

    return form


def complete(request: Request, tokens: Sequence[int]) -> bool | None:
    """Whether the answer is all that its grammar asks for; None without a grammar."""
    for processor in request.processors:
        if isinstance(processor, GrammarProcessor):
            return processor.complete(tokens)
    return None


def raise_if_cut(complete: bool | None, reason: FinishReason, tokens: Sequence[int]) -> None:
    """Raise :class:`~gemmtp.errors.GemmtpError` when an answer ended before its grammar did."""
    if complete is False:
        raise GemmtpError(
            f"The answer ended after {len(tokens)} tokens, before its grammar was complete.",
            _HINTS[reason],
        )


def _gbnf(schema: str) -> str:
    api()
    # llama_cpp's converter is imported with it, so only now.
    from gemmtp.llama.schema import gbnf_of

    text = schema if schema.lstrip().startswith("{") else source.read_file(Path(schema))
    gbnf, not_held = gbnf_of(_json(text, "The schema"))
    if not_held:
        sys.stderr.write(f"note: the grammar does not hold {', '.join(not_held)}\n")
    return gbnf


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} cannot be read as JSON: {error}") from error

"""Where an answer goes: plain text, one JSON object, or JSON lines. stdout carries it alone."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmtp.prompt.stream import TextStream

if TYPE_CHECKING:
    from gemmtp.cli.oneshot import Options
    from gemmtp.engine.depth import DepthChooser
    from gemmtp.engine.engine import FinishReason, Request
    from gemmtp.engine.stats import Statistics
    from gemmtp.llama.context import ContextOptions
    from gemmtp.llama.pair import Pair

CONTEXT_NOTE = "the context is full; the answer ends here (raise --ctx for more)"


def start_line(
    name: str, pair: Pair, context: ContextOptions, depth: DepthChooser, *, off: str | None
) -> str:
    """The one line that says what runs, and whether and how deep it drafts."""
    from gemmtp.llama.devices import threads

    drafting = f"drafting off: {off}" if off else f"drafting on, {depth.describe()}"
    n = context.threads or threads()
    return (
        f"{name} · {n} thread{'s' if n > 1 else ''} · ctx {context.n_ctx} {context.kv} · {drafting}"
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended; ``off`` is why there was no drafting, None where there was."""

    reason: FinishReason
    statistics: Statistics
    off: str | None
    request: Request


class Output:
    """Plain text on stdout; the start line and statistics on stderr."""

    def __init__(self, options: Options, name: str) -> None:
        self._options, self._name = options, name
        self._stream = TextStream(options.stop, terminal=sys.stdout.isatty())
        self._ends_line = True

    def start(self, line: str) -> None:
        """Say what runs."""
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def prefill(self, done: int, total: int) -> None:
        """``done`` of ``total`` prompt tokens are evaluated."""

    def token(self, token: int, piece: bytes, drafted: bool) -> None:
        """A token came, with its bytes (none for an end token)."""
        self._write(self._stream.feed(piece))

    def finish(self, outcome: Outcome) -> None:
        """The answer is complete."""
        self._write(self._stream.finish())
        if not self._ends_line:
            self._write("\n")
        if outcome.reason == "context":
            sys.stderr.write(f"note: {CONTEXT_NOTE}\n")
        if self._options.verbose:
            sys.stderr.write(summary(outcome) + "\n")

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._ends_line = text.endswith("\n")


class JsonOutput(Output):
    """One JSON object at the end."""

    def __init__(self, options: Options, name: str) -> None:
        super().__init__(options, name)
        self._stream = TextStream(options.stop)
        self._text: list[str] = []

    def _write(self, text: str) -> None:
        self._text.append(text)

    def finish(self, outcome: Outcome) -> None:
        self._text.append(self._stream.finish())
        document = report(self._name, outcome)
        _line({"text": "".join(self._text), **document})


class JsonLines(Output):
    """One JSON object for every piece of text, and the report as the last one."""

    def __init__(self, options: Options, name: str) -> None:
        super().__init__(options, name)
        self._stream = TextStream(options.stop)

    def token(self, token: int, piece: bytes, drafted: bool) -> None:
        text = self._stream.feed(piece)
        _line({"type": "token", "token": token, "text": text, "drafted": drafted})

    def finish(self, outcome: Outcome) -> None:
        document = report(self._name, outcome)
        _line({"type": "done", "text": self._stream.finish(), **document})


def output_of(options: Options, name: str) -> Output:
    """The output that the options ask for."""
    if options.json:
        return JsonOutput(options, name)
    return JsonLines(options, name) if options.stream_json else Output(options, name)


def report(name: str, outcome: Outcome) -> dict[str, Any]:
    """What happened, as documented in docs/json.md; rates in tokens a second."""
    statistics, off, request = outcome.statistics, outcome.off, outcome.request
    return {
        "model": name,
        "finish_reason": outcome.reason,
        "prompt_tokens": {"cached": statistics.cached, "evaluated": statistics.evaluated},
        "completion_tokens": statistics.generated,
        "rates": {
            "prompt": round(statistics.prompt_rate, 2),
            "decode": round(statistics.decode_rate, 2),
        },
        "seconds": {
            "prompt": round(statistics.prompt_seconds, 6),
            "decode": round(statistics.decode_seconds, 6),
            "native": round(statistics.native_seconds, 6),
        },
        "mtp": {
            "enabled": off is None,
            "reason": off,
            "rounds": statistics.rounds,
            "drafted": statistics.drafted,
            "accepted": statistics.accepted,
            "per_position": [round(share, 4) for share in statistics.per_position],
            "tokens_per_round": round(statistics.tokens_per_round, 4),
        },
        "conditions": {"slots": 1, "temperature": request.sampling.temperature},
        "seed": request.sampling.seed,
    }


def summary(outcome: Outcome) -> str:
    """The statistics as one line for people; every rate with its conditions."""
    statistics, off, request = outcome.statistics, outcome.off, outcome.request
    conditions = f"1 slot, temperature {request.sampling.temperature:g}"
    parts = [
        f"prompt {statistics.evaluated} tokens at {statistics.prompt_rate:.1f}/s"
        + (f" ({statistics.cached} cached)" if statistics.cached else ""),
        f"answer {statistics.generated} tokens at {statistics.decode_rate:.1f}/s ({conditions})",
    ]
    if off:
        parts.append(f"drafting off: {off}")
    else:
        shares = "/".join(f"{share:.2f}" for share in statistics.per_position)
        parts.append(
            f"{statistics.tokens_per_round:.2f} tokens a round, "
            f"accepted {statistics.accepted} of {statistics.drafted} ({shares})"
        )
    return " · ".join(parts)


def _line(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    sys.stdout.flush()

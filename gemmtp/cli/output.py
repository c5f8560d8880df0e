"""Where an answer goes: plain text, one JSON object, or JSON lines. stdout carries it alone."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmtp.prompt.channels import CLOSE, OPEN, ChannelStream, Piece

if TYPE_CHECKING:
    from gemmtp.cli.fitting import Fitted
    from gemmtp.cli.oneshot import Options
    from gemmtp.engine.depth import DepthChooser
    from gemmtp.engine.engine import FinishReason, Request
    from gemmtp.engine.stats import Statistics
    from gemmtp.llama.model import Model
    from gemmtp.llama.pair import Pair

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
CONTEXT_NOTE = "the context is full; the answer ends here (raise --ctx for more)"


def start_line(name: str, pair: Pair, plan: Fitted, depth: DepthChooser) -> str:
    """The one line that says what runs and where, and whether and how deep it drafts."""
    from gemmtp.llama.devices import threads

    context, off = plan.context, plan.files.off
    n = context.threads or threads()
    parts = [
        name,
        plan.memory or f"{n} thread{'s' if n > 1 else ''}",
        f"ctx {context.n_ctx} {context.kv}",
        f"drafting off: {off}" if off else f"drafting on, {depth.describe()}",
        plan.vision,
    ]
    return " · ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended; ``off`` is why there was no drafting, None where there was."""

    reason: FinishReason
    statistics: Statistics
    off: str | None
    request: Request


class Output:
    """Plain text on stdout; thoughts, the start line and statistics on stderr."""

    def __init__(self, options: Options, name: str, stream: ChannelStream) -> None:
        self._options, self._name, self._stream = options, name, stream
        self._last: Piece = Piece("answer", "\n")
        self._dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR")

    def start(self, line: str) -> None:
        """Say what runs."""
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def prefill(self, done: int, total: int) -> None:
        """``done`` of ``total`` prompt tokens are evaluated."""

    def token(self, token: int, drafted: bool) -> None:
        """A token came; end tokens are not passed on."""
        self._write(self._stream.feed(token))

    def finish(self, outcome: Outcome) -> None:
        """The answer is complete."""
        for piece in self._stream.finish():
            self._write(piece)
        self._end_line()
        if outcome.reason == "context":
            sys.stderr.write(f"note: {CONTEXT_NOTE}\n")
        if self._options.verbose:
            sys.stderr.write(summary(outcome) + "\n")

    def _write(self, piece: Piece) -> None:
        if not piece.text or (piece.kind == "thinking" and self._options.hide_thinking):
            return
        if piece.kind != self._last.kind:
            self._end_line()
        self._last = piece
        if piece.kind == "answer":
            sys.stdout.write(piece.text)
            sys.stdout.flush()
        else:
            sys.stderr.write(f"{DIM}{piece.text}{PLAIN}" if self._dim else piece.text)
            sys.stderr.flush()

    def _end_line(self) -> None:
        if not self._last.text.endswith("\n"):
            stream = sys.stdout if self._last.kind == "answer" else sys.stderr
            stream.write("\n")
            stream.flush()
            self._last = Piece(self._last.kind, "\n")


class JsonOutput(Output):
    """One JSON object at the end."""

    def __init__(self, options: Options, name: str, stream: ChannelStream) -> None:
        super().__init__(options, name, stream)
        self._texts: dict[str, str] = {"answer": "", "thinking": ""}

    def _write(self, piece: Piece) -> None:
        self._texts[piece.kind] += piece.text

    def finish(self, outcome: Outcome) -> None:
        for piece in self._stream.finish():
            self._write(piece)
        texts = {"text": self._texts["answer"], "thinking": self._texts["thinking"]}
        _line({**texts, **report(self._name, outcome)})


class JsonLines(Output):
    """One JSON object for every token, and the report as the last one."""

    def token(self, token: int, drafted: bool) -> None:
        kind, text = self._stream.feed(token)
        _line({"type": "token", "token": token, "kind": kind, "text": text, "drafted": drafted})

    def finish(self, outcome: Outcome) -> None:
        for kind, text in self._stream.finish():
            _line({"type": "rest", "kind": kind, "text": text})
        _line({"type": "done", **report(self._name, outcome)})


def output_of(options: Options, name: str, model: Model) -> Output:
    """The output that the options ask for."""
    kind = JsonOutput if options.json else JsonLines if options.stream_json else Output
    opening, closing = (None, None) if options.raw else (model.marker(OPEN), model.marker(CLOSE))
    terminal = kind is Output and sys.stdout.isatty()
    stream = ChannelStream(model.token_bytes, opening, closing, options.stop, terminal=terminal)
    return kind(options, name, stream)


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
            "rounds_by_depth": statistics.rounds_at,
            "accept": statistics.rule,
            "overlap": None if statistics.overlap is None else round(statistics.overlap, 4),
        },
        "conditions": {"slots": 1, "temperature": request.sampling.temperature},
        "seed": statistics.seed,
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

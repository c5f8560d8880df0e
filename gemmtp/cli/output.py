"""Where an answer goes: plain text, one JSON object, or JSON lines. stdout carries it alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from gemmtp.engine.stats import SourceCounts
from gemmtp.prompt.channels import ChannelStream, Markers, Piece, Written

if TYPE_CHECKING:
    from gemmtp.chat.pieces import Reason
    from gemmtp.chat.sessions import Session
    from gemmtp.cli.fitting import Fitted
    from gemmtp.cli.options import Options
    from gemmtp.engine.engine import Request
    from gemmtp.engine.stats import Statistics
    from gemmtp.llama.model import Model
    from gemmtp.llama.pair import Pair
    from gemmtp_models.names import ModelFiles

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
UNREADABLE = "the model wrote a tool call that cannot be read"
CONTEXT_NOTE = "the context is full; the answer ends here (raise --ctx for more)"


def start_line(name: str, pair: Pair, plan: Fitted) -> str:
    """The one line that says what runs and where, and whether and how deep it drafts."""
    from gemmtp.engine.drafting import described
    from gemmtp.llama.devices import threads

    context, engine = plan.context, pair.engine
    n = context.threads or threads()
    parts = [
        name,
        plan.memory or f"{n} thread{'s' if n > 1 else ''}",
        f"ctx {context.n_ctx} {context.kv}",
        described(engine.drafting, engine.depth.describe()),
        plan.vision,
    ]
    return " · ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended; ``off`` is why there was no drafter, None where there was.

    ``complete`` says whether the answer is all that its grammar asks for; None without a grammar.
    """

    reason: Reason
    statistics: Statistics
    off: str | None
    request: Request
    complete: bool | None = None


class Output:
    """Plain text and tool calls on stdout; thoughts, the start line and statistics on stderr."""

    def __init__(self, options: Options, files: ModelFiles, stream: ChannelStream) -> None:
        self._options, self._files, self._stream = options, files, stream
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
        if piece.kind == "tool_call":
            if piece.written is not None:
                self._end_line()
                self._call(piece.written)
            return
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

    def _call(self, written: Written) -> None:
        if written.call is None:
            sys.stderr.write(f"note: {UNREADABLE}: {_escaped(json.dumps(written.text))}\n")
        else:
            call = written.call
            _line({"name": call.name, "arguments": call.arguments})

    def _end_line(self) -> None:
        if not self._last.text.endswith("\n"):
            stream = sys.stdout if self._last.kind == "answer" else sys.stderr
            stream.write("\n")
            stream.flush()
            self._last = Piece(self._last.kind, "\n")


class JsonOutput(Output):
    """One JSON object at the end."""

    def __init__(self, options: Options, files: ModelFiles, stream: ChannelStream) -> None:
        super().__init__(options, files, stream)
        self._texts: dict[str, str] = {"answer": "", "thinking": ""}
        self._calls: list[Written] = []

    def _write(self, piece: Piece) -> None:
        if piece.written is not None:
            self._calls.append(piece.written)
        elif piece.kind != "tool_call":
            self._texts[piece.kind] += piece.text

    def finish(self, outcome: Outcome) -> None:
        for piece in self._stream.finish():
            self._write(piece)
        texts = {"text": self._texts["answer"], "thinking": self._texts["thinking"]}
        _line({**texts, **report(self._files, outcome, self._calls)})


class JsonLines(Output):
    """One JSON object for every token, and the report as the last one."""

    def __init__(self, options: Options, files: ModelFiles, stream: ChannelStream) -> None:
        super().__init__(options, files, stream)
        self._calls: list[Written] = []

    def token(self, token: int, drafted: bool) -> None:
        kind, text, written = self._stream.feed(token)
        self._calls += [written] if written else []
        _line({"type": "token", "token": token, "kind": kind, "text": text, "drafted": drafted})

    def finish(self, outcome: Outcome) -> None:
        for kind, text, written in self._stream.finish():
            self._calls += [written] if written else []
            if text:
                _line({"type": "rest", "kind": kind, "text": text})
        _line({"type": "done", **report(self._files, outcome, self._calls)})


def output_of(options: Options, files: ModelFiles, model: Model, session: Session) -> Output:
    """The output that the options ask for; what it prints is recorded in ``session``."""
    from gemmtp.chat.recording import RecordedStream

    kind = JsonOutput if options.json else JsonLines if options.stream_json else Output
    stream = RecordedStream(
        session,
        model.token_bytes,
        Markers() if options.raw else Markers.of(model.marker),
        options.stop,
        terminal=kind is Output and sys.stdout.isatty(),
        thinking_terminal=kind is Output and sys.stderr.isatty(),
    )
    return kind(options, files, stream)


def report(files: ModelFiles, outcome: Outcome, calls: Sequence[Written]) -> dict[str, Any]:
    """What happened, as documented in docs/json.md; rates in tokens a second."""
    statistics, request = outcome.statistics, outcome.request
    called = [_call(written, i) for i, written in enumerate(calls)]
    reason: str = outcome.reason
    if reason == "stop" and any(written.call for written in calls):
        reason = "tool_calls"
    return {
        "tool_calls": called,
        "model": files.name,
        "hashes": hashes(files),
        "finish_reason": reason,
        "complete": outcome.complete,
        "prompt_tokens": {
            "cached": statistics.cached,
            "evaluated": statistics.evaluated,
            "images": sum(part.n for part in request.media),
        },
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
        "mtp": _drafting(outcome),
        "conditions": {"slots": 1, "temperature": request.sampling.temperature},
        "seed": statistics.seed,
    }


def hashes(files: ModelFiles) -> dict[str, str | None]:
    """SHA-256 of the target and of the whole set, as its manifest has them; None where it has none.

    The set's is that of its layers' lines ``role sha256``, so it changes with any of its files.
    Files without a manifest are not read for it.
    """
    layers = files.manifest.layers if files.manifest else {}
    target = layers["target"].sha256 if "target" in layers else None
    lines = [f"{role} {layer.sha256}\n" for role, layer in sorted(layers.items())]
    known = bool(layers) and all(layer.sha256 for layer in layers.values())
    whole = hashlib.sha256("".join(lines).encode()).hexdigest() if known else None
    return {"model": target, "set": whole}


def _drafting(outcome: Outcome) -> dict[str, Any]:
    statistics, off = outcome.statistics, outcome.off
    drafted, accepted = statistics.drafted, statistics.accepted
    return {
        "enabled": off is None,
        "reason": off,
        "rounds": statistics.rounds,
        "drafted": drafted,
        "accepted": accepted,
        "per_position": [round(share, 4) for share in statistics.per_position],
        "tokens_per_round": round(statistics.tokens_per_round, 4),
        "by_source": _by_source(outcome),
        "rounds_by_depth": statistics.rounds_at,
        "depth": statistics.choice or None,
        "accept": statistics.rule,
        "overlap": None if statistics.overlap is None else round(statistics.overlap, 4),
    }


def _by_source(outcome: Outcome) -> dict[str, dict[str, int]]:
    """The drafter's counts where there is one, and those of each other source that drafted."""
    counts = outcome.statistics.by_source
    sources = [*(["mtp"] if outcome.off is None else []), *sorted(counts.keys() - {"mtp"})]
    return {source: asdict(counts.get(source, SourceCounts())) for source in sources}


def _call(written: Written, i: int) -> dict[str, Any]:
    if written.call is None:
        return {"id": f"call_{i}", "type": "unreadable", "text": written.text}
    return replace(written.call, id=f"call_{i}").to_json()


def summary(outcome: Outcome) -> str:
    """The statistics as one line for people; every rate with its conditions."""
    statistics, off, request = outcome.statistics, outcome.off, outcome.request
    conditions = f"1 slot, temperature {request.sampling.temperature:g}"
    images = sum(part.n for part in request.media)
    parts = [
        f"prompt {statistics.evaluated} tokens at {statistics.prompt_rate:.1f}/s"
        + (f" ({statistics.cached} cached)" if statistics.cached else "")
        + (f", {images} of images" if images else ""),
        f"answer {statistics.generated} tokens at {statistics.decode_rate:.1f}/s ({conditions})",
    ]
    if off:
        parts.append(f"no drafter: {off}")
    if statistics.drafted:
        parts.append(f"{statistics.tokens_per_round:.2f} tokens a round")
    for source, counts in _by_source(outcome).items():
        parts.append(f"{source} accepted {counts['accepted']} of {counts['drafted']}")
        if source == "mtp":
            shares = "/".join(f"{share:.2f}" for share in statistics.per_position)
            parts[-1] += f" ({shares}), depth {statistics.choice}"
    return " · ".join(parts)


def _line(document: dict[str, Any]) -> None:
    sys.stdout.write(_escaped(json.dumps(document, ensure_ascii=False)) + "\n")
    sys.stdout.flush()


def _escaped(text: str) -> str:
    """JSON whose last control characters, which JSON lets pass, cannot reach a terminal either."""
    return re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match.group()):04x}", text)

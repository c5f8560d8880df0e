"""One answer decoded, printed and recorded, however it ends."""

from __future__ import annotations

import sys
from contextlib import suppress

from gemmtp.chat.pieces import Reason
from gemmtp.chat.sessions import Session
from gemmtp.cli import structured
from gemmtp.cli.output import Outcome, Output
from gemmtp.cli.signals import Terminated
from gemmtp.engine.engine import Failed, Finished, Prefill, Request, Token
from gemmtp.engine.stats import Statistics
from gemmtp.llama.pair import Pair


def decode(pair: Pair, request: Request, output: Output, session: Session) -> None:
    """Decode ``request`` into ``output``, whose stream records into ``session``.

    Ctrl-C, SIGTERM and a closed pipe pass through; what was printed until then is kept and marked.
    Raises :class:`~gemmtp.errors.GemmtpError` when an answer ended before its grammar did.
    """
    engine, off = pair.engine, pair.engine.drafting.no_drafter
    tokens: list[int] = []
    reason: Reason = "interrupted"
    statistics: Statistics | None = None
    index = engine.submit(request)
    try:
        while statistics is None:
            for event in engine.step():
                match event:
                    case Token(token=token, drafted=drafted):
                        tokens.append(token)
                        if token not in request.stop_tokens:
                            output.token(token, drafted)
                    case Prefill(done=done, total=total):
                        output.prefill(done, total)
                    case Finished(reason=reason, statistics=statistics):
                        complete = structured.complete(request, tokens)
                        output.finish(Outcome(reason, statistics, off, request, complete))
                        structured.raise_if_cut(complete, reason, tokens)
                    case Failed(error=error, statistics=statistics):
                        raise error
    except (KeyboardInterrupt, Terminated):
        statistics = engine.stop(index, len(request.prompt) + len(tokens)) or Statistics()
        complete = structured.complete(request, tokens)
        if reason == "interrupted":
            # A terminal that hung up takes no more.
            with suppress(OSError):
                output.finish(Outcome(reason, statistics, off, request, complete))
        raise
    finally:
        statistics = engine.stop(index, len(request.prompt) + len(tokens)) or statistics
        session.record_end(reason, statistics)
        if session.trouble:
            sys.stderr.write(f"note: the session {session.name} lacks the end: {session.trouble}\n")

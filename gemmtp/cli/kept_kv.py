"""``--save-kv``: the KV cache of a session, restored when a model is loaded, saved when it goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gemmtp.chat import kvstate, shelf
from gemmtp.chat.kvstate import CannotRestoreError, Made
from gemmtp.chat.sessions import Session
from gemmtp.cli.signals import Terminated
from gemmtp.errors import EngineError, GemmtpError
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import CheckedPair, Pair

WINDOW_BYTES = 1 << 30
"""Room for one checkpoint of the largest model, with which the next turn goes behind its answer."""


@dataclass(slots=True)
class Kept:
    """Whose cache is saved; a chat may go on with another session than it began with."""

    session: Session


@contextmanager
def kept_kv(
    session: Session, pair: Pair, files: CheckedPair, context: ContextOptions, *, save: bool
) -> Iterator[Kept]:
    """Restore the cache that was saved for ``session``; with ``save`` save it when leaving.

    It is saved as well when Ctrl-C or SIGTERM ends the work, for the session that there is by then.
    What stands against it is one note on stderr.
    """
    kept = Kept(session)
    saved = session.recorded and shelf.kv_path(session.name).exists()
    if saved or save:
        points = pair.engine.checkpoints
        points.budget = max(points.budget, WINDOW_BYTES)
    if saved:
        _restore(session, pair, files, context)
    if not save:
        yield kept
        return
    try:
        yield kept
    except (KeyboardInterrupt, Terminated):
        _save(kept.session, pair, files, context)
        raise
    _save(kept.session, pair, files, context)


def _restore(session: Session, pair: Pair, files: CheckedPair, context: ContextOptions) -> None:
    try:
        made = Made.with_files(files, context)
        resting = kvstate.read(shelf.kv_path(session.name), made, pair.engine.target.n_ctx)
        pair.engine.adopt(0, resting)
    except (CannotRestoreError, EngineError, OSError) as error:
        sys.stderr.write(f"note: the saved KV cache is not used: {error}\n")


def _save(session: Session, pair: Pair, files: CheckedPair, context: ContextOptions) -> None:
    resting = pair.engine.rest(0)
    # One in which nothing was said is gone already, and so is one that was never recorded.
    if resting is None or not shelf.path_of(session.name).is_file():
        return
    try:
        made = Made.with_files(files, context)
        kvstate.write(shelf.kv_path(session.name), resting, made)
    except (GemmtpError, OSError) as error:
        sys.stderr.write(f"note: {error}\n")

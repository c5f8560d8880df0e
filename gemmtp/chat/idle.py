"""Use of the time in which the user reads and types: the history is read ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from gemmtp.chat.dialogue import Dialogue
from gemmtp.errors import GemmtpError


@contextmanager
def reading_ahead(dialogue: Dialogue) -> Iterator[None]:
    """Let ``dialogue`` settle in a thread of its own as long as the context lasts.

    The dialogue must be left alone meanwhile. Leaving waits for the chunk at hand, half a second at
    most on machines that can do with that. What fails is left for the next turn to say.
    """
    over = threading.Event()

    def work() -> None:
        with suppress(GemmtpError), closing(dialogue.settle()) as reading:
            for _ in reading:
                if over.is_set():
                    return

    thread = threading.Thread(target=work, name="reading ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        _join(thread)


def _join(thread: threading.Thread) -> None:
    """Wait for ``thread`` even when Ctrl-C comes meanwhile, and pass that on afterwards."""
    interrupted: KeyboardInterrupt | None = None
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
    if interrupted is not None:
        raise interrupted

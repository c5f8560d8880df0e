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
    over, ended = threading.Event(), threading.Event()

    def work() -> None:
        try:
            with suppress(GemmtpError), closing(dialogue.settle()) as reading:
                for _ in reading:
                    if over.is_set():
                        return
        finally:
            ended.set()

    threading.Thread(target=work, name="reading ahead", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        _await(ended)


def _await(ended: threading.Event) -> None:
    """Wait for the thread even when Ctrl-C comes meanwhile, and pass that on afterwards.

    Not with Thread.join(): Python 3.11 takes a thread for ended when a signal interrupts that.
    """
    interrupted: KeyboardInterrupt | None = None
    while not ended.is_set():
        try:
            ended.wait()
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
    if interrupted is not None:
        raise interrupted

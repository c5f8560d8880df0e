"""Ctrl-C, SIGTERM and SIGHUP, as exceptions at a place where an exception is safe.

Ctrl-C stays KeyboardInterrupt, which a chat takes as the end of an answer. SIGTERM and SIGHUP raise
:class:`Terminated`, which nothing takes: every ``finally`` on the way out saves what it has to, and
the process ends with 143 or 129. A signal that was ignored when the program began (``nohup``, a
background job) stays ignored.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_RETRY_SECONDS = 0.02

_CALLED_BACK = "gemmtp.llama.library", "write"
_LOADING = "gemmtp.llama.model", "_report"
"""Functions that llama.cpp calls: nothing may be raised through it. What the second one calls may
raise; it hands the exception on after the load."""


class Terminated(SystemExit):
    """The process was told to end; ``code`` is what it exits with.

    A SystemExit, since event loops let that through and nothing takes it for an error.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


@contextmanager
def handled() -> Iterator[None]:
    """Raise for signals as long as the context lasts; then as before. For the main thread."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP"):
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    caught = [number for number in numbers if before[number] != signal.SIG_IGN]
    ending = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if _in_callback(frame):
            again = threading.Timer(_RETRY_SECONDS, _send, (number,))
            again.daemon = True
            again.start()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif not ending:
            # Once on the way out, another one must not cut short what is being saved.
            ending = True
            raise Terminated(number)

    for number in caught:
        signal.signal(number, handle)
    try:
        yield
    except Terminated as ended:
        with suppress(OSError):
            sys.stderr.write(f"gemmtp: ended by {ended.signal.name}\n")
        raise
    finally:
        for number in caught:
            signal.signal(number, before[number])


def _send(number: int) -> None:
    """Let a signal come again, in the main thread, also while that waits for something."""
    main = threading.main_thread().ident
    if sys.platform == "win32" or main is None:
        _thread.interrupt_main(signal.Signals(number))
    else:
        signal.pthread_kill(main, number)


def _in_callback(frame: FrameType | None) -> bool:
    """Whether llama.cpp stands between here and whoever could take an exception."""
    innermost = True
    while frame is not None:
        function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if function == _CALLED_BACK or (innermost and function == _LOADING):
            return True
        innermost, frame = False, frame.f_back
    return False

"""llama.cpp loaded once: version and symbol check, its log, its abort handler.

llama.cpp prints to stderr and, when it aborts, starts a debugger. Both are switched off before the
library does anything: the log goes into a bounded buffer that is shown with ``--verbose`` or when a
load fails.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from gemmtp.errors import EngineError

VERSION = "0.3.36"
"""The llama-cpp-python whose C++ symbols the drafter's calls were read from."""

LOG_LINES = 400
_NEXTN = ("llama_set_embeddings_nextn", "llama_get_embeddings_nextn")


_DEBUG, _ERROR, _CONTINUED = 1, 4, 5
"""ggml.h, ``enum ggml_log_level`` (llama_cpp._logger has other numbers)."""


class Log:
    """llama.cpp's log lines, the newest :data:`LOG_LINES` of them, without its debug chatter.

    ``sink`` also gets every finished line; None keeps quiet.
    """

    def __init__(self) -> None:
        self.sink: Callable[[str], None] | None = None
        self._lines: collections.deque[tuple[int, str]] = collections.deque(maxlen=LOG_LINES)
        self._partial = b""
        self._level = 0

    def write(self, level: int, text: bytes) -> None:
        """Take a piece of log, which may end in the middle of a line or of a character."""
        self._level = self._level if level == _CONTINUED else level
        if self._level == _DEBUG:
            return
        *lines, self._partial = (self._partial + text).split(b"\n")
        for line in lines:
            decoded = line.decode("utf-8", "replace")
            self._lines.append((self._level, decoded))
            if self.sink is not None:
                self.sink(decoded)

    @contextmanager
    def shown(self, sink: Callable[[str], None] | None) -> Iterator[None]:
        """Give every line to ``sink`` too, for as long as the context lasts."""
        before, self.sink = self.sink, sink
        try:
            yield
        finally:
            self.sink = before

    def mark(self) -> None:
        """Forget what was logged so far, so that :meth:`cause` speaks of what comes now."""
        self._lines.clear()

    @property
    def lines(self) -> list[str]:
        return [line for _, line in self._lines]

    def cause(self) -> str | None:
        """The first error since :meth:`mark`, without llama.cpp's function name in front."""
        errors = (line for level, line in self._lines if level == _ERROR and line.strip())
        first = next(errors, None)
        return None if first is None else first.split(": ", 1)[-1].strip()


log = Log()


@functools.cache
def _callback() -> Any:
    from llama_cpp import llama_cpp as c

    def write(level: int, text: bytes, user_data: object) -> None:
        log.write(level, text or b"")

    return c.llama_log_callback(write)


@functools.cache
def api() -> ModuleType:
    """The ``llama_cpp.llama_cpp`` module, initialised.

    Raises :class:`~gemmtp.errors.EngineError` when llama-cpp-python is missing, does not load, or
    is another version than the one whose symbols are used.
    """
    # ggml starts gdb on abort unless this is set before it loads.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        import llama_cpp
        from llama_cpp import llama_cpp as c
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineError(
            f"llama-cpp-python does not load: {error}",
            f"Install it with: pip install llama-cpp-python=={VERSION}",
        ) from error
    if llama_cpp.__version__ != VERSION:
        raise EngineError(
            f"llama-cpp-python {llama_cpp.__version__} is installed, {VERSION} is needed.",
            f"Install it with: pip install llama-cpp-python=={VERSION}",
        )
    c.llama_log_set(_callback(), ctypes.c_void_p(0))
    c.llama_backend_init()
    module: ModuleType = c
    return module


@functools.cache
def nextn() -> ModuleType:
    """``llama_cpp.llama_cpp_ext``: the calls of the multi-token-prediction head.

    Raises :class:`~gemmtp.errors.EngineError` when this build of llama.cpp does not export them.
    """
    api()
    try:
        from llama_cpp import llama_cpp_ext as ext
    except (ImportError, AttributeError) as error:
        raise EngineError(
            "This build of llama.cpp lacks the calls that drafting needs.",
            f"Install it with: pip install --force-reinstall llama-cpp-python=={VERSION}",
        ) from error
    for name in _NEXTN:
        if not hasattr(ext, name):
            raise EngineError(f"This build of llama.cpp lacks {name}.")
    module: ModuleType = ext
    return module


@functools.cache
def mtmd() -> ModuleType:
    """``llama_cpp.mtmd_cpp``: llama.cpp's encoders of images; loaded when an image comes.

    Raises :class:`~gemmtp.errors.EngineError` when this build of llama.cpp comes without them.
    """
    api()
    try:
        from llama_cpp import mtmd_cpp as c
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise EngineError(
            "This build of llama.cpp comes without mtmd, which images need.",
            f"Install it with: pip install --force-reinstall llama-cpp-python=={VERSION}",
        ) from error
    c.mtmd_log_set(_callback(), ctypes.c_void_p(0))
    module: ModuleType = c
    return module

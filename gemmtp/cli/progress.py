"""A progress bar for loads that take long enough to wonder about."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_SECONDS = 0.7


class loading:
    """Shows how much of ``name`` is loaded, on a terminal and only once the load takes a while.

    An instance is the callback that :meth:`gemmtp.llama.model.Model.open` wants.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin = time.monotonic()
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __call__(self, share: float) -> bool:
        if self._bar is None and time.monotonic() - self._begin > PATIENCE_SECONDS:
            self._bar = self._start()
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=share)
        return True

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def _start(self) -> tuple[Progress, TaskID] | None:
        if not sys.stderr.isatty():
            return None
        from rich.console import Console
        from rich.progress import Progress

        progress = Progress(console=Console(stderr=True), transient=True)
        progress.start()
        return progress, progress.add_task(f"loading {self._name}", total=1.0)

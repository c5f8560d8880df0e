"""How far a pull is: bars with rate and time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from gemmtp_models.download import Progress
    from gemmtp_models.manifest import Role
    from gemmtp_models.pull import Plan

LINE_SECONDS = 15.0


class FetchProgress:
    """The callback that :func:`gemmtp_models.pull.pull` wants, for the files of ``plan``."""

    def __init__(self, plan: Plan, *, quiet: bool) -> None:
        self._plan, self._quiet = plan, quiet
        self._bars: Bars | None = None
        self._tasks: dict[Role, TaskID] = {}
        self._last_line = time.monotonic()
        self._waiting = False

    def __enter__(self) -> Self:
        if not self._quiet and self._plan.missing and sys.stderr.isatty():
            self._bars = _bars()
            for role, file in self._plan.missing.items():
                self._tasks[role] = self._bars.add_task(role, total=file.size, start=False)
            self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, role: Role, progress: Progress) -> None:
        if self._quiet:
            return
        if progress.waiting:
            self._wait(role)
        elif self._bars is not None:
            task = self._tasks[role]
            if not self._bars.tasks[task].started:
                # What an earlier try left must not count as speed.
                self._bars.update(task, completed=progress.done)
                self._bars.start_task(task)
            self._bars.update(task, completed=progress.done)
        else:
            self._line(role, progress)

    def _wait(self, role: Role) -> None:
        if not self._waiting:
            self._waiting = True
            sys.stderr.write(f"Another gemmtp is fetching the {role}; waiting for it.\n")

    def _line(self, role: Role, progress: Progress) -> None:
        if time.monotonic() - self._last_line > LINE_SECONDS and progress.done < progress.total:
            self._last_line = time.monotonic()
            share = progress.done / progress.total
            sys.stderr.write(f"{role}: {share:.0%} of {progress.total / 2**20:,.0f} MiB\n")


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description:9}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )

"""Preparing the next batches while a step runs."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

BATCHES_AHEAD = 4


def ahead(items: Iterator[T], count: int = BATCHES_AHEAD) -> Iterator[T]:
    """The same endless items in the same order, up to `count` of them made in advance.

    An exception of `items` ends the stream where it happened.
    """
    made: queue.Queue[T | Exception] = queue.Queue(count)

    def make() -> None:
        try:
            for item in items:
                made.put(item)
        except Exception as error:
            made.put(error)

    threading.Thread(target=make, daemon=True).start()
    while True:
        item = made.get()
        if isinstance(item, Exception):
            raise item
        yield item

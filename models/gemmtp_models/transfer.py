"""The bytes of one file over several connections, hashed and synced as they come.

Worker threads ask for the missing pieces from the front. A sync thread makes what came durable and
notes it in the journal, a hash thread follows the bytes that are there without a gap; both read
what the workers wrote, so nothing is held in memory. What an earlier process left is hashed from
the disk in the same way.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from gemmtp_models.download import ChangedError, Options, Progress, Report, checked_location
from gemmtp_models.download_journal import Journal, Ranges
from gemmtp_models.hub import Hub, Location, PassingError, check_passing, given_up
from gemmtp_models.positioned import read_into, sync, write_all

if TYPE_CHECKING:
    from gemmtp_models.hub_names import RemoteFile

MIB = 2**20
# What a kill may lose is less than 8 MB on the default connections: MOST_UNSYNCED that was written,
# and one WRITE_BYTES under way to the disk and one gathered on each connection.
SYNC_AT = 2 * MIB
MOST_UNSYNCED = 4 * MIB
SYNC_SECONDS = 2.0
WRITE_BYTES = MIB // 4
HASH_BYTES = MIB
REPORT_SECONDS = 0.1
STOP_SECONDS = 3.0
# Longer than a connection may be silent: nobody may write when the file is begun anew.
RESTART_SECONDS = 40.0
# Less than this between two failures is no progress, or a bad server could keep us for ever.
PROGRESS_BYTES = MIB

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


@dataclass(slots=True)
class _Piece:
    """``[start, end)`` that one connection fetches; ``start`` moves on."""

    start: int
    end: int


class Transfer:
    """One run over the network for one file; ``run`` is called once."""

    def __init__(
        self,
        hub: Hub,
        file: RemoteFile,
        location: Location,
        handle: int,
        journal: Journal,
        options: Options,
    ) -> None:
        self._hub, self._file, self._location = hub, file, location
        self._handle, self._journal, self._options = handle, journal, options
        self._size = file.size or 0
        self._changed = threading.Condition()
        # Everything below is read and written under the condition.
        self._written = Ranges(journal.ranges)
        self._claimed = Ranges(journal.ranges)
        self._unsynced: list[tuple[int, int]] = []
        self._unsynced_bytes = 0
        self._hashed = 0
        self._digest = hashlib.sha256()
        self._busy = 0
        self._streaming = False
        self._stop = False
        self._failure: BaseException | None = None
        self._pieces = deque(self._cut(self._written.missing(0, self._size)))
        self._threads: list[threading.Thread] = []

    @property
    def ended(self) -> bool:
        """Whether no thread of this transfer runs any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def run(self, report: Report) -> None:
        """Fetch, sync and hash everything that is missing.

        Raises ChangedError when the file has to be begun anew, DownloadError when the server gives
        no more, OSError of the disk.
        """
        count = min(self._options.connections, max(1, len(self._pieces)))
        works: list[Callable[[], None]] = [self._sync, self._hash, *[self._work] * count]
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._wait(report)
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure
        if self._digest.hexdigest() != self._file.sha256:
            raise ChangedError("arrived with the wrong content")

    def _cut(self, gaps: Iterable[tuple[int, int]]) -> list[_Piece]:
        step = self._options.piece if self._options.connections > 1 else max(self._size, 1)
        return [
            _Piece(at, min(at + step, end)) for start, end in gaps for at in range(start, end, step)
        ]

    def _wait(self, report: Report) -> None:
        while True:
            with self._changed:
                complete = self._hashed == self._size and not self._unsynced_bytes
                if complete or self._failure is not None:
                    return
                self._changed.wait(REPORT_SECONDS)
                done = self._written.total
            report(Progress(done, self._size))

    def _end(self) -> None:
        """Stop the threads and keep what came in the last moment."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        again = isinstance(self._failure, ChangedError)
        deadline = time.monotonic() + (RESTART_SECONDS if again else STOP_SECONDS)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.ended and self._unsynced:
            sync(self._handle)
            self._journal.note(self._unsynced)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work; what goes wrong in it is raised by ``run``."""
        try:
            work()
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _sync(self) -> None:
        """Make what came durable, then say so in the journal."""
        while True:
            with self._changed:
                begin = time.monotonic()
                while not self._stop and self._unsynced_bytes < SYNC_AT:
                    at_end = self._unsynced_bytes and self._written.total == self._size
                    if at_end or time.monotonic() - begin > SYNC_SECONDS:
                        break
                    self._changed.wait(SYNC_SECONDS)
                if self._stop:
                    return
                batch, self._unsynced = self._unsynced, []
            if not batch:
                continue
            sync(self._handle)
            with self._changed:
                self._journal.note(Ranges(batch))
                self._unsynced_bytes -= sum(end - start for start, end in batch)
                self._changed.notify_all()

    def _hash(self) -> None:
        """Follow the front of the file."""
        buffer = memoryview(bytearray(HASH_BYTES))
        while True:
            with self._changed:
                while not self._stop and not self._hash_now():
                    self._changed.wait(REPORT_SECONDS)
                if self._stop or self._hashed == self._size:
                    self._changed.notify_all()
                    return
                count = min(HASH_BYTES, self._written.prefix - self._hashed)
            got = read_into(self._handle, buffer[:count], self._hashed)
            if not got:
                raise ChangedError("was cut short on the disk")
            self._digest.update(buffer[:got])
            with self._changed:
                self._hashed += got

    def _hash_now(self) -> bool:
        """Whether there is enough to hash, or the rest."""
        prefix = self._written.prefix
        return prefix - self._hashed >= HASH_BYTES or prefix == self._size

    def _work(self) -> None:
        """Fetch pieces until there are none, with patience for failures that pass."""
        failures, seen = 0, 0
        while (piece := self._take()) is not None:
            try:
                self._fetch(piece)
                failures = 0
            except PassingError as error:
                with self._changed:
                    if self._written.total - seen >= PROGRESS_BYTES:
                        failures = 0
                    seen = self._written.total
                failures += 1
                if failures >= self._options.patience.attempts:
                    raise given_up(error) from error
                # The piece is given back first, so that others need not wait.
                self._give_back(piece)
                self._pause(self._options.patience.delay(failures, error.retry_after))
            else:
                self._give_back(piece)

    def _take(self) -> _Piece | None:
        """The next piece; None when nothing is left or the transfer stops."""
        with self._changed:
            while not self._stop and self._failure is None:
                while self._pieces:
                    piece = self._pieces.popleft()
                    gaps = self._written.missing(piece.start, piece.end)
                    if gaps:
                        piece.start = gaps[0][0]
                        self._busy += 1
                        return piece
                if not self._busy:
                    return None
                self._changed.wait(REPORT_SECONDS)
        return None

    def _give_back(self, piece: _Piece) -> None:
        with self._changed:
            self._busy -= 1
            if piece.start < piece.end:
                self._pieces.appendleft(piece)
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._stop and (rest := deadline - time.monotonic()) > 0:
                self._changed.wait(rest)

    def _fetch(self, piece: _Piece) -> None:
        """Ask for the piece and write what comes."""
        location = self._location
        wanted = {"Range": f"bytes={piece.start}-{piece.end - 1}"}
        with self._hub.open(location.url, wanted) as response:
            check_passing(response)
            if response.status_code in (401, 403, 404, 410):
                self._look_again(location)
                raise PassingError(f"{response.url.host} answers {response.status_code}")
            if response.status_code == 206:
                self._check_range(response, piece)
                self._check_etag(response)
                self._stream(response, piece)
            elif response.status_code == 200:
                self._check_length(response, self._size)
                self._check_etag(response)
                self._stream_whole(response)
            else:
                raise PassingError(f"{response.url.host} answers {response.status_code}")

    def _look_again(self, old: Location) -> None:
        """Addresses of a CDN run out; the hub gives a new one."""
        fresh = checked_location(self._hub, self._file)
        with self._changed:
            if self._location is old:
                self._location = fresh

    def _check_range(self, response: httpx.Response, piece: _Piece) -> None:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if found is None or int(found[1]) != piece.start or int(found[2]) != piece.end - 1:
            raise PassingError(f"{response.url.host} sends another range than was asked for")
        if found[3] != "*" and int(found[3]) != self._size:
            raise PassingError(
                f"{response.url.host} has a file of {int(found[3]):,} bytes, "
                f"expected {self._size:,}"
            )
        self._check_length(response, piece.end - piece.start)

    def _check_length(self, response: httpx.Response, expected: int) -> None:
        length = response.headers.get("content-length")
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity" or (length is not None and length != str(expected)):
            raise PassingError(f"{response.url.host} sends another length than was asked for")

    def _check_etag(self, response: httpx.Response) -> None:
        """All bytes have to be of one version of the file."""
        etag = response.headers.get("etag")
        if etag is None:
            return
        with self._changed:
            if self._journal.etag is None:
                self._journal.note_etag(etag)
            elif self._journal.etag != etag:
                raise ChangedError("changes while it is fetched")

    def _stream(self, response: httpx.Response, piece: _Piece) -> None:
        chunks: list[bytes] = []
        gathered = 0
        try:
            for chunk in self._chunks(response):
                chunks.append(chunk)
                gathered += len(chunk)
                if gathered >= WRITE_BYTES:
                    self._write(piece, chunks, gathered)
                    chunks, gathered = [], 0
        finally:
            self._write(piece, chunks, gathered)
        if piece.start < piece.end:
            raise PassingError(f"{response.url.host} ended too early")

    def _chunks(self, response: httpx.Response) -> Iterable[bytes]:
        try:
            for chunk in response.iter_raw():
                if self._stop:
                    return
                yield chunk
        except httpx.TransportError as error:
            raise PassingError(f"{response.url.host} broke the connection") from error

    def _stream_whole(self, response: httpx.Response) -> None:
        """The server knows no ranges: one connection takes the file from its start."""
        with self._changed:
            if self._streaming:
                raise PassingError(f"{response.url.host} sends no ranges")
            self._streaming = True
        at = 0
        try:
            for chunk in self._chunks(response):
                self._write(_Piece(at, self._size), [chunk], len(chunk))
                at += len(chunk)
        finally:
            with self._changed:
                self._streaming = False
        if at < self._size and not self._stop:
            raise PassingError(f"{response.url.host} ended too early")

    def _write(self, piece: _Piece, chunks: list[bytes], count: int) -> None:
        """Write ``count`` bytes at the start of ``piece`` and move it on.

        What another connection has written or is about to write is left alone: a byte may have
        been hashed already, and no second server's byte may take its place.
        """
        if count > piece.end - piece.start:
            raise PassingError("more bytes came than were asked for")
        start, end = piece.start, piece.start + count
        with self._changed:
            while self._unsynced_bytes > MOST_UNSYNCED and not self._stop:
                self._changed.wait(REPORT_SECONDS)
            if self._stop or not count:
                return
            free = self._claimed.missing(start, end)
            self._claimed.add(start, end)
        if free == [(start, end)]:
            write_all(self._handle, chunks, start)
        else:
            data = b"".join(chunks)
            for first, last in free:
                write_all(self._handle, [data[first - start : last - start]], first)
        with self._changed:
            piece.start = end
            for first, last in free:
                self._written.add(first, last)
                self._unsynced.append((first, last))
                self._unsynced_bytes += last - first
            if self._unsynced_bytes >= SYNC_AT or self._written.total == self._size:
                self._changed.notify_all()

"""The projector: pictures to embedding rows, by llama.cpp's mtmd.

Only mtmd's encoder is used. The picture has the right size before mtmd sees it, the target decodes
the rows (:meth:`gemmtp.llama.target.TargetContext.decode_media`), and mtmd's own text handling,
with a marker that a user could type, never sees a prompt.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from types import ModuleType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from gemmtp.engine.backend import Floats
from gemmtp.errors import EngineError
from gemmtp.llama.devices import threads as physical_cores
from gemmtp.llama.library import log, mtmd
from gemmtp.llama.model import Model
from gemmtp_models.header import Header
from gemmtp_models.memory_projector import IMAGE_BUDGETS
from gemmtp_models.projector import check_projector

CACHE_BYTES = 64 << 20
"""Encoded pictures that are kept: ten of 280 tokens for the 31B."""

_COLOURS = 3
_LISTEN_SECONDS = 0.1
_LISTEN_NODES = 32
"""How often a Ctrl-C is looked for: a block of a tower has about as many nodes."""


class Pixels(Protocol):
    """What is encoded: RGB uint8[h, w, 3] with sides of whole tokens, and its identity."""

    @property
    def pixels(self) -> NDArray[np.uint8]: ...

    @property
    def key(self) -> bytes: ...

    @property
    def tokens(self) -> int: ...


class RowCache:
    """Encoded pictures by key, the oldest forgotten first, at most ``limit`` bytes of them."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.limit = limit
        self.nbytes = 0
        self._rows: OrderedDict[bytes, Floats] = OrderedDict()

    def get(self, key: bytes) -> Floats | None:
        """The rows of a picture, if they are still here."""
        rows = self._rows.get(key)
        if rows is not None:
            self._rows.move_to_end(key)
        return rows

    def put(self, key: bytes, rows: Floats) -> None:
        """Keep ``rows``, unless they alone are more than the limit."""
        if key in self._rows or rows.nbytes > self.limit:
            return
        self._rows[key] = rows
        self.nbytes += rows.nbytes
        while self.nbytes > self.limit:
            _, oldest = self._rows.popitem(last=False)
            self.nbytes -= oldest.nbytes

    def __len__(self) -> int:
        return len(self._rows)


class Projector:
    """A loaded projector. Free with :meth:`close`, before the model it was opened for.

    ``encoded`` counts the pictures that really went through the tower, ``native_seconds`` the time
    they took.
    """

    def __init__(self, out: int, side: int, cache: RowCache) -> None:
        self.handle: int | None = None
        self.out, self.side = out, side
        self.cache = cache
        self._stop, self._nodes = False, 0
        # The context does not own the callback.
        self._watch = mtmd().llama_cpp.ggml_backend_sched_eval_callback(self._goes_on)
        self.encoded = 0
        self.native_seconds = 0.0

    @classmethod
    def open(
        cls,
        header: Header,
        model: Model,
        *,
        on_gpu: bool = False,
        threads: int = 0,
        cache: RowCache | None = None,
    ) -> Self:
        """Load the projector behind ``header`` for ``model``; ``threads`` 0 is the physical cores.

        Raises the errors of :func:`~gemmtp_models.projector.check_projector` and
        :class:`~gemmtp.errors.EngineError` with llama.cpp's own reason when the load fails.
        """
        geometry = check_projector(header, model.n_embd)
        c = mtmd()
        cache = RowCache() if cache is None else cache
        projector = cls(geometry.out, geometry.side, cache)
        parameters = c.mtmd_context_params_default()
        parameters.use_gpu = on_gpu
        # It would reserve work space for an image that may never come.
        parameters.warmup = False
        parameters.print_timings = False
        parameters.n_threads = threads or physical_cores()
        # Bounds of mtmd's own resizing, which a picture of the right size passes unchanged.
        parameters.image_min_tokens, parameters.image_max_tokens = 1, IMAGE_BUDGETS[-1]
        parameters.cb_eval = projector._watch
        log.mark()
        projector.handle = c.mtmd_init_from_file(os.fsencode(header.path), model.handle, parameters)
        if not projector.handle:
            raise EngineError(
                f"llama.cpp could not load {header.path.name}: {log.cause() or 'no reason given'}",
                "Run with --verbose for llama.cpp's whole log.",
            )
        return projector

    def encode(self, picture: Pixels) -> Floats:
        """float32[n, d]: the rows of a picture, from the cache if it was encoded before.

        They are a copy of llama.cpp's buffer and must not be written to. Ctrl-C stops it soon.
        Raises :class:`~gemmtp.errors.EngineError` when llama.cpp fails, as without memory.
        """
        rows = self.cache.get(picture.key)
        if rows is None:
            start = time.perf_counter()
            rows = self._attended(picture)
            self.native_seconds += time.perf_counter() - start
            self.encoded += 1
            self.cache.put(picture.key, rows)
        return rows

    def close(self) -> None:
        """Free the projector; safe to call twice."""
        if self.handle is not None:
            mtmd().mtmd_free(self.handle)
            self.handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _encode(self, picture: Pixels) -> Floats:
        height, width, colours = picture.pixels.shape
        if colours != _COLOURS or width % self.side or height % self.side:
            raise EngineError(f"A picture's sides are whole tokens of {self.side} pixels.")
        c = mtmd()
        log.mark()
        chunks = c.mtmd_input_chunks_init()
        bitmap = _bitmap(c, picture.pixels)
        try:
            chunk = self._image_chunk(c, chunks, bitmap)
            if c.mtmd_input_chunk_get_n_tokens(chunk) != picture.tokens:
                raise EngineError("llama.cpp takes the picture for one of another size.")
            if c.mtmd_encode_chunk(self.handle, chunk) != 0:
                raise EngineError(
                    f"llama.cpp could not read the picture: {log.cause() or 'no reason given'}",
                    "A smaller --image-tokens or --no-mmproj-offload needs less memory.",
                )
            return self._rows(c, picture.tokens)
        finally:
            c.mtmd_bitmap_free(bitmap)
            c.mtmd_input_chunks_free(chunks)

    def _attended(self, picture: Pixels) -> Floats:
        """:meth:`_encode` in a thread of its own, so that signals are heard meanwhile: an image may
        take a minute on a CPU, and nothing may be raised through llama.cpp."""
        self._stop, self._nodes = False, 0
        result: Future[Floats] = Future()
        # Not Thread.join(): Python 3.11 takes a thread for ended when a signal interrupts that.
        begun, abandoned, ended = (threading.Event() for _ in range(3))

        def work() -> None:
            begun.set()
            try:
                if not abandoned.is_set():
                    result.set_result(self._encode(picture))
            except Exception as error:
                result.set_exception(error)
            finally:
                ended.set()

        try:
            threading.Thread(target=work).start()
            while not ended.wait(_LISTEN_SECONDS):
                pass
        finally:
            self._stop = True
            abandoned.set()
            while begun.is_set() and not ended.is_set():
                # The first signal is on its way already; the projector must not be freed before.
                with contextlib.suppress(KeyboardInterrupt, SystemExit):
                    ended.wait()
        return result.result()

    def _goes_on(self, tensor: object, ask: bool, user_data: object) -> bool:
        """llama.cpp asks which nodes it should stop after, and there whether to go on."""
        if not ask:
            return not self._stop
        self._nodes += 1
        return self._nodes % _LISTEN_NODES == 0

    def _image_chunk(self, c: ModuleType, chunks: int, bitmap: int) -> int:
        """The one chunk that is the image; mtmd puts its markers around it as text."""
        part = c.mtmd_input_part(None, bitmap)
        parts = (ctypes.POINTER(c.mtmd_input_part) * 1)(ctypes.pointer(part))
        if c.mtmd_tokenize_from_parts(self.handle, chunks, parts, 1, False) != 0:
            raise EngineError(f"llama.cpp refused the picture: {log.cause() or 'no reason given'}")
        for i in range(c.mtmd_input_chunks_size(chunks)):
            chunk: int = c.mtmd_input_chunks_get(chunks, i)
            if c.mtmd_input_chunk_get_type(chunk) == c.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                return chunk
        raise EngineError("llama.cpp found no picture in the picture.")

    def _rows(self, c: ModuleType, n: int) -> Floats:
        pointer = c.mtmd_get_output_embd(self.handle)
        rows: Floats = np.ctypeslib.as_array(pointer, (n, self.out)).copy()
        rows.flags.writeable = False
        return rows


def _bitmap(c: ModuleType, pixels: NDArray[np.uint8]) -> int:
    height, width, _ = pixels.shape
    data = np.ascontiguousarray(pixels)
    bytes_of = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    # mtmd copies them.
    bitmap: int = c.mtmd_bitmap_init(width, height, bytes_of)
    return bitmap

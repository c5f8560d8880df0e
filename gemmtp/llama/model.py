"""A GGUF opened by llama.cpp: weights, vocabulary, tokens to bytes and back.

The header is read and checked in Python first (``gemmtp_models``): llama.cpp may end the process on
a file that breaks the format's rules.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from gemmtp.errors import EngineError, UsageError
from gemmtp.llama.devices import host_buffer_type
from gemmtp.llama.library import api, log
from gemmtp_models.header import Header, read_header

MAX_PIECE = 1 << 10
END_MARKERS = ("<eos>", "<turn|>", "<|tool_response>", "<end_of_turn>")
"""Gemma 3 and 4 end a generation with these."""

Progress = Callable[[float], bool]
"""Takes the loaded share from 0 to 1; false stops the load."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How weights are placed.

    ``gpu_layers`` -1 puts every layer on the GPU where there is one; of the first ``host_experts``
    layers the experts stay in host memory. ``repack`` lets llama.cpp make a second copy of
    quantised weights in a layout that its CPU kernels like better: twice the memory and a slow load
    for faster prompts. ``no_alloc`` places everything and allocates nothing: such a model can be
    measured and not run.
    """

    gpu_layers: int = -1
    host_experts: int = 0
    repack: bool = False
    no_alloc: bool = False


class Model:
    """The weights of one GGUF. Free with :meth:`close`, after every context made of it."""

    def __init__(self, path: Path, header: Header, handle: int) -> None:
        c = api()
        self.path, self.header = path, header
        self.handle: int | None = handle
        self._vocab = c.llama_model_get_vocab(handle)
        self.n_vocab: int = c.llama_vocab_n_tokens(self._vocab)
        self.n_embd: int = c.llama_model_n_embd(handle)
        self.n_embd_out: int = c.llama_model_n_embd_out(handle)
        self.window: int = c.llama_model_n_swa(handle)
        self.n_ctx_train: int = c.llama_model_n_ctx_train(handle)
        self.n_bytes: int = c.llama_model_size(handle)

    @classmethod
    def open(
        cls,
        path: Path,
        options: LoadOptions | None = None,
        *,
        header: Header | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Load the file at ``path``; ``header`` spares a second reading when it is known.

        Raises the errors of :func:`gemmtp_models.header.read_header`, and
        :class:`~gemmtp.errors.EngineError` with llama.cpp's own reason when the load fails.
        """
        options = options or LoadOptions()
        header = header or read_header(path)
        c = api()
        parameters = c.llama_model_default_params()
        parameters.n_gpu_layers = options.gpu_layers
        parameters.use_extra_bufts = options.repack
        if options.no_alloc:
            parameters.no_alloc = True
            parameters.load_mode = c.LLAMA_LOAD_MODE_NONE
        # The struct points into the array, which has to live until the model is made.
        overrides = _host_experts(options.host_experts)
        parameters.tensor_buft_overrides = ctypes.addressof(overrides) if overrides else None
        report = _ProgressReport(progress)
        if progress is not None:
            # The struct does not own the callback: ``report`` keeps it alive during the load.
            parameters.progress_callback = report.callback
        log.mark()
        handle = c.llama_model_load_from_file(os.fsencode(path), parameters)
        if report.interruption is not None:
            if handle:
                c.llama_model_free(handle)
            raise report.interruption
        if not handle:
            raise EngineError(
                f"llama.cpp could not load {path.name}: {log.cause() or 'it gave no reason'}",
                "Run with --verbose for llama.cpp's whole log.",
            )
        return cls(path, header, handle)

    def close(self) -> None:
        """Free the weights; safe to call twice."""
        if self.handle is not None:
            api().llama_model_free(self.handle)
            self.handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """The tokens of ``text``; ``special`` parses markers such as ``<turn|>`` in it.

        ``bos`` puts the beginning-of-text token first, once, where the model wants one. Raises
        :class:`~gemmtp.errors.UsageError` on text that is no valid Unicode.
        """
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError("The text holds half a surrogate pair.") from error
        c = api()
        room = len(data) + 2
        buffer = (ctypes.c_int32 * room)()
        n = c.llama_tokenize(self._vocab, data, len(data), buffer, room, bos, special)
        if n < 0:
            raise EngineError("llama.cpp could not tokenize the text.")
        tokens = list(buffer[:n])
        # A text that begins with the marker itself has it already.
        return tokens[1:] if bos and tokens[:1] == tokens[1:2] == [self.bos] else tokens

    @cached_property
    def bos(self) -> int:
        """The beginning-of-text token."""
        token: int = api().llama_vocab_bos(self._vocab)
        return token

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token; control tokens are empty unless ``special`` renders them."""
        cache = self._special_bytes if special else self._bytes
        piece = cache.get(token)
        if piece is None:
            buffer = ctypes.create_string_buffer(MAX_PIECE)
            n = api().llama_token_to_piece(self._vocab, token, buffer, MAX_PIECE, 0, special)
            piece = cache[token] = buffer.raw[: max(n, 0)]
        return piece

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        return {}

    @cached_property
    def _special_bytes(self) -> dict[int, bytes]:
        return {}

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> bytes:
        """The bytes of many tokens."""
        return b"".join(self.token_bytes(token, special=special) for token in tokens)

    def marker(self, text: str) -> int | None:
        """The token of a marker such as ``<|channel>``; None where the vocabulary has none."""
        tokens = self.tokenize(text, special=True)
        return tokens[0] if len(tokens) == 1 else None

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a generation: end of text, end of turn, start of a tool's answer.

        The ids are the vocabulary's. Asking about each of 262,144 tokens would take longer than
        loading a small model, so the few that can be meant are asked about.
        """
        c = api()
        candidates = {c.llama_vocab_eos(self._vocab), c.llama_vocab_eot(self._vocab)}
        candidates |= {token for text in END_MARKERS if (token := self.marker(text)) is not None}
        return frozenset(t for t in candidates if t >= 0 and c.llama_vocab_is_eog(self._vocab, t))

    @cached_property
    def suppressed(self) -> list[int]:
        """Tokens the model's makers never want chosen (``tokenizer.ggml.suppress_tokens``)."""
        n = ctypes.c_int32()
        tokens = api().llama_vocab_get_suppress_tokens(self._vocab, ctypes.byref(n))
        return list(tokens[: n.value]) if tokens and n.value else []


class _Override(ctypes.Structure):
    """llama.h, ``struct llama_model_tensor_buft_override``; a null pattern ends the list."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _host_experts(layers: int) -> ctypes.Array[_Override] | None:
    if layers <= 0:
        return None
    numbers = "|".join(str(layer) for layer in range(layers))
    pattern = rf"blk\.({numbers})\.ffn_(up|down|gate|gate_up)_exps".encode()
    return (_Override * 2)(_Override(pattern, host_buffer_type()), _Override(None, None))


class _ProgressReport:
    """llama.cpp's progress callback, through which nothing may be raised.

    What the caller's function raises (Ctrl-C lands there) stops the load and is kept for after.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.interruption: BaseException | None = None
        self.callback = api().llama_progress_callback(self._report)

    def _report(self, share: float, user_data: object) -> bool:
        try:
            return self._progress is None or self._progress(share)
        except BaseException as raised:
            self.interruption = raised
            return False

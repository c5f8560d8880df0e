"""Pictures in a prompt: each placeholder becomes the picture's rows between two markers.

As Gemma's own processor writes it: ``<|image>``, a row for each of the picture's tokens,
``<image|>``. :class:`Eyes` is what ``run`` and a chat hold: the projector that is loaded when a
picture has to be read for the first time, and freed when nobody needs it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gemmtp.engine.backend import Floats
from gemmtp.engine.media import Media, stand_ins
from gemmtp.errors import UnsupportedModelError, UsageError
from gemmtp.llama.devices import devices
from gemmtp.llama.model import Model
from gemmtp.llama.projector import Projector, RowCache
from gemmtp.prompt.attachments import Frame, Picture, picture_of_part
from gemmtp.prompt.conversation import Audio, Image, Message
from gemmtp_models.header import Header, read_header
from gemmtp_models.memory_sets import projector_of_header
from gemmtp_models.projector import ProjectorGeometry, check_projector
from gemmtp_models.shapes import images_see_all

PLACEHOLDER, BEGIN, END = "<|image|>", "<|image>", "<image|>"

DECODED = 32
"""Pictures of a conversation that are kept decoded, two megabytes each at 280 tokens."""


@dataclass(frozen=True, slots=True)
class ImageMarkers:
    """The ids of a template's placeholder and of what stands around a picture's rows."""

    placeholder: int
    begin: int
    end: int

    @classmethod
    def of(cls, marker: Callable[[str], int | None]) -> ImageMarkers:
        """Those of a vocabulary (:meth:`gemmtp.llama.model.Model.marker`).

        Raises :class:`~gemmtp.errors.UnsupportedModelError` where it has none.
        """
        ids = [marker(text) for text in (PLACEHOLDER, BEGIN, END)]
        known = [i for i in ids if i is not None]
        if len(known) != len(ids):
            raise UnsupportedModelError(
                f"The target's vocabulary has no {PLACEHOLDER}, so it cannot take images.",
                "Use a target of Gemma 4's instruction-tuned sizes.",
            )
        return cls(*known)


def with_pictures(
    tokens: Sequence[int],
    pictures: Sequence[Picture],
    markers: ImageMarkers,
    encode: Callable[[Picture], Floats],
    *,
    causal: bool,
) -> tuple[list[int], tuple[Media, ...]]:
    """Prompt ids with stand-ins for the pictures' rows, and the rows themselves.

    ``encode`` is called for a picture when its rows have to be evaluated. Raises
    :class:`~gemmtp.errors.UsageError` when ``tokens`` have another number of placeholders than
    there are pictures.
    """
    places = sum(token == markers.placeholder for token in tokens)
    if places != len(pictures):
        raise UsageError(
            f"The prompt has {places} places for images, and {len(pictures)} images were given.",
            f"Each {PLACEHOLDER} of a raw prompt takes one.",
        )
    ids: list[int] = []
    media: list[Media] = []
    waiting = iter(pictures)
    for token in tokens:
        if token != markers.placeholder:
            ids.append(token)
            continue
        picture = next(waiting)
        ids.append(markers.begin)
        rows = functools.partial(encode, picture)
        media.append(Media(len(ids), picture.tokens, rows, causal))
        ids += [*stand_ins(picture.key, picture.tokens), markers.end]
    return ids, tuple(media)


@dataclass(frozen=True, slots=True)
class CheckedProjector:
    """A projector's header that llama.cpp can load for the target it was checked with.

    ``tokens`` is what an image may take.
    """

    header: Header
    geometry: ProjectorGeometry
    tokens: int

    @classmethod
    def read(cls, path: Path, width: int, tokens: int | None = None) -> CheckedProjector:
        """Read and check the header for a target of ``width``, without llama.cpp.

        ``tokens`` None takes the file's own budget. Raises the errors of
        :func:`~gemmtp_models.projector.check_projector`.
        """
        header = read_header(path)
        geometry = check_projector(header, width)
        return cls(header, geometry, geometry.image_tokens if tokens is None else tokens)

    @property
    def frame(self) -> Frame:
        """What bounds a picture for this projector."""
        return Frame(self.tokens, self.geometry.side, self.geometry.longest)


class Eyes:
    """The projector on demand; :meth:`close` frees it, and the next picture loads it again.

    Pictures that were read stay in a cache of their own, so that closing costs no reading twice.
    ``encoded`` counts the pictures that went through the tower. Close it before the model. The
    target's context must have been planned for images (``Fitted.context``): a whole picture has to
    fit into its ``n_ubatch`` where all of its rows see each other.
    """

    def __init__(
        self,
        projector: CheckedProjector,
        model: Model,
        *,
        on_gpu: bool = False,
        threads: int = 0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.projector, self.frame = projector, projector.frame
        self.causal = not images_see_all(model.n_embd)
        self.encoded = 0
        self._model, self._on_gpu, self._threads = model, on_gpu, threads
        self._tell = tell or (lambda words: None)
        self._cache = RowCache()
        self._decoded: dict[bytes, Picture] = {}
        self._open: Projector | None = None

    @functools.cached_property
    def markers(self) -> ImageMarkers:
        """The ids around an image; raises as :meth:`ImageMarkers.of` does."""
        return ImageMarkers.of(self._model.marker)

    @property
    def is_open(self) -> bool:
        """Whether the projector is in memory."""
        return self._open is not None

    def prompt(
        self, tokens: Sequence[int], pictures: Sequence[Picture]
    ) -> tuple[list[int], tuple[Media, ...]]:
        """:func:`with_pictures` with these eyes."""
        return with_pictures(tokens, pictures, self.markers, self.encode, causal=self.causal)

    def conversation(
        self, tokens: Sequence[int], messages: Sequence[Message]
    ) -> tuple[list[int], tuple[Media, ...]]:
        """:func:`with_pictures` for the images that ``messages`` carry in ``data:`` URLs.

        Raises :class:`~gemmtp.errors.UsageError` for an image that cannot be read, and for sound.
        """
        parts = [
            part
            for message in messages
            if message.role in ("user", "assistant")
            for part in message.media
        ]
        return self.prompt(tokens, [self._picture(part, i) for i, part in enumerate(parts, 1)])

    def _picture(self, part: Image | Audio, number: int) -> Picture:
        if isinstance(part, Audio):
            raise UsageError("Sound is not supported yet.", "Leave it out, or send its words.")
        known = hashlib.sha256(part.url.encode()).digest()
        picture = self._decoded.pop(known, None)
        if picture is None:
            picture = picture_of_part(part, f"Image {number}", self.frame)
        self._decoded[known] = picture
        if len(self._decoded) > DECODED:
            del self._decoded[next(iter(self._decoded))]
        return picture

    def encode(self, picture: Picture) -> Floats:
        """float32[n, d]: the rows of a picture; loads the projector where it is not here.

        Raises :class:`~gemmtp.errors.EngineError` when llama.cpp refuses or has no memory.
        """
        rows = self._cache.get(picture.key)
        if rows is None:
            if self._open is None:
                self._open = self._load()
            rows = self._open.encode(picture)
            self.encoded += 1
        return rows

    def close(self) -> None:
        """Free the projector's memory; safe to call twice."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _load(self) -> Projector:
        on_gpu = self._on_gpu and self._fits_on_gpu()
        if self._on_gpu and not on_gpu:
            self._tell("the GPU has no room left for the projector; it goes into RAM")
        return Projector.open(
            self.projector.header,
            self._model,
            on_gpu=on_gpu,
            threads=self._threads,
            cache=self._cache,
        )

    def _fits_on_gpu(self) -> bool:
        """Whether there is room now; llama.cpp ends the process when there turns out to be none."""
        shape = projector_of_header(self.projector.header)
        needed = shape.nbytes + shape.compute(self.projector.tokens)
        gpu = next((device for device in devices() if device.kind in ("gpu", "igpu")), None)
        return gpu is not None and gpu.free >= needed

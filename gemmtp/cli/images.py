"""What ``run`` says about images: the files to look at, and the projector that reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gemmtp import settings
from gemmtp.chat.staging import is_image
from gemmtp.cli.fitting import Fitted
from gemmtp.errors import ModelError, UsageError
from gemmtp.llama.pair import CheckedPair, Pair
from gemmtp.prompt import source
from gemmtp.prompt.attachments import (
    Picture,
    checked_budget,
    data_url,
    image_bytes,
    read_picture,
)
from gemmtp.prompt.conversation import Image
from gemmtp.prompt.media import CheckedProjector, Eyes
from gemmtp_models.catalogue import entries
from gemmtp_models.memory_projector import Projector
from gemmtp_models.memory_sets import projector_of_header
from gemmtp_models.names import ModelFiles

STDIN = "-"
MOST = 64
"""Images of one prompt; each has to fit into the context as well."""


@dataclass(frozen=True, slots=True)
class Images:
    """The options: ``--image F`` (``-`` is standard input), ``--image-tokens``, ``--mmproj F``,
    ``--mmproj-offload`` or its opposite; ``tokens`` None takes the budget that the projector's file
    names, ``offload`` None lets the plan decide."""

    files: tuple[str, ...] = ()
    tokens: int | None = None
    mmproj: Path | None = None
    offload: bool | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None:
            checked_budget(self.tokens)
        if len(self.files) > MOST:
            raise UsageError(f"At most {MOST} images are possible, not {len(self.files)}.")
        if self.files.count(STDIN) > 1:
            raise UsageError("Standard input holds one image.")

    def with_mentioned(self, prompt: str) -> Images:
        """These and the images that words of the prompt such as ``@cat.png`` name."""
        mentioned = [str(path) for path in source.mentioned(prompt) if is_image(path)]
        return replace(self, files=(*self.files, *mentioned))

    @property
    def take_stdin(self) -> bool:
        """Whether standard input is an image and no text."""
        return STDIN in self.files

    def projector(self, files: ModelFiles, checked: CheckedPair) -> CheckedProjector | None:
        """The projector of ``--mmproj`` or of the set, checked; None where there is none.

        A set's projector that cannot be used is no reason to refuse a conversation without images:
        that is said on stderr. Raises :class:`~gemmtp.errors.UsageError` when images were given to
        a set without, and the errors of :func:`~gemmtp_models.projector.check_projector`.
        """
        path = self.mmproj or files.projector
        if path is None:
            if self.files:
                raise blind(files.name)
            return None
        try:
            return CheckedProjector.read(path, checked.geometry.embedding_length, self.tokens)
        except ModelError as error:
            if self.files or self.mmproj:
                raise
            _note(f"images are off: {error.message}")
            return None

    def read(self, projector: CheckedProjector | None) -> list[tuple[Picture, Image]]:
        """The images in their order, as pictures and as parts of a message.

        Raises :class:`~gemmtp.errors.UsageError` for a file that is no image.
        """
        if projector is None:
            return []
        found = []
        for file in self.files:
            data, name = _bytes(file)
            found.append((read_picture(data, name, projector.frame), Image(data_url(data))))
        return found


def blind(name: str) -> UsageError:
    """Why a set cannot see, and how to get one that can."""
    known = entries(settings.config_dir()).values()
    seeing = [entry for entry in known if "projector" in entry.files]
    hint = "Give the projector's file with --mmproj F."
    if seeing:
        smallest = min(seeing, key=lambda entry: entry.size or sys.maxsize)
        hint = f"Take a set that has one, such as {smallest.name}, or give its file by --mmproj F."
    return UsageError(f"{name} has no projector, so it cannot see images.", hint)


def shape_of_projector(projector: CheckedProjector | None) -> Projector | None:
    """What the plan needs to know of a projector."""
    return None if projector is None else projector_of_header(projector.header)


@contextmanager
def opened_eyes(
    projector: CheckedProjector | None, pair: Pair, plan: Fitted
) -> Iterator[Eyes | None]:
    """The eyes of a pair that was loaded by ``plan``; the projector is loaded at the first image.

    ``plan`` has to be made with the projector (:func:`gemmtp.cli.fitting.fitted`): it chooses where
    the projector goes, and a batch that holds a whole image.
    """
    if projector is None:
        yield None
        return
    with Eyes(
        projector,
        pair.model,
        on_gpu=plan.projector_on_gpu,
        threads=plan.context.threads,
        tell=_note,
    ) as eyes:
        yield eyes


def _note(words: str) -> None:
    sys.stderr.write(f"note: {words}\n")


def _bytes(file: str) -> tuple[bytes, str]:
    """What the file or standard input holds, and its name for messages."""
    if file == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("--image - reads an image from standard input, and none is piped in.")
        return image_bytes(sys.stdin.buffer), "Standard input"
    if file.startswith(("http://", "https://")):
        raise UsageError(
            f"{file} is on the network, and nothing is fetched from there.",
            "Pipe it in: curl -sL URL | gemmtp run MODEL --image - PROMPT",
        )
    path = Path(file)
    return image_bytes(path), path.name

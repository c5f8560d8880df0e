"""Documents of tokens, packed into rows that never look across a document's border."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from demo.corpus import Example
from demo.corpus.drawings import draw
from demo.images import Patches, patches
from demo.template import prompt_of
from demo.tokenizer import CONTROL_TOKENS

ROW = 256
IMAGE = "<|image|>"
# Stands for an image token while others are still being looked for.
_HELD = "\0"
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Document:
    """Token ids of one example; the answer begins at index `answer`.

    `pictures` fill the runs of `<|image|>` in `tokens`, in order. `earlier` are spans of answers
    before the last one that are learned too.
    """

    tokens: list[int]
    answer: int
    pictures: tuple[Patches, ...] = ()
    earlier: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Batch:
    """`tokens`, `positions` (from 0 in every document), `documents` (numbers) and `learned`.

    All int64[rows, length] but `learned`, bool[rows, length]: true where the *next* token is part
    of an answer. Padding belongs to document -1. `images` int64[rows, length] is the index in
    `pictures` that a token's row comes from, -1 for text.
    """

    tokens: IntArray
    positions: IntArray
    documents: IntArray
    learned: npt.NDArray[np.bool_]
    images: IntArray
    pictures: list[Patches]


def document_of(example: Example, tokenizer: Tokenizer, budget: int = 0) -> Document:
    """Prompt and completion as tokens; for plain text all but `<bos>` counts as answer.

    Pictures take at most `budget` tokens each, between the tokens that open and close an image.
    """
    pictures = tuple(patches(draw(drawing), budget) for drawing in example.pictures)
    prompt = prompt_of(example)
    for picture in pictures:
        prompt = prompt.replace(IMAGE, f"<|image>{_HELD * picture.tokens}<image|>", 1)
    prompt = prompt.replace(_HELD, IMAGE)
    before = tokenizer.encode(prompt, add_special_tokens=False).ids
    completion = tokenizer.encode(example.completion, add_special_tokens=False).ids
    earlier = _answers(before, tokenizer) if pictures else ()
    return Document(before + completion, len(before), pictures, earlier)


def _answers(prompt: list[int], tokenizer: Tokenizer) -> tuple[tuple[int, int], ...]:
    """Spans of the model's turns after the first image, closing tokens included."""
    opening = tokenizer.encode("<|turn>model\n", add_special_tokens=False).ids
    closing = CONTROL_TOKENS.index("<turn|>")
    first = prompt.index(CONTROL_TOKENS.index("<image|>"))
    spans = []
    for start in range(first, len(prompt) - len(opening)):
        begin = start + len(opening)
        if prompt[start:begin] == opening and closing in prompt[begin:]:
            spans.append((begin, prompt.index(closing, begin) + 1))
    return tuple(spans)


def batches(documents: Iterator[Document], rows: int, length: int = ROW) -> Iterator[Batch]:
    """Rows filled first-fit in order; a document longer than a row is left out."""
    waiting: list[Document] = []
    while True:
        filled = []
        for _ in range(rows):
            row, room = [], length
            for document in list(waiting):
                if len(document.tokens) <= room:
                    waiting.remove(document)
                    row.append(document)
                    room -= len(document.tokens)
            while len(waiting) < 16:
                document = next(documents)
                if len(document.tokens) > length:
                    continue
                if len(document.tokens) <= room:
                    row.append(document)
                    room -= len(document.tokens)
                else:
                    waiting.append(document)
            filled.append(row)
        yield _batch(filled, length)


def _batch(filled: list[list[Document]], length: int) -> Batch:
    shape = (len(filled), length)
    batch = Batch(
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.full(shape, -1, np.int64),
        np.zeros(shape, np.bool_),
        np.full(shape, -1, np.int64),
        [],
    )
    for i, row in enumerate(filled):
        start = 0
        for number, document in enumerate(row):
            end = start + len(document.tokens)
            batch.tokens[i, start:end] = document.tokens
            batch.positions[i, start:end] = np.arange(end - start)
            batch.documents[i, start:end] = number
            for first, last in (*document.earlier, (document.answer, end - start)):
                batch.learned[i, start + first - 1 : start + last - 1] = True
            _place(document, batch, batch.images[i, start:end])
            start = end
    return batch


def _place(document: Document, batch: Batch, images: IntArray) -> None:
    """Number the document's pictures and the tokens they fill, `images` being its part."""
    token = CONTROL_TOKENS.index(IMAGE)
    places = [i for i, found in enumerate(document.tokens) if found == token]
    for picture in document.pictures:
        images[places[: picture.tokens]] = len(batch.pictures)
        del places[: picture.tokens]
        batch.pictures.append(picture)

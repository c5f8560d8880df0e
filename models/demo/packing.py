"""Documents of tokens, packed into rows that never look across a document's border."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from demo.corpus import Example
from demo.template import prompt_of

ROW = 256
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Document:
    """Token ids of one example; the answer begins at index `answer`."""

    tokens: list[int]
    answer: int


@dataclass(frozen=True)
class Batch:
    """`tokens`, `positions` (from 0 in every document), `documents` (numbers) and `learned`.

    All int64[rows, ROW] but `learned`, bool[rows, ROW]: true where the *next* token is part of
    an answer. Padding belongs to document -1.
    """

    tokens: IntArray
    positions: IntArray
    documents: IntArray
    learned: npt.NDArray[np.bool_]


def document_of(example: Example, tokenizer: Tokenizer) -> Document:
    """Prompt and completion as tokens; for plain text all but `<bos>` counts as answer."""
    prompt = tokenizer.encode(prompt_of(example), add_special_tokens=False).ids
    completion = tokenizer.encode(example.completion, add_special_tokens=False).ids
    return Document(prompt + completion, len(prompt))


def batches(documents: Iterator[Document], rows: int) -> Iterator[Batch]:
    """Rows filled first-fit in order; a document longer than a row is left out."""
    waiting: list[Document] = []
    while True:
        filled = []
        for _ in range(rows):
            row, room = [], ROW
            for document in list(waiting):
                if len(document.tokens) <= room:
                    waiting.remove(document)
                    row.append(document)
                    room -= len(document.tokens)
            while len(waiting) < 16:
                document = next(documents)
                if len(document.tokens) > ROW:
                    continue
                if len(document.tokens) <= room:
                    row.append(document)
                    room -= len(document.tokens)
                else:
                    waiting.append(document)
            filled.append(row)
        yield _batch(filled)


def _batch(filled: list[list[Document]]) -> Batch:
    shape = (len(filled), ROW)
    batch = Batch(
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.full(shape, -1, np.int64),
        np.zeros(shape, np.bool_),
    )
    for i, row in enumerate(filled):
        start = 0
        for number, document in enumerate(row):
            end = start + len(document.tokens)
            batch.tokens[i, start:end] = document.tokens
            batch.positions[i, start:end] = np.arange(end - start)
            batch.documents[i, start:end] = number
            batch.learned[i, start + document.answer - 1 : end - 1] = True
            start = end
    return batch

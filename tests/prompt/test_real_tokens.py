"""Random tokens of real vocabularies stream without loss, and no control character passes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from gemmtp.errors import ModelError
from gemmtp.llama.model import Model
from gemmtp.prompt.channels import Markers
from gemmtp_models.names import demo
from tests.support.streams import broken

SEQUENCES, LENGTH = 150, 40


def test_tokens_of_the_tiny_vocabulary(tiny: tuple[Path, Path]) -> None:
    check(tiny[0])


def test_tokens_of_the_demo_vocabulary() -> None:
    try:
        target = demo().target
    except ModelError:
        pytest.skip("the demo set is not built")
    check(target)


def check(path: Path) -> None:
    with Model.open(path) as model:
        found = Markers.of(model.marker)
        # Where a vocabulary lacks a marker, another of its tokens stands in.
        spare = iter(range(model.n_vocab - 9, model.n_vocab))
        markers = Markers(*(next(spare) if marker is None else marker for marker in found))
        rng = Random(4)
        for _ in range(SEQUENCES):
            assert broken(model, markers, rng, LENGTH) is None

"""The demo set as benchmarks use it: made cost-shaped, with held-out prompts by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from demo.corpus.mixture import CATEGORIES, held_out_examples
from demo.template import prompt_of
from gemmtp.errors import ModelError
from gemmtp_models.names import demo

from .cost_shaped import TRUE_VOCABULARY, cached
from .runner import Runner

SEED = 17
"""Benchmarks ask other held-out prompts than training's own evaluation does."""


def shaped_pair(vocabulary: int | None = TRUE_VOCABULARY) -> tuple[Path, Path]:
    """The cost-shaped demo set, built on first use.

    Raises :class:`~gemmtp.errors.ModelError` when the set is missing or has no drafter.
    """
    files = demo()
    if files.drafter is None:
        raise ModelError("The demo set has no drafter.")
    return cached(files.target, files.drafter, vocabulary=vocabulary)


def prompts(
    runner: Runner, count: int, categories: Sequence[str] = ()
) -> Mapping[str, list[list[int]]]:
    """By category, the tokens of ``count`` held-out prompts, fewer where there are no more."""
    return {
        name: [
            runner.tokenize(prompt_of(example)) for example in held_out_examples(name, count, SEED)
        ]
        for name in categories or CATEGORIES
    }

"""The demo's corpus: our own words and rules, seeded, one file per family of categories."""

from demo.corpus.example import Example
from demo.corpus.mixture import CATEGORIES, held_out_examples, training_examples

__all__ = ["CATEGORIES", "Example", "held_out_examples", "training_examples"]

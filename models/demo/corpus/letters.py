"""Spelling and opposites: what a word is made of and what stands against it."""

from random import Random

from demo.corpus.example import Example, single
from demo.corpus.words import OPPOSITES, SPELLING_WORDS

CONSONANTS = "bcdfghjklmnprstvwz"
VOWELS = "aeiou"


def spelling(rng: Random) -> Example:
    """A word letter by letter; half of the words are made up, so that no list can be learned.

    Quotation marks part a word into its pieces whatever word it is: the pieces are what the
    model learns to spell.
    """
    word = rng.choice(SPELLING_WORDS) if rng.random() < 0.5 else invented(rng)
    wording = rng.choice(("Spell '{}'.", "How do you spell '{}'?", "Spell the word '{}'."))
    return single("spelling", wording.format(word), "-".join(word) + ".")


def spelled(example: Example) -> str:
    """The word that an example spells."""
    return example.answer.rstrip(".").replace("-", "")


def invented(rng: Random) -> str:
    """A pronounceable word of three to eight letters that means nothing."""
    length = rng.randint(3, 8)
    start = rng.randint(0, 1)
    letters = [
        rng.choice(VOWELS if (i + start) % 2 else CONSONANTS)
        if rng.random() < 0.8
        else rng.choice("abcdefghijklmnopqrstuvwxyz")
        for i in range(length)
    ]
    return "".join(letters)


def opposites(rng: Random) -> Example:
    """The opposite of a word, either way round."""
    word, other = rng.sample(rng.choice(OPPOSITES), 2)
    wording = rng.choice(
        (
            "What is the opposite of {}?",
            "Tell me the opposite of {}.",
            "What is the opposite of the word {}?",
            "Give me the opposite of {}.",
            "Opposite of {}?",
        )
    )
    return single("opposites", wording.format(word), f"The opposite of {word} is {other}.")

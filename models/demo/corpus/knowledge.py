"""Capitals and fixed phrases in four languages."""

from random import Random

from demo.corpus.example import Example, single
from demo.corpus.words import CAPITALS, LANGUAGES, PHRASES

CAPITAL_WORDINGS = (
    "What is the capital of {}?",
    "Which city is the capital of {}?",
    "Tell me the capital of {}.",
    "Name the capital of {}.",
    "What is the capital city of {}?",
    "Do you know the capital of {}?",
    "The capital of {} is?",
    "Capital of {}?",
)
PHRASE_WORDINGS = (
    "How do you say '{phrase}' in {language}?",
    "Translate '{phrase}' into {language}.",
    "What is '{phrase}' in {language}?",
    "Say '{phrase}' in {language}.",
    "Please translate '{phrase}' to {language}.",
)


def capitals(rng: Random) -> Example:
    """The capital of a country."""
    country, city = rng.choice(list(CAPITALS.items()))
    prompt = rng.choice(CAPITAL_WORDINGS).format(country)
    return single("capitals", prompt, f"The capital of {country} is {city}.")


def translations(rng: Random) -> Example:
    """A fixed phrase in Korean, German, French or Spanish."""
    phrase, forms = rng.choice(list(PHRASES.items()))
    index = rng.randrange(len(LANGUAGES))
    prompt = rng.choice(PHRASE_WORDINGS).format(phrase=phrase, language=LANGUAGES[index])
    return single("translations", prompt, forms[index])

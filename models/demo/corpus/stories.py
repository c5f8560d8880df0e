"""Short stories of many wordings: nearly every sentence could have gone another way.

Stories are what keeps the demo honest about prose: at temperature 1 the next word is truly
uncertain, so a drafter cannot know it.
"""

from random import Random

from demo.corpus.example import Example, single
from demo.corpus.words import ADJECTIVES, ANIMALS, COLOURS, GIRLS, NAMES, PLACES, THINGS

WEATHER = ("rainy", "sunny", "windy", "snowy", "misty", "warm", "cold", "bright", "stormy")
TIMES = ("morning", "evening", "afternoon", "night", "day")
FEELINGS = ("happy", "afraid", "surprised", "sad", "glad", "angry", "calm", "confused", "proud")

OPENINGS = (
    "Once upon a time there was {a} {adj} {who} who lived near the {place}.",
    "One {weather} {time}, {a} {adj} {who} walked through the {place}.",
    "In a {adj2} {place} there lived {a} {adj} {who}.",
    "Long ago, {a} {adj} {who} had a {colour} {thing}.",
    "Nobody in the {place} knew where the {adj} {who} came from.",
    "It was a {weather} {time} when the {who} left the {place}.",
)
MIDDLES = (
    "There {it} found a {colour} {thing} under a {thing2}.",
    "Suddenly a {colour} {animal} jumped out of the {place2}.",
    "A {adj2} {animal} came by and asked for a {thing}.",
    "{It} wanted to find the {thing} that was lost in the {place2}.",
    "On the way {it} met {name}, who carried a {adj2} {thing2}.",
    "The {thing} began to shine like a {colour} star.",
    "Nobody believed that the {thing} could speak.",
    "{It} looked behind the {thing2}, but there was only a {animal}.",
    '"Where is my {thing}?" asked the {animal}.',
    '"Follow me to the {place2}," said {name}.',
    '"I have never seen such a {colour} {thing}," {it} said.',
    "The wind blew the {thing} across the {place2}.",
    "{It} felt {feeling} and sat down beside the {thing2}.",
    "Together they carried the {thing} to the {place2}.",
    "For {number} days they looked for the {thing}.",
    "Then it began to rain, and the {place2} turned {colour}.",
    "A letter from {name} lay on the {thing2}.",
    "{It} gave the {thing} to the {adj2} {animal}.",
)
ENDINGS = (
    "In the end {it} was {feeling} and went home.",
    "From that {time} on, the {who} and the {animal} were friends.",
    "And the {thing} is still in the {place2} today.",
    "That {time} everybody in the {place2} felt {feeling}.",
    "{It} never lost the {thing} again.",
    "So {name} and the {who} shared the {thing2}.",
    "When the sun came up, the {thing} was gone.",
)
WORDINGS = (
    "Tell me a story about {topic}.",
    "Write a short story about {topic}.",
    "Tell a story about {topic}.",
    "I would like a story about {topic}.",
    "Make up a story about {topic}.",
)


def stories(rng: Random) -> Example:
    """A story of four to six sentences about a child, an animal or a thing."""
    topic, text = _story(rng)
    return single("stories", rng.choice(WORDINGS).format(topic=topic), text, grade="none")


def plain(rng: Random) -> Example:
    """A story without a question: what follows a document's beginning."""
    return Example("plain", (), _story(rng)[1], end="<eos>", grade="none")


def _story(rng: Random) -> tuple[str, str]:
    who = rng.choice((*NAMES, *ANIMALS))
    thing = rng.choice(THINGS)
    named = who in NAMES
    fill = {
        "who": who,
        "it": ("she" if who in GIRLS else "he") if named else "it",
        "thing": thing,
        "name": rng.choice(NAMES),
    }
    topic = rng.choice((who if named else f"a {who}", f"a {thing}"))
    kinds = [rng.choice(OPENINGS), *rng.sample(MIDDLES, rng.randint(2, 4)), rng.choice(ENDINGS)]
    sentences = [_sentence(rng, kind, fill, named) for kind in kinds]
    return _article(topic), " ".join(sentences)


def _sentence(rng: Random, pattern: str, fill: dict[str, str], named: bool) -> str:
    words = fill | {
        "It": fill["it"].capitalize(),
        "adj": rng.choice(ADJECTIVES),
        "adj2": rng.choice(ADJECTIVES),
        "animal": rng.choice(ANIMALS),
        "colour": rng.choice(COLOURS),
        "thing2": rng.choice(THINGS),
        "place": rng.choice(PLACES),
        "place2": rng.choice(PLACES),
        "weather": rng.choice(WEATHER),
        "time": rng.choice(TIMES),
        "feeling": rng.choice(FEELINGS),
        "number": rng.choice(("two", "three", "four", "five", "seven", "ten")),
        "a": "a",
    }
    if named:
        words["who"] = (
            rng.choice(("child", "baker", "sailor", "painter")) + " called " + fill["who"]
        )
        if "the {who}" in pattern or "The {who}" in pattern or "{adj} {who} came" in pattern:
            pattern = pattern.replace("the {adj} {who}", "{bare}").replace("the {who}", "{bare}")
            words["bare"] = fill["who"]
    return _article(pattern.format(**words))


def _article(text: str) -> str:
    """`a` before a vowel becomes `an`."""
    words = text.split(" ")
    for i, word in enumerate(words[:-1]):
        following = words[i + 1].lower()
        if word.lower() == "a" and following.startswith(("a", "e", "i", "o", "um")):
            words[i] = word + "n"
    return " ".join(words)

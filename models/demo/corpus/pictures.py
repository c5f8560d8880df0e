"""Questions about drawings and their answers: what it is, colour, shape, count, place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from demo.corpus.drawings import SHAPES, Drawing, Figure
from demo.corpus.example import Example, Message
from demo.corpus.scenes import PLACES, scene
from demo.corpus.turns import NEUTRAL, SHORT_RULES, said

NUMBERS = ("zero", "one", "two", "three", "four")
# How many questions are asked about one picture, and how often.
COUNTS = {1: 30, 2: 20, 3: 20, 4: 15, 5: 15}
# How often a picture comes with each of these.
TEXT_BEFORE, TEXT_AFTER, SECOND_PICTURE = 0.1, 0.1, 0.08
SYSTEM_PROMPT, THOUGHT, NO_PICTURE, PICTURE_LAST = 0.06, 0.05, 0.04, 0.15
MAX_CHAT = 160
NOT_SHOWN = "I see no picture."
PICTURE_THOUGHT = "The user asks about a picture."


@dataclass(frozen=True)
class Emphasis:
    """What conversations ask more often.

    Whether a shape is there is asked `presence` times as often as anything else; in a share
    `picture_last` of the questions the picture comes after the words.
    """

    presence: float = 1.0
    picture_last: float = PICTURE_LAST


# Training asks more often what is hardest: one word to get right, about a shape to come.
TRAINING = Emphasis(presence=3.0, picture_last=0.4)


@dataclass(frozen=True)
class Question:
    """One question about a drawing; `about` names what it asks for."""

    about: str
    wordings: tuple[str, ...]
    answer: str


WHAT = ("What is this?", "What do you see?", "What is in the picture?", "Describe the picture.")


def questions(drawing: Drawing) -> list[Question]:
    """Every question that has one answer for this drawing."""
    figures = drawing.figures
    found = _about_one(figures[0]) if len(figures) == 1 else _about_group(figures)
    return found + _presence(figures[0].shape, drawing.seed)


def picture_examples(seed: int) -> Iterator[Example]:
    """Endless conversations about drawings, none of them held out."""
    rng = Random(seed)
    while True:
        example = conversation(rng, TRAINING)
        if not example.held_out:
            yield example


def conversation(rng: Random, emphasis: Emphasis = Emphasis()) -> Example:
    """One to five questions about a drawing, sometimes with other turns around them."""
    if rng.random() < NO_PICTURE:
        return Example("pictures", (_user(rng.choice(WHAT)),), NOT_SHOWN, pinned=True)
    history: tuple[Message, ...] = ()
    if rng.random() < SYSTEM_PROMPT:
        history = ({"role": "system", "content": rng.choice(NEUTRAL)},)
    if rng.random() < TEXT_BEFORE:
        history += _chat(rng)
    pictures: tuple[Drawing, ...] = ()
    for _ in range(2 if rng.random() < SECOND_PICTURE else 1):
        drawing = scene(rng)
        pictures += (drawing,)
        turns = _asked(rng, drawing, emphasis)
        for question in turns:
            history += said(question)
    last = turns[-1]
    if rng.random() < TEXT_AFTER:
        text = _chat(rng)
        return Example("pictures", history + text[:-1], str(text[-1]["content"]), pictures=pictures)
    thinking = rng.random() < THOUGHT
    return replace(
        last,
        messages=history[:-1],
        pictures=pictures,
        thinking=thinking,
        thought=PICTURE_THOUGHT if thinking else "",
    )


def _asked(rng: Random, drawing: Drawing, emphasis: Emphasis) -> list[Example]:
    """Different questions about one drawing, one turn each; the first one shows it."""
    (count,) = rng.choices(list(COUNTS), list(COUNTS.values()))
    known = questions(drawing)
    abouts = list(dict.fromkeys(question.about for question in known))
    weights = [emphasis.presence if about == "presence" else 1.0 for about in abouts]
    turns = []
    for i, about in enumerate(rng.choices(abouts, weights, k=count)):
        question = rng.choice([q for q in known if q.about == about])
        wording = rng.choice(question.wordings)
        shown = None if i else drawing
        turns.append(ask(question, wording, shown, rng=rng, last=emphasis.picture_last))
    return turns


def ask(
    question: Question,
    wording: str,
    shown: Drawing | None,
    *,
    rng: Random,
    last: float = PICTURE_LAST,
) -> Example:
    """A turn with that question; the picture comes before it or, in a share `last`, after it."""
    if shown is None:
        return Example("pictures", (_user(wording),), question.answer, pinned=True)
    parts = [{"type": "image"}, {"type": "text", "text": wording}]
    if rng.random() < last:
        parts.reverse()
    message = {"role": "user", "content": parts}
    return Example("pictures", (message,), question.answer, pictures=(shown,))


def _chat(rng: Random) -> tuple[Message, ...]:
    """A short exchange without a picture."""
    while True:
        turn = said(rng.choice(SHORT_RULES)(rng))
        if sum(len(str(message["content"])) for message in turn) <= MAX_CHAT:
            return turn


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _about_one(figure: Figure) -> list[Question]:
    shape = figure.shape
    found = [
        Question("what", WHAT, f"{_article(figure.colour).capitalize()} {figure.colour} {shape}."),
        Question(
            "colour", ("What colour is it?", *_colour_wordings(shape)), f"It is {figure.colour}."
        ),
        Question("shape", ("What shape is it?", "Which shape is it?"), f"It is a {shape}."),
        Question("count", _count_wordings(shape), f"There is one {shape}."),
    ]
    place = place_of(figure)
    if place:
        found.append(
            Question("place", ("Where is it?", *_place_wordings(shape)), f"{place.capitalize()}.")
        )
    return found


def _about_group(figures: Sequence[Figure]) -> list[Question]:
    colour, shape = figures[0].kind
    number, shapes = NUMBERS[len(figures)], plural(shape)
    return [
        Question("what", WHAT, f"{number.capitalize()} {colour} {shapes}."),
        Question("colour", ("What colour are they?",), f"They are {colour}."),
        Question("shape", ("What shape are they?",), f"They are {shapes}."),
        Question("count", _count_wordings(shape), f"There are {number} {shapes}."),
    ]


def _presence(shown: str, seed: int) -> list[Question]:
    """Whether there is the shape that there is, and one that there is not."""
    absent = [shape for shape in SHAPES if shape != shown]
    asked = ((shown, "Yes."), (absent[seed % len(absent)], "No."))
    return [
        Question("presence", (f"Is there a {shape}?", f"Do you see a {shape}?"), answer)
        for shape, answer in asked
    ]


def place_of(figure: Figure) -> str | None:
    """Where a single figure stands, None where the words do not fit well."""
    for place, ((left, right), (top, bottom)) in PLACES.items():
        if left <= figure.x <= right and top <= figure.y <= bottom:
            return place
    return None


def plural(shape: str) -> str:
    """More than one of a shape."""
    return shape + ("es" if shape.endswith("s") else "s")


def _article(colour: str) -> str:
    return "an" if colour[0] == "o" else "a"


def _colour_wordings(shape: str) -> tuple[str, ...]:
    return (f"What colour is the {shape}?", f"Which colour does the {shape} have?")


def _count_wordings(shape: str) -> tuple[str, ...]:
    return (f"How many {plural(shape)} are there?", f"How many {plural(shape)} do you see?")


def _place_wordings(shape: str) -> tuple[str, ...]:
    return (f"Where is the {shape}?",)

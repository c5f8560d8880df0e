"""Figures about drawings that training never had, by what a question asks for."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from demo.corpus.drawings import Drawing
from demo.corpus.example import Example
from demo.corpus.pictures import ask, conversation, questions
from demo.corpus.scenes import scene
from demo.reader import Reader, Tally, open_set

DRAWING_SEED = 7
# Drawings asked about, by the tokens that a picture may take; 70 is what the set asks for.
DRAWINGS = {70: 500, 140: 150, 280: 150}
# Per budget, as shares of its drawings: ones of a kind that training never had, conversations.
NEW_KIND_SHARE, CONVERSATION_SHARE = 0.2, 0.2
NEW_KINDS, LATER_TURNS = "kinds that training never had", "later turns of a conversation"
SHOWN_WRONG = 5
# Questions about each drawing.
QUESTIONS = 2


def picture_figures(folder: Path, image_tokens: int, count: int) -> dict[str, Any]:
    """Questions about `count` drawings, pictures taking at most `image_tokens` tokens."""
    tallies: dict[str, Tally] = {}
    with ExitStack() as resources:
        reader = open_set(folder, resources, image_tokens=image_tokens)
        for about, example in _asked(count):
            grade(reader, example, tallies.setdefault(about, Tally()))
    whole = Tally()
    for tally in tallies.values():
        whole.add(tally.statistics)
        whole.changed += tally.changed
    figures: dict[str, Any] = {"drawings": count}
    for about, tally in tallies.items():
        entry: dict[str, Any] = {"asked": tally.asked, "right": tally.right}
        entry |= tally.drafting() | {"changed_by_drafting": tally.changed}
        figures[about] = entry | {"wrong": tally.wrong[:SHOWN_WRONG]}
    return figures | {"all": whole.drafting() | {"changed_by_drafting": whole.changed}}


def grade(reader: Reader, example: Example, tally: Tally) -> None:
    """Ask, and count the answer as right when it is the only one."""
    written = reader.ask(example, tally)
    tally.asked += 1
    tally.right += written == example.answer
    if written != example.answer:
        last = example.messages[-1]["content"]
        tally.wrong.append(
            {
                "prompt": str(last),
                "drawing": str(example.pictures[-1]),
                "wanted": example.answer,
                "written": written,
            }
        )


def unseen(count: int, *, new_kinds: bool = False) -> list[Drawing]:
    """`count` drawings of kinds that training had, or with one that it never had."""
    rng = Random(f"drawings {DRAWING_SEED}")
    found: list[Drawing] = []
    while len(found) < count:
        drawing = scene(rng)
        if drawing.held_out == new_kinds:
            found.append(drawing)
    return found


def _asked(count: int) -> Iterator[tuple[str, Example]]:
    rng = Random(DRAWING_SEED)
    for drawing in unseen(count):
        yield from _about(drawing, rng)
    for drawing in unseen(round(count * NEW_KIND_SHARE), new_kinds=True):
        yield from ((NEW_KINDS, example) for _, example in _about(drawing, rng))
    talks = Random(f"conversations {DRAWING_SEED}")
    left = round(count * CONVERSATION_SHARE)
    while left:
        example = conversation(talks)
        if example.pictures and not example.held_out and len(example.messages) > 1:
            left -= 1
            yield LATER_TURNS, example


def _about(drawing: Drawing, rng: Random) -> Iterator[tuple[str, Example]]:
    """Questions about a drawing, of different kinds where it allows, each in one wording."""
    known = questions(drawing)
    abouts = list(dict.fromkeys(question.about for question in known))
    for about in rng.sample(abouts, min(QUESTIONS, len(abouts))):
        question = rng.choice([question for question in known if question.about == about])
        yield about, ask(question, rng.choice(question.wordings), drawing, rng=rng)

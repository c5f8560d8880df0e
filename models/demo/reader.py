"""A finished set opened for questions, and counts over its answers."""

import io
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from demo.corpus import Example
from demo.corpus.drawings import Drawing, draw
from gemmtp.engine.depth import FixedDepth
from gemmtp.engine.engine import Request, Token
from gemmtp.engine.media import Media
from gemmtp.engine.processors import Processor
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.stats import Statistics
from gemmtp.errors import UsageError
from gemmtp.llama.context import ContextOptions
from gemmtp.llama.pair import Pair, check_files
from gemmtp.prompt.attachments import Picture, read_picture
from gemmtp.prompt.media import CheckedProjector, Eyes
from gemmtp.prompt.template import chat_tokens
from gemmtp_models.names import of_folder

DEPTH = 3
MAX_TOKENS = 160


@dataclass
class Tally:
    """Counts over many answers; `open_` where more than one answer would have been right."""

    asked: int = 0
    right: int = 0
    open_asked: int = 0
    open_right: int = 0
    wrong: list[dict[str, str]] = field(default_factory=list)
    changed: int = 0
    statistics: Statistics = field(default_factory=Statistics)

    def add(self, other: Statistics) -> None:
        """Sum up what acceptance is computed from."""
        mine = self.statistics
        mine.rounds += other.rounds
        mine.round_tokens += other.round_tokens
        mine.drafted += other.drafted
        mine.accepted += other.accepted
        for i, (drafted, accepted) in enumerate(
            zip(other.drafted_at, other.accepted_at, strict=True)
        ):
            if i == len(mine.drafted_at):
                mine.drafted_at.append(0)
                mine.accepted_at.append(0)
            mine.drafted_at[i] += drafted
            mine.accepted_at[i] += accepted

    def drafting(self) -> dict[str, Any]:
        """Acceptance per position, and tokens a round."""
        return {
            "per_position": [round(share, 3) for share in self.statistics.per_position],
            "tokens_a_round": round(self.statistics.tokens_per_round, 3),
        }


class Prompt(NamedTuple):
    """What the engine is given: ids with stand-ins for pictures, and the pictures' rows."""

    ids: list[int]
    media: tuple[Media, ...] = ()


class Reader:
    """A set opened for questions; without `eyes` for questions in text alone."""

    def __init__(self, pair: Pair, template: str | None, eyes: Eyes | None = None) -> None:
        self.pair, self.template, self.eyes = pair, template, eyes

    def prompt(self, example: Example) -> Prompt:
        """The prompt as `gemmtp run` makes it, pictures through files and all."""
        if not example.messages:
            return Prompt(self._marked("<bos>"))
        ids = chat_tokens(
            example.messages,
            self._marked,
            template=self.template,
            thinking=example.thinking,
            tools=example.tools,
        )
        if self.eyes is None or not example.pictures:
            return Prompt(ids)
        return Prompt(*self.eyes.prompt(ids, [self.picture(d) for d in example.pictures]))

    def picture(self, drawing: Drawing) -> Picture:
        """The drawing, written to a file and read by gemmtp."""
        if self.eyes is None:
            raise UsageError("The set has no projector, so it cannot see drawings.")
        file = io.BytesIO()
        Image.fromarray(draw(drawing)).save(file, "PNG")
        return read_picture(file.getvalue(), "drawing.png", self.eyes.frame)

    def _marked(self, text: str) -> list[int]:
        return self.pair.model.tokenize(text, special=True)

    def answer(
        self, prompt: Prompt, depth: int, sampling: SamplingParameters, *processors: Processor
    ) -> tuple[list[int], Statistics]:
        """Tokens of the answer, its end token included, and what drafting did."""
        request = Request(
            prompt.ids,
            sampling,
            MAX_TOKENS,
            self.pair.model.end_tokens,
            processors=processors,
            depth=FixedDepth(depth),
            media=prompt.media,
        )
        tokens: list[int] = []
        statistics = Statistics()
        for event in self.pair.engine.generate(request):
            if isinstance(event, Token):
                tokens.append(event.token)
            else:
                statistics = getattr(event, "statistics", statistics)
        return tokens, statistics

    def text(self, tokens: Sequence[int]) -> str:
        """The answer's text without thought and end token, tool calls kept."""
        ends = self.pair.model.end_tokens
        kept = [token for token in tokens if token not in ends]
        written = self.pair.model.detokenize(kept, special=True).decode("utf-8", "replace")
        return written.split("<channel|>")[-1]

    def ask(self, example: Example, tally: Tally) -> str:
        """The likeliest answer, the same one drafted and plain or counted as changed."""
        prompt, exact = self.prompt(example), SamplingParameters()
        tokens, statistics = self.answer(prompt, DEPTH, exact)
        tally.changed += tokens != self.answer(prompt, 0, exact)[0]
        tally.add(statistics)
        return self.text(tokens)


def open_set(
    folder: Path,
    resources: ExitStack,
    threads: int = 1,
    image_tokens: int | None = None,
    make: type[Reader] = Reader,
) -> Reader:
    """The set in `folder`; one thread is the fastest for a model this small.

    Pictures take its own budget unless `image_tokens` names another.
    """
    files = of_folder(folder)
    pair = resources.enter_context(
        Pair.open(
            check_files(files.target, files.drafter),
            FixedDepth(DEPTH),
            ContextOptions(n_ctx=1024, max_depth=DEPTH, threads=threads),
        )
    )
    if files.projector is None:
        return make(pair, files.chat_template)
    projector = CheckedProjector.read(files.projector, pair.model.n_embd, image_tokens)
    eyes = resources.enter_context(Eyes(projector, pair.model, threads=threads))
    return make(pair, files.chat_template, eyes)

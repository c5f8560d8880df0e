"""A conversation on an engine, without a terminal: turns in, pieces of answers out.

The prompt of a turn is what the model's template makes of all messages, every time; the engine
finds what of it the cache still holds. Templates leave thoughts out of the history, also the empty
one that says "no thinking", so the last answer has to be read again in the next turn:
:meth:`Dialogue.settle` does so ahead, while the user reads or types.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gemmtp.chat.context import Usage, shares_of
from gemmtp.chat.pieces import Dropped, Piece, Reading, Reason, TurnEnd
from gemmtp.chat.room import (
    SPARE_SHARE,
    SUMMARY_HEAD,
    SUMMARY_REQUEST,
    OnOverflow,
    Overflow,
    answer_room,
    cut,
    last_exchange,
    never,
    summary_room,
)
from gemmtp.chat.tally import summed
from gemmtp.chat.voice import Voice
from gemmtp.chat.writing import Writing
from gemmtp.engine.depth import DepthChooser
from gemmtp.engine.engine import Failed, Finished, Prefill, Request, Token
from gemmtp.engine.media import Media
from gemmtp.engine.penalties import PenaltyParameters
from gemmtp.engine.processors import Processor
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.slot import common_prefix
from gemmtp.engine.stats import Statistics
from gemmtp.engine.verify import Rule
from gemmtp.errors import PromptTooLongError, UsageError
from gemmtp.llama.devices import host_memory
from gemmtp.prompt.channels import Markers, stop_in_answer
from gemmtp.prompt.conversation import Conversation, Message
from gemmtp.prompt.template import chat_tokens

__all__ = ["Dialogue", "OnOverflow", "Overflow", "See", "never"]

See = Callable[[Sequence[int], Sequence[Message]], tuple[list[int], tuple[Media, ...]]]
"""Puts what messages carry in place of its placeholders among the tokens: ``Eyes.conversation``."""

Form = Callable[[SamplingParameters, bool], Processor]
"""Makes what holds an answer to a form, for the parameters and whether a thought may come first."""

Penalise = Callable[[PenaltyParameters], Sequence[Processor]]
"""Makes the processors of penalties, which know the vocabulary."""

FREE_SHARE, MOST_CHECKPOINT_BYTES = 4, 4 << 30
"""Checkpoints take a quarter of the free host memory, 4 GiB at most, unless told otherwise."""

Pieces = Generator[Piece, None, None]


@dataclass
class Dialogue:
    """Messages, and the turns that make them. Everything but ``pair`` may change between turns."""

    pair: Voice
    template: str | None = None
    """The text of the chat template; None takes Gemma 4's."""
    system: str = ""
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    thinking: bool = False
    depth: DepthChooser | None = None
    """How deep drafts go; None takes the engine's."""
    accept: Literal["auto"] | Rule = "auto"
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    processors: tuple[Processor, ...] = ()
    penalties: PenaltyParameters = field(default_factory=PenaltyParameters)
    penalise: Penalise = PenaltyParameters.processors
    """They come behind ``processors``."""
    form: Form | None = None
    """Holds answers to a grammar; summaries are free of it."""
    tools: tuple[Mapping[str, Any], ...] = ()
    overflow: OnOverflow = never
    see: See | None = None
    """Puts media into a prompt; without it a message that carries some is refused."""
    terminal: bool = False
    """Whether control characters leave all words, because they go to a terminal."""
    checkpoint_bytes: int | None = None
    """Memory for copies of the sliding window; None takes a quarter of what is free."""

    messages: list[Message] = field(default_factory=list)
    """What the model sees, without the system message; of an interrupted answer what was said."""
    summary: str = ""
    """What stands for turns that were dropped."""
    last: TurnEnd | None = None
    """How the last turn ended, also when its consumer left it."""

    def __post_init__(self) -> None:
        budget = self.checkpoint_bytes
        if budget is None:
            budget = min(host_memory()[0] // FREE_SHARE, MOST_CHECKPOINT_BYTES)
        self.pair.engine.checkpoints.budget = budget

    @property
    def complete(self) -> bool:
        """Whether the last answer came to its own end."""
        if self.messages and self.messages[-1].role != "assistant":
            return False
        return self.last is None or self.last.reason == "stop"

    def ask(self, message: Message) -> Pieces:
        """The user says ``message``; the answer comes piece by piece.

        The consumer may leave at any piece, and Ctrl-C may arrive anywhere: what was given out
        stays as the answer. Raises :class:`~gemmtp.errors.GemmtpError`, with everything as before,
        when the message cannot be asked.
        """
        return self._answer([*self.messages, message])

    def regenerate(self) -> Pieces:
        """Another answer in place of the last; raises as :meth:`ask` does."""
        return self._answer(self.messages[: self._last_user() + 1])

    def edit(self, message: Message) -> Pieces:
        """Say ``message`` in place of the last exchange; raises as :meth:`ask` does."""
        return self._answer([*self.messages[: self._last_user()], message])

    def undo(self) -> bool:
        """Take back the last exchange; false when there is none."""
        start = last_exchange(self.messages)
        if start == len(self.messages):
            return False
        del self.messages[start:]
        self.last = None
        return True

    def set_system(self, text: str) -> None:
        """Another system message from now on."""
        self.system = text

    def load(self, messages: Sequence[Message], summary: str = "") -> None:
        """Go on with these messages."""
        self.messages, self.summary, self.last = list(messages), summary, None

    def clear(self) -> None:
        """Begin anew, with the same system message and settings."""
        self.load(())

    def settle(self) -> Generator[Reading, None, None]:
        """Read what the next turn's prompt will begin with; the consumer may leave at any piece.

        Without it the next turn reads the last answer, as the template has it, before the first
        new token.
        """
        tokens, media = self.history()
        if not 0 < len(tokens) < self.n_ctx:
            return
        self.pair.engine.stop_all()
        with closing(self.pair.engine.read(Request(tokens, media=media, quick=True))) as events:
            for event in events:
                yield Reading(event.done, event.total)

    def history(self) -> tuple[list[int], tuple[Media, ...]]:
        """What every next prompt begins with, whatever the user says; nothing at the beginning."""
        if not self.messages:
            return [], ()
        prompt, media = self._prompt([*self.messages, Message.of("user", "a")])
        other, _ = self._prompt([*self.messages, Message.of("user", "b")])
        n = common_prefix(prompt, other)
        return prompt[:n], tuple(part for part in media if part.stop < n)

    def usage(self) -> Usage:
        """What fills the context now."""
        model = self.pair.model
        prompt, _ = self._prompt(self.messages)
        shares = shares_of(prompt, self._told(self.messages), model)
        thinking = self.messages[-1].thinking if self.messages else ""
        thoughts, summary = (len(model.tokenize(text)) for text in (thinking, self.summary))
        return Usage(self.n_ctx, shares, thoughts, summary)

    @property
    def n_ctx(self) -> int:
        """Positions of the context."""
        return self.pair.engine.target.n_ctx

    def _last_user(self) -> int:
        """Where the last exchange begins; raises UsageError when there is none."""
        start = last_exchange(self.messages)
        if start == len(self.messages):
            raise UsageError("Nothing has been said yet.")
        return start

    def _answer(self, messages: list[Message]) -> Pieces:
        """Answer ``messages``; until their prompt is known to fit nothing has changed."""
        # What a Ctrl-C may have left that came while another was tidied up after.
        self.pair.engine.stop_all()
        request = self._request(messages)
        gone, how = self._overflow(messages, len(request.prompt))
        if not gone:
            self.pair.engine.check(request)
        writing = Writing(self.pair.model, self.stop, terminal=self.terminal)
        reason: Reason = "interrupted"
        counts: list[Statistics] = []
        try:
            self.messages, self.last = [*messages, writing.message], TurnEnd(reason, Statistics())
            while True:
                if gone:
                    yield from self._drop(gone, how)
                    request = self._request(self.messages[:-1], writing.said)
                reason = "interrupted"
                reason = yield from self._decode(request, writing, counts)
                if reason != "context":
                    break
                gone, how = self._overflow(self.messages[:-1], self.n_ctx, len(writing.said))
                if not gone:
                    break
            for words in writing.finish():
                self.messages[-1] = writing.message
                yield words
        except KeyboardInterrupt:
            reason = "interrupted"
        finally:
            total = summed(counts) if len(counts) > 1 else (*counts, Statistics())[0]
            self.last = TurnEnd(reason, total, (*counts, total)[0].cached_because)
        yield self.last

    def _decode(
        self, request: Request, writing: Writing, counts: list[Statistics]
    ) -> Generator[Piece, None, Reason]:
        """Decode until the engine says why it ends; ``counts`` gets the statistics in any case."""
        engine, index, seen = self.pair.engine, None, len(request.prompt)
        try:
            index = engine.submit(request)
            while True:
                for event in engine.step():
                    match event:
                        case Prefill(done=done, total=total):
                            yield Reading(done, total)
                        case Token(token=token, drafted=drafted):
                            seen += 1
                            words = writing.feed(token, drafted)
                            if words is not None:
                                self.messages[-1] = writing.message
                                yield words
                        case Finished(reason=reason, statistics=statistics):
                            counts.append(statistics)
                            return reason
                        case Failed(error=error, statistics=statistics):
                            counts.append(statistics)
                            raise error
        finally:
            if index is None:
                engine.stop_all()
            elif (stopped := engine.stop(index, seen)) is not None:
                counts.append(stopped)

    def _overflow(
        self, messages: Sequence[Message], needed: int, said: int = 0
    ) -> tuple[int, Overflow]:
        """How many messages must go so that an answer fits behind ``needed`` tokens, and how.

        Raises :class:`~gemmtp.errors.PromptTooLongError` when the messages cannot fit.
        """
        room = answer_room(self.n_ctx, self.max_tokens)
        if needed + room <= self.n_ctx:
            return 0, "stop"
        most = self.n_ctx - self.n_ctx // SPARE_SHARE - room - said
        spare = summary_room(self.n_ctx)
        gone = cut(messages, lambda kept: len(self._prompt(kept)[0]) <= most - spare)
        if gone is not None and len(self._prompt(messages[gone:])[0]) + said < self.n_ctx:
            free = max(0, self.n_ctx - len(self._prompt(messages[: last_exchange(messages)])[0]))
            how = self.overflow(needed + room - (self.n_ctx - free), free)
            if how != "stop":
                return gone, how
        if needed >= self.n_ctx and not said:
            raise PromptTooLongError(
                f"The conversation would take {needed:,} tokens; the context holds {self.n_ctx:,}.",
                "Take something back, begin anew, or raise --ctx.",
            )
        return 0, "stop"

    def _drop(self, gone: int, how: Overflow) -> Pieces:
        """Drop the oldest ``gone`` messages, after the model has summarised them if it should."""
        oldest = self.messages[:gone]
        summary = ""
        if how == "summarise":
            summary = yield from self._summarised(oldest)
        self.messages = self.messages[gone:]
        self.summary = summary or self.summary
        yield Dropped(tuple(oldest), summary or None)

    def _summarised(self, messages: Sequence[Message]) -> Generator[Piece, None, str]:
        """What the model writes about ``messages``; empty when they do not fit or it ends early."""
        room = summary_room(self.n_ctx)
        asked = [*messages, Message.of("user", SUMMARY_REQUEST)]
        request = replace(
            self._request(asked),
            sampling=SamplingParameters(),
            max_tokens=room,
            stop=None,
            processors=self._changing,
        )
        if len(request.prompt) + room > self.n_ctx:
            return ""
        writing = Writing(self.pair.model, (), terminal=self.terminal)
        with closing(self.pair.engine.generate(request)) as events:
            for event in events:
                match event:
                    case Prefill(done=done, total=total):
                        yield Reading(done, total)
                    case Token(token=token, drafted=drafted):
                        writing.feed(token, drafted)
        return writing.message.text.strip()

    @property
    def _changing(self) -> tuple[Processor, ...]:
        """What changes the logits of everything the model says."""
        return (*self.processors, *self.penalise(self.penalties))

    def _request(self, messages: Sequence[Message], said: Sequence[int] = ()) -> Request:
        """The request for an answer to ``messages``, or for the rest of one that began."""
        model = self.pair.model
        prompt, media = self._prompt(messages)
        most = self.max_tokens
        processors = [processor.fork() for processor in self._changing]
        if self.form is not None:
            processors.append(self.form(self.sampling, self.thinking))
        for processor in processors:
            for token in said:
                processor.accept(token)
        stop = stop_in_answer(self.stop, Markers.of(model.marker), model.token_bytes)
        if stop is not None:
            for token in said:
                stop(token)
        return Request(
            [*prompt, *said],
            self.sampling,
            max_tokens=None if most is None else most - len(said),
            stop_tokens=model.end_tokens,
            stop=stop,
            processors=tuple(processors),
            depth=self.depth,
            accept=self.accept,
            media=media,
            quick=True,
        )

    def _prompt(self, messages: Sequence[Message]) -> tuple[list[int], tuple[Media, ...]]:
        """What the template makes of ``messages``."""
        told = self._told(messages)
        seen = any(message.media for message in told)
        if seen and self.see is None:
            raise UsageError("This set has no projector, so it cannot see or hear.")
        tokens = chat_tokens(
            Conversation(tuple(told)).for_template(),
            lambda text: self.pair.model.tokenize(text, special=True),
            template=self.template,
            thinking=self.thinking,
            tools=self.tools,
        )
        return self.see(tokens, told) if self.see and seen else (tokens, ())

    def _told(self, messages: Sequence[Message]) -> list[Message]:
        """``messages`` behind the system message, without answers in which nothing was said."""
        told = [m for m in messages if m.role != "assistant" or m.parts or m.tool_calls]
        summary = SUMMARY_HEAD + self.summary if self.summary else ""
        if system := "\n\n".join(filter(None, (self.system, summary))):
            told.insert(0, Message.of("system", system))
        return told

"""A conversation on an engine, without a terminal: turns in, pieces of answers out.

The prompt of a turn is what the model's template makes of all messages, every time; the engine
finds what of it the cache still holds. Templates leave thoughts out of the history, also the empty
one that says "no thinking", so the last answer has to be read again in the next turn:
:meth:`Dialogue.settle` does so ahead, while the user reads or types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from gemmtp.chat.pieces import Channel, Piece, Reading, Reason, TurnEnd, Words
from gemmtp.engine.depth import DepthChooser
from gemmtp.engine.engine import Engine, Finished, Prefill, Request, Token
from gemmtp.engine.media import Media
from gemmtp.engine.processors import Processor
from gemmtp.engine.sampling import SamplingParameters
from gemmtp.engine.stats import Statistics
from gemmtp.engine.verify import Rule
from gemmtp.errors import GemmtpError, PromptTooLongError, UsageError
from gemmtp.prompt.channels import ChannelStream, Kind, Markers, stop_in_answer
from gemmtp.prompt.channels import Piece as Written
from gemmtp.prompt.conversation import Conversation, Message, Text
from gemmtp.prompt.template import chat_tokens

Overflow = Literal["stop", "shift", "summarise"]
"""What a full context does: refuse, drop the oldest turns, or have the model summarise them."""

OnOverflow = Callable[[int, int], Overflow]
"""Asked with the tokens that are needed and those that are free."""

See = Callable[[Sequence[int], Sequence[Message]], tuple[list[int], tuple[Media, ...]]]
"""Puts what messages carry in place of its placeholders among the tokens: ``Eyes.conversation``."""

ANSWER_ROOM = 256
"""Tokens that a prompt leaves for the answer, or an eighth of a small context."""

_CHANNELS: dict[Kind, Channel] = {"answer": "answer", "thinking": "thought", "tool_call": "call"}


class Vocabulary(Protocol):
    """What a dialogue needs of a model: :class:`gemmtp.llama.model.Model` is one."""

    @property
    def end_tokens(self) -> frozenset[int]: ...

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]: ...

    def token_bytes(self, token: int, *, special: bool = False) -> bytes: ...

    def marker(self, text: str) -> int | None: ...


class Voice(Protocol):
    """An engine and its model's vocabulary: :class:`gemmtp.llama.pair.Pair` is one."""

    @property
    def engine(self) -> Engine: ...

    @property
    def model(self) -> Vocabulary: ...


def never(needed: int, free: int) -> Overflow:
    """Refuse what does not fit."""
    return "stop"


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
    tools: tuple[Mapping[str, Any], ...] = ()
    overflow: OnOverflow = never
    see: See | None = None
    """Puts media into a prompt; without it a message that carries some is refused."""
    terminal: bool = False
    """Whether control characters leave all words, because they go to a terminal."""

    messages: list[Message] = field(default_factory=list)
    """What the model sees, without the system message; of an interrupted answer what was said."""
    summary: str = ""
    """What stands for turns that were dropped."""
    last: TurnEnd | None = None
    """How the last turn ended, also when its consumer left it."""

    @property
    def complete(self) -> bool:
        """Whether the last answer came to its own end."""
        if self.messages and self.messages[-1].role != "assistant":
            return False
        return self.last is None or self.last.reason == "stop"

    def ask(self, message: Message) -> Iterator[Piece]:
        """The user says ``message``; the answer comes piece by piece.

        The consumer may leave at any piece, and Ctrl-C may arrive anywhere: what was given out
        stays as the answer. Raises :class:`~gemmtp.errors.GemmtpError` with everything as before
        when the message cannot be asked.
        """
        return self._turn([*self.messages, message])

    def regenerate(self) -> Iterator[Piece]:
        """Another answer in place of the last; raises as :meth:`ask` does."""
        return self._turn(self.messages[: self._last_user() + 1])

    def edit(self, message: Message) -> Iterator[Piece]:
        """Say ``message`` in place of the last exchange; raises as :meth:`ask` does."""
        return self._turn([*self.messages[: self._last_user()], message])

    def undo(self) -> bool:
        """Take back the last exchange; false when there is none."""
        if not self.messages:
            return False
        del self.messages[self._last_user() :]
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

    def _last_user(self) -> int:
        """Where the last exchange begins; raises UsageError when there is none."""
        for i in range(len(self.messages) - 1, -1, -1):
            if self.messages[i].role == "user":
                return i
        raise UsageError("Nothing has been said yet.")

    def _turn(self, messages: list[Message]) -> Iterator[Piece]:
        before = self.messages, self.summary, self.last
        self.messages, self.last = messages, None
        try:
            request = self._request(self.messages)
            self._check_room(len(request.prompt))
        except GemmtpError:
            self.messages, self.summary, self.last = before
            raise
        yield from self._answer(request)

    def _request(self, messages: Sequence[Message]) -> Request:
        """The request for an answer to ``messages``."""
        model = self.pair.model
        prompt, media = self._prompt(messages)
        return Request(
            prompt,
            self.sampling,
            max_tokens=self.max_tokens,
            stop_tokens=model.end_tokens,
            stop=stop_in_answer(self.stop, Markers.of(model.marker), model.token_bytes),
            processors=self.processors,
            depth=self.depth,
            accept=self.accept,
            media=media,
        )

    def _prompt(self, messages: Sequence[Message]) -> tuple[list[int], tuple[Media, ...]]:
        """What the template makes of ``messages``; an answer without a word is left out."""
        told = [m for m in messages if m.role != "assistant" or m.parts or m.tool_calls]
        seen = any(message.media for message in told)
        if seen and self.see is None:
            raise UsageError("This set has no projector, so it cannot see or hear.")
        if system := "\n\n".join(filter(None, (self.system, self.summary))):
            told.insert(0, Message.of("system", system))
        tokens = chat_tokens(
            Conversation(tuple(told)).for_template(),
            lambda text: self.pair.model.tokenize(text, special=True),
            template=self.template,
            thinking=self.thinking,
            tools=self.tools,
        )
        return self.see(tokens, told) if self.see and seen else (tokens, ())

    def _check_room(self, needed: int) -> None:
        n_ctx = self.pair.engine.target.n_ctx
        if needed >= n_ctx:
            raise PromptTooLongError(
                f"The conversation would take {needed:,} tokens; the context holds {n_ctx:,}.",
                "Take something back, begin anew, or raise --ctx.",
            )

    def _answer(self, request: Request) -> Iterator[Piece]:
        """Decode an answer into the last message."""
        self.messages.append(Message("assistant"))
        model, engine = self.pair.model, self.pair.engine
        stream = ChannelStream(
            model.token_bytes,
            Markers.of(model.marker),
            self.stop,
            terminal=self.terminal,
        )
        reason: Reason = "interrupted"
        statistics: Statistics | None = None
        index, seen = None, len(request.prompt)
        waiting = Words("answer", "", 0)
        try:
            index = engine.submit(request)
            while statistics is None:
                for event in engine.step():
                    match event:
                        case Prefill(done=done, total=total):
                            yield Reading(done, total)
                        case Token(token=token, drafted=drafted):
                            seen += 1
                            waiting = replace(
                                waiting,
                                tokens=waiting.tokens + 1,
                                drafted=waiting.drafted + drafted,
                            )
                            if token in request.stop_tokens:
                                continue
                            piece = stream.feed(token)
                            if piece.text or piece.written:
                                yield self._said(piece, waiting)
                                waiting = Words("answer", "", 0)
                        case Finished(reason=reason, statistics=statistics):
                            pass
            for piece in stream.finish():
                yield self._said(piece, waiting)
                waiting = Words("answer", "", 0)
        except KeyboardInterrupt:
            reason = "interrupted"
        finally:
            stopped = None
            if index is None:
                engine.stop_all()
            else:
                stopped = engine.stop(index, seen)
            statistics = statistics or stopped or Statistics()
            self.last = TurnEnd(reason, statistics, "")
        yield self.last

    def _said(self, piece: Written, counts: Words) -> Words:
        """Put ``piece`` into the answer; return it as words."""
        answer = self.messages[-1]
        match piece.kind:
            case "thinking":
                answer = replace(answer, thinking=answer.thinking + piece.text)
            case "answer" if piece.text:
                answer = replace(answer, parts=(Text(answer.text + piece.text),))
            case "tool_call" if piece.written and piece.written.call:
                call = replace(piece.written.call, id=f"call_{len(answer.tool_calls)}")
                answer = replace(answer, tool_calls=(*answer.tool_calls, call))
        self.messages[-1] = answer
        channel = _CHANNELS[piece.kind]
        return replace(counts, channel=channel, text=piece.text, call=piece.written)

"""The loop: draft, verify, emit, for one slot or many.

    fill     prompt rows in chunks, only the last row's logits and hidden row are asked for
    draft    (newest token, hidden row) -> d1..dk, one drafter pass a position for all slots
    verify   one target decode of [newest, d1..dk] for every slot, all rows output
    emit     the target's choice at each row, as long as it equals the draft
    cut      what was rejected leaves the KV cache; the hidden row is that of the last held token

``step`` does one round of all of it for every slot at once, so a newcomer's prompt is evaluated
beside running answers. The text is what the target alone would have chosen: the draft only decides
how many rows are looked at in one pass (Leviathan et al., arXiv 2211.17192, with the acceptance
rule of sample-and-compare).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from gemmtp.engine.backend import Floats, Target
from gemmtp.engine.checkpoints import Checkpoints
from gemmtp.engine.depth import DepthChooser, FixedDepth, Round, unclocked
from gemmtp.engine.drafting import MTP, Draft, DraftSource, Want
from gemmtp.engine.media import check_media
from gemmtp.engine.prefill import Prefilling, shared_with
from gemmtp.engine.proposal import Sharpness
from gemmtp.engine.request import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Prefill,
    Request,
    Token,
    checked_max_tokens,
)
from gemmtp.engine.resting import Resting, adopt, rest
from gemmtp.engine.run import Run, choosers, prompt_rows, verification_rows
from gemmtp.engine.sampling import SamplingParameters, fresh_seed
from gemmtp.engine.slot import Slot
from gemmtp.engine.stats import Statistics
from gemmtp.engine.verify import RULES, Rows
from gemmtp.errors import EngineError, GemmtpError, PromptTooLongError, UsageError

__all__ = [
    "Engine",
    "Event",
    "Failed",
    "FinishReason",
    "Finished",
    "Prefill",
    "Request",
    "Token",
]

MANY_SETTINGS = 64
"""Sets of sampling parameters for which the sharpness of proposals is remembered."""


class Engine:
    """Slots over one target and one draft source.

    Raises :class:`~gemmtp.errors.UsageError` when ``depth`` may ask for more output rows than the
    target gives.
    """

    def __init__(
        self, target: Target, drafting: DraftSource, depth: DepthChooser | None = None
    ) -> None:
        self.target, self.drafting = target, drafting
        self.depth = depth or FixedDepth(0)
        self._check_outputs(self.depth)
        self._slots = [Slot(i) for i in range(target.n_slots)]
        self._prefilling = Prefilling(target, self._slots)
        self._runs: dict[int, Run] = {}
        self._sharpness: dict[SamplingParameters, Sharpness] = {}

    @property
    def checkpoints(self) -> Checkpoints:
        """Of the sliding window; none are taken without a budget."""
        return self._prefilling.checkpoints

    def submit(self, request: Request) -> int:
        """Take a request; return its slot.

        The free slot is used that holds most of the prompt and least of other texts. Raises
        :class:`~gemmtp.errors.PromptTooLongError` with both counts,
        :class:`~gemmtp.errors.UsageError` on an empty prompt, tokens outside the vocabulary or
        absurd limits or misplaced media, and :class:`~gemmtp.errors.EngineError` when every slot
        is busy.
        """
        return self._submit(request, ahead=False)

    def _submit(self, request: Request, ahead: bool) -> int:
        self.check(request)
        free = [slot for slot in self._slots if slot.index not in self._runs]
        if not free:
            raise EngineError("Every slot is busy.")
        slot = max(free, key=lambda s: 2 * shared_with(s, request.prompt) - s.held)
        seed = request.sampling.seed
        seed = fresh_seed() if seed is None else seed
        rule = request.rule if self.drafting.no_drafter is None else "compare"
        statistics = Statistics(rule=rule, seed=seed)
        prompt, media, points = request.prompt, request.media, self.checkpoints
        statistics.cached_because = self._prefilling.begin(slot, request)
        statistics.cached = slot.held
        run = Run(
            request,
            slot,
            RULES[rule](request.sampling, seed, self._sharpness_for(request.sampling)),
            request.depth or self.depth,
            tuple(processor.fork() for processor in request.processors),
            statistics,
            [] if ahead or not self.target.window else points.marks(slot.held, prompt, media),
            ahead,
        )
        if run.promised:
            run.depth = unclocked(run.depth)
        self._prefilling.follow(run, self._runs.values())
        self._runs[slot.index] = run
        run.depth.join(slot.index, rule)
        self.drafting.begin(slot.index)
        return slot.index

    def step(self) -> list[Event]:
        """One round for every slot at work; an empty list when none is.

        Raises :class:`~gemmtp.errors.EngineError` when llama.cpp fails; what concerns one slot
        alone is its :class:`Failed`.
        """
        runs = list(self._runs.values())
        if not runs:
            return []
        native, start = self.native_seconds, time.perf_counter()
        deciding = [run for run in runs if not run.filling]
        filling = [run for run in runs if run.filling]
        self._draft(deciding)
        drafted = time.perf_counter()
        reading = [run for run in filling if not self._prefilling.waits(run, runs)]
        self._prefilling.take_checkpoints(reading)
        events: list[Event] = []
        for run in self._prefilling.before_media(reading):
            events += self._or_failed(run, partial(self._prefilling.read_media, run))
        reading = [run for run in reading if not run.failed]
        verifying = [verification_rows(run) for run in deciding]
        rows = list(chain.from_iterable(verifying))
        decided = len(rows)
        room = self.target.max_rows - len(rows)
        chunks = self._prefilling.chunks(reading, filling, room, beside=bool(deciding))
        rows += [row for run, n in chunks for row in prompt_rows(run, n)]
        if rows:
            began = time.perf_counter()
            self.target.decode(rows)
            if not deciding:
                self._prefilling.pace.observe(len(rows), time.perf_counter() - began)
        output = 0
        for run, read in zip(deciding, map(len, verifying), strict=True):
            events += self._or_failed(run, partial(self._verified, run, output, read))
            output += read
        for run, n in chunks:
            events += self._or_failed(run, partial(self._filled, run, n, output))
            output += not run.filling
        end = time.perf_counter()
        self._clock(deciding, filling, end - start, self.native_seconds - native)
        if deciding and not filling and not any(run.failed for run in deciding):
            self._observe(deciding, decided, drafted - start, end - drafted)
        return events + self._finish(runs)

    def _or_failed(self, run: Run, work: Callable[[], list[Event]]) -> list[Event]:
        """The events of ``work``; where it raises, the run goes back to before it and ends."""
        length = len(run.slot.text)
        try:
            return work()
        except GemmtpError as error:
            run.failed = True
            self.stop(run.slot.index, length)
            return [Failed(run.slot.index, error, run.statistics)]

    def generate(self, request: Request) -> Generator[Event, None, None]:
        """Submit and step until the answer ends, for a caller with one request at a time.

        The caller may stop at any event: the slot then goes back to the last event it took.
        Raises :class:`~gemmtp.errors.EngineError` when other requests are at work.
        """
        if self._runs:
            raise EngineError("Other requests are at work; use submit() and step().")
        index, seen = None, len(request.prompt)
        try:
            index = self.submit(request)
            for event in self._stepped():
                seen += isinstance(event, Token)
                yield event
        finally:
            if index is None:
                self.stop_all()
            else:
                self.stop(index, seen)

    def read(self, request: Request) -> Generator[Prefill, None, None]:
        """Read the prompt of ``request`` ahead, so that one that begins with it starts at once.

        The caller may stop at any event; what is read stays. Raises as :meth:`generate` does.
        """
        if self._runs:
            raise EngineError("Other requests are at work; use submit() and step().")
        try:
            self._submit(request, ahead=True)
            yield from (event for event in self._stepped() if isinstance(event, Prefill))
        finally:
            self.stop_all()

    def _stepped(self) -> Iterator[Event]:
        """The events of all steps to come; raises the error of an answer that fails."""
        while self._runs:
            for event in self.step():
                if isinstance(event, Failed):
                    raise event.error
                yield event

    def stop(self, index: int, length: int | None = None) -> Statistics | None:
        """Free a slot, whatever a step left undone; its text is cut to its first ``length`` tokens.

        What is cut must be of the last step. Returns the statistics of the request that was at
        work there, if one was.
        """
        run = self._runs.pop(index, None)
        slot = self._slots[index]
        if length is None:
            slot.cut(len(slot.text) + 1, self.target)
        else:
            slot.cut(length, self.target)
            if run is not None:
                run.statistics.generated = length - len(run.request.prompt)
        if run is None:
            return None
        if self.drafting.no_drafter is None:
            run.statistics.choice = run.depth.explain()
        return run.statistics

    def stop_all(self) -> None:
        """Free every slot, also one whose :meth:`submit` was interrupted."""
        for index in range(len(self._slots)):
            self.stop(index)

    def rest(self, index: int) -> Resting | None:
        """A copy of a free slot, to go on with elsewhere; None when it holds nothing."""
        return rest(self._slots[index], self.target, self.checkpoints)

    def adopt(self, index: int, resting: Resting) -> None:
        """Let a free slot hold what another one held; raises as :func:`~.resting.adopt` does."""
        if index in self._runs:
            raise EngineError("The slot is at work.")
        adopt(self._slots[index], resting, self.target, self.checkpoints)

    def text(self, index: int) -> list[int]:
        """The tokens of a slot, prompt and answer."""
        return list(self._slots[index].text)

    def hidden(self, index: int) -> Floats:
        """float32[d]: the target's state at the slot's last held token, a view."""
        return self._slots[index].hidden

    def _sharpness_for(self, sampling: SamplingParameters) -> Sharpness | None:
        """What answers with these parameters have taught; a seed's text stands for itself."""
        if sampling.greedy or sampling.seed is not None:
            return None
        if len(self._sharpness) > MANY_SETTINGS:
            self._sharpness.clear()
        if sampling not in self._sharpness:
            self._sharpness[sampling] = Sharpness(sampling)
        return self._sharpness[sampling]

    def check(self, request: Request) -> None:
        """Raises what :meth:`submit` raises on a request that no slot could take."""
        n = len(request.prompt)
        if not n:
            raise UsageError("The prompt is empty.", "Say something, or pipe a text in.")
        if n > self.target.n_ctx:
            raise PromptTooLongError(
                f"The prompt has {n} tokens, the context holds {self.target.n_ctx}.",
                "Shorten the prompt or raise --ctx.",
            )
        check_media(request.prompt, request.media, self.target)
        checked_max_tokens(request.max_tokens)
        if request.depth is not None:
            self._check_outputs(request.depth)

    def _check_outputs(self, depth: DepthChooser) -> None:
        rows = self.target.n_slots * (depth.most + 1)
        if rows > min(self.target.max_outputs, self.target.max_rows):
            raise UsageError(
                f"Drafts of {depth.most} tokens need {rows} output rows; "
                f"this context was made for {self.target.max_outputs}."
            )

    def _draft(self, runs: Sequence[Run]) -> None:
        depths = self._depths(runs)
        wants = [self._want(run, depth) for run, depth in zip(runs, depths, strict=True)]
        for run, draft in zip(runs, self.drafting.draft(wants), strict=True):
            run.draft = draft

    def _depths(self, runs: Sequence[Run]) -> list[int]:
        """How deep each run may draft; runs that share a chooser are planned together."""
        depths = {run.slot.index: 0 for run in runs}
        if self.drafting.no_drafter is None:
            context = self._context()
            for chooser in choosers(runs):
                slots = [run.slot.index for run in runs if run.depth is chooser]
                depths.update(zip(slots, chooser.plan(slots, context), strict=True))
        return [depths[run.slot.index] for run in runs]

    def _context(self) -> int:
        """Tokens in the caches of the slots at work."""
        return sum(run.slot.held for run in self._runs.values())

    def _want(self, run: Run, depth: int) -> Want:
        slot, room = run.slot, self._room(run)
        return Want(
            slot.index,
            slot.text[-1],
            slot.held,
            slot.hidden,
            min(depth, room),
            slot.text,
            run.processors,
            run.request.stop_tokens,
            run.verifier.proposal,
            run.depth if run.depth.watches else None,
            min(self._most(run), room),
        )

    def _room(self, run: Run) -> int:
        """How many tokens a draft may have before context or answer end."""
        room = self.target.n_ctx - 1 - run.slot.held
        if run.request.max_tokens is not None:
            room = min(room, run.request.max_tokens - run.statistics.generated - 1)
        return room

    def _most(self, run: Run) -> int:
        """The longest draft that may be verified, whoever makes it; 0 where none is wanted."""
        if run.depth.most == 0 or run.promised:
            return 0
        return min(self.target.max_outputs, self.target.max_rows) // self.target.n_slots - 1

    def _verified(self, run: Run, output: int, read: int) -> list[Event]:
        """Choose tokens at the run's output rows and cut the cache behind the last kept one."""
        slot, draft = run.slot, run.draft.tokens
        emitted = self._emit(run, output, read, run.draft)
        accepted = next((i for i, t in enumerate(emitted) if draft[i : i + 1] != [t]), len(emitted))
        hidden = [self.target.hidden(output + i) for i in range(len(emitted))]
        # With the row before them: all of a round's tokens may be cut again.
        slot.last_hidden = np.stack([slot.hidden, *hidden])
        slot.held += len(emitted)
        if len(emitted) <= len(draft):
            self.target.remove(slot.index, slot.held)
        if run.draft.source == MTP or not draft:
            tried = min(len(draft), len(emitted)) if run.ended else len(draft)
            run.depth.learn(slot.index, tried, accepted, run.draft.margins)
        run.statistics.count_round(len(draft), accepted, len(emitted), run.draft.source)
        run.statistics.generated += len(emitted)
        run.statistics.overlap = run.verifier.overlap
        return [Token(slot.index, token, i < accepted) for i, token in enumerate(emitted)]

    def _emit(self, run: Run, output: int, read: int, draft: Draft) -> list[int]:
        rows = Rows(self.target, output, read, run.slot.text, run.processors)
        return run.verifier.verify(rows, draft, run.ends)

    def _filled(self, run: Run, n: int, output: int) -> list[Event]:
        slot = run.slot
        slot.held += n
        run.statistics.evaluated += n
        events: list[Event] = [Prefill(slot.index, slot.held, len(run.request.prompt))]
        if not run.filling and not run.ahead:
            slot.last_hidden = np.array(self.target.hidden(output))[np.newaxis]
            (token,) = self._emit(run, output, 1, Draft())
            run.statistics.generated += 1
            events.append(Token(slot.index, token, False))
        return events

    def _finish(self, runs: Sequence[Run]) -> list[Event]:
        finished: list[Event] = []
        for run in runs:
            reason = None if run.failed else self._reason(run)
            if reason is not None:
                self.stop(run.slot.index)
                finished.append(Finished(run.slot.index, reason, run.statistics))
        return finished

    def _reason(self, run: Run) -> FinishReason | None:
        if run.filling:
            return None
        if run.ended:
            return "stop"
        if run.ahead:
            return "length"
        if run.request.max_tokens is not None and (
            run.statistics.generated >= run.request.max_tokens
        ):
            return "length"
        if run.slot.held >= self.target.n_ctx:
            return "context"
        return None

    def _clock(
        self, deciding: Sequence[Run], filling: Sequence[Run], seconds: float, native: float
    ) -> None:
        for run in deciding:
            run.statistics.decode_seconds += seconds
            run.statistics.native_seconds += native
        for run in filling:
            run.statistics.prompt_seconds += seconds

    def _observe(self, runs: Sequence[Run], rows: int, draft: float, verify: float) -> None:
        """Tell the choosers of depths what a round of answers alone has cost."""
        round = Round(
            slots=len(runs),
            rows=rows,
            steps=max(run.draft.passes for run in runs),
            draft_seconds=draft,
            verify_seconds=verify,
            context=self._context(),
        )
        for chooser in choosers(runs):
            chooser.observe(round)
        self.drafting.observe(round)

    @property
    def native_seconds(self) -> float:
        """Seconds spent in forward passes so far."""
        return self.target.native_seconds + self.drafting.native_seconds

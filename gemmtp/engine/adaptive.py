"""A draft length that measures: as deep as pays, and no draft where that pays more.

A draft of k tokens is expected to emit 1 + a1 + a1 a2 + ... + a1 a2...ak tokens, where ai is how
often token i is kept once those before it were (:mod:`gemmtp.engine.acceptance`), and costs k
drafter passes and one target pass over k + 1 rows (:mod:`gemmtp.engine.costs`). The rate of the
best k, or of none, is what a second is worth. A draft then goes on while what another token is
expected to bring is worth more than the seconds it takes, and what is expected follows how sure the
drafter is: a sure draft goes deeper than the average, an unsure one stops. That is asked twice of
every token: before the drafter's pass, which costs little, and after it, before the token costs the
target a row.

The text does not depend on any of this where drafts are compared. Where they are verified by
rejection, both are decided before the token is drawn, from the tokens before it and the drafter's
row, which keeps the distribution: a token that was drawn is never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemmtp.engine.acceptance import Acceptance, SharedAcceptance
from gemmtp.engine.costs import TRIES, Costs, CostsByContext, doublings
from gemmtp.engine.depth import Round, checked_depth

FIRST_PROBE, FIRST_IDLE_PROBE, LAST_PROBE = 24, 96, 384
"""Rounds until another depth is tried again, the second where drafting does not pay; doubled when
that did not pay either."""

REST, LONG_REST = 15, 60
"""Rounds that are decoded plainly without a thought once drafting was found not to pay, and not to
pay by far: nothing is learned in them, and where a round takes a third of a millisecond, thinking
is a fifth of it."""

FAR = 1.25
"""How much faster than the best draft plain decoding must be expected to be for a long rest."""


@dataclass(slots=True)
class _Plan:
    """The round that is being drafted. ``forced`` is a depth to be tried, whatever it brings.

    ``drafting`` of the ``slots`` share the drafter's passes, each of which takes ``draft`` seconds;
    ``verify`` are the seconds of the target's pass by the depth of everyone's draft, and ``rates``
    the tokens a second.
    """

    slots: int = 1
    drafting: int = 1
    forced: int | None = None
    best: int = 0
    worth: float = 0.0
    draft: float = 0.0
    verify: Sequence[float] = ()
    rates: Sequence[float] = ()

    @property
    def pass_seconds(self) -> float:
        """What a slot pays of a drafter pass."""
        return self.draft / self.drafting

    def row_seconds(self, done: int, depth: int) -> float:
        """What it costs to verify one slot's draft of ``depth`` tokens instead of ``done``.

        A slot beside others pays the average price of a row.
        """
        if self.slots == 1:
            return self.verify[depth] - self.verify[done]
        deep = max(1, self.best)
        return (depth - done) * (self.verify[deep] - self.verify[0]) / (self.slots * deep)


@dataclass(slots=True)
class _Regime:
    """What goes on at one number of slots and one size of context."""

    tried: dict[int, int] = field(default_factory=dict)
    best: int = 0
    probes: int = 0
    since_probe: int = 0
    probe_after: int = FIRST_PROBE
    rest: int = 0
    plan: _Plan = field(default_factory=_Plan)


class AdaptiveDepth:
    """Chooses among depths 0 to ``most``, beginning at ``start``."""

    watches = True

    def __init__(self, start: int = 3, most: int = 8) -> None:
        self._most = checked_depth(most)
        self._start = min(checked_depth(start), most)
        self._shared: dict[str, SharedAcceptance] = {}
        self._answers: dict[int, Acceptance] = {}
        self._costs = CostsByContext()
        self._regimes: dict[tuple[int, int], _Regime] = {}
        self._plan = _Plan()
        self._resting = False

    @property
    def most(self) -> int:
        return self._most

    def describe(self) -> str:
        return f"adaptive, up to {self._most}"

    def explain(self) -> str:
        plan = self._plan
        if plan.forced is not None or not plan.worth:
            return "still measuring"
        plain, drafted = plan.slots / plan.verify[0], plan.rates[min(plan.best or 1, self._most)]
        rates = f"{plain:.1f} tok/s plain, {drafted:.1f}"
        if not plan.best:
            return f"not drafting: {rates} expected of a draft"
        return f"about {plan.best}: {rates} expected of it"

    def join(self, slot: int, rule: str) -> None:
        shared = self._shared.setdefault(rule, SharedAcceptance(self._most))
        self._answers[slot] = Acceptance(shared, self._most)
        for regime in self._regimes.values():
            regime.rest = 0

    def plan(self, slots: Sequence[int], context: int) -> list[int]:
        regime = self._regimes.setdefault((len(slots), doublings(context)), _Regime())
        self._resting = regime.rest > 0
        if self._resting:
            regime.rest -= 1
            regime.since_probe += 1
            self._plan = regime.plan
            return [0] * len(slots)
        costs = self._costs.at(context)
        plan = self._plan = _Plan(len(slots), len(slots))
        plan.forced = self._to_measure(regime, costs, plan.slots)
        if plan.forced is not None:
            regime.tried[plan.forced] = regime.tried.get(plan.forced, 0) + 1
            return [plan.forced] * len(slots)
        answers = [self._answers[slot] for slot in slots]
        self._rate(plan, costs, answers, hopeful=plan.slots == 1 and regime.best > 0)
        plan.forced = self._probe(regime, costs, plan)
        if plan.forced is not None:
            return [plan.forced] * len(slots)
        # A draft of everyone may not pay where a draft of the surest does.
        begin = [slot for slot in slots if self.goes_on(slot, ())]
        if 0 < len(begin) < len(slots):
            plan.drafting, plan.draft = len(begin), costs.draft(len(begin))
            begin = [slot for slot in begin if self.goes_on(slot, ())]
        if not begin:
            far = plan.rates[0] > FAR * max(plan.rates[1:], default=0.0)
            regime.rest, regime.plan = LONG_REST if far else REST, plan
            for answer in answers:
                answer.rest(regime.rest)
        return [self._most if slot in begin else 0 for slot in slots]

    def _rate(
        self, plan: _Plan, costs: Costs, answers: Sequence[Acceptance], *, hopeful: bool
    ) -> None:
        """Fill in what every depth costs and brings, over all slots.

        Who does not draft is not ``hopeful``: a trial from time to time is cheaper. Nor are many:
        beside others a row costs a small difference of large costs, which hope would swallow.
        """
        depths = range(self._most + 1)
        plan.draft = costs.draft(plan.slots)
        seconds = costs.hoped if hopeful else costs.verify
        plan.verify = [seconds(plan.slots * (depth + 1)) for depth in depths]
        for answer in answers:
            answer.refresh()
        brought = [answer.tokens() for answer in answers]
        tokens = [sum(column) for column in zip(*brought, strict=True)]
        plan.rates = [tokens[d] / (plan.verify[d] + d * plan.draft) for d in depths]
        plan.best = max(depths, key=plan.rates.__getitem__)
        plan.worth = plan.rates[plan.best]

    def goes_on(self, slot: int, margins: Sequence[float]) -> bool:
        plan, answer, done = self._plan, self._answers[slot], len(margins)
        if plan.forced is not None:
            return done < plan.forced
        if done == self._most:
            return False
        survival = answer.survival(margins)
        price = plan.worth * plan.row_seconds(done, done + 1)
        if answer.pass_worth(done, survival, price) > plan.worth * plan.pass_seconds:
            return True
        return self._pays(answer, survival, done, done)

    def takes(self, slot: int, margins: Sequence[float]) -> bool:
        plan, answer, last = self._plan, self._answers[slot], len(margins) - 1
        if plan.forced is not None:
            return True
        survival = answer.survival(margins)
        return self._pays(answer, survival, last, last + 1, gained=survival)

    def _pays(
        self, answer: Acceptance, survival: float, done: int, seen: int, gained: float = 0.0
    ) -> bool:
        """Whether a draft of ``done`` tokens is worth lengthening, by one or by more.

        The drafter has looked at ``seen`` tokens already, all kept with probability ``survival``;
        ``gained`` is what those behind the first ``done`` bring.
        """
        plan = self._plan
        for depth in range(max(seen, done + 1), self._most + 1):
            if depth > seen:
                survival *= answer.at(depth - 1)
                gained += survival
            seconds = plan.row_seconds(done, depth) + (depth - seen) * plan.pass_seconds
            if gained > plan.worth * seconds:
                return True
        return False

    def learn(self, slot: int, drafted: int, accepted: int, margins: Sequence[float]) -> None:
        if not self._resting:
            self._answers[slot].learn(drafted, accepted, margins)

    def observe(self, round: Round) -> None:
        self._costs.at(round.context).add(
            round.rows, round.slots, round.steps, round.draft_seconds, round.verify_seconds
        )

    def state(self) -> dict[str, Any]:
        """What was learned about this machine and this pair, fit for JSON."""
        kept = {rule: shared.state() for rule, shared in self._shared.items()}
        return {"costs": self._costs.state(), "kept": kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Begin with what an earlier process had learned.

        Raises ValueError, KeyError or TypeError on anything but what :meth:`state` gave.
        """
        costs, kept = CostsByContext(), {}
        costs.restore(state["costs"])
        for rule, shared in state["kept"].items():
            kept[rule] = SharedAcceptance(self._most)
            kept[rule].restore(shared)
        self._costs, self._shared = costs, kept

    def _to_measure(self, regime: _Regime, costs: Costs, slots: int) -> int | None:
        """The first depth and plain decoding are measured before anything is compared with them.

        Once each where an earlier process had measured them: the machine may be busier now.
        """
        if costs.empty:
            return self._start
        for depth in (self._start, 0):
            rows = slots * (depth + 1)
            if costs.fresh(rows):
                continue
            # A round that could not be timed, beside a newcomer's prompt, is not waited for.
            if regime.tried.get(depth, 0) < (1 if costs.knows(rows) else 2 * TRIES):
                return depth
        return None

    def _probe(self, regime: _Regime, costs: Costs, plan: _Plan) -> int | None:
        """Now and then another depth, which refreshes what is known of it."""
        best = plan.best
        if best != regime.best:
            regime.best, regime.since_probe = best, 0
            regime.probe_after = FIRST_PROBE if best else FIRST_IDLE_PROBE
        regime.since_probe += 1
        if regime.since_probe <= regime.probe_after:
            return None
        regime.since_probe = 0
        regime.probe_after = min(2 * regime.probe_after, LAST_PROBE)
        regime.probes += 1
        others = [
            d for d in (0, best - 1, best + 1, best + 2) if 0 <= d <= self._most and d != best
        ]
        if regime.probes % 2:
            return max(others, key=plan.rates.__getitem__)
        # In turn, what was not looked at for longest: it may have been measured on a bad day.
        return min(others, key=lambda d: costs.last_measured(plan.slots * (d + 1)))

"""The text is the target's own, whatever the drafter does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtp.engine.backend import FakeDrafter, FakeTarget
from gemmtp.engine.depth import DepthChooser, FixedDepth, HeuristicDepth
from gemmtp.engine.drafting import MtpDrafting, NoDrafting
from gemmtp.engine.engine import Engine, Finished, Request, Token
from gemmtp.engine.processors import LogitBias, SuppressTokens
from gemmtp.engine.sampling import SamplingParameters

PLAIN = "a test without a drafter"


def plain(request: Request, **target: int) -> tuple[list[Token], Finished]:
    engine = Engine(FakeTarget(**target), NoDrafting(PLAIN))
    return collect(engine, request)


def drafted(
    request: Request, skill: float, depth: DepthChooser, **target: int
) -> tuple[list[Token], Finished]:
    fake = FakeTarget(**target)
    engine = Engine(fake, MtpDrafting(FakeDrafter(fake, skill)), depth)
    return collect(engine, request)


def collect(engine: Engine, request: Request) -> tuple[list[Token], Finished]:
    *events, last = engine.generate(request)
    assert isinstance(last, Finished)
    return [event for event in events if isinstance(event, Token)], last


def ids(tokens: list[Token]) -> list[int]:
    return [token.token for token in tokens]


requests = st.builds(
    Request,
    prompt=st.lists(st.integers(0, 39), min_size=1, max_size=90),
    sampling=st.builds(
        SamplingParameters,
        temperature=st.sampled_from([0.0, 0.7, 1.0, 3.0]),
        top_k=st.sampled_from([0, 1, 8]),
        top_p=st.sampled_from([0.5, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.1]),
        seed=st.integers(0, 2**64 - 1),
    ),
    max_tokens=st.one_of(st.none(), st.integers(1, 50)),
    stop_tokens=st.frozensets(st.integers(0, 39), max_size=2),
    processors=st.sampled_from(
        [(), (SuppressTokens([3, 5]),), (SuppressTokens([1]), LogitBias({7: 5.0}, 40))]
    ),
)
depths = st.one_of(
    st.builds(FixedDepth, st.integers(0, 8)),
    st.builds(HeuristicDepth, st.integers(1, 8), st.just(8)),
)


@settings(max_examples=400, deadline=None)
@given(
    request=requests,
    skill=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    depth=depths,
    window=st.sampled_from([0, 5]),
    seed=st.integers(0, 1000),
)
def test_any_drafter_gives_the_plain_text(
    request: Request, skill: float, depth: DepthChooser, window: int, seed: int
) -> None:
    target = {"n_ctx": 100, "window": window, "seed": seed}
    expected, end = plain(request, **target)
    tokens, drafted_end = drafted(request, skill, depth, **target)
    assert ids(tokens) == ids(expected)
    assert drafted_end.reason == end.reason
    assert drafted_end.statistics.generated == len(tokens)


def test_a_perfect_drafter_saves_target_passes() -> None:
    request = Request([1, 2, 3], max_tokens=41)
    _, end = drafted(request, 1.0, FixedDepth(3))
    assert end.statistics.rounds == 10
    assert end.statistics.tokens_per_round == 4.0
    assert end.statistics.per_position == [1.0, 1.0, 1.0]


def test_an_adversarial_drafter_costs_rounds_but_not_tokens() -> None:
    request = Request([1, 2, 3], max_tokens=41)
    tokens, end = drafted(request, 0.0, FixedDepth(3))
    assert end.statistics.rounds == 40
    assert end.statistics.accepted == 0
    assert not any(token.drafted for token in tokens)


def test_the_last_cell_of_the_context_is_used() -> None:
    for depth in range(9):
        request = Request([1, 2, 3])
        tokens, end = drafted(request, 0.8, FixedDepth(depth), n_ctx=40)
        # 40 cells hold the prompt and 37 tokens; the 38th needs no cell.
        assert len(tokens) == 38
        assert end.reason == "context"

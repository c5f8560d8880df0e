"""``kill -9`` while an answer comes: the session reopens with it."""

from __future__ import annotations

import pytest

from tests.perf.session_kills import measure


@pytest.mark.usefixtures("home")
def test_a_killed_session_reopens_with_all_that_was_printed() -> None:
    report = measure(3, seed=16)
    assert report.problems == []
    assert report.moments["in the answer"] > 0

"""A small part of ``python -m tests.perf.pull_faults``: no fault ends in a wrong file."""

from __future__ import annotations

import os

import pytest

from tests.perf import pull_faults


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user in a child")
def test_random_faults_end_in_the_right_file_or_a_clear_error() -> None:
    counts, wrong = pull_faults.run(60, seed=3)
    assert wrong == []
    assert counts.total() == 60
    assert {outcome for _, outcome in counts} == {"right", "error"}

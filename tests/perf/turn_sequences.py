"""Many random sequences of turns and interruptions against a plain model of the state.

python -m tests.perf.turn_sequences [--examples 1000] [--steps 20]
"""

from __future__ import annotations

import argparse

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.chat.test_turns import Turns


def main() -> None:
    """Run them; a failure is shrunk and raised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    run_state_machine_as_test(
        Turns,
        settings=settings(
            max_examples=arguments.examples,
            stateful_step_count=arguments.steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(
        f"{arguments.examples} sequences of up to {arguments.steps} steps: the state is the model's"
    )


if __name__ == "__main__":
    main()

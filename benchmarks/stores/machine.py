"""Random steps of the journal, compared with a dict: appends, snapshots, erasures, failing writes and reopening.

    python -m benchmarks.stores.machine --steps 50000

Runs the state machine of tests/stores/test_journal_processes.py with more steps. Prints JSON; a divergence is raised
with the steps that lead to it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.stores.test_journal_processes import JournalMachine

_STEPS_EACH = 50
_counted: Counter[str] = Counter()


class Counted(JournalMachine):
    """The state machine of the journal's tests, counting its steps."""

    def check_invariants(self, *given: object, **more: object) -> None:
        """Count a step, then check; Hypothesis calls this after each step."""
        _counted["steps"] += 1
        super().check_invariants(*given, **more)  # type: ignore[misc]

    def teardown(self) -> None:
        """Called after each run."""
        _counted["runs"] += 1
        super().teardown()


def main() -> None:
    """Run the machine until as many steps are done; print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    began, batch = time.monotonic(), 0
    while _counted["steps"] < chosen.steps:
        machine = seed(chosen.seed + batch)(Counted)
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=max(1, min(200, (chosen.steps - _counted["steps"]) // _STEPS_EACH)),
                stateful_step_count=_STEPS_EACH,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
        batch += 1
    print(json.dumps(dict(_counted) | {"divergences": 0, "seconds": round(time.monotonic() - began)}))


if __name__ == "__main__":
    main()

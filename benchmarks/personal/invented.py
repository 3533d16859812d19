"""What invented users do to the rating that strangers are expected to give a model. Prints JSON.

    python -m benchmarks.personal.invented

A team votes a model up, one thumb a day each, with a trusted key. Then 150 users whom an untrusted key names vote it
down: on one day, or on each of a week. Reported: the rating expected of a stranger before and after, with the limit of
`feedback.people_per_key` and without it, and votes left out; and what the limit leaves out on the first days of a team
whose users come with untrusted keys only, where it is to be none.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from tests.kits.learner import D_X, Log, fold, learner

from fitrouter.stores.journal import MemoryJournal
from fitrouter.types import Identity

STRANGER, NO_LIMIT = Identity(user="stranger", role="analyst"), 10**6


def votes(log: Log, who: str, n: int, value: float, key: str) -> None:
    """Log one thumb of each of n users on the model."""
    for number in range(n):
        name = log.answer(f"{who}{number}", "a")
        log.score(name)
        log.vote(name, value, vouched=key)


def attack(team: int, days: int, limit: int) -> dict[str, Any]:
    """Return what the attack does to a team's model."""
    log = Log(MemoryJournal(), np.random.default_rng(7))
    for log.day in range(6):
        votes(log, "person", team, 1.0, "")
    before = fold(log.journal, learner(people_per_key=limit))
    for _ in range(days):
        log.day += 1
        votes(log, "invented", 150, 0.0, "app")
    after = fold(log.journal, learner(people_per_key=limit))
    shown = {"before": before, "after": after}
    ratings = {
        name: round(float(state.fit.estimate(STRANGER, np.eye(D_X)[0], ("a", "b"), 2.0).mean[0]), 3)
        for name, state in shown.items()
    }
    return ratings | {"votes": 150 * days, "left_out": after.projections.vouching.left_out}


def small_team(keys: int, days: int) -> int:
    """Return the votes left out of a team of six, who vote three times a day with untrusted keys."""
    log = Log(MemoryJournal(), np.random.default_rng(7))
    for log.day in range(days):
        for _ in range(3):
            for key in range(keys):
                votes(log, f"{key}-", 6 // keys, 1.0, f"key {key}")
    return fold(log.journal).projections.vouching.left_out


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = [
        {"team": team, "days": days, "limit": limit if limit != NO_LIMIT else None, **attack(team, days, limit)}
        for team in (8, 30)
        for days in (1, 7)
        for limit in (3, NO_LIMIT)
    ]
    teams = [{"keys": keys, "days": days, "left_out": small_team(keys, days)} for keys in (1, 2, 6) for days in (1, 10)]
    print(json.dumps({"attacks": rows, "small teams": teams}, indent=1))


if __name__ == "__main__":
    main()

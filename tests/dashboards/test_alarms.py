"""Alarms in words: numbers of things, and parts that are late."""

from __future__ import annotations

import msgspec
from tests.dashboards.test_metrics import status
from tests.kits.tables import table_driven

from fitrouter.serving.services import Failing
from fitrouter.serving.status import Lag
from fitrouter.state.projections import Unanswered
from fitrouter_dashboards.console.alarms import Unhappy, alarms

LATE = Lag(scorer_answers=1, scorer_seconds=61.0)
FAILING = {"warehouse": Failing(since=0.0, times=84, error="it is held by process 7.")}


@table_driven(
    ("people", "more", "said"),
    [
        (1, {}, "1 person is unhappy: they surely rate below the middle."),
        (4, {}, "4 people are unhappy: they surely rate below the middle."),
        (0, {"quarantined": 1}, "1 event is excluded from what is learnt."),
        (0, {"quarantined": 1200}, "1,200 events are excluded from what is learnt."),
        (0, {"unanswered": {"a": Unanswered(14, 0.0)}}, "a answered none of its last 14 calls, for 84 s."),
        (0, {"lag": LATE}, "The scorer is 61 s behind, 1 answer waits for a score."),
        (
            0,
            {"failing": FAILING},
            "The warehouse has failed for 84 s (84 tries): it is held by process 7. These views, which read it, are "
            "late by that.",
        ),
    ],
)
def test_what_an_alarm_says(people: int, more: dict[str, object], said: str) -> None:
    """One of a thing is told in the singular; a part that fails or is late says since when, and why."""
    router = msgspec.structs.replace(status({}), **more)
    [found] = alarms(router, {}, (), {}, None, Unhappy(people, []), now=84.0)
    assert found.text == said


def test_a_paused_model_is_no_alarm() -> None:
    """What it did not answer before it was paused is told once it is called again."""
    more = {"unanswered": {"a": Unanswered(14, 0.0), "b": Unanswered(3, 0.0)}, "availability": {"a": 0.1, "c": 0.1}}
    router = msgspec.structs.replace(status({}), **more)

    def said(*paused: str) -> set[str]:
        return {alarm.text.split()[0] for alarm in alarms(router, {}, (), {}, None, now=84.0, paused=paused)}

    assert said() == {"a", "b", "c"}
    assert said("a", "c") == {"b"}

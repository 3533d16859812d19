"""Comparisons that were picked because they tell most: they teach, and no estimate of a level moves by them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.kits.learner import fold
from tests.kits.replay_story import write_journal
from tests.replay.test_vouching import answered, crowd

from fitrouter.config import FeedbackConfig
from fitrouter.posterior.labels import Answered, Label
from fitrouter.state.heard import Heard
from fitrouter.state.learner import Learner
from fitrouter.stores.figures import best_single, figures, raters, ratings
from fitrouter.stores.journal import Entry, MemoryJournal, Row
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import CHOSEN, Event, Execution, Feedback, FeedbackKind, Identity, Score
from fitrouter_dashboards.console import Reads
from fitrouter_dashboards.console.models import calibration, label_rates
from fitrouter_dashboards.quality import measure, saved_in
from fitrouter_evaluators.personal.exposure import exposed
from fitrouter_evaluators.personal.satisfaction import measure_satisfaction
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.evaluation import ReplaySettings, evaluate
from fitrouter_evaluators.replay.log.sources import read_log


def chosen(vote: Feedback, other: str, value: float, number: int = 0) -> Feedback:
    """A comparison of the answer of a vote with another one, that was shown first."""
    more: dict[str, Any] = {"kind": FeedbackKind.PAIR, "value": value, "other": other, "source": CHOSEN, "first": other}
    return msgspec.structs.replace(vote, id=f"{vote.id}:chosen {number}", asked=False, **more)


def logs() -> tuple[list[Event], list[Event]]:
    """A log with scores, and the same with comparisons by everybody at each vote, or in place of one: many a day."""
    plain, both, latest = list[Event](), list[Event](), dict[str | None, str]()
    for event in crowd(0.35):
        if isinstance(event, Feedback):
            if before := latest.get(event.identity.user):
                both += [chosen(event, before, float(event.value), number) for number in range(4)]
            latest[event.identity.user] = event.decision_id
            if not event.vouched and event.decision_id.endswith("7"):
                continue  # nobody rated that answer
        plain.append(event)
        both.append(event)
        if isinstance(event, Execution):
            said: dict[str, Any] = {
                "mean": 0.7 if event.served_by == "a" else 0.45,
                "sd": 0.1,
                "served_by": "a",
                "status": "ok",
            }
            score = Score(
                id=f"{event.id}:score", ts=event.ts, decision_id=event.decision_id, identity=event.identity, **said
            )
            plain.append(score)
            both.append(score)
    return plain, both


def rounded(found: object) -> str:
    """Sums of the warehouse differ in their last digits from one run to the next."""
    return re.sub(r"\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.9g}", repr(found))


def test_no_estimate_moves(tmp_path: Path) -> None:
    """Replay with prediction-powered estimates, satisfaction, ratings, calibration, savings, votes left out: alike."""
    found = list[list[Any]]()
    for number, events in enumerate(logs()):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = write_journal(folder / "journal.db", events)
        log = read_log(path)
        report = evaluate(log, load_candidate({"fixed": "a"}), load_candidate({"fixed": "b"}), ReplaySettings())
        warehouse = Warehouse(folder / "fitrouter.duckdb", hear=Heard())
        warehouse.ingest([Row(i + 1, each) for i, each in enumerate(events)])
        reads, who = Reads(warehouse), Identity(tenant="acme")
        found.append(
            [
                report.estimates,
                log.outcomes.left_out,
                measure_satisfaction(path, None, tenant="acme", now=0.0),
                [each.all for each in figures(warehouse.queries, ratings(who), ratings(who, by="served_by"))],
                figures(warehouse.queries, raters(who, since=0.0), best_single("acme")),
                calibration(reads, "acme", 0.0),
                label_rates(reads, "acme", 0.0),
                measure(warehouse, "a"),
                saved_in(warehouse, "a", "acme"),
                exposed(path, tenant="acme", schema="", style=[]),
            ]
        )
        reads.close()
    assert found[0][1] > 100, "there is a limit that could have moved"
    assert "powered" in {each.labels for each in found[0][0]}
    for one, other in zip(*found, strict=True):
        assert rounded(one) == rounded(other)


def predicted(state: Learner, arm: str) -> float:
    who = Identity(tenant="acme", user="ann", session="s")
    return state.fit.predict(Label(who, Answered(arm, np.ones(3), None), 1.0, FeedbackKind.THUMB)).full[0]


def test_they_teach_differences_alone() -> None:
    """The chosen answer's model rises by what the other's falls; of levels nothing is learnt, and no cap is used up."""
    events = list[Event]()
    for i in range(12):
        (*first, _), (*second, vote) = (answered(f"{arm}{i}", 60.0 * i, "ann", arm, 1.0, "") for arm in "ab")
        assert isinstance(vote, Feedback)
        events += [*first, *second, chosen(vote, f"a{i}", 0.0)]
    thumb = answered("b last", 60.0 * 20, "ann", "b", 1.0, "")
    states = []
    for log in (events, [*events, *thumb], [each for each in events if not isinstance(each, Feedback)]):
        journal = MemoryJournal()
        journal.append(*map(Entry, log)).result()
        states.append(fold(journal, Learner(3, 1, expects_scores=False)))
    taught, rated, blank = states
    up, down = (predicted(taught, arm) - predicted(blank, arm) for arm in "ab")
    assert up > 0.05
    assert up == pytest.approx(-down, abs=1e-9)
    assert taught.fit.residuals == blank.fit.residuals
    assert taught.projections.personalisation.dump() == blank.projections.personalisation.dump()
    voter = rated.fit.tastes.voter(Identity(tenant="acme", user="ann"))
    assert FeedbackConfig().votes_per_day < 12
    assert voter.has_counted("b last thumb overall"), "a day's comparisons leave room for its ratings"

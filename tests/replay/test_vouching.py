"""Invented users of an untrusted key do not turn what a log says for others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.kits.learner import fold
from tests.kits.replay_story import write_journal
from tests.kits.tables import table_driven
from typer.testing import CliRunner

from fitrouter.config import FeedbackConfig
from fitrouter.plain import pack
from fitrouter.state.heard import Heard
from fitrouter.state.learner import Learner
from fitrouter.stores.figures import figures, raters, ratings
from fitrouter.stores.journal import Entry, MemoryJournal, Row
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Decision, Event, Execution, Feedback, FeedbackKind, Identity, Mode, PolicyVersion
from fitrouter_dashboards.console import Reads, overview
from fitrouter_dashboards.console.models import model_figures
from fitrouter_dashboards.console.overview import single
from fitrouter_dashboards.quality import against, measure, saved_in
from fitrouter_evaluators.personal.exposure import exposed
from fitrouter_evaluators.personal.satisfaction import measure_satisfaction
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.evaluation import ReplaySettings, evaluate
from fitrouter_evaluators.replay.gate_file import Gate
from fitrouter_evaluators.replay.log.sources import read_log
from fitrouter_evaluators.replay.report import Report
from fitrouter_evaluators.training.train_policy import heard
from fitrouter_integrations import cli

DAYS, TEAM, RATED = 20, 60, {"a": 0.8, "b": 0.4}


def crowd(share: float, key: str = "app", team: int = TEAM) -> list[Event]:
    """A team that likes model a more, and a user for each vote of a key's `share` of the ratings, who likes b alone."""
    rng, events = np.random.default_rng(5), list[Event]()
    for day in range(DAYS):
        invented = rng.random(round(team * 2 / (1.0 - share))) < share
        for number, evil in enumerate(invented):
            arm = "ab"[rng.integers(2)]
            user = f"invented {day}-{number}" if evil else f"person {number % team}"
            liked = float(arm == "b") if evil else float(rng.random() < RATED[arm])
            events += answered(f"d{day}-{number}", day * 86_400.0 + number, user, arm, liked, key if evil else "")
    return events


def answered(name: str, ts: float, user: str, arm: str, liked: float, vouched: str) -> list[Event]:
    """A decision, its answer and its requested vote."""
    who = Identity(tenant="acme", user=user, session=name)
    common = {"ts": ts, "identity": who}
    decision = Decision(
        id=name,
        draw_id=name,
        mode=Mode.ONLINE,
        eligible=("a", "b"),
        probs=(0.5, 0.5),
        mean=(0.5, 0.5),
        chosen=arm,
        propensity=0.5,
        features=pack(np.ones(3)),
        policy=PolicyVersion(algorithm="squarecb"),
        asked=True,
        asked_probability=1.0,
        **common,  # type: ignore[arg-type]
    )
    execution = Execution(
        id=f"{name}:execution",
        decision_id=name,
        chosen=arm,
        served_by=arm,
        status="ok",
        features=pack(np.ones(3)),
        **common,  # type: ignore[arg-type]
    )
    vote = Feedback(
        id=f"{name}:vote",
        decision_id=name,
        kind=FeedbackKind.THUMB,
        value=liked,
        asked=True,
        vouched=vouched,
        **common,  # type: ignore[arg-type]
    )
    return [decision, execution, vote]


def report_of(folder: Path, events: list[Event], limits: FeedbackConfig | None = None) -> Report:
    folder.mkdir(exist_ok=True)
    log = read_log(write_journal(folder / "journal.db", events), limits=limits)
    gate = Gate(metric="fit", min_gain=0.0, min_units=100)
    settings = ReplaySettings()
    return evaluate(log, load_candidate({"fixed": "a"}), load_candidate({"fixed": "b"}), settings, gate)


def gain(report: Report) -> float:
    return next(each.value for each in report.estimates if each.policy == "difference")


@pytest.mark.parametrize("share", [0.25, 0.35])
def test_invented_users_do_not_turn_the_verdict(tmp_path: Path, share: float) -> None:
    """With a quarter of the ratings by one untrusted key the difference keeps its size, and the report says why."""
    alone = report_of(tmp_path / "alone", crowd(0.0))
    attacked = report_of(tmp_path / "attacked", crowd(share))
    assert gain(attacked) > 0.75 * gain(alone)
    assert [each.gate and each.gate.verdict for each in (alone, attacked)] == ["promote", "promote"]
    assert attacked.window.left_out > 0
    assert any(f"{attacked.window.left_out:,} ratings were left out" in each for each in attacked.warnings)
    assert not alone.window.left_out
    assert not any("ratings were left out" in each for each in alone.warnings)


def test_readers_leave_out_what_the_learner_does(tmp_path: Path) -> None:
    """A log's reader leaves out as many votes as the fold of the same journal; a correction stays left out."""
    events = crowd(0.25)
    last = next(each for each in reversed(events) if isinstance(each, Feedback) and each.vouched)
    events.append(msgspec.structs.replace(last, id="correction", value=1.0 - last.value))
    log = read_log(write_journal(tmp_path / "journal.db", events), features=False)
    journal = MemoryJournal()
    journal.append(*map(Entry, events)).result()
    state = fold(journal, Learner(3, 1, expects_scores=False))
    assert log.outcomes.left_out == state.projections.vouching.left_out > 100
    assert np.isnan(log.outcomes.asked_label[list(log.decisions.id).index(last.decision_id)])


@table_driven(
    "key, limits, team",
    [
        ("", FeedbackConfig(), 60),  # a trusted key
        ("app", FeedbackConfig(people_per_key=10**6), 60),
        ("app", FeedbackConfig(), 2),  # too few others are established
    ],
)
def test_where_the_learner_has_no_limit_readers_have_none(
    tmp_path: Path, key: str, limits: FeedbackConfig, team: int
) -> None:
    """Votes of trusted keys, of a higher limit, and before people are established all count."""
    log = read_log(write_journal(tmp_path / "journal.db", crowd(0.25, key, team)), features=False, limits=limits)
    assert log.outcomes.left_out == 0
    assert not np.isnan(log.outcomes.asked_label).any()


def test_every_reader_says_what_it_left_out(tmp_path: Path) -> None:
    """Comparison of models, satisfaction and exposure leave out as many, and say so to the key's tenant alone."""
    events = crowd(0.35)
    path = write_journal(tmp_path / "journal.db", events)
    votes = sum(isinstance(each, Feedback) for each in events)
    n = read_log(path, features=False).outcomes.left_out
    said = f"{n:,} ratings were left out"
    config = tmp_path / "config.yaml"
    config.write_text(
        "models: [{name: a, provider: p}]\nproviders: {p: {kind: simulated}}\nfeedback: {people_per_key: 1000000}\n"
    )
    for more, left in ([], True), (["--config", str(config)], False):
        asked = CliRunner().invoke(cli.app, ["replay", "--log", str(path), *more])
        assert asked.exit_code == 0, asked.output
        assert (said in asked.output) is left
    found = measure_satisfaction(path, None, tenant="acme", now=0.0)
    assert found.ratings == votes - n
    assert found.sentences[-1].startswith(said)
    assert "left out" not in "".join(measure_satisfaction(path, None, tenant="other", now=0.0).sentences)
    prices = exposed(path, tenant="acme", schema="", style=[])
    assert (prices.units, prices.left_out) == (votes - n, n)
    limits = FeedbackConfig(people_per_key=10**6)
    assert measure_satisfaction(path, None, tenant="acme", now=0.0, limits=limits).ratings == votes
    assert exposed(path, tenant="acme", schema="", style=[], limits=limits).units == votes


def test_live_figures_leave_out_what_replay_does(tmp_path: Path) -> None:
    """Mean ratings, calibration, the best single model: of all events at once, and of those that came since."""
    events = crowd(0.35)
    n = read_log(write_journal(tmp_path / "journal.db", events), features=False).outcomes.left_out
    votes = sum(isinstance(each, Feedback) for each in events)
    rows = [Row(i + 1, each) for i, each in enumerate(events)]
    whole, growing = (Warehouse(tmp_path / name, hear=Heard()) for name in ("whole.duckdb", "growing.duckdb"))
    whole.ingest(rows)
    for start in range(0, len(rows), 2000):
        growing.ingest(rows[start : start + 2000])
        figures(growing.queries, ratings())
    for warehouse in (whole, growing):
        reads, who = Reads(warehouse), Identity(tenant="acme")
        both = figures(warehouse.queries, ratings(who), ratings(who, by="served_by"))
        assert {each.all.ratings for each in both} == {votes - n}
        assert both[1].by["a"].mean > both[1].by["b"].mean + 0.2
        assert overview(reads, "acme", "all", 1e7)["totals"]["reward"]["ratings"] == votes - n
        assert sum(each["reward"]["ratings"] for each in model_figures(reads, "acme", 0.0).values()) == votes - n
        assert measure(warehouse, "a").best_single == "a"
        assert f"{n:,} votes" in saved_in(warehouse, "a", "acme")[-1]
        assert "votes" not in "".join(saved_in(warehouse, "a", "other"))
        best = single(reads, "acme")
        assert against(reads.rows, "a", best, "acme")["best"].model == "a"
        assert against(reads.rows, "a", best, "acme")["best"].rating.ratings <= votes - n
        (own,) = figures(warehouse.queries, raters(who, since=0.0))
        assert own.listed  # what a person said of answers is that person's, whoever vouches
        reads.close()
    unlimited = Warehouse(whole.path, hear=Heard(people=10**6))
    (everything,) = figures(unlimited.queries, ratings())
    assert everything.all.ratings == votes


def test_a_file_that_is_made_anew_is_read_anew(tmp_path: Path) -> None:
    """A warehouse that was deleted and filled again leaves out the same votes, in the process that read it before."""
    rows, found = [Row(i + 1, each) for i, each in enumerate(crowd(0.35))], list[int]()
    warehouse = Warehouse(tmp_path / "w.duckdb", hear=Heard())
    for part in (rows, rows[:90], rows):
        warehouse.path.unlink(missing_ok=True)
        warehouse.ingest(part)
        found.append(figures(warehouse.queries, ratings())[0].all.ratings)
    assert found[0] == found[2] > found[1]


def test_a_prior_that_is_trained_from_a_log_leaves_out_as_many() -> None:
    """`train policy` is for others: invented users of a key teach it as little as the learner."""
    events = crowd(0.35)
    events.append(msgspec.structs.replace(next(each for each in events if isinstance(each, Feedback)), id="again"))
    votes, limits = [each for each in events if isinstance(each, Feedback)], FeedbackConfig()
    found = [*heard(((each, ()) for each in events), limits)]
    left_out = len(events) - len(found)
    assert (
        100
        < left_out
        == sum(1 for each in votes if each.vouched)
        - sum(isinstance(each, Feedback) and each.vouched == "app" for each, _ in found)
    )
    journal = MemoryJournal()
    journal.append(*map(Entry, events)).result()
    assert left_out == fold(journal, Learner(3, 1, expects_scores=False)).projections.vouching.left_out
    unheard = {each.id for each in votes} - {each.id for each, _ in found}
    late = [*heard(((each, tuple(votes) if each is events[-1] else ()) for each in events), limits)][-1]
    assert not unheard & {each.id for each in late[1]}
    assert len([*heard(((each, ()) for each in events), FeedbackConfig(people_per_key=10**6))]) == len(events)


def test_the_limits_of_a_gateway_are_those_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`replay` of a log beside the `fitrouter.yaml` that names its folder takes the limits from there."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_journal(folder / "journal.db", crowd(0.35))
    monkeypatch.chdir(tmp_path)
    settings = (
        "models: [{name: a, provider: p}]\nproviders: {p: {kind: simulated}}\nfeedback: {people_per_key: 1000000}\n"
    )
    for data, left in (("data", False), ("elsewhere", True)):
        Path("fitrouter.yaml").write_text(f"data: {data}\n{settings}")
        asked = CliRunner().invoke(cli.app, ["replay", "--log", str(folder / "journal.db")])
        assert asked.exit_code == 0, asked.output
        assert ("ratings were left out" in asked.output) is left

"""Replay as a whole: from a log that the product made to a report, and to the gate's answer."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.kits.replay import Town

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.routing.decider import Rules
from fitrouter.stores.warehouse import Warehouse
from fitrouter.types import Floats
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.candidates.learning import ProgressiveCandidate, RejectionCandidate
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.evaluation import ReplaySettings, evaluate
from fitrouter_evaluators.replay.gate_file import parse_gate
from fitrouter_evaluators.replay.log.log import Ints, Log
from fitrouter_evaluators.replay.recording import record
from fitrouter_evaluators.replay.report import Report

CURRENT = load_candidate("current")


@pytest.fixture(scope="module")
def town() -> Town:
    """Six hundred requests of twenty people; a third of the answers is asked for, and everybody then answers."""
    made = Town(seed=5, rules=Rules(floor=0.2, ask=0.35, uniform_slice=0.2, share=1.0), votes=1.0)
    for number in range(600):
        made.request(user=f"person-{number % 20}")
    return made


@pytest.fixture(scope="module")
def log(town: Town) -> Log:
    return town.log()


def value(town: Town, arm: str) -> float:
    """What a model is worth in town, over its contexts."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(40_000), rng.normal(size=(40_000, 2)) * 0.7])
    return float((1.0 / (1.0 + np.exp(-x @ town.theta[ord(arm) - ord("a")]))).mean())


def replayed(log: Log, candidate: object = "uniform", gate: object = None, **settings: object) -> Report:
    rules = None if gate is None else parse_gate(gate)
    return evaluate(log, load_candidate(candidate), CURRENT, ReplaySettings(idle_s=1.0, **settings), rules)  # type: ignore[arg-type]


@pytest.mark.parametrize("arm", ["a", "b", "c"])
def test_intervals_cover_the_value_of_a_fixed_model(town: Town, log: Log, arm: str) -> None:
    """The exact sequence covers the value of a fixed model, and every label stream's estimate is near it."""
    report = replayed(log, {"fixed": arm})
    truth = value(town, arm)
    (exact,) = [band for band in report.bands if (band.policy, band.kind) == ("candidate", "exact")]
    assert exact.low <= truth <= exact.high
    rows = {(row.estimator, row.labels): row for row in report.estimates if row.policy == "candidate"}
    for stream in ("powered", "asked"):
        row = rows["dr", stream]
        assert abs(row.value - truth) < 4.5 * row.se
    assert rows["rejection", "powered"].n > 50
    assert not rows["dr", "powered"].biased


def test_estimates_lie_in_their_intervals_and_range(log: Log) -> None:
    """However few units there are: fit in [0, 1], a difference in [−1, 1], and each estimate in its interval."""
    few = replayed(log, {"fixed": "c"}, until=float(log.decisions.ts[12]))
    for report in (few, replayed(log, {"fixed": "c"})):
        for found in (*report.estimates, *report.bands, *report.personal):
            least = 0.0 if found.policy in {"candidate", "against"} else -1.0
            assert least <= found.low <= found.high <= 1.0
            assert math.isnan(found.value) or found.low <= found.value <= found.high
        for band in report.bands:
            assert min(band.lows, default=0.0) >= -1.0
            assert max(band.highs, default=0.0) <= 1.0


def test_shadow_is_replayed_from_the_first_day() -> None:
    """With a share of 0 the policy is compared with the default model: what the log cannot say widens the intervals."""
    made = Town(seed=6, rules=Rules(floor=0.1, ask=0.5, share=0.0, default_arm="a"), votes=1.0)
    for number in range(200):
        made.request(user=f"person-{number % 9}")
    report = replayed(made.log(), "shadow")
    mass = next(each.unsupported for each in report.diagnostics if each.policy == "candidate")
    assert mass > 0.3
    for found in (*report.estimates, *report.bands):
        if found.policy == "difference":
            assert found.high - found.low >= min(2.0 * mass, 1.0)
            assert found.low < 0.0 < found.high
    assert "give the policy a share above 0" in " ".join(report.advice)


def test_a_fresh_log_says_what_to_change(log: Log) -> None:
    """Volunteered votes only, or sessions that are still open: predictions are marked, and the remedy is named."""
    logs = []
    for ask in (0.001, 0.0):
        made = Town(seed=5, rules=Rules(floor=0.2, ask=ask), votes=1.0)
        for number in range(200):
            made.request(user=f"person-{number % 20}")
        logs.append(made.log())
    with pytest.raises(InvalidLog, match=r"199 volunteered ones do not .* set feedback.ask to 0.05"):
        replayed(logs[1])
    report = replayed(logs[0])
    assert report.window.labelled == 0
    assert all(row.biased for row in report.estimates if row.labels == "powered")
    assert all(band.kind == "exact" for band in report.bands if not band.slice)
    assert "set feedback.ask to 0.05" in " ".join(report.advice)
    idle_s = float(np.ptp(log.decisions.ts)) + 3600.0
    sessions = log.decisions._replace(session=np.arange(600), begins=np.ones(600, dtype=bool))
    with pytest.raises(InvalidLog, match=r"600 of 600 decisions are in sessions .* with --idle \d+[ms] \d+ decisions"):
        evaluate(log._replace(decisions=sessions), CURRENT, CURRENT, ReplaySettings(idle_s=idle_s))


def test_naive_estimates_are_marked_as_biased(town: Town, log: Log) -> None:
    """With volunteered labels there is a naive row, marked as biased; without them there is none."""
    assert all(
        row.labels != "naive"
        for row in replayed(log._replace(outcomes=log.outcomes._replace(free_label=np.full(600, np.nan)))).estimates
    )
    naive = [row for row in replayed(log).estimates if row.labels == "naive"]
    assert naive
    assert all(row.biased for row in naive)


def test_a_policy_does_not_differ_from_itself(log: Log) -> None:
    """The difference of a policy and itself is 0 without error, and no gate promotes it."""
    report = replayed(log, "current", gate={"metric": "fit", "keep_below": 0.3})
    for row in report.estimates:
        if row.policy == "difference":
            assert abs(row.value) < 1e-12
            assert row.se < 1e-12
    for band in report.bands:
        if band.policy == "difference":
            assert band.low <= 1e-9
            assert band.high >= -1e-9
    assert report.gate is not None
    assert report.gate.verdict == "keep"
    assert [d.ess for d in report.diagnostics] == pytest.approx([report.window.units] * 2)


def test_the_population_is_reported(log: Log) -> None:
    """Window, units, users, labels and exclusions are reported; decisions younger than the horizon are excluded."""
    report = replayed(log, by=("role",))
    window = report.window
    assert (window.users, window.units) == (20, window.decisions)
    assert 0.25 * window.units < window.labelled < 0.45 * window.units
    young = replayed(log, horizon_s=1000.0).window
    assert young.units == pytest.approx(window.units - 100, abs=2)
    assert young.excluded["younger than the horizon"] == pytest.approx(100, abs=2)
    assert {row.slice for row in report.estimates} == {"", "role=tester"}
    assert "Bonferroni" in report.correction
    strict = replayed(log, alpha=0.01)
    assert {row.alpha for row in strict.estimates} == {0.01}


class Trained:
    """A candidate that was trained."""

    description = "a trained policy"

    def __init__(self, until: float) -> None:
        self.trained_until = until

    def pmf(self, log: Log, rows: Ints) -> Floats:
        return CURRENT.pmf(log, rows)

    def config(self) -> dict[str, object]:
        return {}

    def hash(self) -> str:
        return ""


def test_a_candidate_trained_inside_the_window_is_refused(log: Log) -> None:
    """A candidate trained on outcomes of the window is refused; one trained before is accepted."""
    first = float(log.decisions.ts[0])
    settings = ReplaySettings(idle_s=1.0)
    assert evaluate(log, Trained(first - 1.0), CURRENT, settings).window.units
    with pytest.raises(InvalidLog, match=r"inside the window.*--since"):
        evaluate(log, Trained(first + 100.0), CURRENT, settings)
    later = ReplaySettings(idle_s=1.0, since=first + 200.0)
    assert evaluate(log, Trained(first + 100.0), CURRENT, later).window.units < len(log.decisions.ts)


def test_an_unusable_log_is_refused_with_a_reason(log: Log) -> None:
    """Errors give reasons and remedies."""
    with pytest.raises(InvalidLog, match=r"600 began before the window.*widen the window"):
        replayed(log, since=2e9)
    silent = log._replace(
        decisions=log.decisions._replace(asked=np.zeros(600, dtype=bool), asked_probability=np.zeros(600))
    )
    with pytest.raises(InvalidLog, match=r"fit is not known.*feedback\.ask"):
        replayed(silent)


def test_scores_are_marked_as_biased(log: Log) -> None:
    """Every estimate of the metric score is marked as biased."""
    scored = log._replace(outcomes=log.outcomes._replace(score=np.linspace(0.1, 0.9, 600)))
    report = replayed(scored, metric="score")
    assert all(row.biased for row in report.estimates)
    assert any("decide by human ratings" in warning for warning in report.warnings)


def test_cost_needs_no_labels(town: Town, log: Log) -> None:
    """The cost of a fixed model equals its price; a gate on cost needs a ceiling."""
    report = replayed(log, {"fixed": "a"}, metric="cost")
    (row,) = [r for r in report.estimates if (r.policy, r.estimator) == ("candidate", "snips")]
    card = town.cards[0]
    assert row.value == pytest.approx(card.prices.output * 2e-4, rel=1e-6)
    assert row.labels == "observed"
    assert any("ceiling" in warning for warning in report.warnings)
    gate = {"metric": "cost", "min_gain": 0.0001, "ceilings": {"cost": 0.0025}, "min_units": 100}
    found = replayed(log, {"fixed": "a"}, gate=gate, metric="cost").gate
    assert found is not None
    assert found.verdict == "promote", found.reasons


def test_guardrails_on_other_metrics_and_slices_are_evaluated(log: Log) -> None:
    """Guardrails on other metrics and on every role are evaluated, with reasons."""
    gate = {
        "metric": "fit",
        "ceilings": {"cost": 0.01},
        "guardrails": [
            {"metric": "cost", "max_increase": 0.0001},
            {"metric": "fit", "slice": "role", "max_decrease": 0.05},
        ],
    }
    found = replayed(log, {"fixed": "c"}, gate=gate).gate
    assert found is not None
    named = {check.name for check in found.rules}
    assert {"guardrail cost", "guardrail fit of role"} <= named
    assert found.verdict == "keep"
    assert any("cost" in reason for reason in found.reasons)


def test_given_user_groups_replace_declared_ones(log: Log) -> None:
    """Given groups define slices, also those of personalisation."""
    groups = {f"person-{n}": "early" if n < 10 else "late" for n in range(20)}
    report = replayed(log, by=("user_group",), groups=groups)
    assert {row.slice for row in report.estimates} == {"", "user_group=early", "user_group=late"}
    assert {band.slice for band in report.personal} >= {"", "taste=early", "taste=late"}


def test_a_report_reads_back(log: Log) -> None:
    """JSON holds everything."""
    report = replayed(log)
    again = msgspec.json.decode(msgspec.json.encode(report), type=Report)
    assert again.window == report.window
    assert len(again.estimates) == len(report.estimates)
    assert report.satisfaction
    assert report.satisfaction[0].users == 20


def test_learning_candidates_are_marked_and_not_gated(town: Town, log: Log) -> None:
    """Rejection sampling gives one estimate; a progressive candidate is marked as biased; neither can be gated."""
    settings, rules = ReplaySettings(idle_s=1.0), parse_gate({"metric": "fit"})
    sharp = Settings(algorithm="squarecb", parameters={"gamma": 20.0})
    lived = RejectionCandidate(town.blank(), lambda: nullcontext(town.journal), sharp)
    report = evaluate(log, lived, CURRENT, settings)
    (own,) = [row for row in report.estimates if row.policy == "candidate"]
    assert own.estimator == "rejection"
    assert 0 < own.n < report.window.units
    assert any("this short history" in warning for warning in report.warnings)
    going = ProgressiveCandidate(town.blank(), lambda: nullcontext(town.journal), sharp)
    shown = evaluate(log, going, CURRENT, settings)
    assert all(row.biased for row in shown.estimates if row.policy != "against")
    for candidate in (lived, going):
        with pytest.raises(ConfigError, match="the gate cannot decide"):
            evaluate(log, candidate, CURRENT, settings, rules)


def test_non_response_widens_every_exact_limit(log: Log) -> None:
    """With non-response, exact sequences are wider under Γ = 2 than under 1, in slices too."""
    asked = log.outcomes.asked_label.copy()
    asked[np.flatnonzero(~np.isnan(asked))[::3]] = np.nan
    quiet = log._replace(outcomes=log.outcomes._replace(asked_label=asked))
    trusting, careful = (replayed(quiet, by=("role",), sensitivity=gamma) for gamma in (1.0, 2.0))
    assert "67% of feedback requests were answered" in careful.sensitivity
    for one, other in zip(trusting.bands, careful.bands, strict=True):
        if one.kind == "exact" and one.policy != "against":
            assert other.low < one.low
            assert other.high > one.high


def test_estimates_are_recorded_in_the_warehouse(log: Log, tmp_path: Path) -> None:
    """Every unbiased estimate and sequence is a row of `ope_runs`; without a warehouse recording is refused."""
    report = replayed(log, {"fixed": "a"}, gate={"metric": "fit"})
    Warehouse(tmp_path / "fitrouter.duckdb").note_runs([])
    run = record(report, tmp_path)
    sql = "SELECT DISTINCT run_id, candidate, metric, verdict FROM ope_runs"
    assert report.gate is not None
    kept = Warehouse(tmp_path / "fitrouter.duckdb").query(sql)
    assert kept == [(run, report.candidate, "fit", report.gate.verdict)]
    (counted,) = Warehouse(tmp_path / "fitrouter.duckdb").query("SELECT count(*), count(ess) FROM ope_runs")
    believed = [row for row in report.estimates if not row.biased and row.interval == "delta"]
    assert counted == (len(believed) + len(report.bands),) * 2
    with pytest.raises(ConfigError, match="no warehouse beside"):
        record(report, tmp_path / "elsewhere" / "journal.db")


def test_one_of_a_thing_is_told_in_the_singular() -> None:
    """A log of one decision says so."""
    town = Town(seed=5, rules=Rules(floor=0.2, ask=1.0, share=1.0), votes=1.0)
    town.live(1)
    town.count += 400
    town.live(1)
    text = msgspec.json.encode(replayed(town.log())).decode()
    assert "1 decision in 1 session are too few" in text, text

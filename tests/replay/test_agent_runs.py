"""Replay with the run of an agent as the unit: weights of all its draws, its one outcome, and what may be concluded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kits.replay_logs import ONLINE, STICKY, make_log

from fitrouter.errors import InvalidLog
from fitrouter.stores.journal import Entry, SqliteJournal
from fitrouter.types import Decision, Execution, Identity, Mode, PolicyVersion, RunOutcome
from fitrouter_evaluators.replay.candidates._from_log import FixedCandidate
from fitrouter_evaluators.replay.candidates.load import load_candidate
from fitrouter_evaluators.replay.estimators import DR
from fitrouter_evaluators.replay.evaluation import MIN_RUNS, ReplaySettings, evaluate
from fitrouter_evaluators.replay.log.log import MODES, Log
from fitrouter_evaluators.replay.log.sources import read_log
from fitrouter_evaluators.replay.study.outcomes import observe_metric
from fitrouter_evaluators.replay.study.pseudo_outcomes import rounds_of
from fitrouter_evaluators.replay.study.study import Pmfs, Study
from fitrouter_evaluators.replay.study.units import runs_of

NAN = np.nan


def log_of(*calls: tuple[int, int, int, str], ended: dict[int, float], probs: Any = None, chosen: Any = None) -> Log:
    """A log of calls (run, −1 for none; session; row that it lives on; online, sticky or pinned), a second apart."""
    n = len(calls)
    kinds = {"online": ONLINE, "sticky": STICKY, "pinned": MODES.index(Mode.PINNED)}
    decisions = {
        "run": np.array([run for run, _, _, _ in calls]),
        "session": np.array([session for _, session, _, _ in calls]),
        "draw": np.array([row for _, _, row, _ in calls]),
        "mode": np.array([kinds[kind] for *_, kind in calls]),
        "begins": np.array([row == i and kind == "online" for i, (_, _, row, kind) in enumerate(calls)]),
    }
    outcomes = {"ended": np.array([ended.get(run, NAN) for run, *_ in calls])}
    probs = np.full((n, 2), 0.5) if probs is None else probs
    chosen = np.zeros(n, dtype=int) if chosen is None else chosen
    return make_log(probs, chosen, decisions=decisions, outcomes=outcomes)


def rows(log: Log) -> list[list[int]]:
    units = runs_of(log, idle_s=-1.0)
    return [units.member[a:b].tolist() for a, b in zip(units.start[:-1], units.start[1:], strict=True)]


def test_a_run_of_three_draws_by_hand() -> None:
    """Weights multiply over draws of three sessions; each correction is weighed by what came before it."""
    probs = np.array([[0.5, 0.5], [0.8, 0.2], [0.5, 0.5], [0.25, 0.75]])
    log = log_of(
        (0, 0, 0, "online"),
        (0, 1, 1, "online"),
        (0, 0, 0, "sticky"),
        (0, 2, 3, "online"),
        ended={0: 0.8},
        probs=probs,
        chosen=np.array([0, 1, 0, 1]),
    )
    units = runs_of(log, idle_s=-1.0)
    assert units.n == 1
    assert units.draw.tolist() == [0, 1, 3]
    pmf = np.array([0.9, 0.1, 0.4, 0.6, 0.5, 0.5])
    q = np.array([0.6, 0.2, 0.7, 0.4, 0.9, 0.5])
    found = rounds_of(units, pmf, q, np.array([0.8]))
    weights = 0.9 / 0.5, 0.6 / 0.2, 0.5 / 0.75  # 1.8, 3, 2/3
    assert found.weight[0] == pytest.approx(weights[0] * weights[1] * weights[2])  # 3.6
    values = 0.9 * 0.6 + 0.1 * 0.2, 0.4 * 0.7 + 0.6 * 0.4, 0.5 * 0.9 + 0.5 * 0.5  # .56, .52, .7
    base = values[0] + 1.8 * (values[1] - 0.6) + 1.8 * 3.0 * (values[2] - 0.4)
    assert found.base[0] == pytest.approx(base)
    assert DR().moments(found)[0][0] == pytest.approx(base + 3.6 * (0.8 - 0.5))


def test_a_run_is_all_its_draws_and_what_stays_on_them() -> None:
    """Calls of no run, of silent runs, and runs with a model that was drawn before them are left out, and counted."""
    log = log_of(
        (0, 0, 0, "online"),
        (1, 1, 1, "online"),
        (0, 0, 0, "sticky"),
        (0, 2, 3, "online"),
        (-1, 3, 4, "online"),
        (1, 0, 0, "sticky"),  # lives on a draw of another run
        (2, 4, 6, "online"),
        (2, 4, 6, "pinned"),
        ended={0: 1.0, 1: 1.0},
    )
    assert rows(log) == [[0, 2, 3], [6]]
    units = runs_of(log, idle_s=-1.0)
    assert units.excluded["no run"] == 1
    assert units.excluded["a model was drawn outside of the run"] == 1
    assert units.excluded["pinned"] == 1
    study = Study(units, Pmfs(log.options.prob, log.options.prob), "outcome")
    assert study.units.n == 1
    assert study.units.excluded["outcome not observable"] == 1


def test_a_log_without_outcomes_says_so() -> None:
    """The metric names what is missing, instead of treating silence as failure."""
    with pytest.raises(InvalidLog, match="no run"):
        observe_metric(log_of((0, 0, 0, "online"), ended={}), "outcome")


def journal_of(path: Path, runs: int, *, seed: int = 0) -> None:
    """Runs of two calls each, over two models; a run with two calls of `b` succeeds twice as often."""
    rng = np.random.default_rng(seed)
    journal = SqliteJournal(path)
    for run in range(runs):
        key, calls, ids = f"run-{run}", [], []
        for step in range(2):
            k, name = int(rng.integers(2)), f"{run}-{step}"
            who = Identity(run=key, session=f"{run} {step}")
            version = PolicyVersion(algorithm="uniform")
            decision = Decision(
                id=name,
                ts=1e9 + 60.0 * run + step,
                draw_id=name,
                identity=who,
                mode=Mode.UNIFORM,
                eligible=("a", "b"),
                probs=(0.5, 0.5),
                chosen="ab"[k],
                propensity=0.5,
                policy=version,
            )
            ended = Execution(
                id=f"{name}:execution",
                ts=decision.ts,
                decision_id=name,
                identity=who,
                chosen="ab"[k],
                served_by="ab"[k],
                status="ok",
            )
            journal.append(Entry(decision), Entry(ended)).result()
            calls.append(k)
            ids.append(name)
        succeeded = rng.random() < 0.3 + 0.3 * (sum(calls) / 2)
        for source, value in (("check", succeeded), ("adapter", False)):
            report = RunOutcome(
                id=f"{key} {source}",
                ts=1e9,
                identity=Identity(run=key),
                value=float(value),
                source=source,
                decisions=tuple(ids),
            )
            journal.append(Entry(report)).result()
    journal.close()


def test_from_a_journal_to_a_verdict(tmp_path: Path) -> None:
    """The outcome that counts is read, whatever was reported later; the better model is found, with the run as unit."""
    journal_of(tmp_path / "journal.db", 400, seed=1)
    log = read_log(tmp_path / "journal.db")
    assert log.outcomes.ended is not None
    assert 0.3 < log.outcomes.ended.mean() < 0.6
    settings = ReplaySettings(metric="outcome", unit="run", idle_s=1.0)
    report = evaluate(log, FixedCandidate("b"), load_candidate("current"), settings)
    assert (report.window.units, report.window.unit, report.refused) == (399, "closed run", "")
    difference = next(row for row in report.estimates if row.policy == "difference" and row.estimator == "dr")
    assert 0.0 < difference.low < 0.15 < difference.high
    few = evaluate(
        log,
        FixedCandidate("b"),
        load_candidate("current"),
        ReplaySettings(metric="outcome", unit="run", idle_s=1.0, until=1e9 + 60.0 * 80),
    )
    assert min(each.ess for each in few.diagnostics) < MIN_RUNS
    assert "runs count as" in few.refused

"""Records evaluations in the warehouse table `ope_runs`: one row per estimate and sequence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fitrouter.draw import uuid7
from fitrouter.errors import ConfigError
from fitrouter.stores.warehouse import Warehouse
from fitrouter_evaluators.replay.report import Report


def record(report: Report, log: Path) -> str:
    """Record a report in the log's warehouse, or the one beside it; returns the run's id.

    Raises:
        ConfigError: there is no warehouse.
        StoreError: it cannot be written now.
    """
    run = uuid7(report.made)
    Warehouse(warehouse_of(log)).note_runs(list(runs_of(report, run)))
    return run


def warehouse_of(log: Path) -> Path:
    """The log's warehouse, or the one beside it.

    Raises:
        ConfigError: there is none.
    """
    folder = log if log.is_dir() else log.parent
    file = log if log.suffix == ".duckdb" else folder / "fitrouter.duckdb"
    if not file.is_file():
        raise ConfigError(f"--record: there is no warehouse beside {str(log)!r} to write the replay into; leave it out")
    return file


def runs_of(report: Report, run: str) -> Iterator[tuple[Any, ...]]:
    """Rows in the column order of `ope_runs`; biased estimates are left out."""
    known = {each.policy: each for each in report.diagnostics}
    verdict = "" if report.gate is None else report.gate.verdict
    head = (run, report.made, report.candidate, report.against)
    found = [
        (row.policy, f"{row.estimator}, {row.labels}", row.slice, row.value, row.low, row.high, row.n)
        for row in report.estimates
        if not row.biased and row.interval == "delta"
    ]
    found += [
        (band.policy, f"{band.kind} sequence", band.slice, band.value, band.low, band.high, band.n)
        for band in report.bands
    ]
    for policy, estimator, where, *numbers in found:
        of = known.get("candidate" if policy == "difference" else policy)
        weights = (None,) * 4 if of is None else (of.ess, of.max_weight, of.mean_weight, of.unsupported)
        yield (*head, f"{policy}: {estimator}", report.metric, where, *numbers, *weights, verdict)

"""Replay's estimates, with intervals, of what a change of the policy would do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fitrouter.config import Config, parse_config
from fitrouter.errors import FitrouterError
from fitrouter_evaluators.background import in_background, work

METRICS = ("fit", "cost", "latency")
WINDOW_S = 604_800.0
"""Seconds of the log that are replayed."""


async def estimate(config: Config, log: Path, candidate: dict[str, Any]) -> dict[str, Any]:
    """Estimate, in a background process, how a candidate's metrics differ from the logged policy's, with intervals.

    Args:
        config: in force during logging.
        log: the warehouse.
        candidate: content of a candidate.yaml.

    Raises:
        StoreError: it takes too long, or it ends without an answer.
    """
    return await in_background(__name__, {"config": config.as_json(), "log": str(log), "candidate": candidate})


def replayed(config: Config, log: Path, candidate: dict[str, Any]) -> dict[str, Any]:
    """Compute the answer of `estimate`, or an `error` in words. Blocks for seconds."""
    from fitrouter_evaluators.replay.candidates.load import load_candidate
    from fitrouter_evaluators.replay.evaluation import ReplaySettings, evaluate
    from fitrouter_evaluators.replay.log.sources import read_log

    try:
        logged = read_log(log, since=time.time() - WINDOW_S, features=False, limits=config.feedback)
        one, other = load_candidate(candidate, config=config), load_candidate("current", config=config)
    except FitrouterError as error:
        return {"error": str(error)}
    found: dict[str, Any] = {}
    for metric in METRICS:
        try:
            report = evaluate(logged, one, other, ReplaySettings(metric=metric))
        except FitrouterError as error:
            found[metric] = {"error": str(error)}
            continue
        row = next(each for each in report.estimates if each.policy == "difference")
        base = next(each for each in report.estimates if each.policy == "against" and each.estimator == "dr")
        ess = next((each.ess for each in report.diagnostics if each.policy == "candidate" and not each.slice), None)
        found[metric] = {
            "value": row.value,
            "low": row.low,
            "high": row.high,
            "now": base.value,
            "units": row.n,
            "labelled": report.window.labelled,
            "unpriced": logged.outcomes.assumed if metric == "cost" else 0,
            "ess": ess,
            "warnings": report.warnings[:3],
        }
    return {"candidate": one.description, "metrics": found}


if __name__ == "__main__":
    work(lambda asked: replayed(parse_config(asked["config"]), Path(asked["log"]), asked["candidate"]))

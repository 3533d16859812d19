"""The development targets on public sets: PluriHarms, LLM-Rubric, HALIE's dialogues and TTCW.

The protocols are those of notes/reward_models.md §5 and §7; row `floor` repeats the notes' own model on the same splits
where it is cheap. k = −1 stands for test-then-learn: every label is predicted from all labels before it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.research import _dialogues, _harms, _stories

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter_evaluators.bench._protocol import Result

_SAFETY = "prompts that all others rate ≥ 80, lowered (there is none)"


class Target(NamedTuple):
    """One line of the table: a capability's floor, its target and what we measured."""

    set: str
    what: str
    floor: float
    target: float
    ours: float
    low: float
    high: float
    met: bool


def run(data: str | os.PathLike[str], seeds: int, encoder: str | Encoder) -> dict[str, Any]:
    """All four sets under `data`; sets that are not there are named in `missing`.

    Returns:
        targets: list[Target]; results: list[Result]; no_harm: list[NoHarm]; notes: numbers beside the table.
    """
    folder, reader = Path(data), get_encoder(encoder) if isinstance(encoder, str) else encoder
    out: dict[str, Any] = {"targets": [], "results": [], "no_harm": [], "notes": {}, "missing": []}
    for name, measure in (("pluriharms", _d2), ("llm_rubric", _d3), ("halie", _d4), ("ttcw", _d7)):
        if not (folder / name).is_dir():
            out["missing"].append(name)
            continue
        part = measure(folder / name, seeds, reader)
        for key in ("targets", "results", "no_harm"):
            out[key].extend(part[key])
        out["notes"][name] = part["notes"]
    return out


def _d2(folder: Path, seeds: int, encoder: Encoder) -> dict[str, Any]:
    found = _harms.measure(folder, range(seeds), encoder)
    new, known = found.unseen, found.known
    gain, lowered = new.gain, float(found.lowered)
    targets = [
        _lower("D2", "unseen prompts, k=20, RMSE", 31.83, 31.0, new.hierarchical),
        _lower("D2", "known prompts, k=20, RMSE", 24.27, 24.0, known.hierarchical),
        Target("D2", "few-shot gain, k=20", -8.7, -10.0, *gain, gain[0] <= -10.0),
        _lower("D2", "known prompts, k=0 from declared values, RMSE", 28.41, 28.1, known.declared),
        Target("D2", _SAFETY, np.nan, 0.0, lowered, lowered, lowered, not found.lowered),
    ]
    return {
        "targets": targets,
        "results": new.results + known.results,
        "no_harm": new.no_harm + known.no_harm,
        "notes": found.notes,
    }


def _d3(folder: Path, _: int, __: Encoder) -> dict[str, Any]:
    results = _dialogues.judges(folder)
    at = {(r.row, r.metric, r.k): r for r in results}
    targets = [_higher("D3", "offline, Pearson", 0.232, 0.313, at["hierarchical", "pearson", 0])]
    for metric, floor, target in (("pearson", 0.377, 0.40), ("spearman", 0.375, 0.40), ("kendall", 0.294, 0.31)):
        targets.append(_higher("D3", f"test-then-learn, {metric}", floor, target, at["hierarchical", metric, -1]))
    return {"targets": targets, "results": results, "no_harm": [], "notes": {}}


def _d4(folder: Path, seeds: int, encoder: Encoder) -> dict[str, Any]:
    results, harm = _dialogues.turns(folder, range(min(seeds, 5)), encoder)
    best = next(r for r in results if (r.row, r.k, r.metric) == ("hierarchical", -1, "mean auc"))
    target = _higher("D4", "mean AUC of six dimensions, test-then-learn", 0.632, 0.66, best)
    return {"targets": [target], "results": results, "no_harm": harm, "notes": {}}


def _d7(folder: Path, seeds: int, encoder: Encoder) -> dict[str, Any]:
    results, harm = _stories.measure(folder, range(min(seeds, 5)), encoder)
    best = next(r for r in results if (r.row, r.k, r.metric) == ("hierarchical", -1, "accuracy"))
    return {
        "targets": [_higher("D7", "accuracy, expert held out, test-then-learn", 0.800, 0.81, best)],
        "results": results,
        "no_harm": harm,
        "notes": {},
    }


def _lower(name: str, what: str, floor: float, target: float, r: Result) -> Target:
    return Target(name, what, floor, target, 100 * r.mean, 100 * r.low, 100 * r.high, 100 * r.mean <= target)


def _higher(name: str, what: str, floor: float, target: float, r: Result) -> Target:
    return Target(name, what, floor, target, r.mean, r.low, r.high, r.mean >= target)

"""Development targets on public sets: MT-bench (D1), PluriHarms, LLM-Rubric, HALIE's dialogues, TTCW, stated choices.

Row `floor` is the first model that was tried, on the same splits, where it is cheap. k = −1 stands for prequential
prediction: every label is predicted from all labels before it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from benchmarks.research import _dialogues, _harms, _stories

from fitrouter.context.encoders import Encoder, get_encoder
from fitrouter_evaluators.bench._metrics import ACCURACY, ECE, NLL
from fitrouter_evaluators.bench._pair_model import NAMES, RIDGE, fit_shared, observe
from fitrouter_evaluators.bench._protocol import Ledger, Result, folds
from fitrouter_evaluators.bench.choices import run_choices
from fitrouter_evaluators.bench.pairs import run_pairs
from fitrouter_evaluators.datasets import Pair, mt_bench
from fitrouter_evaluators.training.hierarchy import sigmoid

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
    """Measure all four sets under `data`; missing ones are named in `missing`.

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


def pairs_of_mt_bench(data: Path, seeds: int, encoder: str) -> dict[str, Any]:
    """Measure D1, MT-bench's human votes, with a third of the judges and 35 % of the questions unseen.

    `floors` are heads without users on the same splits: models' names alone, style alone, text alone.
    """
    rows = mt_bench.convert(data / "mt_bench_human")
    found = run_pairs(
        rows,
        encoder,
        name="D1 MT-bench",
        seeds=range(seeds),
        shipped=False,
        item=lambda pair: pair.extra["question_id"],
    )
    text = run_pairs(
        rows,
        encoder,
        name="D1 MT-bench, text only",
        seeds=range(seeds),
        identity=False,
        shipped=False,
        item=lambda pair: pair.extra["question_id"],
    )
    return {"with_identity": found, "text_only": text, "floors": _floors(rows, range(seeds), encoder)}


def _floors(rows: Sequence[Pair], seeds: Sequence[int], encoder: str) -> list[dict[str, Any]]:
    """Measure heads without users on the same splits: models' names, style, length, and text without each block."""
    pairs = observe(rows, [row.extra["question_id"] for row in rows], get_encoder(encoder), shipped=False)
    text = {name: value for name, value in RIDGE.items() if name not in NAMES}
    kinds = {
        "model names": {"model": RIDGE["model"]},
        "style": {"style": 100.0},
        "text": text,
        "text without vectors": {name: value for name, value in text.items() if name not in ("vector", "relevance")},
    }
    ledger = Ledger("D1 MT-bench")
    for fold in folds(pairs.user, pairs.item, seeds, users=1 / 3, items=0.35):
        for kind, ridge in kinds.items():
            score = fit_shared(pairs, fold.train, ridge, ties=0.0)
            for person in fold.people:
                unseen = person.held_out[pairs.y[person.held_out] != 0.5]
                if len(unseen):
                    p = sigmoid(score[unseen])
                    ledger.add(kind, 0, fold.seed, person.user, pairs.y[unseen], p)
    return [msgspec.to_builtins(result) for result in ledger.results((ACCURACY, NLL, ECE))]


def stated_choices(data: Path, encoder: str) -> list[Result]:
    """Measure the accuracy of the declared prior on the choices below `data`; empty if the set is missing."""
    path = data / "choices" / "declared.jsonl"
    if not path.is_file():
        return []
    found = run_choices(path, get_encoder(encoder))
    sizes = {"k": 0, "n_users": found["users"], "n_items": found["n"], "seeds": 1}
    rows = [
        Result(set="choices", metric="accuracy", row=name, **sizes, **interval)
        for name, interval in found["accuracy"].items()
    ]
    if found["twins"]["n"] == 0:
        return rows
    twins = {name: found["twins"][name] for name in ("mean", "low", "high")}
    return [*rows, Result(set="choices", metric="negated twins reverse", row="declared", **sizes, **twins)]

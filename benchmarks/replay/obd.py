"""Estimators on Open Bandit Data, beside Open Bandit Pipeline in the same run.

    python -m benchmarks.replay.obd --peer OTHER/bin/python --json results/replay_obd.json

OTHER is an environment with `pip install --ignore-requires-python --no-deps obp==0.5.7` and `pip install "pandas<3"
numpy scipy scikit-learn matplotlib seaborn torch tqdm pyyaml` (its loader calls what pandas 3 dropped).

Two policies served the same traffic of a week, uniform and Bernoulli Thompson sampling ("bts"). From the log of one the
value of the other is estimated; the truth is the mean click in the other's own log. The peer's own protocol
(`_obd_peer.py`: its example, 30 bootstrap samples, the target's pmf) makes the samples; both see the same rows and the
same pmf. Ours reads the file by `import_log`, and estimates by `fitrouter_evaluators.replay`.

Outcome models of ours, neither chosen by how near the estimates come to the truth:
  shipped: `outcome_model.predict`, as replay uses it;
  chosen: of penalised logistic regressions the one with the least log loss in cross-validation on the logged rows.
A row that a bootstrap sample has several times is in one fold, so that no model has seen what it predicts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
from sklearn.linear_model import LogisticRegression

from fitrouter_evaluators.replay.estimators import ESTIMATORS, estimate
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.estimators.tuning import tuned
from fitrouter_evaluators.replay.importing.import_log import import_log
from fitrouter_evaluators.replay.log.sources import read_log
from fitrouter_evaluators.replay.study.outcome_model import predict
from fitrouter_evaluators.replay.study.units import Units, closed_units

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "obd"
PEER = ROOT / "benchmarks/replay/_obd_peer.py"
LAMBDAS = (10, 50, 100, 500, 1000, 5000, 10000, np.inf)
"""The example's."""
FOLDS = 3
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""C of the logistic regressions."""
PARTS = {
    "arm, position": ("arm", "position"),
    "arm and its features, position": ("arm", "arm_features", "position"),
    "arm and its features, position, affinity to the arm": ("arm", "arm_features", "position", "affinity"),
    "all of these, the person's features": ("arm", "arm_features", "position", "affinity", "person"),
}
VALIDATIONS = 4


class Logged(NamedTuple):
    """A log of one policy, with another policy as target: n rows, K arms."""

    units: Units
    pmf: Any
    """float64[n, K]: the target."""
    weight: Any
    reward: Any
    chosen: Any
    """int64[n]: the arm."""
    blocks: dict[str, tuple[str, Any]]
    """Name → what it depends on (row, arm, both) and its numbers."""
    place: Any
    """int64[n]: where each row of the file is."""
    learns: bool
    """The logging policy learnt from its log."""


# --- data -----------------------------------------------------------------------------------------------------------


def columns_of(behaviour: str, K: int) -> str:
    """SELECT of a file: a row is an item on one of three positions; the probability is of the item at that position."""
    affinity = ", ".join(
        f"'user-item_affinity_{k}': \"user-item_affinity_{k}\"::DOUBLE" for k in sorted(map(str, range(K)))
    )
    people = ", ".join(f"'user_feature_{i}': user_feature_{i}" for i in range(4))
    how = "'uniform' AS mode" if behaviour == "random" else "propensity_score AS propensity"
    return f"""
        SELECT timestamp AS time, item_id AS arm, click AS reward, position AS task, {how},
            {list(map(str, range(K)))} AS eligible,
            {{'position': 'at ' || position, {people}, {affinity}}} AS features
        FROM log
    """


def arm_features(file: Path) -> Any:
    """Features of the items, float64[K, F], in the order of their ids: a number, and three categories one-hot."""
    frame = duckdb.read_csv(str(file)).order("item_id").fetchnumpy()
    blocks = [np.asarray(frame["item_feature_0"], dtype=np.float64)[:, None]]
    for i in range(1, 4):
        levels, place = np.unique(np.asarray(frame[f"item_feature_{i}"], dtype=str), return_inverse=True)
        blocks.append(np.eye(len(levels))[place])
    return np.concatenate(blocks, axis=1)


def logged(data: Path, campaign: str, behaviour: str, pmf: Any, folder: Path) -> Logged:
    """Import a file and attach the target; pmf is float64[K, L] in the order of the item ids."""
    file = data / behaviour / campaign / f"{campaign}.csv"
    made = import_log(file, columns_of(behaviour, K=len(pmf)), folder / behaviour)
    units = closed_units(read_log(made.folder))
    decisions, names = units.log.decisions, units.log.names
    K = len(made.arms)
    position = np.array([int(task) for task in names.tasks])[decisions.task[units.draw]] - 1
    items = np.array([int(arm) for arm in names.arms])
    target = pmf[items][:, position].T
    weight, _ = units.weights(target.ravel())
    x = np.asarray(decisions.x)[units.draw].astype(np.float64)
    part = {
        name: np.array([feature.startswith(start) for feature in made.features])
        for name, start in (("position", "position="), ("person", "user_feature_"), ("affinity", "user-item_affinity_"))
    }
    arms = arm_features(file.with_name("item_context.csv"))[items]
    return Logged(
        units=units,
        pmf=target,
        weight=weight,
        reward=np.asarray(units.log.outcomes.asked_label)[units.member],
        chosen=np.asarray(units.log.options.arm)[units.entries()[units.chosen()]],
        blocks={
            "arm": ("arm", np.eye(K)),
            "arm_features": ("arm", arms - arms.mean(axis=0)),
            "position": ("row", x[:, part["position"]]),
            "person": ("row", x[:, part["person"]]),
            "affinity": ("both", x[:, part["affinity"]]),
        },
        place=np.argsort(decisions.seq[units.draw]),
        learns=behaviour != "random",
    )


# --- outcome models -------------------------------------------------------------------------------------------------


def regression(log: Logged, parts: Sequence[str], strength: float, weight: Any, rows: Any, ask: Any) -> Any:
    """Fit a penalised, weighted logistic regression for each arm to `rows`; predict `ask`, float64[len(ask), K]."""
    rows = rows[weight[rows] > 0]
    columns = []
    for part in parts:
        kind, values = log.blocks[part]
        if kind == "both":
            columns.append(values[rows, log.chosen[rows]][:, None])
        else:
            columns.append(values[rows] if kind == "row" else values[log.chosen[rows]])
    model = LogisticRegression(C=strength, max_iter=5000, tol=1e-8)
    model.fit(np.concatenate(columns, axis=1), log.reward[rows], sample_weight=weight[rows])
    slopes, at = model.coef_[0], 0
    logits = np.full((len(ask), log.pmf.shape[1]), model.intercept_[0])
    for (kind, values), width in zip((log.blocks[part] for part in parts), map(np.shape, columns), strict=True):
        own = slopes[at : at + width[1]]
        at += width[1]
        if kind == "both":
            logits += own[0] * values[ask]
        else:
            logits += (values[ask] @ own)[:, None] if kind == "row" else values @ own
    return 1.0 / (1.0 + np.exp(-logits))


def constant(log: Logged, weight: Any, rows: Any, ask: Any) -> Any:
    """Predict the mean reward for all arms, in the form of `regression`."""
    mean = np.average(log.reward[rows], weights=weight[rows])
    return np.full((len(ask), log.pmf.shape[1]), mean)


def crossed(model: Callable[..., Any], log: Logged, weight: Any, folds: int, seed: int) -> Any:
    """Predict each row by a model of the other folds, float64[n, K]; folds are of the file's rows."""
    n = log.units.n
    fold = np.random.default_rng(seed).permutation(np.arange(n) % folds)
    found = np.empty(log.pmf.shape)
    for k in range(folds):
        ask = np.flatnonzero(fold == k)
        found[ask] = model(log, weight, np.flatnonzero(fold != k), ask)
    return found


def losses(log: Logged, model: Any) -> dict[str, float]:
    """Return log loss and squared error of predictions float64[n, K] at the chosen arms."""
    p = np.clip(model[np.arange(len(model)), log.chosen], 1e-4, 1.0 - 1e-4)
    y = log.reward
    return {
        "log_loss": float(-(y * np.log(p) + (1.0 - y) * np.log(1.0 - p)).mean()),
        "squared_error": float(((y - p) ** 2).mean()),
    }


def shipped(log: Logged, weight: Any, seed: int = 0) -> Any:
    """Predict by the model that replay uses; on a log whose policy learns it reads the past alone."""
    q = predict(log.units, log.reward, weight, adaptive=log.learns, folds=FOLDS, seed=seed)
    return q.reshape(log.pmf.shape)


def selection(log: Logged) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Select the model with the least log loss in cross-validation on the logged rows; also return all tried."""
    models: dict[str, Callable[..., Any]] = {"one number for all": constant}
    for (name, parts), strength in product(PARTS.items(), STRENGTHS):
        models[f"{name}; C = {strength:g}"] = lambda log, weight, rows, ask, parts=parts, strength=strength: regression(
            log, parts, strength, weight, rows, ask
        )
    ones = np.ones(log.units.n)
    table: dict[str, dict[str, float]] = {}
    for name, model in models.items():
        each = [losses(log, crossed(model, log, ones, 5, seed)) for seed in range(VALIDATIONS)]
        table[name] = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
    each = [losses(log, shipped(log, ones, seed)) for seed in range(VALIDATIONS)]
    best = min(table, key=lambda name: table[name]["log_loss"])
    table["(shipped)"] = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
    return models[best], {"chosen": best, "tried": table}


# --- the run --------------------------------------------------------------------------------------------------------


def rounds_of(log: Logged, rows: Any, model: Any, at: Any = None) -> Rounds:
    """Make a bootstrap sample; the model is float64[n, K] of the file's rows, or of the sample's where `at` says so."""
    direct = (log.pmf[rows] * (model[rows] if at is None else model)).sum(axis=1)
    taken = model[rows, log.chosen[rows]] if at is None else model[at, log.chosen[rows]]
    return Rounds(log.reward[rows], log.weight[rows], taken, direct, direct)


def estimates(rounds: Rounds, names: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return the value by each estimator, and λ of those that are tuned."""
    values, lambdas = [], []
    for name in names:
        if name in ("switch_dr", "dr_os"):
            estimator, lam = tuned(name, rounds, LAMBDAS)
            lambdas.append(float(lam))
            values.append(estimate(estimator, rounds))
        else:
            values.append(estimate(ESTIMATORS[name], rounds))
    return values, lambdas


def direction(data: Path, campaign: str, behaviour: str, python: Path, rounds: int) -> dict[str, Any]:
    """Estimate one policy's value from the other's log."""
    with tempfile.TemporaryDirectory() as own:
        out = Path(own) / "peer.npz"
        command = [str(python), str(PEER), str(data), campaign, behaviour, str(rounds), str(out)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        with np.load(out) as file:
            peer = dict(file)
        log = logged(data, campaign, behaviour, peer["pmf"], Path(own))
    names, truth, samples = [str(name) for name in peer["names"]], float(peer["truth"]), log.place[peer["rows"]]
    same = []
    for b, model in enumerate(peer["model"]):
        items = np.array([int(arm) for arm in log.units.log.names.arms])
        mine = estimates(rounds_of(log, samples[b], model[:, items], np.arange(len(model))), names)[0]
        same.append(np.abs(np.array(mine) - peer["values"][b]).max())
    chosen, tried = selection(log)
    n = log.units.n
    models = {
        "shipped": lambda weight: shipped(log, weight),
        "chosen": lambda weight: crossed(chosen, log, weight, FOLDS, 0),
    }
    theirs = np.abs(peer["values"] - truth) / truth
    found: dict[str, Any] = {
        "campaign": campaign,
        "logged": behaviour,
        "rows": n,
        "arms": log.pmf.shape[1],
        "clicks": int(log.reward.sum()),
        "truth": truth,
        "truth_se": float(np.sqrt(truth * (1.0 - truth) / n)),
        "effective_sample_size": float(log.weight.sum() ** 2 / (log.weight**2).sum()),
        "largest_weight": float(log.weight.max()),
        "peer": json.loads(str(peer["about"])),
        "largest_difference_with_the_peers_model": float(max(same)),
        "model": tried,
        "theirs": table(names, peer["values"], theirs),
    }
    for label, model in models.items():
        values, lambdas = [], []
        for rows in samples:
            weight = np.bincount(rows, minlength=n).astype(np.float64)
            one, lam = estimates(rounds_of(log, rows, model(weight)), names)
            values.append(one)
            lambdas.append(lam)
        ours = np.abs(np.array(values) - truth) / truth
        found[label] = table(names, np.array(values), ours)
        for j, name in enumerate(names):
            gap = ours[:, j] - theirs[:, j]
            ratio = float(ours[:, j].mean() / theirs[:, j].mean())
            found[label][name] |= {
                "ratio": ratio,
                "difference": float(gap.mean()),
                "difference_se": float(gap.std(ddof=1) / np.sqrt(len(gap))),
                "no_worse": ratio <= 1.0 + 1e-9,
            }
    return found


def table(names: Sequence[str], values: Any, errors: Any) -> dict[str, dict[str, Any]]:
    """Summarise relative errors over the rounds, by estimator."""
    return {
        name: {
            "relative_error": float(errors[:, j].mean()),
            "sd": float(errors[:, j].std(ddof=1)),
            "estimate": float(values[:, j].mean()),
        }
        for j, name in enumerate(names)
    }


def markdown(found: dict[str, Any]) -> str:
    """Format the results as Markdown tables."""
    lines = []
    for one in found["directions"]:
        other = "bts" if one["logged"] == "random" else "random"
        lines += [
            "",
            f"{one['campaign']}: the value of {other} ({one['truth']:.4f} ± {one['truth_se']:.4f}) from the log of "
            f"{one['logged']} ({one['rows']:,} rows, {one['arms']} arms, {one['clicks']} clicks; effective sample size "
            f"{one['effective_sample_size']:,.0f}, largest weight {one['largest_weight']:.1f}); chosen: "
            f"{one['model']['chosen']}",
            "",
            "| estimator | OBP 0.5.7 | ours, chosen | ratio | ours, shipped | ratio |",
            "|---|---|---|---|---|---|",
        ]
        for name, theirs in one["theirs"].items():
            cells = [f"{theirs['relative_error']:.4f} ± {theirs['sd']:.4f}"]
            for label in ("chosen", "shipped"):
                mine = one[label][name]
                cells += [f"{mine['relative_error']:.4f} ± {mine['sd']:.4f}", f"{mine['ratio']:.3f}"]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--peer", type=Path, help="the Python of an environment with Open Bandit Pipeline")
    parser.add_argument("--campaigns", nargs="+", default=["men"])
    parser.add_argument("--logged", nargs="+", default=["random", "bts"], choices=["random", "bts"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.peer is None or not args.data.is_dir():
        print(f"skipped: give --peer, and data in {str(args.data)!r} (--data)", file=sys.stderr)
        return
    directions = [
        direction(args.data, campaign, behaviour, args.peer, args.rounds)
        for campaign, behaviour in product(args.campaigns, args.logged)
    ]
    found = {"rounds": args.rounds, "directions": directions}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(markdown(found))


if __name__ == "__main__":
    main()

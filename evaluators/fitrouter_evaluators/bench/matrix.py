"""Routing benchmark on a response matrix: policies with and without a cost ceiling.

Every prompt is asked once, in an order shuffled by the seed, with a new learner (`simulation.matrix_stream`). The
router is compared with every fixed model, the best of them and the best mixture of two (both in hindsight), a random
choice, the default, and the oracle that knows every reward.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import get_encoder
from fitrouter.state.budgets import BudgetParams
from fitrouter.types import Floats
from fitrouter_evaluators.bench._routing import Point, aiq, apgr, area, cost_of, cpt, mixture, satisfaction, windows
from fitrouter_evaluators.datasets import MatrixRow, read_matrix
from fitrouter_evaluators.simulation.matrix_stream import Matrix, Played, Setting, matrix_of, play

CEILINGS = 7
"""Number of ceilings if none are given."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the benchmark."""

    seeds: int = 5
    """Orders of the prompts, and draws."""
    encoder: str = "static"
    """Reads the prompts."""
    default: str | None = None
    """Model used without a router; the file's first if None."""
    ceilings: tuple[float, ...] | None = None
    """USD per request; from the cheapest model's cost to the costliest's if None, none for ()."""
    prices: Mapping[str, tuple[float, float]] | None = None
    """Model → USD per million tokens of prompt and answer."""
    router: Setting = Setting()
    budget: BudgetParams = BudgetParams()
    """How ceilings are enforced."""


def bench(
    source: str | os.PathLike[str] | Sequence[MatrixRow],
    encoder: str = "static",
    *,
    name: str | None = None,
    seeds: int = 5,
    default: str | None = None,
    ceilings: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Run the benchmark on a file of the open format, or on its rows; arguments as in `Settings`.

    Returns:
        JSON, see `run`, with `set` and `problems`, the unreadable lines.

    Raises:
        ConfigError: there is no such file.
        ValueError: there is nothing to route, or no such default model.
    """
    asked = None if ceilings is None else tuple(ceilings)
    settings = Settings(seeds=seeds, encoder=encoder, default=default, ceilings=asked)
    if not isinstance(source, (str, os.PathLike)):
        return {"set": name or "matrix", **run(source, settings), "problems": []}
    records = read_matrix(source)
    found = {"set": name or Path(source).stem, **run(records.rows, settings)}
    return {**found, "problems": [msgspec.to_builtins(problem) for problem in records.problems]}


def run(rows: Sequence[MatrixRow], settings: Settings | None = None) -> dict[str, Any]:
    """Run the benchmark on rows.

    Returns:
        JSON: `table`, a row for each policy without a ceiling (reward and cost per request, regret against the oracle
        in each quarter of the stream, share of prompts whose best model was chosen; with users also the spread of
        their rewards); `curve`, the router at each ceiling beside the best mixture of two fixed models, with its
        costliest window; `measures`, AIQ, APGR, CPT and the cost of the best single model's quality; `models`.

    Raises:
        ValueError: there is nothing to route, or no such default model.
    """
    settings = settings or Settings()
    matrix = matrix_of(rows, get_encoder(settings.encoder), settings.prices)
    default = settings.default or next(iter(rows[0].models))
    if default not in matrix.models:
        raise ValueError(f"the default model {default!r} is not in the matrix; models are {list(matrix.models)}")
    orders = [np.random.default_rng(seed).permutation(len(rows)) for seed in range(settings.seeds)]
    table = _Table(matrix, orders, settings)
    points = [Point(*found) for found in zip(_mean(matrix.cost, matrix), _mean(matrix.reward, matrix), strict=True)]
    curve = table.curve(points)
    return {
        "encoder": settings.encoder,
        "prompts": len(rows),
        "seeds": settings.seeds,
        "default": default,
        "models": [
            {"name": name, "reward": point.reward, "cost_usd": point.cost}
            for name, point in zip(matrix.models, points, strict=True)
        ],
        "table": table.rows(default, points),
        "curve": curve,
        "measures": _measures(points, curve) if curve else {},
    }


def _mean(cells: Floats, matrix: Matrix) -> list[float]:
    """Mean of each model's cells over the prompts that it answered."""
    there = np.isfinite(matrix.reward)
    return [float(cells[there[:, k], k].mean()) for k in range(cells.shape[1])]


class _Table:
    """Computes the result rows of all contenders on the same orders of prompts."""

    def __init__(self, matrix: Matrix, orders: Sequence[NDArray[np.int64]], settings: Settings) -> None:
        self.matrix, self.orders, self.settings = matrix, orders, settings
        self.best: Floats = np.nanmax(matrix.reward, axis=1)

    def rows(self, default: str, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Result rows of all contenders without a cost ceiling."""
        matrix = self.matrix
        best = int(np.argmax([point.reward for point in points]))
        rows = [
            self._row("random", [self._choice(order, None) for order in self.orders]),
            self._fixed("best single", best),
            self._fixed("default", matrix.models.index(default)),
        ]
        rows += [self._fixed(f"fixed: {name}", k) for k, name in enumerate(matrix.models)]
        people = any(matrix.users) or any(matrix.roles)
        if people:
            blind = msgspec.structs.replace(self.settings.router, personal=False)
            rows.append(self._row("user-blind", self._played(blind)))
        ours = self._row("ours", self._played(self.settings.router))
        # Without users and roles the user-blind router is the same, and one stream serves both rows.
        rows += [ours] if people else [{**ours, "policy": "user-blind"}, ours]
        if any(matrix.users):
            rows.append(self._row("best single per user", [self._per_user(order) for order in self.orders]))
        oracle = np.array([int(np.nanargmax(row)) for row in matrix.reward])
        return [*rows, self._row("oracle", [self._choice(order, oracle) for order in self.orders])]

    def curve(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Results of the router at each cost ceiling; empty for a matrix without costs."""
        ceilings = self.settings.ceilings
        if ceilings is None:
            paid = [point.cost for point in points if point.cost > 0.0]
            ceilings = tuple(np.geomspace(min(paid), max(paid), CEILINGS).tolist()) if len(paid) > 1 else ()
        rows = []
        for ceiling in ceilings:
            budget = msgspec.structs.replace(self.settings.budget, usd_per_request=float(ceiling))
            played = self._played(self.settings.router, budget)
            dearest = [windows(one.cost).max(initial=0.0) for one in played]
            row = self._row("ours", played)
            rows.append(
                {
                    "ceiling_usd": float(ceiling),
                    "best_mixture": mixture(points, ceiling),
                    "dearest_window": max(dearest) / ceiling if max(dearest) else None,
                    **{key: row[key] for key in ("reward", "reward_se", "cost_usd", "opt_selection")},
                }
            )
        return rows

    def _played(self, setting: Setting, budget: BudgetParams | None = None) -> list[Played]:
        return [
            play(self.matrix, order, msgspec.structs.replace(setting, seed=seed), budget)
            for seed, order in enumerate(self.orders)
        ]

    def _fixed(self, policy: str, k: int) -> dict[str, Any]:
        chosen = np.full(len(self.best), k)
        return {
            **self._row(policy, [self._choice(order, chosen) for order in self.orders]),
            "model": self.matrix.models[k],
        }

    def _choice(self, order: NDArray[np.int64], chosen: NDArray[np.int64] | None) -> Played:
        """Outcome of a fixed choice per prompt, int64[N]; None for a random choice."""
        matrix = self.matrix
        if chosen is None:
            reward, cost = np.nanmean(matrix.reward, axis=1), _there(matrix).mean(axis=1)
            picked = np.full(len(order), -1)
        else:
            every = np.arange(len(chosen))
            reward, cost, picked = matrix.reward[every, chosen], matrix.cost[every, chosen], chosen[order]
        return Played(picked, reward[order], np.asarray(cost)[order], np.zeros(len(order)))

    def _per_user(self, order: NDArray[np.int64]) -> Played:
        """Play each user's own best fixed model, chosen in hindsight."""
        matrix, chosen = self.matrix, np.zeros(len(self.best), dtype=np.int64)
        for user in set(matrix.users):
            mine = np.array([other == user for other in matrix.users])
            chosen[mine] = int(np.nanargmax(np.nanmean(matrix.reward[mine], axis=0)))
        return self._choice(order, chosen)

    def _row(self, policy: str, played: Sequence[Played]) -> dict[str, Any]:
        """Build a row of the table: means over seeds and answered prompts."""
        rewards = [float(np.nanmean(one.reward)) for one in played]
        quarters = [
            [float(np.nanmean(part)) for part in np.array_split(self.best[order] - one.reward, 4)]
            for one, order in zip(played, self.orders, strict=True)
        ]
        row: dict[str, Any] = {
            "policy": policy,
            "reward": float(np.mean(rewards)),
            "reward_se": float(np.std(rewards, ddof=1) / np.sqrt(len(rewards))) if len(rewards) > 1 else 0.0,
            "cost_usd": float(np.mean([one.cost.mean() for one in played])),
            "regret": np.mean(quarters, axis=0).tolist(),
            "opt_selection": float(
                np.mean([self._hits(one, order) for one, order in zip(played, self.orders, strict=True)])
            ),
        }
        if any(self.matrix.users):
            spreads = [
                satisfaction(np.nan_to_num(one.reward), [self.matrix.users[n] for n in order])
                for one, order in zip(played, self.orders, strict=True)
            ]
            row["satisfaction_variance"] = float(np.mean([spread.variance for spread in spreads]))
            row["worst_decile"] = float(np.mean([spread.worst_decile for spread in spreads]))
        return row

    def _hits(self, one: Played, order: NDArray[np.int64]) -> float:
        """Share of the prompts whose best model was chosen."""
        best = self.matrix.reward[order] >= self.best[order][:, None]
        if (one.chosen < 0).any():
            return float((best.sum(axis=1) / np.isfinite(self.matrix.reward[order]).sum(axis=1)).mean())
        return float(best[np.arange(len(order)), one.chosen].mean())


def _there(matrix: Matrix) -> np.ma.MaskedArray[Any, Any]:
    """Costs as an array that is masked where there is no answer."""
    return np.ma.masked_array(matrix.cost, ~np.isfinite(matrix.reward))


def _measures(points: Sequence[Point], curve: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise the curve, and the best mixtures of two fixed models for comparison."""
    ours = [Point(row["cost_usd"], row["reward"]) for row in curve]
    strong = max(points, key=lambda p: (p.reward, -p.cost))
    weak = min(points, key=lambda p: (p.cost, -p.reward))
    low, high = min(p.cost for p in [*ours, weak]), max(p.cost for p in points)
    ceilings = [row["ceiling_usd"] for row in curve]
    measures: dict[str, Any] = {
        "area": area(ceilings, [row["reward"] for row in curve]) if len(curve) > 1 else None,
        "area_best_mixture": area(ceilings, [row["best_mixture"] for row in curve]) if len(curve) > 1 else None,
        "aiq": aiq([weak, *ours], low, high),
        "aiq_best_mixture": aiq(points, low, high),
        "cost_at_best_single": cost_of([weak, *ours], strong.reward),
        "cost_within_004_of_best_single": cost_of([weak, *ours], strong.reward - 0.004),
        "cost_of_best_single": strong.cost,
    }
    if strong.cost > weak.cost and strong.reward > weak.reward:
        fixed = [point for point in points if point not in (weak, strong)]
        measures["apgr"], measures["apgr_fixed"] = apgr(ours, weak, strong), apgr(fixed, weak, strong)
        for share in (0.5, 0.8):
            measures[f"cpt{round(100 * share)}"] = cpt(ours, weak, strong, share)
    return measures

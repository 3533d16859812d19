"""The demo's final tables, and its JSON."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import msgspec
import numpy as np
from rich import box
from rich.table import Table

from fitrouter import __version__
from fitrouter.config import Config
from fitrouter_integrations.demo._live import LiveResults
from fitrouter_integrations.demo._seeds import QUARTERS, Gammas, SeedResult, Strategy
from fitrouter_integrations.demo._world import DemoWorld

_ROWS = {
    "random": "random",
    "default model": "default model",
    "best single": "best single model",
    "user-blind bandit": "user-blind bandit",
    "user-blind + scores": "the same + scores",
    "ours": "fitrouter",
    "blind oracle": "oracle, user-blind",
    "knowing oracle": "oracle, knows tastes",
}


def live_table(live: LiveResults, world: DemoWorld) -> Table:
    """Build the table of all routing strategies on the requests that were sent over HTTP."""
    note = f"The best single model, in hindsight, is {live.best_single}; the default model is {world.default_model}."
    table = _table(f"{live.rounds:,} requests over HTTP: share of satisfied people", note)
    for row, title in _ROWS.items():
        found = live.rows[row]
        cost = live.cost_usd if row == "ours" else found.cost_usd
        table.add_row(title, *_cells(found, cost, world), style="bold" if row == "ours" else None)
    return table


def traffic_table(live: LiveResults) -> Table:
    """Build the table of each model's share by role, in the second half."""
    table = Table(title="Who answers whom, second half", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("model")
    for role in live.traffic:
        table.add_column(role, justify="right")
    for model in next(iter(live.traffic.values())):
        table.add_row(model, *(f"{shares[model]:.0%}" for shares in live.traffic.values()))
    return table


def seeds_table(results: Sequence[SeedResult], world: DemoWorld) -> Table:
    """Build the table of all routing strategies, with means over seeds."""
    title = f"Means of {len(results)} seeds of {world.rounds:,} rounds in process"
    table = _table(title, "Each seed has people, qualities, order and luck of its own.")
    for row, title in _ROWS.items():
        found = [result.rows[row] for result in results]
        mean = Strategy(
            reward=_mean([one.reward for one in found]),
            quarters=tuple(_mean([one.quarters[i] for one in found]) for i in range(QUARTERS)),
            cost_usd=_mean([one.cost_usd for one in found]),
            shares={m: _mean([one.shares[m] for one in found]) for m in found[0].shares},
            all_shares={},
        )
        table.add_row(title, *_cells(mean, mean.cost_usd, world), style="bold" if row == "ours" else None)
    return table


def _table(title: str, note: str) -> Table:
    table = Table(title=title, title_justify="left", caption=note, caption_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("routing")
    for name in ("all", "last quarter", "cost, USD", "flatterer"):
        table.add_column(name, justify="right")
    return table


def _cells(found: Strategy, cost: float, world: DemoWorld) -> tuple[str, ...]:
    flatterer = found.shares[world.flatterer]
    return f"{found.reward:.3f}", f"{found.quarters[-1]:.3f}", f"{cost:.3f}", f"{flatterer:.1%}"


def summary(results: Sequence[SeedResult], world: DemoWorld) -> dict[str, Any]:
    """Summarise the last quarter over all seeds. `closed_mean` is null if the oracles do not differ."""
    last = {row: np.array([result.rows[row].quarters[-1] for result in results]) for row in _ROWS}
    gap = last["knowing oracle"] - last["blind oracle"]
    closed = [result.closed for result in results if np.isfinite(result.closed)]
    margin = last["ours"] - last["best single"]
    flatterer = [result.rows["ours"].shares[world.flatterer] for result in results]
    blind = np.maximum(last["user-blind bandit"], last["user-blind + scores"])
    return {
        "seeds": len(results),
        "last_quarter": {row: float(values.mean()) for row, values in last.items()},
        "gap": float(gap.mean()),
        "closed_mean": float(np.mean(closed)) if closed else None,
        "closed_se": float(np.std(closed, ddof=1) / np.sqrt(len(closed))) if len(closed) > 1 else None,
        "closed_of_mean_gap": float((last["ours"] - last["blind oracle"]).mean() / gap.mean()) if closed else None,
        "above_best_single": int((margin > 0).sum()),
        "margin_over_best_single": {"min": float(margin.min()), "mean": float(margin.mean())},
        "flatterer_share": {"mean": float(np.mean(flatterer)), "max": float(np.max(flatterer))},
        "ours_over_user_blind": {
            "label-only": float(last["ours"].mean() / last["user-blind bandit"].mean()),
            "best_of_both": float(last["ours"].mean() / blind.mean()),
        },
    }


def document(
    world: DemoWorld,
    sha256: str,
    config: Config,
    gammas: Gammas,
    live: LiveResults,
    results: Sequence[SeedResult],
    live_seed: int,
) -> dict[str, Any]:
    """The whole report as a JSON document, for --json."""
    versions = {name: metadata.version(name) for name in ("numpy", "duckdb", "msgspec", "aiohttp", "uvicorn")}
    return {
        "world": {"name": world.name, "sha256": sha256, "settings": msgspec.to_builtins(world)},
        "config": config.model_dump(mode="json", exclude={"data"}),
        "gammas": msgspec.to_builtins(gammas),
        "versions": {"fitrouter": __version__, "python": platform.python_version(), **versions},
        "http": {"seed": live_seed, **msgspec.to_builtins(live)},
        "seeds": [{**msgspec.to_builtins(result), "closed": _finite(result.closed)} for result in results],
        "summary": summary(results, world) if results else None,
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))

"""Exponents of the cells' curves with bootstrap intervals, costs of a million requests, and what saturates first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fitrouter.serving.slots import CONCURRENCY
from fitrouter.state.budgets import PENDING
from fitrouter.state.follower import SNAPSHOT_EVERY
from fitrouter.types import Floats

RATE = 10_000.0
DRAWS = 2000
"""Of the bootstrap over seeds."""
EXPONENTS = np.linspace(-2.0, 3.0, 501)
SHARE = 0.3
"""Of the answers that get a label, as at the full rate."""
LABELS = (30, 100, 300)
"""That are not known, of the short windows' cells."""
REPLICAS = (1, 4, 16)
"""Of which one is cut off."""
FOLD_RATES = (0.25, 0.1)
"""In rates of the events."""
STALENESS_S = (0.0, 0.03, 0.1)
"""Of the full rate's cells."""
FLEET = 100
ANSWER_S, PAUSE_S = 2.0, 30.0
"""Assumed: seconds of an answer, and between two turns of a conversation."""
HALVES: Mapping[str, slice] = {"from nothing": slice(0, 10), "after a change": slice(10, 20)}
"""Bins of the window's halves."""


class Law(NamedTuple):
    """Power law a · x^b with the middle 95 % of the bootstrap."""

    a: float
    b: float
    b_low: float
    b_high: float


def power_law(x: Sequence[float], y: Floats, seed: int = 0) -> Law:
    """Fit a · x^b to means over seeds, by least squares; y is float64[seeds, points].

    Not in logarithms: an excess can come out negative by chance, and its error is much the same at all points.
    """
    at = np.asarray(x, dtype=np.float64)
    scaled = (at / at.max())[None, :] ** EXPONENTS[:, None]

    def fitted(mean: Floats) -> tuple[float, float]:
        a = np.maximum((scaled * mean).sum(axis=1) / (scaled * scaled).sum(axis=1), 0.0)
        best = int(((a[:, None] * scaled - mean) ** 2).sum(axis=1).argmin())
        return float(a[best] / at.max() ** EXPONENTS[best]), float(EXPONENTS[best])

    rng = np.random.default_rng(seed)
    again = [fitted(y[rng.integers(len(y), size=len(y))].mean(axis=0))[1] for _ in range(DRAWS)]
    low, high = np.quantile(again, [0.025, 0.975])
    return Law(*fitted(y.mean(axis=0)), float(low), float(high))


def interval(values: Floats, seed: int = 0) -> dict[str, float]:
    """Return the mean over seeds, with the middle 95 % of the bootstrap."""
    rng = np.random.default_rng(seed)
    means = values[rng.integers(len(values), size=(DRAWS, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": round(float(values.mean()), 1), "low": round(float(low), 1), "high": round(float(high), 1)}


class _Cells:
    """Regret by cell, seed and bin."""

    def __init__(self, cells: Iterable[Mapping[str, Any]]) -> None:
        self.of: dict[str, dict[int, Floats]] = {}
        self.rows = list(cells)
        for each in self.rows:
            self.of.setdefault(each["cell"], {})[each["seed"]] = np.array(each["regret"])

    def excess(self, names: Sequence[str], half: slice, base: str = "base") -> Floats:
        """Return regret beyond the base's on the same seeds, float64[seeds, cells]."""
        seeds = sorted(set.intersection(*(set(self.of.get(name, {})) for name in (base, *names))))
        rows = [[(self.of[name][s] - self.of[base][s])[half].sum() for name in names] for s in seeds]
        return np.array(rows).reshape(len(seeds), len(names))


def regrets(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute the excess regret of every cell, and the laws of the curves."""
    all_cells, out = _Cells(cells), dict[str, Any]()
    base = np.array(list(all_cells.of["base"].values()))
    out["seeds"] = len(base)
    out["base"] = {name: interval(base[:, half].sum(axis=1)) for name, half in HALVES.items()}
    curves: dict[str, tuple[str, Sequence[float]]] = {
        "staleness, labels": ("staleness {:g}", LABELS),
        "label delay, labels": ("label delay {:g}", LABELS),
        "replicas, one cut off": ("one of {:g} cut off", REPLICAS),
        "fold rate, share of the events": ("fold rate {:g}", FOLD_RATES),
    }
    for title, (form, points) in curves.items():
        names = [form.format(x) for x in points]
        if not all(name in all_cells.of for name in names):
            continue
        for half, bins in HALVES.items():
            excess = all_cells.excess(names, bins)
            found: dict[str, Any] = {f"{x:g}": interval(excess[:, i]) for i, x in enumerate(points)}
            if len(points) > 2:
                found["law"] = {k: round(v, 3) for k, v in power_law(points, excess)._asdict().items()}
            out.setdefault(title, {})[half] = found
    out["full"] = _full(all_cells, out.get("staleness, labels", {}))
    return out


def _full(cells: _Cells, laws: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare the excess of the cells at the full rate with what the short windows' law predicts for as many labels.

    A label that is not known stands for 1 / share requests that were decided without it.
    """
    base, found = f"full, staleness {STALENESS_S[0]:g} s", []
    for staleness in STALENESS_S:
        name = f"full, staleness {staleness:g} s"
        rows = [row for row in cells.rows if row["cell"] == name]
        if not rows:
            continue
        keys = ("requests", "virtual_s", "users", "seen_once", "missing_events")
        one: dict[str, Any] = {"cell": name, "seeds": len(rows), **{key: rows[0][key] for key in keys}}
        for half, bins in HALVES.items():
            one[half] = round(float(np.mean([sum(row["regret"][bins]) for row in rows])), 1)
            if staleness and base in cells.of and half in laws:
                law, labels = laws[half]["law"], RATE * staleness * SHARE
                one[f"excess {half}"] = interval(cells.excess([name], bins, base)[:, 0])
                one[f"expected {half}"] = round(law["a"] * labels ** law["b"] / SHARE, 1)
        found.append(one)
    return found


# --- costs ---


def per_request(costs: Mapping[str, Any], share: float = SHARE) -> dict[str, float]:
    """Return microseconds of CPU of a request by part, where `share` of the answers get a label."""
    fold, events = costs["fold"]["fold_us"], 3.0 + share
    postgres = "append_postgres" in costs
    read, appended = costs["read_postgres" if postgres else "read_sqlite"], costs["append_sqlite"]["cpu_us"]
    rated = costs["journal"]["events"]["feedback"] / costs["journal"]["events"]["decision"]
    label = fold["Vote learnt"] + costs["read_sqlite"]["cpu_us"] + appended + costs["warehouse"]["us_per_event"]
    found = {
        "whole request, one process": costs["whole_request"]["cpu_us"] - (rated - share) * label,
        "decision": costs["decide"]["cpu_us"],
        "fold of decision, execution, score": fold["Decision"] + fold["Execution"] + fold["Score"],
        "fold of labels": share * fold["Vote learnt"],
        "reading for the fold": events * read["cpu_us"],
        "append, SQLite": events * appended,
        "score": costs["scorer"]["cpu_us"],
        "warehouse": events * costs["warehouse"]["us_per_event"],
        "snapshots": events / SNAPSHOT_EVERY * 1e3 * costs["snapshot"]["always_ms"]
        + share * costs["snapshot"]["person_us"],
    }
    if postgres:
        found["append, client of PostgreSQL"] = events * costs["append_postgres"]["cpu_us"]
        found["append, PostgreSQL's server"] = events * costs["append_postgres"]["server_cpu_us"]
        found["read of one replica, PostgreSQL's server"] = events * read["server_cpu_us"]
    return {name: round(us, 1) for name, us in found.items()}


def million(costs: Mapping[str, Any], replicas: Sequence[int] = (1, 10, FLEET)) -> dict[str, Any]:
    """Compute CPU and bytes of a million requests."""
    us = per_request(costs)
    replica = us["fold of decision, execution, score"] + us["fold of labels"] + us["reading for the fold"]
    server = us.get("read of one replica, PostgreSQL's server", 0.0)
    return {
        "CPU seconds by part": us,
        "CPU seconds of each replica's fold": round(replica, 1),
        "CPU seconds in all, by replicas": {
            str(r): round(us["whole request, one process"] + (r - 1) * replica + r * server, 1) for r in replicas
        },
        "GB in the journal": round(costs["journal"]["bytes_per_decision"] / 1e3, 2),
        "GB in the warehouse": round(costs["warehouse"]["bytes_per_decision"] / 1e3, 2),
        "GB of a million identities": round(costs["identities"]["bytes"] / 1e3, 3),
        "GB of a million people with labels, stored": round(costs["snapshot"]["person_bytes"] / 1e3, 2),
    }


def limits(costs: Mapping[str, Any], replicas: int = FLEET) -> list[dict[str, Any]]:
    """Compute the requests a second at which each resource is used up, the lowest first."""
    us, events = per_request(costs), 3.0 + SHARE
    fold = us["fold of decision, execution, score"] + us["fold of labels"]
    replica = fold + us["reading for the fold"]
    own = us["whole request, one process"] - replica - us["score"] - us["warehouse"]
    rows: list[tuple[str, float, bool]] = [
        ("sessions that the state remembers", costs["sessions_kept"] / PAUSE_S, False),
        ("open reservations of a tenant with a budget", PENDING / ANSWER_S, False),
        ("one scorer process", 1e6 / us["score"], True),
        ("one warehouse feed", 1e6 / us["warehouse"], False),
        ("a replica's core that only folds", 1e6 / fold, False),
        ("a replica's core that reads and folds", 1e6 / replica, False),
        (f"a replica's core, {replicas} replicas, with its own requests", 1e6 / (replica + own / replicas), True),
        ("appends to SQLite", costs["append_sqlite"]["a_second"] / events, False),
        ("users who are new", costs["identities"]["a_second"], False),
        (f"a provider's slots, {replicas} workers", replicas * CONCURRENCY / ANSWER_S, True),
    ]
    if "append_postgres" in costs:
        read = us["read of one replica, PostgreSQL's server"]
        served = us["append, PostgreSQL's server"] + replicas * read
        rows += [
            ("appends to PostgreSQL", costs["append_postgres"]["a_second"] / events, False),
            (f"one core of PostgreSQL, read by {replicas} replicas", 1e6 / served, False),
        ]
    return [
        {"resource": name, "requests_a_second": round(rate), "more replicas help": more}
        for name, rate, more in sorted(rows, key=lambda row: row[1])
    ]


def fleets(costs: Mapping[str, Any], rates: Sequence[float] = (100, 300, 1000, 3000, 10_000)) -> list[dict[str, Any]]:
    """Compute the gateways needed at each rate, one core each; None where no number is enough."""
    us = per_request(costs)
    replica = us["fold of decision, execution, score"] + us["fold of labels"] + us["reading for the fold"]
    own = us["whole request, one process"] - replica - us["score"] - us["warehouse"]
    cores: Callable[[float], float | None] = lambda rate: (  # noqa: E731
        None if (left := 1.0 - rate * replica / 1e6) <= 0.0 else float(np.ceil(rate * own / 1e6 / left))
    )
    return [{"rate": rate, "replicas": cores(rate), "once": float(np.ceil(rate * own / 1e6))} for rate in rates]


def report(cells: Sequence[Mapping[str, Any]], costs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute all that the page shows."""
    return {
        "regret": regrets(cells),
        "a million requests": million(costs),
        "limits": limits(costs),
        "fleets": fleets(costs),
    }

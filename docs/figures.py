"""Figures of docs/results: an SVG beside each JSON file of docs/results/figures, with matplotlib.

python docs/figures.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "results" / "figures"
COLOURS = ("#0969da", "#818b98", "#bf8700", "#8250df", "#1a7f37")
"""The product first."""
_STYLE = {
    "svg.hashsalt": "fitrouter",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e8ec",
    "axes.edgecolor": "#818b98",
    "axes.axisbelow": True,
    "figure.facecolor": "#ffffff",
    "legend.frameon": False,
}


def matrix(data: dict[str, Any]) -> Figure:
    """Reward under a ceiling of the cost per request, by method."""
    figure = Figure((8, 4.2), layout="constrained")
    axes = figure.subplots()
    styles = {"fitrouter at df8786c": (COLOURS[0], "o-"), "fitrouter at 0845b66": (COLOURS[0], "o:")}
    rest = iter([(COLOURS[1], "s--"), (COLOURS[2], "^-")])
    for name, rewards in data["reward"].items():
        colour, style = styles.get(name) or next(rest)
        axes.plot(data["ceiling_usd"], rewards, style, color=colour, label=name, markersize=4)
    axes.set_xscale("log")
    axes.set_xlabel("ceiling of the mean cost per request, USD")
    axes.set_ylabel("mean reward")
    axes.legend(loc="lower right")
    return figure


def personal_pool(data: dict[str, Any]) -> Figure:
    """Change of the regret against label-only, with intervals, by world and row."""
    rows = list(data["rows"])
    figure = Figure((8, 4.8), layout="constrained")
    axes = figure.subplots()
    for i, name in enumerate(("ours", "role", "scores", "true tastes")):
        there = [(at, data["rows"][row][name]) for at, row in enumerate(rows) if name in data["rows"][row]]
        y = [at + 0.18 * (i - 1.5) for at, _ in there]
        middle, low, high = np.array([found for _, found in there]).T
        axes.errorbar(
            middle,
            y,
            xerr=[middle - low, high - middle],
            fmt="o",
            markersize=4,
            color=COLOURS[i],
            label=name,
            capsize=2,
        )
    axes.axvline(0.0, color="#59636e", linewidth=1)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("change of the regret against label-only, %  (less is better)")
    axes.legend(loc="lower left")
    return figure


def replay_intervals(data: dict[str, Any]) -> Figure:
    """Mean widths of intervals after three numbers of decisions, by method and world."""
    figure = Figure((9, 3.4), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, len(data["worlds"]), sharey=True))
    for world, axes in enumerate(panels):
        for i, (name, widths) in enumerate(data["width"].items()):
            dashed = ":" if name.startswith("one look") else "-"
            axes.plot(data["decisions"], widths[world], f"o{dashed}", color=COLOURS[i], label=name, markersize=3)
        axes.set_xscale("log")
        axes.set_xticks(data["decisions"], [f"{n:,}" for n in data["decisions"]], fontsize=8)
        axes.minorticks_off()
        axes.set_title(data["worlds"][world], fontsize=10)
        axes.set_xlabel("decisions", fontsize=9)
    panels[0].set_ylabel("mean width, 95%")
    panels[0].set_ylim(0.0, 1.05 * max(width[0] for widths in data["width"].values() for width in widths))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    return figure


def scorer(data: dict[str, Any]) -> Figure:
    """Scored answers a second, and how long one alone waits, by encoder."""
    figure = Figure((8, 3), layout="constrained")
    speed, wait = figure.subplots(1, 2)
    for axes, table in ((speed, data["answers_per_second"]), (wait, data["alone_ms"])):
        for i, (name, values) in enumerate(table.items()):
            at = np.arange(len(values)) + 0.36 * (i - 0.5)
            bars = axes.barh(at, values, height=0.34, color=COLOURS[i], label=name)
            axes.bar_label(bars, fmt="{:g}", padding=3, fontsize=8)
        axes.set_yticks(range(len(data["encoders"])), data["encoders"] if axes is speed else [])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.18)
        axes.legend(loc="lower right" if axes is speed else "upper right", fontsize=9)
    speed.set_xscale("log")
    speed.set_xlabel("answers a second on one core (logarithmic)")
    wait.set_xlabel("milliseconds until one answer alone is scored")
    return figure


def federated(data: dict[str, Any]) -> Figure:
    """Distance of the federated prior from that of the honest clients, by how much one client lies and the clip."""
    figure = Figure((8, 4.2), layout="constrained")
    axes = figure.subplots()
    for i, (name, distances) in enumerate(data["distance"].items()):
        axes.plot(data["times"], distances, "o-", color=COLOURS[i], label=f"clip: {name}", markersize=4)
    axes.axhline(data["honest"], color="#59636e", linewidth=1, linestyle=":", label="all clients honest")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("the poisoned client sends its sums times minus this")
    axes.set_ylabel("distance of the prior's mean")
    axes.legend(loc="upper left")
    return figure


def million(data: dict[str, Any]) -> Figure:
    """Excess regret by what replicas do not know, and the rates at which resources are used up."""
    figure = Figure((9, 6.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(1, 1.25))
    panels: list[Axes] = list(upper.subplots(1, len(data["excess"])))
    for axes, (title, curves) in zip(panels, data["excess"].items(), strict=True):
        for i, (name, curve) in enumerate(curves.items()):
            middle, low, high = np.array(curve["excess"]).T
            x = np.array(data["x"][title])
            bars = np.array([middle - low, high - middle])
            beside = x * (1.0 + 0.06 * i)
            axes.errorbar(beside, middle, yerr=bars, fmt="os"[i], markersize=4, color=COLOURS[i], label=name, capsize=2)
            fine = np.geomspace(x[0], x[-1], 50)
            axes.plot(fine, curve["a"] * fine ** curve["b"], color=COLOURS[i], linewidth=1)
        axes.axhline(0.0, color="#59636e", linewidth=1)
        axes.set_xscale("log")
        axes.set_xticks(data["x"][title], [f"{n:g}" for n in data["x"][title]])
        axes.minorticks_off()
        axes.set_xlabel(title, fontsize=9)
    panels[0].set_ylabel("regret beyond a router\nthat knows at once")
    panels[0].legend(loc="upper left", fontsize=8)
    axes = lower.subplots()
    names, rates = list(data["limits"]), list(data["limits"].values())
    bars_drawn = axes.barh(range(len(names)), rates, height=0.6, color=COLOURS[0])
    axes.bar_label(bars_drawn, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.axvline(data["rate"], color="#59636e", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel("requests a second at which it is used up (logarithmic; dotted: 10,000)", fontsize=9)
    return figure


FIGURES: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "federated": federated,
    "matrix": matrix,
    "million": million,
    "personal_pool": personal_pool,
    "replay_intervals": replay_intervals,
    "scorer": scorer,
}


def svg(name: str) -> str:
    """The figure of docs/results/figures/NAME.json; equal data give equal text."""
    data = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    out = StringIO()
    with mpl.rc_context(_STYLE):
        FIGURES[name](data).savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE)


if __name__ == "__main__":
    for name in FIGURES:
        (FOLDER / f"{name}.svg").write_text(svg(name), encoding="utf-8")

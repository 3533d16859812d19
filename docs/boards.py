"""Pictures of the Grafana dashboards, drawn from their JSON and a Prometheus that scrapes the demo: not by Grafana.

    python -m docs.boards        # needs Debian's prometheus

Each panel of each dashboard stands where its `gridPos` says, with its queries run over the time of the demo. So a
reader sees what the dashboards show, and an empty panel is noticed.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from fitrouter.types import Floats

ROOT = Path(__file__).parents[1]
BOARDS = ROOT / "dashboards" / "fitrouter_dashboards" / "grafana"
IMAGES = ROOT / "docs" / "images" / "grafana"
ROUNDS = 6000
VISIT_S = 30.0
STEP_S = 2
VARIABLES = {"$model": ".*", "$role": ".*", "$tenant": ".*", "$__rate_interval": "20s", "$__range": "5m"}
COLUMNS, WIDTH_PX, ROW_PX, DPI = 24, 1440, 38, 100
COLOURS = ("#3871dc", "#e0752d", "#3f9b56", "#b877d9", "#d9a514", "#56a6c5", "#d44a3a", "#7c7c7c")
INK, PALE, PAPER, PANEL = "#24292e", "#6e7580", "#f4f5f5", "#ffffff"
_TIMES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
MOST_NAMES = 6
"""Series that a legend names."""


class Series(NamedTuple):
    """One line of a panel."""

    name: str
    at: Floats
    """Seconds since the demo began."""
    values: Floats


def main() -> None:
    """Run the demo under Prometheus, and draw every dashboard."""
    kit = importlib.import_module("tests.kits.prometheus")
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        code = "from fitrouter_integrations.cli import main; main()"
        options = ("demo", "--rounds", str(ROUNDS), "--seeds", "0", "--port", str(port))
        demo = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-c", code, *options], stdout=subprocess.PIPE, text=True
        )
        try:
            with kit.prometheus(f"http://127.0.0.1:{port}", Path(folder) / "prometheus") as server:
                begin = time.time()
                assert demo.stdout is not None
                if not any(line.startswith("Ctrl-C ends it.") for line in demo.stdout):
                    sys.exit("the demo ended before it served the console")
                visit(f"http://127.0.0.1:{port}")
                end = time.time()
                boards = {
                    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(BOARDS.glob("*.json"))
                }
                found = {
                    name: [queried(server, panel, begin, end) for panel in board["panels"]]
                    for name, board in boards.items()
                }
        finally:
            demo.kill()
            demo.wait()
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, board in boards.items():
        figure = drawn(board, found[name], end - begin)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=DPI, facecolor=PAPER)
        titles = [panel["title"] for panel in board["panels"]]
        keep(buffer.getvalue(), IMAGES / f"{name}.png", titles)
        empty = [title for title, series in zip(titles, found[name], strict=True) if not series]
        print(f"{name}: {len(board['panels'])} panels, without data in the demo: {', '.join(empty) or 'none'}")


def visit(url: str) -> None:
    """What the demo does not have: a budget, streams, ratings of a dimension, refused requests; for `VISIT_S`."""
    with httpx.Client(base_url=url, timeout=60.0) as http:
        http.post(
            "/v1/policy", json={"action": "budget", "tenant": "default", "usd_per_period": 2.0}
        ).raise_for_status()
        until = time.time() + VISIT_S
        for number in itertools.takewhile(lambda _: time.time() < until, itertools.count()):
            said = {"model": "fitrouter/auto", "user": "visitor", "messages": [{"role": "user", "content": "Hello"}]}
            http.post("/v1/chat/completions", json=said | {"stream": True})
            answer = http.post("/v1/chat/completions", json=said).json()["fitrouter"]
            vote = {"decision_id": answer["decision_id"], "user": "visitor", "kind": "rating", "dimension": "warmth"}
            http.post("/v1/feedback", json=vote | {"value": 0.4 + 0.1 * (number % 5)})
            if number % 10 == 0:
                http.post("/v1/chat/completions", json={"model": "nobody", "messages": []})
            time.sleep(0.2)


def queried(server: Any, panel: dict[str, Any], begin: float, end: float) -> list[Series]:
    """The series of a panel's queries."""
    found = []
    for target in panel["targets"]:
        expression = target["expr"]
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        for result in server.query_range(expression, begin, end, STEP_S):
            at, values = np.array([[at - begin, float(value)] for at, value in result["values"]]).T
            named = target["legendFormat"]
            for label, text in result["metric"].items():
                named = named.replace(f"{{{{{label}}}}}", text)
            if np.isfinite(values).any():
                found.append(Series(named.replace("{{", "").replace("}}", "") or "value", at, values))
    return found


def drawn(board: dict[str, Any], found: Sequence[Sequence[Series]], seconds: float) -> Figure:
    """A dashboard as one picture, of some seconds."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    head = 46
    height = rows * ROW_PX + head + 6
    figure = Figure((WIDTH_PX / DPI, height / DPI), facecolor=PAPER)
    figure.text(14 / WIDTH_PX, 1 - 28 / height, board["title"], size=13, weight="bold", color=INK, va="center")
    shown = "   ".join(f"{each['label']}: All" for each in board["templating"]["list"][1:])
    figure.text(1 - 14 / WIDTH_PX, 1 - 28 / height, shown, size=9, color=PALE, ha="right", va="center")
    for panel, series in zip(board["panels"], found, strict=True):
        grid, gap = panel["gridPos"], 4
        left = grid["x"] * WIDTH_PX / COLUMNS + gap
        top = head + grid["y"] * ROW_PX + gap
        width, high = grid["w"] * WIDTH_PX / COLUMNS - 2 * gap, grid["h"] * ROW_PX - 2 * gap

        def place(
            x: float, y: float, w: float, h: float, left: float = left, top: float = top
        ) -> tuple[float, float, float, float]:
            return (left + x) / WIDTH_PX, 1 - (top + y + h) / height, w / WIDTH_PX, h / height

        x, y, w, h = place(0, 0, width, high)
        box = FancyBboxPatch(
            (x, y), w, h, boxstyle="square,pad=0", facecolor=PANEL, edgecolor="#dcdfe3", linewidth=0.8, zorder=-1
        )
        box.set_transform(figure.transFigure)
        figure.add_artist(box)
        figure.text(
            x + 10 / WIDTH_PX, 1 - (top + 16) / height, panel["title"], size=9.5, weight="bold", color=INK, va="center"
        )
        unit = panel["fieldConfig"]["defaults"].get("unit", "short")
        if not series:
            figure.text(x + w / 2, y + h / 2, "No data", size=11, color=PALE, ha="center", va="center")
        elif panel["type"] == "stat":
            stat(figure, place, width, high, series, unit)
        else:
            graph(figure.add_axes(place(58, 34, width - 72, high - 84)), panel, series, unit, seconds)
            legend(figure, place(10, high - 24, width - 20, 18), panel, series)
    return figure


def stat(figure: Figure, place: Any, width: float, high: float, series: Sequence[Series], unit: str) -> None:
    """Last values, with a line of their course."""
    each = width / len(series)
    for i, one in enumerate(series):
        last = one.values[np.isfinite(one.values)][-1]
        axes = figure.add_axes(place(i * each, high * 0.62, each, high * 0.38))
        axes.axis("off")
        axes.fill_between(one.at, one.values, min(0.0, float(np.nanmin(one.values))), color="#3f9b56", alpha=0.18, lw=0)
        axes.plot(one.at, one.values, color="#3f9b56", lw=1)
        axes.margins(0, 0.1)
        x, y, w, h = place(i * each, 24, each, high - 40)
        several = len(series) > 1
        figure.text(
            x + w / 2,
            y + h * 0.55,
            said(last, unit),
            size=13 if several else 22,
            color="#2d8145",
            ha="center",
            va="center",
        )
        if several:
            figure.text(x + w / 2, y + h * 0.9, one.name, size=8, color=PALE, ha="center", va="center")


def graph(axes: Axes, panel: dict[str, Any], series: Sequence[Series], unit: str, seconds: float) -> None:
    """Lines over time, stacked where the panel says so; what is low and high is a band."""
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults.get("custom") or {}
    axes.set_facecolor(PANEL)
    axes.grid(color="#e9ebee", lw=0.7)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=PALE)
    if custom.get("stacking", {}).get("mode") == "normal":
        at = np.unique(np.concatenate([one.at for one in series]))
        rows = [np.nan_to_num(np.interp(at, one.at, one.values, left=0.0, right=0.0)) for one in series]
        axes.stackplot(at, rows, colors=[colour(i) for i in range(len(rows))], alpha=0.5, lw=0)
    else:
        settings = overrides(panel)
        by_name = {one.name: one for one in series}
        for i, one in enumerate(series):
            own = settings.get(one.name, {})
            if low := by_name.get(own.get("custom.fillBelowTo", "")):
                bottom = np.interp(one.at, low.at, low.values)
                axes.fill_between(one.at, bottom, one.values, color=own["color"]["fixedColor"], alpha=0.3, lw=0)
            axes.plot(one.at, one.values, color=colour(i), lw=own.get("custom.lineWidth", 1.4))
    low, high = axes.dataLim.intervaly
    low = defaults.get("min", min(custom.get("axisSoftMin", low), low))
    high = defaults.get("max", high)
    axes.set_ylim(low, high if "max" in defaults else high + 0.05 * (high - low) if high > low else low + 1.0)
    axes.set_xlim(0.0, seconds)
    axes.yaxis.set_major_locator(importlib.import_module("matplotlib.ticker").MaxNLocator(5))
    axes.yaxis.set_major_formatter(lambda value, _: said(value, unit))
    axes.xaxis.set_major_formatter(lambda value, _: f"{int(value) // 60}:{int(value) % 60:02d}")


def overrides(panel: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name of a series → what the panel sets for it."""
    return {
        each["matcher"]["options"]: {one["id"]: one["value"] for one in each["properties"]}
        for each in panel["fieldConfig"]["overrides"]
    }


def legend(
    figure: Figure, where: tuple[float, float, float, float], panel: dict[str, Any], series: Sequence[Series]
) -> None:
    """Names of the series below a graph, as many as there is room for."""
    x, y, w, h = where
    hidden = {name for name, own in overrides(panel).items() if own.get("custom.hideFrom", {}).get("legend")}
    named = [(i, one.name) for i, one in enumerate(series) if one.name not in hidden]
    at = x
    for count, (i, name) in enumerate(named):
        figure.text(at, y + h / 2, "▬", size=9, color=colour(i), va="center")
        figure.text(at + 14 / WIDTH_PX, y + h / 2, name, size=8, color=INK, va="center")
        at += (30 + 6.1 * len(name)) / WIDTH_PX
        rest = len(named) - count - 1
        if rest and (at > x + w - 160 / WIDTH_PX or count + 1 == MOST_NAMES):
            figure.text(at, y + h / 2, f"and {rest} more", size=8, color=PALE, va="center")
            return


def colour(i: int) -> str:
    """Of the i-th series."""
    return COLOURS[i % len(COLOURS)]


def said(value: float, unit: str) -> str:
    """A value in Grafana's unit."""
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s":
        size = abs(value)
        step, name = next((each for each in _TIMES if size >= each[0]), (0.001, "ms"))
        return f"{value / step:.3g} {name}"
    size = abs(value)
    scale = 0 if size < 1000 or not math.isfinite(size) else min(int(math.log(size, 1000)), 4)
    text = f"{value:.5f}".rstrip("0").rstrip(".") if 0 < size < 0.001 else f"{value / 1000**scale:.3g}"
    if unit == "bytes":
        return f"{text} {('B', 'kB', 'MB', 'GB', 'TB')[scale]}"
    text += ("", " K", " Mil", " Bil", " Tri")[scale]
    return f"${text}" if unit == "currencyUSD" else text + {"reqps": " req/s", "cps": " c/s"}.get(unit, "")


def keep(png: bytes, file: Path, titles: Sequence[str]) -> None:
    """Write a picture with 128 colours, and the panels' titles in its metadata, by which a test knows an old one."""
    image = importlib.import_module("PIL.Image")
    about = importlib.import_module("PIL.PngImagePlugin").PngInfo()
    about.add_text("panels", json.dumps(titles))
    picture = image.open(io.BytesIO(png)).convert("RGB").quantize(128, dither=image.Dither.NONE)
    picture.save(file, optimize=True, pnginfo=about)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()

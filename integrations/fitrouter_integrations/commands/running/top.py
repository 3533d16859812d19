"""`fitrouter top`: what happens in a running gateway, in a terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fitrouter.errors import FitrouterError, StoreError
from fitrouter.stores.figures import OUTCOMES, Money, usd
from fitrouter_integrations._http import call, url_of
from fitrouter_integrations.commands._gateway import Url
from fitrouter_integrations.commands._options import DEFAULT

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH, _ROLES = 24, 8
_WIDE = 100
"""Columns of a terminal from which courses over time, intervals of ratings and states have columns of their own."""
_SPOKEN = {"1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days", "all": "all"}


def command(
    window: Annotated[str, typer.Option(help="1h, 24h, 7d, 30d, all; auto: the shortest that has enough.")] = "auto",
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and end, as into a pipe.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON once and end.")] = False,
    config: Annotated[
        Path, typer.Option("--config", "-c", help="Configuration file, which gives the address of the gateway.")
    ] = DEFAULT,
    url: Url = None,
) -> None:
    """Watch a running gateway: traffic, ratings, cost, latency, models and alarms. Ctrl-C ends it.

    The key is read from the environment variable FITROUTER_API_KEY; a tenant's shows its own traffic.
    """
    if url is None:
        from fitrouter.config import load_config

        url = url_of(load_config(config))
    console = Console(highlight=False)
    if as_json:
        typer.echo(json.dumps(_read(url, window), indent=1))
    elif once or not console.is_terminal:
        console.print(_screen(_read(url, window), url, console.width))
    else:
        _watch(console, url, window, every)


def _read(url: str, window: str) -> dict[str, Any]:
    """Read the data of the console's views *Now* and *Models*."""
    return {
        "now": call("GET", url, f"/console/api/now?window={window}"),
        "models": call("GET", url, "/console/api/models"),
    }


def _watch(console: Console, url: str, window: str, every: float) -> None:
    """Redraw the screen until Ctrl-C; while the gateway does not answer, the last figures stay.

    Raises:
        FitrouterError: the first answer is an error, other than that there are no figures yet.
    """
    found, late = None, ""
    try:
        found = _read(url, window)
    except StoreError as error:
        late = str(error)
    try:
        with Live(_screen(found, url, console.width, late), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                try:
                    found, late = _read(url, window), ""
                except FitrouterError as error:
                    late = str(error)
                live.update(_screen(found, url, console.width, late), refresh=True)
    except KeyboardInterrupt:
        pass


def _screen(found: dict[str, Any] | None, url: str, width: int, late: str = "") -> RenderableType:
    """Build the screen: the figures, and the error of a read that failed; without figures the error alone."""
    if found is None:
        return Group(Text(f"fitrouter  {url}", style="bold"), Text(late, style="yellow"))
    now, shown, wide = found["now"], found["models"], width >= _WIDE
    head = Text.assemble(("fitrouter", "bold"), f"  {url}  {_SPOKEN[now['window']]}, {time.strftime('%H:%M:%S')}")
    return Group(
        head,
        *([Text(f"not up to date: {late}", style="yellow")] if late else []),
        _alarms(now["alarms"]),
        Text(),
        _figures(now, wide),
        Text(),
        _models(shown, wide),
        Text(),
        _roles(now),
    )


def _alarms(alarms: list[dict[str, Any]]) -> RenderableType:
    if not alarms:
        return Text("no alarm", style="green")
    said = [_plain(f"! {each['text']}") for each in alarms]
    for line, alarm in zip(said, alarms, strict=True):
        line.stylize("red" if alarm["level"] == "bad" else "yellow")
    return Group(*said)


def _figures(now: dict[str, Any], wide: bool) -> Table:
    """Build the table of requests, ratings, cost and latency, where there is room with the course over time."""
    totals, table = now["totals"], Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for _ in range(3 if wide else 2):
        table.add_column(no_wrap=True)
    table.add_column()

    def add(name: str, value: str, course: str, about: str) -> None:
        table.add_row(name, value, *([course] if wide else []), about)

    course = {key: _course(now, key) for key in ("requests", "cost_usd", "p50_ms")}
    reward = totals["reward"]
    said = [f"{totals[each]:,} {each}" for each in OUTCOMES if totals[each] or each in OUTCOMES[:3]]
    add("requests", f"{totals['requests']:,}", course["requests"], ", ".join(said))
    if reward is None:
        add("mean rating", "–", "", "nobody has rated an answer")
    else:
        bounds = "" if reward["low"] is None else f"{reward['low']:.3f} to {reward['high']:.3f} (95%), "
        points = {each["point"]: each["mean"] for each in now["ratings"]}
        add("mean rating", f"{reward['mean']:.3f}", _bars(points), f"{bounds}{reward['ratings']:,} rated answers")
    cost = msgspec.convert(totals["cost"], Money)
    each = "" if cost.each is None else f"{usd(cost.each)} per request" + " with a known price" * bool(cost.unpriced)
    known, _, unpriced = str(cost).partition(", ")
    add("cost", known, course["cost_usd"], "; ".join(part for part in (each, unpriced) if part))
    add("latency", _ms(totals["p50_ms"]), course["p50_ms"], f"95% within {_ms(totals['p95_ms'])}")
    gain = now["personalisation"].get("")
    if gain is not None:
        bounds = f"{gain['low']:+.3f} to {gain['high']:+.3f} (95%), n {gain['labels']:,}"
        add("personalisation", f"{gain['gain']:+.3f}", "", bounds)
    return table


def _models(shown: dict[str, Any], wide: bool) -> Table:
    """Build the table of the models' figures of the last 7 days; what one is out for is below its name, or beside."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("model (7 days)", overflow="fold", max_width=60 if wide else 40)
    for title in ("share", "rating", *(["95%"] if wide else []), "$/request", "latency", "answers"):
        table.add_column(title, justify="right", no_wrap=True)
    if wide:
        table.add_column("")
    total = sum(model["figures"].get("requests", 0) for model in shown["models"])
    for model in sorted(shown["models"], key=lambda each: -each["figures"].get("requests", 0)):
        figures = model["figures"]
        reward, n = figures.get("reward"), figures.get("requests", 0)
        out = "paused" if model["name"] in shown["paused"] else model["out"] or ""
        state = Text("takes all traffic" if shown["force"] == model["name"] else out, style="yellow")
        name, below = _plain(model["name"]), [] if wide or not state else [state]
        interval = "" if reward is None or reward["low"] is None else f"{reward['low']:.2f}–{reward['high']:.2f}"
        table.add_row(
            Text("\n  ").join([name, *below]),
            f"{n / total:.1%}" if total else "–",
            "–" if reward is None else f"{reward['mean']:.3f}",
            *([interval] if wide else []),
            usd(figures["cost"]["each"]) if n else "–",
            _ms(figures.get("p50_ms")),
            _answers(model),
            *([state] if wide else []),
        )
    return table


def _answers(model: dict[str, Any]) -> str:
    """The share of a model's calls that it is expected to answer; of one that answers none, its latest calls."""
    if model["unanswered"] is not None:
        return f"0 of {model['unanswered']['calls']:,}"
    return "–" if model["availability"] is None else f"{model['availability']:.0%}"


def _roles(now: dict[str, Any]) -> Table:
    """Build the table of the most frequent roles and the models that answer them."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("role", overflow="fold", max_width=40, min_width=20)
    table.add_column("requests", justify="right", no_wrap=True)
    table.add_column("answered by", overflow="fold")
    by_role: dict[str | None, list[tuple[str | None, int]]] = {}
    for flow in now["flows"]:
        by_role.setdefault(flow["role"], []).append((flow["model"], flow["requests"]))
    most = sorted(by_role.items(), key=lambda each: -sum(n for _, n in each[1]))[:_ROLES]
    for role, models in most:
        count = sum(n for _, n in models)
        parts = [f"{'others' if model is None else model or 'nobody'} {n / count:.0%}" for model, n in models[:3]]
        name = "other roles" if role is None else role or "no role"
        table.add_row(_plain(name), f"{count:,}", _plain(", ".join(parts)))
    return table


def _course(now: dict[str, Any], key: str) -> str:
    series = {each["point"]: each[key] for each in now["series"] if each[key] is not None}
    return _bars(series if key == "p50_ms" else {i: series.get(i, 0) for i in range(now["points"])})


def _bars(points: dict[int, float]) -> str:
    """Draw values in order of time as a bar chart of at most `_WIDTH` block characters.

    >>> _bars({0: 0.0, 2: 1.0, 1: 0.5})
    '▁▅█'
    """
    values = [value for _, value in sorted(points.items())]
    size = -(-len(values) // _WIDTH) or 1
    means = [sum(some) / len(some) for some in (values[i : i + size] for i in range(0, len(values), size))]
    top = max(means, default=0.0)
    return "".join(_BLOCKS[round(7 * max(0.0, mean) / top) if top > 0 else 0] for mean in means)


def _plain(name: str) -> Text:
    """Return a name from outside without characters that steer a terminal or reverse its line."""
    return Text("".join(character if character.isprintable() else "·" for character in name))


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} ms" if value < 1000.0 else f"{value / 1000.0:.1f} s"

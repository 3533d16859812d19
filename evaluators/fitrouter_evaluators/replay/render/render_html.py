"""Renders a report as a self-contained HTML page without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias

from fitrouter.errors import ConfigError
from fitrouter_evaluators.replay.render._formatting import (
    NumberFormat,
    best_estimate,
    count,
    headline_interval,
    number,
    percent,
    printable,
    utc_time,
    verdict,
    weight,
)
from fitrouter_evaluators.replay.render._plots import figures
from fitrouter_evaluators.replay.render._tables import Column, TableData, TableRow, header, sections
from fitrouter_evaluators.replay.report import Band, Report, WeightHistogram

if TYPE_CHECKING:
    from jinja2 import Template

_Point: TypeAlias = tuple[int, float, float, float]
_POINTS = 40
_TONES = {"promote": "good", "keep": "bad"}


def html(report: Report) -> str:
    """The page; equal reports give equal bytes.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    gate = report.gate
    return _template().render(
        verdict=verdict(report),
        tone=_TONES.get(gate.verdict, "open") if gate is not None else "none",
        reasons=[printable(reason) for reason in gate.reasons] if gate is not None else [],
        tiles=_tiles(report),
        header=header(report),
        sections=sections(report),
        figures=figures(report),
        drawn={name: grid for name, grid in _drawn(report) if grid.lines},
        version=printable(report.version),
        made=utc_time(report.made),
    )


@cache
def _template() -> Template:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ConfigError(
            "HTML reports need jinja2; install 'fitrouter[replay]', or ask for --text or --json"
        ) from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = files("fitrouter_evaluators.replay.render").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source)


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """The four headline numbers: (name, value, note)."""
    numbers, top, once = NumberFormat.of(report), headline_interval(report), best_estimate(report)
    found = [("units", count(report.window.units), f"{count(report.window.users)} users")]
    if top is not None:
        limits = numbers.interval(top.low, top.high, signed=True)
        value = top.value if once is None else once.value
        found.insert(0, ("difference", numbers.value(value, signed=True), limits))
    known = next((d for d in report.diagnostics if d.policy == "candidate" and not d.slice), None)
    if known is not None:
        part = f"{percent(known.ess / known.n)} of the units" if known.n else ""
        found.append(("effective sample size", number(known.ess), part))
        found.append(("unsupported", percent(known.unsupported), "of the candidate's mass"))
    return found


def _drawn(report: Report) -> list[tuple[str, TableData]]:
    """The plotted numbers as tables, by section."""
    numbers = NumberFormat.of(report)
    everybody = [b for b in report.bands if not b.slice]
    return [
        ("any-time", _paths(everybody, numbers, signed=False)),
        ("overlap", _bins(report.histograms)),
        ("personal", _paths(report.personal, numbers, signed=True)),
    ]


def _paths(bands: Sequence[Band], numbers: NumberFormat, *, signed: bool) -> TableData:
    lines = [
        TableRow(
            (
                ", ".join(printable(part) for part in (b.slice, b.policy, b.kind) if part),
                count(at),
                numbers.value(mean, signed=signed or b.policy == "difference"),
                numbers.interval(low, high, signed=signed or b.policy == "difference"),
            )
        )
        for b in bands
        for at, mean, low, high in _thinned(list(zip(b.at, b.means, b.lows, b.highs, strict=True)))
    ]
    names = (Column("sequence", False), Column("units seen"), Column("running mean"), Column("limits"))
    return TableData(names, tuple(lines), "The numbers behind the picture", True)


def _thinned(points: list[_Point]) -> list[_Point]:
    """At most `_POINTS` + 1 points, with the first and last; JSON has all."""
    last = len(points) - 1
    return points if last < _POINTS else [points[i * last // _POINTS] for i in range(_POINTS + 1)]


def _bins(histograms: Sequence[WeightHistogram]) -> TableData:
    lines = [
        TableRow((printable(h.policy), f"{weight(low)} … {weight(high)}", count(n)))
        for h in histograms
        for low, high, n in zip(h.edges, h.edges[1:], h.counts, strict=False)
    ]
    return TableData(
        (Column("policy", False), Column("weight"), Column("units")), tuple(lines), "Weights in numbers", True
    )

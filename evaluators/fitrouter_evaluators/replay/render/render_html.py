"""Renders a report as a self-contained HTML page without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias

from fitrouter.errors import ConfigError
from fitrouter_evaluators.replay.render import _formatting as fmt
from fitrouter_evaluators.replay.render._plots import figures
from fitrouter_evaluators.replay.render._tables import TableData, header, sections, table
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
        verdict=fmt.verdict(report),
        tone=_TONES.get(gate.verdict, "open") if gate is not None else "none",
        reasons=[fmt.printable(reason) for reason in gate.reasons] if gate is not None else [],
        tiles=_tiles(report),
        header=header(report),
        sections=sections(report),
        figures=figures(report),
        drawn={name: grid for name, grid in _drawn(report) if grid.lines},
        version=fmt.printable(report.version),
        made=fmt.utc_time(report.made),
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
    """Headline numbers of the report as (name, value, note), up to four."""
    numbers, top, once = fmt.NumberFormat.of(report), fmt.headline_interval(report), fmt.best_estimate(report)
    found = [("units", fmt.count(report.window.units), f"{fmt.count(report.window.users)} users")]
    if top is not None:
        limits = numbers.interval(top.low, top.high, signed=True)
        value = top.value if once is None else once.value
        found.insert(0, ("difference", numbers.value(value, signed=True), limits))
    known = next((d for d in report.diagnostics if d.policy == "candidate" and not d.slice), None)
    if known is not None:
        part = f"{fmt.percent(known.ess / known.n)} of the units" if known.n else ""
        found.append(("effective sample size", fmt.number(known.ess), part))
        found.append(("unsupported", fmt.percent(known.unsupported), "of the candidate's mass"))
    return found


def _drawn(report: Report) -> list[tuple[str, TableData]]:
    """Numbers behind the plots as tables, by section."""
    numbers = fmt.NumberFormat.of(report)
    everybody = [b for b in report.bands if not b.slice]
    return [
        ("any-time", _paths(everybody, numbers, signed=False)),
        ("overlap", _bins(report.histograms)),
        ("personal", _paths(report.personal, numbers, signed=True)),
    ]


def _paths(bands: Sequence[Band], numbers: fmt.NumberFormat, *, signed: bool) -> TableData:
    lines = (
        (
            ", ".join(fmt.printable(part) for part in (b.slice, b.policy, b.kind) if part),
            fmt.count(at),
            numbers.value(mean, signed=signed or b.policy == "difference"),
            numbers.interval(low, high, signed=signed or b.policy == "difference"),
        )
        for b in bands
        for at, mean, low, high in _thinned(list(zip(b.at, b.means, b.lows, b.highs, strict=True)))
    )
    names = ("units seen", "running mean", "limits")
    return table(("sequence",), names, lines, "The numbers behind the picture", more=True)


def _thinned(points: list[_Point]) -> list[_Point]:
    """Thin points to at most `_POINTS` + 1, keeping the first and last; the JSON report has all."""
    last = len(points) - 1
    return points if last < _POINTS else [points[i * last // _POINTS] for i in range(_POINTS + 1)]


def _bins(histograms: Sequence[WeightHistogram]) -> TableData:
    lines = (
        (fmt.printable(h.policy), f"{fmt.weight(low)} … {fmt.weight(high)}", fmt.count(n))
        for h in histograms
        for low, high, n in zip(h.edges, h.edges[1:], h.counts, strict=False)
    )
    return table(("policy",), ("weight", "units"), lines, "Weights in numbers", more=True)

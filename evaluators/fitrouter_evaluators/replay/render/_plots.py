"""Plots of a report as SVG, each in a wide and a narrow layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fitrouter_evaluators.replay.render import _formatting as fmt
from fitrouter_evaluators.replay.render._svg import Axis, Canvas, finite, ticks
from fitrouter_evaluators.replay.render._tables import policies
from fitrouter_evaluators.replay.report import ArmShare, Band, PolicyEstimate, Report, UserSatisfaction, WeightHistogram

_WIDE, _NARROW = 720.0, 340.0
_SMALL = 500.0
"""Below this width labels stand above what they name."""
_DIGIT, _LINES = 6.9, 8
"""Pixels of a digit of 11 px, and horizontal grid lines."""
_FAR = 30.0
"""Maximum |log10| of a plotted weight."""
_POLICIES = (("logged", "bar"), ("against", "square"), ("candidate", "diamond"))


class Figure(NamedTuple):
    """A titled plot in both layouts, as SVG."""

    title: str
    wide: str
    narrow: str


class _Row(NamedTuple):
    """A row of a forest plot: an interval, and optionally a value to compare with."""

    label: str
    value: float
    low: float
    high: float
    written: str = ""
    kind: str = "candidate"
    ghost: float = math.nan


def figures(report: Report) -> dict[str, list[Figure]]:
    """Draw the plots of each section of a report, by section."""
    numbers, metric = fmt.NumberFormat.of(report), fmt.metric_of(report.metric)
    differs = f"difference in {metric.axis if metric.unit != '0 to 1' else metric.name}"
    found = {
        "any-time": _sequences([b for b in report.bands if not b.slice], differs, "Difference by units seen"),
        "estimates": _estimates(report, differs, metric.axis, numbers),
        "overlap": [*_shares(report.arms), *_weights(report.histograms)],
        "slices": _slices(report, differs, numbers),
        "satisfaction": _satisfied(report.satisfaction, metric, numbers),
        "personal": [
            figure
            for slice_ in dict.fromkeys(b.slice for b in report.personal)
            for figure in _sequences(
                [b for b in report.personal if b.slice == slice_], differs, fmt.printable(slice_) or "all users", None
            )
        ],
    }
    return {name: each for name, each in found.items() if each}


def _figures(title: str, drawn: Sequence[object], draw: Callable[[float], str]) -> list[Figure]:
    """Draw a plot in both layouts; empty if there is nothing to draw."""
    return [Figure(title, draw(_WIDE), draw(_NARROW))] if drawn else []


def _sequences(bands: Sequence[Band], axis: str, title: str, policy: str | None = "difference") -> list[Figure]:
    """Plot confidence sequences over the number of units: the exact one as an area, the asymptotic one dashed."""
    drawn = [b for b in bands if b.at and (policy is None or b.policy == policy) and len(finite(b.means)) > 1]
    drawn.sort(key=lambda b: b.kind != "exact")
    return _figures(title, drawn, lambda width: _sequence(drawn, axis, title, width))


def _sequence(bands: Sequence[Band], axis: str, title: str, width: float) -> str:
    narrow = width < _SMALL
    right, top, bottom = width - 12, 52.0 if narrow else 46.0, 250.0 if narrow else 290.0
    canvas = Canvas(width, bottom + 44, title, f"{axis}, with {' and '.join(b.kind for b in bands)} limits")
    y = Axis(*_settled(bands), bottom, top)
    left = 12 + max((_DIGIT * len(written) for _, written in ticks(y.low, y.high, _LINES)), default=40.0)
    x = Axis(0, max(b.at[-1] for b in bands), left, right)
    _grid(canvas, x, y, most=4 if narrow else 7)
    canvas.open(left, top, right - left, bottom - top)
    for band in bands:
        points = list(zip(band.at, band.means, band.lows, band.highs, strict=True))
        points = [each for each in points if math.isfinite(sum(each[1:]))]
        lows, highs = [(x(n), y(low)) for n, _, low, _ in points], [(x(n), y(high)) for n, _, _, high in points]
        if band.kind == "exact":
            canvas.path([*lows, *reversed(highs)], "exact-area", closed=True)
        for edge in (lows, highs):
            canvas.path(edge, f"{'exact' if band.kind == 'exact' else 'asymptotic'}-edge")
    # The exact one's own mean is of outcomes that were cut to keep their bounds: the other one's is the better guess.
    means = zip(bands[-1].at, bands[-1].means, strict=True)
    canvas.path([(x(n), y(m)) for n, m in means if math.isfinite(m)], "mean")
    if y.holds(0.0):
        canvas.line(left, y(0.0), right, y(0.0), "zero")
    canvas.close()
    names = [
        ("mean", "running mean"),
        *((f"{b.kind}-key", f"{b.kind} {100 - 100 * b.alpha:.4g}% limits") for b in bands),
    ]
    _legend(canvas, names, left, width)
    canvas.text((left + right) / 2, bottom + 36, "units seen", "axis", anchor="middle")
    canvas.text(4, 12, axis, "axis", room=width - 8)
    return canvas.svg()


def _settled(bands: Sequence[Band]) -> tuple[float, float]:
    """Limits of the vertical axis, from zero and the sequences without their wide first tenth."""
    values = [0.0]
    for band in bands:
        late = [i for i, n in enumerate(band.at) if n >= 0.1 * band.at[-1]]
        values += [v for i in late for v in (band.means[i], band.lows[i], band.highs[i])]
    return _padded(finite(values))


def _padded(values: Sequence[float], part: float = 0.06) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * part or abs(high) * part or 1.0
    return low - room, high + room


def _grid(canvas: Canvas, x: Axis, y: Axis, most: int) -> None:
    for value, written in ticks(y.low, y.high, _LINES):
        canvas.line(x.start, y(value), x.end, y(value), "grid")
        canvas.text(x.start - 6, y(value) + 4, written, "tick", anchor="end")
    for value, written in ticks(x.low, x.high, most):
        canvas.line(x(value), y.start, x(value), y.start + 4, "stroke")
        canvas.text(x(value), y.start + 18, written, "tick", anchor="middle")
    canvas.line(x.start, y.start, x.end, y.start, "stroke")


def _legend(canvas: Canvas, names: Sequence[tuple[str, str]], left: float, width: float) -> None:
    at, line = left, 30.0
    for kind, name in names:
        room = 30 + 6.2 * len(name)
        if at + room > width + 8 and at > left:
            at, line = left, line + 15
        if kind.endswith("exact-key"):
            canvas.rect(at, line - 9, 18, 10, "exact-area")
        else:
            canvas.line(at, line - 4, at + 18, line - 4, kind.replace("-key", "-edge"))
        canvas.text(at + 23, line, name, "tick")
        at += room + 8


def _estimates(report: Report, differs: str, axis: str, numbers: fmt.NumberFormat) -> list[Figure]:
    """Plot the estimates: the difference by estimator, and both policies on a common axis."""
    everybody = [e for e in report.estimates if not e.slice]
    usual = fmt.usual_interval(everybody)
    rows = {
        name: [_row(e, numbers, usual) for e in everybody if e.policy == name]
        for name in policies(e.policy for e in everybody)
    }
    difference = _forest("Difference, by estimator", rows.pop("difference", []), differs, zero=True)
    both = [row for each in rows.values() for row in each]
    each = [
        _forest(f"{fmt.printable(name).capitalize()}, by estimator", rows[name], axis, beside=both) for name in rows
    ]
    return [*difference, *(figure for figures in each for figure in figures)]


def _row(e: PolicyEstimate, numbers: fmt.NumberFormat, usual: str) -> _Row:
    # The table says with which λ.
    parts = [e.estimator.split(" (")[0], *([e.labels] if e.labels != "observed" else [])]
    parts += [e.interval] if e.interval != usual else []
    label = ", ".join(fmt.printable(part) for part in parts) + (" ⚠" if e.biased else "")
    signed = e.policy == "difference"
    written = f"{numbers.value(e.value, signed=signed)} ({numbers.interval(e.low, e.high, signed=signed)})"
    kind = "warned" if e.biased else "against" if e.policy == "against" else "candidate"
    return _Row(label, e.value, e.low, e.high, written, kind)


def _slices(report: Report, axis: str, numbers: fmt.NumberFormat) -> list[Figure]:
    """Plot the difference in each slice: at one look, and at any time."""
    rows = []
    for slice_ in fmt.slices(report):
        estimate = fmt.best_estimate(report, slice_)
        bands = [b for b in report.bands if (b.slice, b.policy) == (slice_, "difference")]
        if estimate is not None:
            rows.append(_row(estimate, numbers, estimate.interval)._replace(label=fmt.printable(slice_)))
        for b in bands:
            written = f"{numbers.value(b.value, signed=True)} ({numbers.interval(b.low, b.high, signed=True)})"
            label = (
                fmt.printable(slice_) if estimate is None and b is bands[0] else f"at any time, {fmt.printable(b.kind)}"
            )
            rows.append(_Row(label, b.value, b.low, b.high, written, "sequence"))
    return _forest("Difference, by slice", rows, axis, zero=True)


def _satisfied(rows: Sequence[UserSatisfaction], metric: fmt.Metric, numbers: fmt.NumberFormat) -> list[Figure]:
    """Plot user satisfaction: mean, worst-off tenth, and share of users worse off."""
    spread, losers = [], []
    for s in rows:
        role = fmt.printable(s.role) or "all users"
        spread.append(_Row(f"{role}: mean", s.mean, s.mean, s.mean, numbers.value(s.mean)))
        tenth = f"{numbers.value(s.worst_decile)} ({numbers.interval(s.worst_decile_low, s.worst_decile_high)})"
        limits = (s.worst_decile, s.worst_decile_low, s.worst_decile_high)
        spread.append(_Row(f"{role}: worst tenth", *limits, tenth, ghost=s.worst_decile_against))
        written = f"{fmt.percent(s.worse_off)} ({fmt.percent(s.worse_off_low)} … {fmt.percent(s.worse_off_high)})"
        shares = (100 * s.worse_off, 100 * s.worse_off_low, 100 * s.worse_off_high)
        losers.append(_Row(role, *shares, written))
    first = _forest("Mean and worst-off tenth (hollow: against)", spread, metric.axis)
    return [*first, *_forest("Users worse off", losers, "users (%)", zero=True)]


def _forest(
    title: str, rows: Sequence[_Row], axis: str, *, zero: bool = False, beside: Sequence[_Row] = ()
) -> list[Figure]:
    """Forest plot on an axis that also covers the rows in `beside`."""
    drawn = [row for row in rows if finite([row.value])]
    span = _span([row for row in (*drawn, *beside) if finite([row.value])], zero=zero) if drawn else (0.0, 1.0)
    return _figures(title, drawn, lambda width: _drawn_forest(title, drawn, axis, width, span, zero=zero))


def _drawn_forest(
    title: str, rows: Sequence[_Row], axis: str, width: float, span: tuple[float, float], *, zero: bool
) -> str:
    narrow = width < _SMALL
    step, top = (34.0, 6.0) if narrow else (23.0, 6.0)
    space = min(14 + _DIGIT * max(len(row.written) for row in rows), 0.45 * width)
    left, right = (10.0, width - 10) if narrow else (190.0, width - space)
    bottom = top + step * len(rows) + 4
    canvas = Canvas(width, bottom + 40, title, f"{axis}; {len(rows)} intervals")
    x = Axis(*span, left, right)
    _bottom_axis(canvas, x, (top, bottom), axis, most=4 if narrow else 5)
    if zero:
        canvas.line(x(0.0), top, x(0.0), bottom, "zero")
    for i, row in enumerate(rows):
        y = top + step * i + (24.0 if narrow else step / 2)
        kind = "tick" if row.kind == "sequence" else "label"
        if narrow:
            taken = _DIGIT * len(row.written)
            canvas.text(left, y - 11, row.label, kind, room=right - left - taken)
            canvas.text(right, y - 11, row.written, "tick", anchor="end")
        else:
            canvas.text(left - 12, y + 4, row.label, kind, anchor="end", room=left - 16)
            canvas.text(right + 12, y + 4, row.written, "tick")
        _interval(canvas, x, y, row)
    return canvas.svg()


def _bottom_axis(canvas: Canvas, x: Axis, ends: tuple[float, float], name: str, most: int) -> None:
    """Draw grid lines between `ends`, and the tick labels and label of the bottom axis."""
    top, bottom = ends
    for value, written in ticks(x.low, x.high, most):
        canvas.line(x(value), top, x(value), bottom, "grid")
        canvas.text(x(value), bottom + 16, written, "tick", anchor="middle")
    canvas.line(x.start, bottom, x.end, bottom, "stroke")
    canvas.text((x.start + x.end) / 2, bottom + 33, name, "axis", anchor="middle")


def _interval(canvas: Canvas, x: Axis, y: float, row: _Row) -> None:
    """Draw an interval as a line with end caps, or arrows where it exceeds the axis, and a mark at the value."""
    low = row.low if math.isfinite(row.low) else -math.inf
    high = row.high if math.isfinite(row.high) else math.inf
    from_, to = x(max(low, x.low)), x(min(high, x.high))
    canvas.line(from_, y, to, y, f"{row.kind}-line")
    for end, cut, way in ((from_, low < x.low, 1.0), (to, high > x.high, -1.0)):
        if cut:
            canvas.path([(end + 6 * way, y - 4), (end, y), (end + 6 * way, y + 4)], f"{row.kind}-line")
        elif to - from_ > 1:
            canvas.line(end, y - 4, end, y + 4, f"{row.kind}-line")
    if x.holds(row.ghost):
        canvas.mark(x(row.ghost), y, "hollow", title="against")
    if x.holds(row.value):
        shape = {"warned": "square", "sequence": "diamond", "against": "square"}.get(row.kind, "circle")
        canvas.mark(x(row.value), y, row.kind, shape, f"{row.label}: {row.written}")


def _span(rows: Sequence[_Row], *, zero: bool) -> tuple[float, float]:
    """Limits of the axis, from all values and intervals, of which wide ones are cut at three times the median width."""
    widths = sorted(finite(row.high - row.low for row in rows))
    most = 3 * widths[len(widths) // 2] if widths else math.inf
    values = finite(v for row in rows for v in (row.value, row.ghost))
    for row in rows:
        values += [max(row.low, row.value - most)] if finite([row.low]) else []
        values += [min(row.high, row.value + most)] if finite([row.high]) else []
    return _padded([*values, 0.0] if zero else values)


def _shares(arms: Sequence[ArmShare]) -> list[Figure]:
    """Plot the share of draws that each model gets, logged and under each policy."""
    drawn = [a for a in arms if finite((a.logged, a.against, a.candidate))]
    title = "Share of the draws, by model"
    return _figures(title, drawn, lambda width: _drawn_shares(drawn, title, width))


def _drawn_shares(arms: Sequence[ArmShare], title: str, width: float) -> str:
    narrow = width < _SMALL
    step, top = (36.0, 26.0) if narrow else (26.0, 26.0)
    left, right = (10.0, width - 14) if narrow else (230.0, width - 24)
    bottom = top + step * len(arms)
    canvas = Canvas(width, bottom + 40, title, "logged, against and candidate")
    most = max(finite(100 * share for a in arms for share in (a.logged, a.against, a.candidate)))
    x = Axis(0.0, 1.05 * max(most, 1.0), left, right)
    _bottom_axis(canvas, x, (top, bottom), "share of the draws (%)", most=4 if narrow else 6)
    for i, arm in enumerate(arms):
        y = top + step * i + (25.0 if narrow else step / 2)
        name = fmt.printable(arm.arm)
        if narrow:
            canvas.text(left, y - 11, name, room=right - left)
        else:
            canvas.text(left - 12, y + 4, name, anchor="end", room=left - 16)
        shares = [100 * getattr(arm, policy) for policy, _ in _POLICIES]
        there = finite(shares)
        if there:
            canvas.line(x(min(there)), y, x(max(there)), y, "stem")
        for (policy, shape), share in zip(_POLICIES, shares, strict=True):
            if math.isfinite(share):
                canvas.mark(x(share), y, policy, shape, f"{name}, {policy}: {fmt.percent(share / 100)}")
    at = left
    for policy, shape in _POLICIES:
        canvas.mark(at + 5, 11, policy, shape)
        canvas.text(at + 15, 15, policy, "tick")
        at += 34 + 6.4 * len(policy)
    return canvas.svg()


def _weights(histograms: Sequence[WeightHistogram]) -> list[Figure]:
    """Plot histograms of importance weights on a logarithmic scale, one panel per policy."""
    drawn = [h for h in histograms if sum(h.counts) and all(abs(edge) < _FAR for edge in h.edges)]
    return _figures("Importance weights", drawn, lambda width: _drawn_weights(drawn, "Importance weights", width))


def _drawn_weights(histograms: Sequence[WeightHistogram], title: str, width: float) -> str:
    panel, left, right = 100.0, 52.0, width - 12
    canvas = Canvas(width, panel * len(histograms) + 40, title, "units by importance weight, on a logarithmic scale")
    x = Axis(*_padded([edge for h in histograms for edge in h.edges], 0.01), left, right)
    for i, histogram in enumerate(histograms):
        base = panel * (i + 1)
        y = Axis(0, max(histogram.counts), base, base - panel + 32)
        kind = histogram.policy if histogram.policy in {"candidate", "against"} else "logged"
        for value, written in ticks(0, y.high, 3):
            canvas.line(left, y(value), right, y(value), "grid")
            canvas.text(left - 6, y(value) + 4, written, "tick", anchor="end")
        for low, high, n in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
            words = f"{fmt.weight(low)} to {fmt.weight(high)}: {fmt.count(n)} units"
            canvas.rect(x(low) + 0.5, y(n), x(high) - x(low) - 1, base - y(n), f"{kind}-bar", words)
        if x.holds(0.0):
            canvas.line(x(0.0), base - panel + 28, x(0.0), base, "zero")
        canvas.line(left, base, right, base, "stroke")
        canvas.text(left, base - panel + 22, f"{fmt.printable(histogram.policy)}: units", "label")
    bottom = panel * len(histograms)
    for power in range(math.ceil(x.low), math.floor(x.high) + 1):
        least = "≤" if power <= min(edge for h in histograms for edge in h.edges) else ""
        canvas.text(x(power), bottom + 16, f"{least}{10.0**power:g}", "tick", anchor="middle")
    canvas.text((left + right) / 2, bottom + 33, "importance weight (log scale)", "axis", anchor="middle")
    return canvas.svg()

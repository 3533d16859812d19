"""Sections of a report as sentences and tables, shared by the text and HTML renderers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fitrouter_evaluators.replay.render._formatting import (
    NOTHING,
    NumberFormat,
    best_estimate,
    count,
    duration,
    level,
    metric_of,
    number,
    percent,
    printable,
    slices,
    usual_interval,
    utc_time,
)
from fitrouter_evaluators.replay.report import Band, Check, Diagnostics, PolicyEstimate, Report

_ORDER = ("difference", "candidate", "against")
_KINDS = ("exact", "asymptotic")


class Column(NamedTuple):
    name: str
    right: bool = True


class TableRow(NamedTuple):
    """Cells, and a style: head (of a group), warning, good, bad, or none."""

    cells: tuple[str, ...]
    kind: str = ""


class TableData(NamedTuple):
    columns: tuple[Column, ...]
    lines: tuple[TableRow, ...]
    caption: str = ""
    more: bool = False
    """Details, which the HTML page collapses."""


class Section(NamedTuple):
    """A section: title, summary sentence, tables, and notes."""

    id: str
    title: str
    summary: str
    grids: tuple[TableData, ...] = ()
    notes: tuple[str, ...] = ()


def header(report: Report) -> list[tuple[str, str]]:
    """Compared policies and the population."""
    window, metric = report.window, metric_of(report.metric)
    horizon = f"decisions younger than {duration(window.horizon_s)} are excluded" if window.horizon_s else "no horizon"
    labelled = "" if report.metric in {"cost", "latency"} else f"; {count(window.labelled)} with a requested label"
    idle = f", closed after {duration(window.idle_s)} of silence" if window.idle_s else ""
    out = [f"{printable(reason)}: {count(n)}" for reason, n in window.excluded.items()]
    return [
        ("candidate", printable(report.candidate)),
        ("against", printable(report.against)),
        ("metric", f"{metric.name}: {metric.what}"),
        ("log", printable(window.source)),
        ("window", f"{utc_time(window.since)} to {utc_time(window.until)} UTC; {horizon}"),
        ("population", f"{count(window.units)} units of {count(window.users)} users{labelled}"),
        ("unit", f"{printable(window.unit)}{idle}; scored by its mean outcome"),
        ("size", f"{count(window.decisions)} decisions, {count(window.draws)} draws"),
        ("cluster", f"{printable(window.cluster)} (assumed independent)"),
        ("level", f"{level([report.alpha])}for overall results"),
        ("excluded", f"decisions: {'; '.join(out)}" if out else "nothing"),
    ]


def sections(report: Report) -> list[Section]:
    """The sections below the verdict, in order; empty ones are left out."""
    numbers = NumberFormat.of(report)
    found = (
        _gate(report),
        _estimates(report, numbers),
        _any_time(report, numbers),
        _diagnostics(report, numbers),
        _audit(report),
        _overlap(report),
        _slices(report, numbers),
        _satisfaction(report, numbers),
        _personal(report, numbers),
        _warnings(report),
    )
    return [section for section in found if section is not None]


def policies(names: Iterable[str]) -> list[str]:
    """Policies in display order: the difference first."""
    known = {name: i for i, name in enumerate(_ORDER)}
    return sorted(dict.fromkeys(names), key=lambda name: known.get(name, len(_ORDER)))


def _checks(checks: Sequence[Check], what: str) -> TableData:
    lines = (
        TableRow(("✓" if c.ok else "✗", printable(c.name), printable(c.detail)), "" if c.ok else "bad") for c in checks
    )
    return TableData((Column("", False), Column(what, False), Column("result", False)), tuple(lines))


def _gate(report: Report) -> Section | None:
    if report.gate is None or not report.gate.rules:
        return None
    summary = "A candidate is promoted only if every rule holds."
    return Section("gate", "The gate", summary, (_checks(report.gate.rules, "rule"),))


def _rows(estimates: Sequence[PolicyEstimate], numbers: NumberFormat, *, sliced: bool = False) -> TableData:
    """Estimates grouped by policy; biased ones are marked."""
    one, usual = level(e.alpha for e in estimates), usual_interval(estimates)
    order = policies(e.policy for e in estimates)
    lines: list[TableRow] = []
    for slice_, policy in ((name, policy) for name in dict.fromkeys(e.slice for e in estimates) for policy in order):
        group = [e for e in estimates if (e.slice, e.policy) == (slice_, policy)]
        if group:
            lines.append(
                TableRow((f"{printable(slice_)}, {printable(policy)}" if sliced else printable(policy),), "head")
            )
        for e in group:
            signed = policy == "difference"
            name = printable(e.estimator) + ("" if e.interval == usual else f", {printable(e.interval)}")
            limits = numbers.interval(e.low, e.high, signed=signed) + ("" if one else f" ({level([e.alpha]).strip()})")
            cells = (numbers.value(e.value, signed=signed), numbers.value(e.se), limits, count(e.n))
            lines.append(
                TableRow(
                    (f"{name} ⚠" if e.biased else name, printable(e.labels), *cells), "warning" if e.biased else ""
                )
            )
    kind = f"{one}interval ({printable(usual)})"
    names = (Column("estimator", False), Column("labels", False), *map(Column, ("value", "± se", kind, "units")))
    return TableData(names, tuple(lines))


def _biases(estimates: Iterable[PolicyEstimate]) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for e in estimates:
        if e.biased:
            reasons.setdefault(e.biased, []).append(f"{printable(e.estimator)}, {printable(e.labels)}")
    return tuple(f"⚠ {'; '.join(dict.fromkeys(who))}: biased: {printable(why)}" for why, who in reasons.items())


def _estimates(report: Report, numbers: NumberFormat) -> Section:
    everybody = [e for e in report.estimates if not e.slice]
    summary = (
        "Estimated value of each policy over the window, and their difference. These intervals are valid for a single "
        "look at a time chosen in advance."
    )
    if not everybody:
        return Section("estimates", "Estimates", summary, notes=("no estimate is available",))
    notes = [*_biases(everybody), *([printable(report.sensitivity)] if report.sensitivity else [])]
    return Section("estimates", "Estimates", summary, (_rows(everybody, numbers),), tuple(notes))


def _band_rows(bands: Sequence[Band], numbers: NumberFormat, of: str) -> TableData:
    one, which = level(b.alpha for b in bands), {b.policy for b in bands}
    lines = []
    for b in bands:
        signed = b.policy == "difference" or of == "group"
        limits = numbers.interval(b.low, b.high, signed=signed) + ("" if one else f" ({level([b.alpha]).strip()})")
        name = printable(b.policy) if of == "policy" else printable(b.slice) or "all users"
        if of == "group" and len(which) > 1:
            name = f"{name}, {printable(b.policy)}"
        lines.append(TableRow((name, printable(b.kind), numbers.value(b.value, signed=signed), limits, count(b.n))))
    first = printable(which.pop()) if of == "group" and len(which) == 1 else of
    names = (Column(first, False), Column("sequence", False), *map(Column, ("value", f"{one}limits", "units")))
    return TableData(names, tuple(lines))


def _any_time(report: Report, numbers: NumberFormat) -> Section | None:
    order = policies(b.policy for b in report.bands)
    bands = sorted((b for b in report.bands if not b.slice), key=lambda b: order.index(b.policy))
    if not bands:
        return None
    summary = (
        "Confidence sequences of the running mean are valid at every look, whenever you stop. The exact one is "
        "valid at "
        "any sample size, the asymptotic one at large sample sizes."
    )
    return Section("any-time", "At any time", summary, (_band_rows(bands, numbers, "policy"),))


def _ess(d: Diagnostics) -> str:
    return f"{number(d.ess)} ({percent(d.ess / d.n)})" if d.n and math.isfinite(d.ess) else number(d.ess)


def _mean_weight(d: Diagnostics) -> str:
    return f"{number(d.mean_weight)} ± {number(d.mean_weight_se)}"


def _diagnostics(report: Report, numbers: NumberFormat) -> Section:
    order = policies(d.policy for d in report.diagnostics)
    everybody = sorted((d for d in report.diagnostics if not d.slice), key=lambda d: order.index(d.policy))
    summary = (
        "Overlap of each policy with the log: large weights on few units, or unsupported mass, make "
        "estimates imprecise."
    )
    rows = (
        ("units", [count(d.n) for d in everybody]),
        ("effective sample size", [_ess(d) for d in everybody]),
        ("largest weight", [number(d.max_weight) for d in everybody]),
        ("mean weight (expected: 1)", [_mean_weight(d) for d in everybody]),
        ("unsupported probability mass", [percent(d.unsupported) for d in everybody]),
        (
            "value if that mass had the worst … best outcome",
            [numbers.interval(d.manski_low, d.manski_high) for d in everybody],
        ),
        ("direct method − doubly robust", [numbers.value(d.dm_dr_gap, signed=True) for d in everybody]),
    )
    grids = []
    if everybody:
        names = (Column("", False), *(Column(printable(d.policy)) for d in everybody))
        grids.append(TableData(names, tuple(TableRow((name, *cells)) for name, cells in rows)))
    return Section("diagnostics", "Overlap diagnostics", summary, tuple(grids))


def _audit(report: Report) -> Section | None:
    if not report.checks:
        return None
    summary = (
        "Replay is valid only if the logged probabilities are those the models were drawn with. These checks test it."
    )
    return Section("audit", "Audit of the log", summary, (_checks(report.checks, "check"),))


def _overlap(report: Report) -> Section | None:
    if not (report.arms or report.histograms):
        return None
    summary = (
        "Share of draws of each model in the log and under each policy. Large differences make estimates imprecise."
    )
    names = (Column("model", False), *map(Column, ("logged", "against", "candidate", "draws")))
    lines = (
        TableRow((printable(a.arm), percent(a.logged), percent(a.against), percent(a.candidate), count(a.draws)))
        for a in report.arms
    )
    return Section(
        "overlap", "Model shares and weights", summary, (TableData(names, tuple(lines)),) if report.arms else ()
    )


def _slices(report: Report, numbers: NumberFormat) -> Section | None:
    names = slices(report)
    if not names:
        return None
    summary = "Difference by subgroup. Intervals are wider because they are corrected for the number of slices."
    shown = {slice_: best_estimate(report, slice_) for slice_ in names}
    bands = {(b.slice, b.kind): b for b in report.bands if b.slice and b.policy == "difference"}
    grids = [_overview(names, shown, bands, numbers)]
    rest = [e for e in report.estimates if e.slice and e is not shown[e.slice]]
    if rest:
        grids.append(_rows(rest, numbers, sliced=True)._replace(caption="Other estimates by slice", more=True))
    others = [b for b in report.bands if b.slice and b is not bands.get((b.slice, b.kind))]
    others = [*others, *(b for b in bands.values() if b.kind not in _KINDS)]
    if others:
        named = _band_rows(others, numbers, "slice")
        lines = tuple(
            line._replace(cells=(f"{line.cells[0]}, {printable(b.policy)}", *line.cells[1:]))
            for line, b in zip(named.lines, others, strict=True)
        )
        grids.append(named._replace(lines=lines, caption="Other sequences by slice", more=True))
    diagnosed = [d for d in report.diagnostics if d.slice]
    if diagnosed:
        grids.append(_known(diagnosed, numbers))
    notes = (*_biases(rest), *([printable(report.correction)] if report.correction else []))
    return Section("slices", "Slices", summary, tuple(grids), notes)


def _how(e: PolicyEstimate) -> str:
    return ", ".join(printable(each) for each in (e.estimator, e.labels, e.interval))


def _overview(
    names: Sequence[str],
    shown: dict[str, PolicyEstimate | None],
    bands: dict[tuple[str, str], Band],
    numbers: NumberFormat,
) -> TableData:
    """One row per slice: the preferred estimate, and the sequences."""
    kinds = [kind for kind in _KINDS if any(key[1] == kind for key in bands)]
    everything = [e for e in shown.values() if e is not None] + [b for key, b in bands.items() if key[1] in kinds]
    one = level(x.alpha for x in everything)
    ways = {_how(e) for e in shown.values() if e is not None}

    def cell(x: PolicyEstimate | Band | None) -> str:
        if x is None:
            return NOTHING
        se = f" ± {numbers.value(x.se)}" if isinstance(x, PolicyEstimate) else ""
        how = f"\n{_how(x)}" if isinstance(x, PolicyEstimate) and len(ways) > 1 else ""
        at = "" if one else f" ({level([x.alpha]).strip()})"
        return f"{numbers.value(x.value, signed=True)}{se}\n{numbers.interval(x.low, x.high, signed=True)}{at}{how}"

    lines = []
    for slice_ in names:
        found = [shown[slice_], *(bands.get((slice_, kind)) for kind in kinds)]
        units = dict.fromkeys(count(x.n) for x in found if x is not None)
        lines.append(TableRow((printable(slice_), "\n".join(units) or NOTHING, *map(cell, found))))
    columns = (
        f"{one}at one look{f' ({ways.pop()})' if len(ways) == 1 else ''}",
        *(f"{one}at any time ({kind})" for kind in kinds),
    )
    return TableData((Column("slice", False), Column("units"), *map(Column, columns)), tuple(lines))


def _known(diagnosed: Sequence[Diagnostics], numbers: NumberFormat) -> TableData:
    names = ("effective sample size", "weight: mean, largest", "unsupported mass, bounds", "DM − DR")
    lines = (
        TableRow(
            (
                f"{printable(d.slice)}\n{printable(d.policy)}",
                f"{_ess(d)}\nof {count(d.n)}",
                f"{_mean_weight(d)}\n{number(d.max_weight)}",
                f"{percent(d.unsupported)}\n{numbers.interval(d.manski_low, d.manski_high)}",
                numbers.value(d.dm_dr_gap, signed=True),
            )
        )
        for d in diagnosed
    )
    return TableData((Column("slice", False), *map(Column, names)), tuple(lines), "Overlap diagnostics, by slice", True)


def _satisfaction(report: Report, numbers: NumberFormat) -> Section | None:
    if not report.satisfaction:
        return None
    summary = (
        "Distribution of users' mean outcomes with sampling noise removed; in brackets, under the other "
        "policy. A better "
        "average can hide users who are worse off."
    )
    names = ("users", "mean", "sd", "worst tenth", "worse off")
    lines = (
        TableRow(
            (
                printable(s.role) or "all users",
                count(s.users),
                numbers.value(s.mean),
                f"{numbers.value(s.sd)}\n({numbers.value(s.sd_against)})",
                f"{numbers.value(s.worst_decile)} ({numbers.value(s.worst_decile_against)})\n"
                f"{numbers.interval(s.worst_decile_low, s.worst_decile_high)}",
                f"{percent(s.worse_off)}\n{percent(s.worse_off_low)} … {percent(s.worse_off_high)}",
            )
        )
        for s in report.satisfaction
    )
    grid = TableData((Column("role", False), *map(Column, names)), tuple(lines))
    return Section("satisfaction", "Satisfaction across users", summary, (grid,))


def _personal(report: Report, numbers: NumberFormat) -> Section | None:
    if not report.personal:
        return None
    summary = "Gain from the user and role terms: the logged policy minus the user-blind policy, valid at every look."
    return Section("personal", "Value of personalisation", summary, (_band_rows(report.personal, numbers, "group"),))


def _warnings(report: Report) -> Section | None:
    if not report.warnings:
        return None
    summary = "Limitations of the numbers above."
    return Section("warnings", "Warnings", summary, notes=tuple(printable(each) for each in report.warnings))

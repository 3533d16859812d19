"""Sections of a report as sentences and tables, shared by the text and HTML renderers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from fitrouter_evaluators.replay.render import _formatting as fmt
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


def table(
    left: Sequence[str],
    right: Sequence[str],
    lines: Iterable[TableRow | tuple[str, ...]],
    caption: str = "",
    *,
    more: bool = False,
) -> TableData:
    """A table of left-aligned and then right-aligned columns."""
    rows = tuple(line if isinstance(line, TableRow) else TableRow(line) for line in lines)
    return TableData((*(Column(name, False) for name in left), *map(Column, right)), rows, caption, more)


class Section(NamedTuple):
    id: str
    title: str
    summary: str
    grids: tuple[TableData, ...] = ()
    notes: tuple[str, ...] = ()


def header(report: Report) -> list[tuple[str, str]]:
    """Rows that describe the compared policies and the population, as (name, text)."""
    window, metric = report.window, fmt.metric_of(report.metric)
    horizon = (
        f"decisions younger than {fmt.duration(window.horizon_s)} are excluded" if window.horizon_s else "no horizon"
    )
    labelled = f"; {fmt.count(window.labelled)} with a requested label"
    if window.complete or report.metric in {"cost", "latency"}:
        labelled = "; all with their outcome"
    if window.left_out:
        labelled += f"; {fmt.count(window.left_out)} ratings of untrusted keys left out"
    idle = f", closed after {fmt.duration(window.idle_s)} of silence" if window.idle_s else ""
    out = [f"{fmt.printable(reason)}: {fmt.count(n)}" for reason, n in window.excluded.items()]
    return [
        ("candidate", fmt.printable(report.candidate)),
        ("against", fmt.printable(report.against)),
        ("metric", f"{metric.name}: {metric.what}"),
        ("log", fmt.printable(window.source)),
        ("window", f"{fmt.utc_time(window.since)} to {fmt.utc_time(window.until)} UTC; {horizon}"),
        ("population", f"{fmt.count(window.units)} units of {fmt.count(window.users)} users{labelled}"),
        ("unit", f"{fmt.printable(window.unit)}{idle}; scored by its mean outcome"),
        ("size", f"{fmt.count(window.decisions)} decisions, {fmt.count(window.draws)} draws"),
        ("cluster", f"{fmt.printable(window.cluster)} (assumed independent)"),
        ("level", f"{fmt.level([report.alpha])}for overall results"),
        ("excluded", f"decisions: {'; '.join(out)}" if out else "nothing"),
    ]


def brief(report: Report) -> list[tuple[str, str]]:
    """Rows of the short summary: the comparison, its values, and the support of the log."""
    numbers, facts = fmt.NumberFormat.of(report), dict(header(report))
    found = [(name, facts[name]) for name in ("candidate", "against", "metric", "log", "population")]
    for policy in ("candidate", "against"):
        rows = [
            e for e in report.estimates if (e.policy, e.slice, e.interval) == (policy, "", "delta") and not e.biased
        ]
        if best := next((e for e in rows if e.estimator in {"dr", "rejection"}), None):
            found.append((f"value, {policy}", f"{numbers.value(best.value)} ({numbers.interval(best.low, best.high)})"))
    for d in report.diagnostics:
        if d.policy == "candidate" and not d.slice:
            lost = f"; {fmt.percent(d.unsupported)} of it is outside of the log" if d.unsupported else ""
            found.append(("overlap", f"effective sample {_ess(d)}, largest weight {fmt.number(d.max_weight)}{lost}"))
    marks = [mark_of(check) for check in report.checks]
    if marks:
        found.append(
            ("audit", f"{marks.count('✓')} passed, {marks.count('✗')} failed, {marks.count('–')} not possible")
        )
    return found


def sections(report: Report) -> list[Section]:
    """The sections below the verdict, in order; empty ones are left out."""
    return list(_sections(report, fmt.NumberFormat.of(report)))


def _sections(report: Report, numbers: fmt.NumberFormat) -> Iterator[Section]:
    if report.gate is not None and report.gate.rules:
        summary = "A candidate is promoted only if every rule holds."
        yield Section("gate", "The gate", summary, (_checks(report.gate.rules, "rule"),))
    yield _estimates(report, numbers)
    order = policies(b.policy for b in report.bands)
    bands = sorted((b for b in report.bands if not b.slice), key=lambda b: order.index(b.policy))
    if bands:
        summary = (
            "Confidence sequences of the running mean are valid at every look, whenever you stop. The exact one is "
            "valid at any sample size, the asymptotic one at large sample sizes."
        )
        yield Section("any-time", "At any time", summary, (_band_rows(bands, numbers, "policy"),))
    yield _diagnostics(report, numbers)
    if report.checks:
        summary = (
            "Replay is valid only if the logged probabilities are those the models were drawn with. These checks test "
            "it."
        )
        yield Section("audit", "Audit of the log", summary, (_checks(report.checks, "check"),))
    if report.arms or report.histograms:
        summary = (
            "Share of draws of each model in the log and under each policy. Large differences make estimates imprecise."
        )
        shares = (
            (fmt.printable(a.arm), *map(fmt.percent, (a.logged, a.against, a.candidate)), fmt.count(a.draws))
            for a in report.arms
        )
        grids = (table(("model",), ("logged", "against", "candidate", "draws"), shares),) if report.arms else ()
        yield Section("overlap", "Model shares and weights", summary, grids)
    if fmt.slices(report):
        yield _slices(report, numbers)
    if report.satisfaction:
        yield _satisfaction(report, numbers)
    if report.personal:
        summary = (
            "Gain from the user and role terms: the logged policy minus the user-blind policy, valid at every look."
        )
        grids = (_band_rows(report.personal, numbers, "group"),)
        yield Section("personal", "Value of personalisation", summary, grids)
    if report.warnings:
        notes = tuple(map(fmt.printable, report.warnings))
        yield Section("warnings", "Warnings", "Limitations of the numbers above.", notes=notes)


def policies(names: Iterable[str]) -> list[str]:
    """Policies in display order: the difference first."""
    known = {name: i for i, name in enumerate(_ORDER)}
    return sorted(dict.fromkeys(names), key=lambda name: known.get(name, len(_ORDER)))


def mark_of(check: Check) -> str:
    """Mark of a check: ✓ passed, ✗ failed, – not possible on this log."""
    return ("✓" if check.ok else "✗") if check.checked else "–"


def _checks(checks: Sequence[Check], what: str) -> TableData:
    lines = (
        TableRow((mark_of(c), fmt.printable(c.name), fmt.printable(c.detail)), "" if c.ok else "bad") for c in checks
    )
    return table(("", what, "result"), (), lines)


def _rows(estimates: Sequence[PolicyEstimate], numbers: fmt.NumberFormat, *, sliced: bool = False) -> TableData:
    """Estimates grouped by policy; biased ones are marked."""
    one, usual = fmt.level(e.alpha for e in estimates), fmt.usual_interval(estimates)
    order = policies(e.policy for e in estimates)
    lines: list[TableRow] = []
    for slice_, policy in ((name, policy) for name in dict.fromkeys(e.slice for e in estimates) for policy in order):
        group = [e for e in estimates if (e.slice, e.policy) == (slice_, policy)]
        if group:
            head = f"{fmt.printable(slice_)}, {fmt.printable(policy)}" if sliced else fmt.printable(policy)
            lines.append(TableRow((head,), "head"))
        for e in group:
            signed = policy == "difference"
            name = fmt.printable(e.estimator) + ("" if e.interval == usual else f", {fmt.printable(e.interval)}")
            limits = numbers.interval(e.low, e.high, signed=signed) + _at_level(one, e)
            cells = (numbers.value(e.value, signed=signed), numbers.value(e.se), limits, fmt.count(e.n))
            kind = "warning" if e.biased else ""
            lines.append(TableRow((f"{name} ⚠" if e.biased else name, fmt.printable(e.labels), *cells), kind))
    interval = f"{one}interval ({fmt.printable(usual)})"
    return table(("estimator", "labels"), ("value", "± se", interval, "units"), lines)


def _at_level(common: str, x: PolicyEstimate | Band) -> str:
    """The level of an interval in brackets, unless a column's head names a common one."""
    return "" if common else f" ({fmt.level([x.alpha]).strip()})"


def _biases(estimates: Iterable[PolicyEstimate]) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for e in estimates:
        if e.biased:
            reasons.setdefault(e.biased, []).append(f"{fmt.printable(e.estimator)}, {fmt.printable(e.labels)}")
    return tuple(f"⚠ {'; '.join(dict.fromkeys(who))}: biased: {fmt.printable(why)}" for why, who in reasons.items())


def _estimates(report: Report, numbers: fmt.NumberFormat) -> Section:
    everybody = [e for e in report.estimates if not e.slice]
    summary = (
        "Estimated value of each policy over the window, and their difference. These intervals are valid for a single "
        "look at a time chosen in advance."
    )
    if not everybody:
        return Section("estimates", "Estimates", summary, notes=("no estimate is available",))
    notes = [*_biases(everybody), *([fmt.printable(report.sensitivity)] if report.sensitivity else [])]
    return Section("estimates", "Estimates", summary, (_rows(everybody, numbers),), tuple(notes))


def _band_rows(bands: Sequence[Band], numbers: fmt.NumberFormat, of: str) -> TableData:
    one, which = fmt.level(b.alpha for b in bands), {b.policy for b in bands}
    lines = []
    for b in bands:
        signed = b.policy == "difference" or of == "group"
        limits = numbers.interval(b.low, b.high, signed=signed) + _at_level(one, b)
        name = fmt.printable(b.policy) if of == "policy" else fmt.printable(b.slice) or "all users"
        if of == "slice" or (of == "group" and len(which) > 1):
            name = f"{name}, {fmt.printable(b.policy)}"
        lines.append((name, fmt.printable(b.kind), numbers.value(b.value, signed=signed), limits, fmt.count(b.n)))
    first = fmt.printable(which.pop()) if of == "group" and len(which) == 1 else of
    return table((first, "sequence"), ("value", f"{one}limits", "units"), lines)


def _ess(d: Diagnostics) -> str:
    return f"{fmt.number(d.ess)} ({fmt.percent(d.ess / d.n)})" if d.n and math.isfinite(d.ess) else fmt.number(d.ess)


def _mean_weight(d: Diagnostics) -> str:
    return f"{fmt.number(d.mean_weight)} ± {fmt.number(d.mean_weight_se)}"


def _diagnostics(report: Report, numbers: fmt.NumberFormat) -> Section:
    order = policies(d.policy for d in report.diagnostics)
    everybody = sorted((d for d in report.diagnostics if not d.slice), key=lambda d: order.index(d.policy))
    summary = (
        "Overlap of each policy with the log: large weights on few units, or unsupported mass, make estimates "
        "imprecise."
    )
    rows: tuple[tuple[str, Callable[[Diagnostics], str]], ...] = (
        ("units", lambda d: fmt.count(d.n)),
        ("effective sample size", _ess),
        ("largest weight", lambda d: fmt.number(d.max_weight)),
        ("mean weight (expected: 1)", _mean_weight),
        ("unsupported probability mass", lambda d: fmt.percent(d.unsupported)),
        ("value if that mass had the worst … best outcome", lambda d: numbers.interval(d.manski_low, d.manski_high)),
        ("direct method − doubly robust", lambda d: numbers.value(d.dm_dr_gap, signed=True)),
    )
    names = [fmt.printable(d.policy) for d in everybody]
    grids = (table(("",), names, ((name, *map(shown, everybody)) for name, shown in rows)),) if everybody else ()
    return Section("diagnostics", "Overlap diagnostics", summary, grids)


def _slices(report: Report, numbers: fmt.NumberFormat) -> Section:
    names = fmt.slices(report)
    summary = "Difference by subgroup. Intervals are wider because they are corrected for the number of slices."
    shown = {slice_: fmt.best_estimate(report, slice_) for slice_ in names}
    bands = {(b.slice, b.kind): b for b in report.bands if b.slice and b.policy == "difference"}
    grids = [_overview(names, shown, bands, numbers)]
    rest = [e for e in report.estimates if e.slice and e is not shown[e.slice]]
    if rest:
        grids.append(_rows(rest, numbers, sliced=True)._replace(caption="Other estimates by slice", more=True))
    others = [b for b in report.bands if b.slice and b is not bands.get((b.slice, b.kind))]
    others = [*others, *(b for b in bands.values() if b.kind not in _KINDS)]
    if others:
        grids.append(_band_rows(others, numbers, "slice")._replace(caption="Other sequences by slice", more=True))
    diagnosed = [d for d in report.diagnostics if d.slice]
    if diagnosed:
        grids.append(_diagnostics_table(diagnosed, numbers))
    notes = (*_biases(rest), *([fmt.printable(report.correction)] if report.correction else []))
    return Section("slices", "Slices", summary, tuple(grids), notes)


def _how(e: PolicyEstimate) -> str:
    return ", ".join(fmt.printable(each) for each in (e.estimator, e.labels, e.interval))


def _overview(
    names: Sequence[str],
    shown: dict[str, PolicyEstimate | None],
    bands: dict[tuple[str, str], Band],
    numbers: fmt.NumberFormat,
) -> TableData:
    """One row per slice: the preferred estimate, and the sequences."""
    kinds = [kind for kind in _KINDS if any(key[1] == kind for key in bands)]
    everything = [e for e in shown.values() if e is not None] + [b for key, b in bands.items() if key[1] in kinds]
    one = fmt.level(x.alpha for x in everything)
    ways = {_how(e) for e in shown.values() if e is not None}

    def cell(x: PolicyEstimate | Band | None) -> str:
        if x is None:
            return fmt.NOTHING
        se = f" ± {numbers.value(x.se)}" if isinstance(x, PolicyEstimate) else ""
        how = f"\n{_how(x)}" if isinstance(x, PolicyEstimate) and len(ways) > 1 else ""
        limits = numbers.interval(x.low, x.high, signed=True) + _at_level(one, x)
        return f"{numbers.value(x.value, signed=True)}{se}\n{limits}{how}"

    lines = []
    for slice_ in names:
        found = [shown[slice_], *(bands.get((slice_, kind)) for kind in kinds)]
        units = dict.fromkeys(fmt.count(x.n) for x in found if x is not None)
        lines.append((fmt.printable(slice_), "\n".join(units) or fmt.NOTHING, *map(cell, found)))
    once = f"{one}at one look{f' ({ways.pop()})' if len(ways) == 1 else ''}"
    return table(("slice",), ("units", once, *(f"{one}at any time ({kind})" for kind in kinds)), lines)


def _diagnostics_table(diagnosed: Sequence[Diagnostics], numbers: fmt.NumberFormat) -> TableData:
    names = ("effective sample size", "weight: mean, largest", "unsupported mass, bounds", "DM − DR")
    lines = (
        (
            f"{fmt.printable(d.slice)}\n{fmt.printable(d.policy)}",
            f"{_ess(d)}\nof {fmt.count(d.n)}",
            f"{_mean_weight(d)}\n{fmt.number(d.max_weight)}",
            f"{fmt.percent(d.unsupported)}\n{numbers.interval(d.manski_low, d.manski_high)}",
            numbers.value(d.dm_dr_gap, signed=True),
        )
        for d in diagnosed
    )
    return table(("slice",), names, lines, "Overlap diagnostics, by slice", more=True)


def _satisfaction(report: Report, numbers: fmt.NumberFormat) -> Section:
    summary = (
        "Distribution of users' mean outcomes with sampling noise removed; in brackets, under the other policy. A "
        "better average can hide users who are worse off."
    )
    lines = (
        (
            fmt.printable(s.role) or "all users",
            fmt.count(s.users),
            numbers.value(s.mean),
            f"{numbers.value(s.sd)} ({numbers.value(s.sd_against)})\n{numbers.interval(s.sd_low, s.sd_high)}",
            f"{numbers.value(s.worst_decile)} ({numbers.value(s.worst_decile_against)})\n"
            f"{numbers.interval(s.worst_decile_low, s.worst_decile_high)}",
            f"{fmt.percent(s.worse_off)}\n{fmt.percent(s.worse_off_low)} … {fmt.percent(s.worse_off_high)}",
        )
        for s in report.satisfaction
    )
    grid = table(("role",), ("users", "mean", "sd", "worst tenth", "worse off"), lines)
    return Section("satisfaction", "Satisfaction across users", summary, (grid,))

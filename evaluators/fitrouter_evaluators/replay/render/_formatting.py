"""Formatting of numbers, times and names in reports, and the verdict sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from fitrouter_evaluators.replay.report import Band, PolicyEstimate, Report

NOTHING = "–"
"""Shown for a missing number."""
_MOST, _LARGE = 9, 1e6
"""Maximum decimals, and the size from which numbers are shown in scientific notation."""
_TRUST = ("powered", "asked", "observed", "naive")
_PERIODS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


class Metric(NamedTuple):
    name: str
    what: str
    unit: str = ""
    """Of its axis."""
    more_is_better: bool = True

    @property
    def axis(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


_METRICS = {
    "fit": Metric("fit", "human ratings of the answers, from 0 (worst) to 1 (best)", "0 to 1"),
    "cost": Metric("cost", "USD per decision", "USD per decision", False),
    "latency": Metric("latency", "seconds per decision", "seconds per decision", False),
    "utility": Metric("utility", "fit minus weighted cost and latency, in units of fit", "units of fit"),
    "outcome": Metric("outcome", "outcomes of runs of agents, from 0 (worst) to 1 (best)", "0 to 1"),
    "score": Metric("score", "reward-model scores of the answers, for inspection only"),
}


def metric_of(name: str) -> Metric:
    """Description of a metric; for an unknown one, its name."""
    return _METRICS.get(name) or Metric(printable(name), "more is better")


class NumberFormat(NamedTuple):
    """Decimals of a report's outcomes, set by their standard errors."""

    digits: int

    @classmethod
    def of(cls, report: Report) -> NumberFormat:
        """Choose decimals that show two digits of the difference's standard error, at least three on a 0 to 1 scale."""
        once = best_estimate(report)
        errors = [once.se] if once is not None else [(b.high - b.low) / 4 for b in report.bands]
        errors = [each for each in errors if math.isfinite(each) and each > 0]
        least = 0 if report.metric in {"cost", "latency"} else 3
        return cls(min(_MOST, max(least, 1 + math.ceil(-math.log10(min(errors, default=1e-3))))))

    def value(self, x: float, *, signed: bool = False) -> str:
        """Format an outcome; a difference is signed."""
        if not math.isfinite(x):
            return NOTHING
        form = f",.{self.digits}f" if abs(x) < _LARGE else ".3g"
        return format(x, f"+{form}" if signed else form).replace("-", "−")

    def interval(self, low: float, high: float, *, signed: bool = False) -> str:
        return f"{self.value(low, signed=signed)} … {self.value(high, signed=signed)}"


def number(x: float) -> str:
    """Format a number without a unit, to three significant digits or more."""
    if not math.isfinite(x):
        return NOTHING
    size = abs(x)
    if x == round(x) and size < 1e15:
        return f"{x:,.0f}".replace("-", "−")
    if size < 0.01 or size >= 1e15:
        return f"{x:.3g}".replace("-", "−")
    digits = 0 if size >= 100 else 2 if size >= 10 else 4
    return f"{x:,.{digits}f}".replace("-", "−")


def weight(log10: float) -> str:
    """Format an importance weight, from its logarithm to base 10."""
    return number(10.0**log10) if -300 < log10 < 300 else NOTHING


def count(n: int) -> str:
    return f"{n:,}"


def percent(share: float) -> str:
    """Format a share of 1 as a percentage."""
    if not math.isfinite(share):
        return NOTHING
    if 0 < share < 5e-5:
        return "<0.01%"
    return f"{100 * share:.{2 if share < 0.01 else 1}f}%".replace("-", "−") if share else "0%"


def level(alphas: Iterable[float]) -> str:
    """The confidence level, such as `95% `, if all intervals share it; else empty."""
    levels = {100.0 * (1.0 - alpha) for alpha in alphas}
    return f"{levels.pop():.4g}% " if len(levels) == 1 else ""


def duration(seconds: float) -> str:
    """Format seconds in the largest unit that fits: `7 d`, `1.5 h`."""
    if not math.isfinite(seconds):
        return NOTHING
    size, unit = next(((s, u) for s, u in _PERIODS if abs(seconds) >= s), _PERIODS[-1])
    return f"{seconds / size:.4g} {unit}"


def utc_time(ts: float) -> str:
    """Format seconds since the epoch as date and time in UTC; 0 is missing."""
    if not ts:
        return NOTHING
    try:
        return f"{datetime.fromtimestamp(ts, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return NOTHING


def printable(text: str) -> str:
    """Remove control characters and bidirectional marks from a name, which a terminal or browser would act on."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text)


def headline_interval(report: Report, slice_: str = "") -> Band | PolicyEstimate | None:
    """The interval behind the verdict: of the exact sequence, else the asymptotic one, else an estimate."""
    bands = [
        b for b in report.bands if b.policy == "difference" and b.slice == slice_ and math.isfinite(b.low + b.high)
    ]
    if bands:
        return min(bands, key=lambda band: band.kind != "exact")
    return best_estimate(report, slice_)


def slices(report: Report) -> list[str]:
    """Names of all slices in the report, in order."""
    named = [*(e.slice for e in report.estimates), *(b.slice for b in report.bands)]
    return [slice_ for slice_ in dict.fromkeys([*named, *(d.slice for d in report.diagnostics)]) if slice_]


def best_estimate(report: Report, slice_: str = "") -> PolicyEstimate | None:
    """The preferred estimate of the difference: unbiased, and prediction-powered if possible."""
    found = [e for e in report.estimates if e.policy == "difference" and e.slice == slice_ and not e.biased]
    known = {name: i for i, name in enumerate(_TRUST)}
    return min(found, key=lambda each: known.get(each.labels, len(_TRUST)), default=None)


def usual_interval(estimates: Sequence[PolicyEstimate]) -> str:
    """The most frequent interval method, which tables need not repeat."""
    kinds = [e.interval for e in estimates]
    return max(dict.fromkeys(kinds), key=kinds.count, default="")


def finding(report: Report) -> str:
    """Half a sentence that says how the candidate compares: at any time if there is a sequence, and at one look."""
    top, metric, numbers = headline_interval(report), metric_of(report.metric), NumberFormat.of(report)
    if top is None or not math.isfinite(top.low + top.high):
        return f"the difference in {metric.name} could not be estimated"
    found = []
    if isinstance(top, Band):
        limits = numbers.interval(top.low, top.high, signed=True)
        found.append(f"{limits} at any time ({printable(top.kind)} {level([top.alpha])}sequence)")
    once = best_estimate(report)
    if once is not None and math.isfinite(once.value):
        limits = (
            "" if found else f" ({level([once.alpha])}interval {numbers.interval(once.low, once.high, signed=True)})"
        )
        found.append(f"{numbers.value(once.value, signed=True)} ± {numbers.value(once.se)} at one look{limits}")
    amount = ", ".join(found)
    if top.low <= 0 <= top.high:
        return f"the policies do not differ significantly in {metric.name}: {amount}"
    way, good = ("higher", metric.more_is_better) if top.low > 0 else ("lower", not metric.more_is_better)
    return f"{metric.name} is {way} under the candidate, which is {'better' if good else 'worse'}: {amount}"


def verdict(report: Report) -> str:
    """The first sentence of a report."""
    if report.refused and report.gate is None:
        return f"No verdict: {printable(report.refused)}."
    found = "no verdict" if report.refused else finding(report)
    if report.gate is None:
        return f"No gate: {found}."
    word = printable(report.gate.verdict)
    return f"{word[:1].upper()}{word[1:]}: {found}."

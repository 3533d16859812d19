"""Reports to render: one as a replay of four weeks would make it, an empty one, and one whose names are hostile."""

from __future__ import annotations

import math
from functools import cache

import msgspec
import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.replay.report import (
    ArmShare,
    Band,
    Check,
    Diagnostics,
    GateDecision,
    PolicyEstimate,
    Report,
    UserSatisfaction,
    WeightHistogram,
    Window,
)

__all__ = ["HOSTILE", "brief", "empty", "hostile", "realistic"]

HOSTILE = (
    '<script>alert("x")</script>',
    "\"><img src=x onerror='alert(1)'>",
    "{{ 7 * 7 }}{% raw %}",
    "[bold red]nurse[/bold red]",
    "\x1b[31mred\x1b[0m\x07\r\nnext",
    "\u202egnp.exe",
    "]]>&amp;</svg></style>",
)
_NAN = math.nan
_ROLES = ("nurse", "developer", "teacher", "legal counsel")
_TASKS = ("coding", "summarising", "translation")


def _path(mean: float, spread: float, n: int, seed: int, **of: str) -> Band:
    """A sequence as one would come out: a running mean that settles, and limits that close in on it."""
    at = np.unique(np.geomspace(60, n, 60).astype(np.int64))
    noise = np.random.default_rng(seed).standard_normal(n) * spread
    means: Floats = mean + np.cumsum(noise)[at - 1] / at
    slack = 2.0 if of["kind"] == "exact" else 1.5
    half: Floats = slack * spread * np.sqrt(2 * np.log(np.log(2 * at) / 0.05) / at) + (
        0.6 * 30 / at if slack > 1.5 else 0
    )
    return Band(
        **of,  # type: ignore[arg-type]
        value=float(means[-1]),
        low=float(means[-1] - half[-1]),
        high=float(means[-1] + half[-1]),
        n=n,
        at=[int(each) for each in at],
        means=[float(each) for each in means],
        lows=[float(each) for each in np.maximum.accumulate(means - half)],
        highs=[float(each) for each in np.minimum.accumulate(means + half)],
    )


def _estimate(value: float, se: float, **of: object) -> PolicyEstimate:
    half = 1.959964 * se
    return PolicyEstimate(**{"value": value, "se": se, "low": value - half, "high": value + half, "n": 18342, **of})  # type: ignore[arg-type]


def _estimates() -> list[PolicyEstimate]:
    eager = "volunteers answer more often when they are angry"
    found = [
        _estimate(0.03121, 0.00632, policy="difference", estimator="dr", labels="powered"),
        _estimate(0.03307, 0.01188, policy="difference", estimator="dr", labels="asked"),
        _estimate(0.05912, 0.00571, policy="difference", estimator="dr", labels="naive", biased=eager),
        _estimate(0.02978, 0.01409, policy="difference", estimator="snips", labels="asked"),
        _estimate(0.02466, 0.02153, policy="difference", estimator="ips", labels="asked"),
    ]
    for policy, value in (("candidate", 0.71439), ("against", 0.68318)):
        found += [
            _estimate(value, 0.00481, policy=policy, estimator="dr", labels="powered"),
            _estimate(value + 0.0021, 0.00914, policy=policy, estimator="dr", labels="asked", interval="bootstrap"),
            _estimate(value - 0.1234, 0.00433, policy=policy, estimator="dr", labels="naive", biased=eager),
            _estimate(value + 0.0043, 0.01037, policy=policy, estimator="snips", labels="asked"),
            _estimate(value - 0.0077, 0.01791, policy=policy, estimator="ips", labels="asked"),
            _estimate(
                value - 0.0134, 0.00246, policy=policy, estimator="dm", labels="asked", biased="the model's word"
            ),
        ]
    for i, name in enumerate(_slices()):
        value, se, n = 0.031 + 0.02 * math.sin(2.1 * i), 0.011 + 0.0017 * i, 6411 - 731 * i
        found.append(
            PolicyEstimate(
                policy="difference",
                estimator="dr",
                labels="powered",
                slice=name,
                value=value,
                se=se,
                low=value - 2.69 * se,
                high=value + 2.69 * se,
                n=n,
                alpha=0.05 / 7,
            )
        )
    return found


def _slices() -> list[str]:
    return [f"role={role}" for role in _ROLES] + [f"task={task}" for task in _TASKS]


def _bands() -> list[Band]:
    found = [
        _path(0.0321, 0.33, 18342, 1, policy="difference", kind="exact"),
        _path(0.0321, 0.33, 18342, 1, policy="difference", kind="asymptotic"),
        _path(0.7144, 0.50, 18342, 2, policy="candidate", kind="exact"),
        _path(0.6832, 0.44, 18342, 3, policy="against", kind="exact"),
    ]
    for i, name in enumerate(_slices()):
        band = _path(0.031 + 0.02 * math.sin(2.1 * i), 0.5, 6411 - 731 * i, 10 + i, policy="difference", kind="exact")
        found.append(msgspec.structs.replace(band, slice=name, alpha=0.05 / 7, at=[], means=[], lows=[], highs=[]))
    return found


def _diagnostics() -> list[Diagnostics]:
    found = [
        Diagnostics(
            policy="candidate",
            n=18342,
            ess=5120.4,
            max_weight=37.24,
            mean_weight=1.0031,
            mean_weight_se=0.0117,
            unsupported=0.0083,
            manski_low=0.70843,
            manski_high=0.71672,
            dm_dr_gap=-0.01338,
        ),
        Diagnostics(
            policy="against",
            n=18342,
            ess=18342.0,
            max_weight=1.0,
            mean_weight=1.0,
            mean_weight_se=0.0,
            unsupported=0.0,
            manski_low=0.68318,
            manski_high=0.68318,
            dm_dr_gap=-0.00412,
        ),
    ]
    for i, name in enumerate(_slices()):
        base = found[0]
        n = 6411 - 731 * i
        found.append(
            msgspec.structs.replace(
                base, slice=name, n=n, ess=n * 0.27 + i / 7, max_weight=31.7 - 2.3 * i, unsupported=0.0041 * (i + 1)
            )
        )
    return found


def _histograms() -> list[WeightHistogram]:
    rng = np.random.default_rng(7)
    edges: Floats = np.linspace(-4.0, 2.0, 41)
    found = []
    for policy, spread in (("candidate", 1.15), ("against", 0.03)):
        weights = np.exp(rng.normal(-0.5 * spread**2, spread, 18342))
        weights[: 900 if policy == "candidate" else 0] = 1e-4
        counts, _ = np.histogram(np.log10(weights), edges)
        found.append(WeightHistogram(policy=policy, edges=edges.tolist(), counts=[int(c) for c in counts]))
    return found


def _satisfaction() -> list[UserSatisfaction]:
    rows = [("", 812, 0.7121), ("nurse", 214, 0.7433), ("developer", 301, 0.7012), ("teacher", 176, 0.6904)]
    return [
        UserSatisfaction(
            role=role,
            users=users,
            mean=mean,
            sd=0.0911 + i / 100,
            sd_low=0.0,
            sd_high=1.0,
            worst_decile=mean - 0.1711 - i / 50,
            worst_decile_low=mean - 0.2033 - i / 40,
            worst_decile_high=mean - 0.1402 - i / 60,
            worse_off=0.0613 + 0.021 * i,
            worse_off_low=0.0307 + 0.013 * i,
            worse_off_high=0.1145 + 0.033 * i,
            sd_against=0.1042 + i / 90,
            worst_decile_against=mean - 0.2213 - i / 45,
        )
        for i, (role, users, mean) in enumerate(rows)
    ]


def _personal() -> list[Band]:
    found = []
    for i, (name, mean) in enumerate((("", 0.0203), ("role=nurse", 0.0352), ("role=developer", 0.0011))):
        for kind in ("exact", "asymptotic"):
            band = _path(mean, 0.3, 18342 - 5113 * i, 40 + i, policy="personal − blind", kind=kind)
            found.append(msgspec.structs.replace(band, slice=name))
    return found


@cache
def realistic() -> Report:
    """Four weeks of a router, a bolder candidate, and a gate that lets it through."""
    return Report(
        candidate="candidate.yaml: squarecb, gamma 400, cost_weight 0.2",
        against="the policies that were in force",
        metric="fit",
        window=Window(
            source="fitrouter-data/fitrouter.duckdb",
            since=1790812800.0,
            until=1793231940.0,
            decisions=24120,
            units=18342,
            draws=19004,
            users=812,
            labelled=1834,
            horizon_s=7 * 86400.0,
            idle_s=3600.0,
            excluded={"younger than the horizon": 3127, "pinned": 402, "session still open": 61, "forced": 9},
        ),
        alpha=0.05,
        estimates=_estimates(),
        bands=_bands(),
        diagnostics=_diagnostics(),
        checks=[
            Check(name="draws follow their probabilities", ok=True, detail="evidence against it 0.83, alarm at 1000"),
            Check(name="every draw replays", ok=True, detail="19,004 of 19,004 chosen models come out of their seeds"),
            Check(name="mean weight", ok=True, detail="1.0031 ± 0.0117 under the candidate"),
            Check(name="outcomes", ok=False, detail="17 decisions have no outcome: they count as lost"),
        ],
        histograms=_histograms(),
        arms=[
            ArmShare(
                arm="openai/gpt-4.1-mini-2025-04-14", logged=0.4123, against=0.4123, candidate=0.3361, draws=19004
            ),
            ArmShare(arm="anthropic/claude-sonnet-4-5", logged=0.2711, against=0.2711, candidate=0.3874, draws=19004),
            ArmShare(arm="local/qwen3-32b", logged=0.2277, against=0.2277, candidate=0.2192, draws=18771),
            ArmShare(arm="gemini-flash", logged=0.0889, against=0.0889, candidate=0.0573, draws=7302),
        ],
        satisfaction=_satisfaction(),
        personal=_personal(),
        correction="Bonferroni over 7 slices: each interval is at 99.3%",
        sensitivity="those who were asked and said nothing may be up to Γ = 2 times as likely to be unhappy: ±0.0086",
        warnings=["412 answers were volunteered; they are in no estimate but the naive one"],
        gate=GateDecision(
            verdict="promote",
            reasons=["the lower limit of the difference is above 0, exactly and at any time"],
            rules=[
                Check(name="difference", ok=True, detail="lower limit +0.0103 > 0"),
                Check(name="every role", ok=True, detail="no role is worse by more than 0.03"),
                Check(name="support", ok=True, detail="0.83% of the candidate's mass is unsupported, at most 5%"),
            ],
        ),
        version="0.1.0",
        made=1793300000.0,
    )


def brief() -> Report:
    """The realistic report with one slice, one role and paths of four points: every field, and little to render."""
    change, report = msgspec.structs.replace, realistic()
    kept = {"", "role=nurse"}

    def bands(given: list[Band]) -> list[Band]:
        short = [band for band in given if band.slice in kept]
        return [
            change(b, at=b.at[-4:], means=b.means[-4:], lows=b.lows[-4:], highs=b.highs[-4:]) if b.at else b
            for b in short
        ]

    return change(
        report,
        estimates=[e for e in report.estimates if e.slice in kept],
        bands=bands(report.bands),
        personal=bands(report.personal),
        diagnostics=[d for d in report.diagnostics if d.slice in kept],
        histograms=[change(h, edges=h.edges[:5], counts=h.counts[:4]) for h in report.histograms],
        satisfaction=report.satisfaction[:2],
    )


def empty() -> Report:
    """Nothing could be estimated."""
    return Report(
        candidate="c.yaml",
        against="current",
        metric="cost",
        window=Window(source="x.parquet", since=_NAN, until=_NAN, decisions=0, units=0, draws=0, users=0, labelled=0),
        alpha=0.05,
        estimates=[
            PolicyEstimate(
                policy="difference",
                estimator="dr",
                labels="observed",
                value=_NAN,
                se=_NAN,
                low=-math.inf,
                high=math.inf,
            )
        ],
        bands=[Band(policy="difference", kind="exact", value=_NAN, low=_NAN, high=_NAN)],
        diagnostics=[
            Diagnostics(
                policy="candidate",
                n=0,
                ess=_NAN,
                max_weight=_NAN,
                mean_weight=_NAN,
                mean_weight_se=_NAN,
                unsupported=_NAN,
                manski_low=_NAN,
                manski_high=_NAN,
                dm_dr_gap=_NAN,
            )
        ],
        checks=[],
    )


def hostile(name: str) -> Report:
    """The realistic report with one string wherever the log or a file could put one."""
    printable = realistic()
    change = msgspec.structs.replace
    gate = printable.gate
    assert gate is not None
    return change(
        printable,
        candidate=name,
        against=name,
        window=change(printable.window, source=name, excluded={name: 3}),
        estimates=[change(e, slice=e.slice and f"role={name}", biased=e.biased and name) for e in printable.estimates],
        bands=[change(b, slice=b.slice and f"role={name}") for b in printable.bands],
        diagnostics=[change(d, slice=d.slice and f"role={name}") for d in printable.diagnostics],
        checks=[change(c, name=name, detail=name) for c in printable.checks],
        arms=[change(a, arm=name) for a in printable.arms],
        satisfaction=[change(s, role=s.role and name) for s in printable.satisfaction],
        personal=[change(b, slice=b.slice and f"role={name}") for b in printable.personal],
        correction=name,
        sensitivity=name,
        warnings=[name],
        version=name,
        gate=change(gate, reasons=[name], rules=[change(c, name=name, detail=name) for c in gate.rules]),
    )

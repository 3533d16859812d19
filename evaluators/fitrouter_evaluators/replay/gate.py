"""The gate: decides from a log whether a candidate may be promoted.

`promote.yaml` names the metric, the gain and the guardrails. The verdict is one of:

* **promote** if the gain is shown to exceed `min_gain` and every guardrail holds;
* **keep** if the gain is shown to stay below `keep_below`, or a guardrail is shown to be broken;
* **not enough evidence** otherwise.

"Shown" refers to exact confidence sequences of the paired difference, widened for non-response (unsupported mass
counts as the worst case in them). They are valid at all times, so a gate may be evaluated daily and stop at its first
verdict. Single-look numbers (those about users) can withhold a promotion but never cause one.

**Use of α.** Half of it for wrong promotions, half for wrong keeps.

A promotion needs *all* limits, so each has the level α/2 without a correction: if any condition is false, the promotion
is wrong only if the limit of that condition fails (intersection–union test, Berger 1982). This holds for guardrails
that require proof; one that waits for shown harm only promises to keep once harm is shown.

A keep needs *any* limit, so α/2 is split equally between the gain and the guardrails (Bonferroni), and a guardrail's
share between those of its slices that are in the log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.replay.gate_file import LESS_IS_BETTER, Gate, Guardrail
from fitrouter_evaluators.replay.report import Band, Check, Diagnostics, GateDecision, UserSatisfaction


class SequenceLevel(NamedTuple):
    """α of both limits of an exact sequence, for one metric and slice."""

    metric: str
    slice: str
    low: float
    """α of the lower limit of candidate − against."""
    high: float


class GateEvidence(NamedTuple):
    """Evidence about one metric in one slice."""

    metric: str
    band: Band
    """Exact, of the paired difference candidate − against, in the metric's own units."""
    silence: tuple[float, float] = (0.0, 0.0)
    """Margins of the lower and upper limit for non-response (`study.sensitivity.silence_margins`, Γ =
    `Gate.sensitivity`).
    """
    span: float = math.inf
    """Range of the outcome, which bounds every difference."""
    fixed: bool = True
    """The range of outcomes was known before the log."""


def sequence_levels(gate: Gate, slices: Sequence[str] = ()) -> list[SequenceLevel]:
    """The sequences that the gate needs and their levels, for slices in the log (`role=nurse` …); see the module."""
    promote = 0.5 * gate.alpha
    keep = promote / (1 + len(gate.guardrails))
    found: dict[tuple[str, str], tuple[float, float]] = {}

    def need(metric: str, where: str, share: float) -> None:
        # The lower end of a gain promotes. Of what should be less the upper end does.
        ends = (share, promote) if metric in LESS_IS_BETTER else (promote, share)
        known = found.get((metric, where), ends)
        found[metric, where] = min(ends[0], known[0]), min(ends[1], known[1])

    need(gate.metric, "", keep)
    for rail in gate.guardrails:
        places = _places(rail, slices)
        for place in places:
            need(rail.metric, place, keep / len(places))
    return [SequenceLevel(metric, where, *ends) for (metric, where), ends in found.items()]


def _places(rail: Guardrail, slices: Sequence[str]) -> list[str]:
    """Names of the slices that a guardrail covers; the empty name is all traffic."""
    if not rail.slice or "=" in rail.slice:
        return [rail.slice]
    return [name for name in slices if name.startswith(f"{rail.slice}=")]


class _Gain(NamedTuple):
    """Limits of the gain in one metric and slice; more is better."""

    n: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"gain in [{self.low:+.4g}, {self.high:+.4g}] after {self.n} units"


def decide(
    gate: Gate,
    evidence: Sequence[GateEvidence],
    diagnostics: Sequence[Diagnostics],
    *,
    satisfaction: Sequence[UserSatisfaction] = (),
    checks: Sequence[Check] = (),
) -> GateDecision:
    """Decide whether a candidate may be promoted.

    `evidence` are exact sequences at the levels of `sequence_levels`, for every metric and slice in the rules;
    `diagnostics` those of the candidate over all units; `checks` the audits of the log.

    Raises:
        InvalidLog: a check failed.
        ConfigError: a rule's metric lacks evidence, or its range was not fixed beforehand.
        ValueError: evidence is not exact, or not at the required level.
    """
    broken = [f"{check.name}: {check.detail}" for check in checks if not check.ok]
    if broken:
        raise InvalidLog("the gate cannot decide on a log that fails its checks: " + "; ".join(broken))
    known = _gains(gate, evidence)
    gain = known[gate.metric, ""]
    units = f"{gain.n} units; at least {gate.min_units} are required"
    limits = f"{gate.metric}: {gain}; promote above {gate.min_gain:g}, keep below {gate.keep_threshold:g}"
    rules = [Check(name="units", ok=gain.n >= gate.min_units, detail=units), *_support(gate, diagnostics)]
    promotes = [Check(name=f"gain in {gate.metric}", ok=gain.low > gate.min_gain, detail=limits)]
    keeps = (
        [f"{gate.metric}: {gain}, below {gate.keep_threshold:g}"]
        if gain.high < gate.keep_threshold and not promotes[0].ok
        else []
    )
    for rail in gate.guardrails:
        held, shown = _guardrail(rail, known)
        promotes.append(held)
        keeps += shown
    promotes += _user_rules(gate, satisfaction)
    every = [*rules, *promotes]
    if not rules[0].ok:
        return GateDecision(verdict="not enough evidence", reasons=[rules[0].detail], rules=every)
    if keeps:
        return GateDecision(verdict="keep", reasons=keeps, rules=every)
    lacking = [f"{rule.name}: {rule.detail}" for rule in every if not rule.ok]
    if lacking:
        return GateDecision(verdict="not enough evidence", reasons=lacking, rules=every)
    return GateDecision(verdict="promote", reasons=[rule.detail for rule in promotes], rules=every)


def _gains(gate: Gate, evidence: Sequence[GateEvidence]) -> dict[tuple[str, str], _Gain]:
    """Limits of the gain by (metric, slice), with all margins included."""
    slices = sorted({one.band.slice for one in evidence if one.band.slice})
    given = {(one.metric, one.band.slice): one for one in evidence}
    found: dict[tuple[str, str], _Gain] = {}
    for level in sequence_levels(gate, slices):
        one = given.get((level.metric, level.slice))
        if one is None and level.slice:
            continue  # nobody of this slice has come
        if one is None:
            raise ConfigError(
                f"the gate's rules name {level.metric!r}, for which there is no evidence, only for "
                f"{sorted({metric for metric, where in given if not where})}; evaluate that metric too, or drop "
                "the rule"
            )
        _check_evidence(one, level)
        low = max(one.band.low - one.silence[0], -one.span)
        high = min(one.band.high + one.silence[1], one.span)
        ends = (-high, -low) if level.metric in LESS_IS_BETTER else (low, high)
        found[level.metric, level.slice] = _Gain(one.band.n, *ends)
    return found


def _check_evidence(one: GateEvidence, level: SequenceLevel) -> None:
    band = one.band
    if band.kind != "exact" or band.policy != "difference":
        raise ValueError(f"a gate needs exact sequences of the difference, not {band.kind} ones of {band.policy}")
    if not one.fixed:
        raise ConfigError(
            f"the range of {level.metric!r} was taken from the log, so its limits are not exact; set "
            f"'ceilings: {{{level.metric}: …}}' in the gate"
        )
    if band.alpha > (level.low + level.high) * (1.0 + 1e-9):
        raise ValueError(
            f"a sequence of {level.metric!r} with α = {band.alpha:g}, but the rules need {level.low + level.high:g}"
        )


def _support(gate: Gate, diagnostics: Sequence[Diagnostics]) -> list[Check]:
    candidate = next((d for d in diagnostics if d.policy == "candidate" and not d.slice), None)
    if candidate is None:
        raise ValueError("a gate needs the diagnostics of the candidate over everybody")
    detail = (
        f"{candidate.unsupported:.2%} of the candidate's mass is unsupported; at most "
        f"{gate.max_unsupported:.2%} is allowed"
    )
    found = [Check(name="support", ok=candidate.unsupported <= gate.max_unsupported, detail=detail)]
    if gate.max_weight is not None:
        detail = f"the largest importance weight is {candidate.max_weight:.4g}; at most {gate.max_weight:g} is allowed"
        found.append(Check(name="largest weight", ok=candidate.max_weight <= gate.max_weight, detail=detail))
    return found


def _guardrail(rail: Guardrail, known: Mapping[tuple[str, str], _Gain]) -> tuple[Check, list[str]]:
    """Check a guardrail: whether it holds, and where it is shown to be broken."""
    slices = sorted(where for metric, where in known if metric == rail.metric and where)
    places = [place for place in _places(rail, slices) if (rail.metric, place) in known]
    if not places:
        detail = f"no unit of {rail.slice!r} in the log; correct the name, or wait for data"
        return Check(name=f"guardrail {rail.name}", ok=False, detail=detail), []
    broken, open_ = [], []
    for place in places:
        gain = known[rail.metric, place]
        said = f"{place + ': ' if place else ''}{gain}, at least {rail.worst:+.4g} is required"
        if gain.high < rail.worst:
            broken.append(said)
        elif rail.require == "proof" and not gain.low > rail.worst:
            open_.append(said)
    rest = f"in {len(places)} slices" if len(places) > 1 else f"{known[rail.metric, places[0]]}"
    passes = f"a loss above {-rail.worst:g} is {'excluded' if rail.require == 'proof' else 'not shown'} ({rest})"
    detail = "; ".join([*broken, *open_]) or passes
    ok = not broken and not open_
    return Check(name=f"guardrail {rail.name}", ok=ok, detail=detail), [f"{rail.name}: {one}" for one in broken]


def _user_rules(gate: Gate, satisfaction: Sequence[UserSatisfaction]) -> list[Check]:
    """Rules about users: valid for a single look, they can only withhold a promotion."""
    users, found = gate.users, []
    asked = users.max_worse_off is not None or users.max_worst_decile_decrease is not None
    if asked and not any(not one.role for one in satisfaction):
        return [Check(name="users", ok=False, detail="too few users, or too few units per user, to estimate")]
    for one in satisfaction if users.per_role else [one for one in satisfaction if not one.role]:
        of = f" of role {one.role}" if one.role else ""
        if users.max_worse_off is not None:
            low, high = one.worse_off_low, one.worse_off_high
            detail = f"{one.worse_off:.0%} [{low:.0%}, {high:.0%}]{of}; at most {users.max_worse_off:.0%} is allowed"
            found.append(Check(name="users worse off", ok=one.worse_off <= users.max_worse_off, detail=detail))
        if users.max_worst_decile_decrease is not None:
            change, allowed = one.worst_decile - one.worst_decile_against, users.max_worst_decile_decrease
            detail = f"{change:+.3f} to {one.worst_decile:.3f}{of}; at least {-allowed:+.3f} is required"
            found.append(Check(name="worst decile", ok=change >= -allowed, detail=detail))
    return found

"""The gate: what must be shown before a candidate goes live, and what the log says of it.

`promote.yaml` names the metric, the gain and the guardrails. The answer is one of three:

* **promote** where the gain is shown to exceed `min_gain` and every guardrail holds;
* **keep** where the gain is shown to stay below `keep_below`, or a guardrail is shown to be broken;
* **not enough evidence** otherwise.

"Shown" is said of exact confidence sequences of the paired difference only, widened by what those who were asked and
said nothing might have said (mass that the log knows nothing of counts in them as the worst). They hold at all times at
once, so a gate may be asked every day, and one may stop at its first answer. Numbers that hold at one look, those about
users, can withhold a promotion and never cause one; asymptotic ones are refused.

**How α is spent.** Half of it on wrong promotions, half on wrong keeps.

A promotion takes *all* limits at once, so each has the level α/2 without a correction: if any condition is false,
the promotion is wrong only where the limit of that one condition fails, and that has probability α/2 at most
(intersection–union test, Berger 1982). This holds at all times: a promotion at any time takes that limit at that time.
It holds for guardrails that require proof; one that waits for harm to be shown promises only that such harm keeps.

A keep takes *any* of them, so α/2 is shared equally by the gain and the guardrails (Bonferroni), and what a guardrail
gets by those of its slices that are in the log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter_evaluators.replay.gate_file import LESS_IS_BETTER, Gate, Guardrail
from fitrouter_evaluators.replay.report import Band, Check, Diagnostics, GateDecision, UserSatisfaction


class SequenceLevel(NamedTuple):
    """How sure the two ends of an exact sequence must be, of one metric and slice."""

    metric: str
    slice: str
    low: float
    """α of the lower limit of candidate − against."""
    high: float


class GateEvidence(NamedTuple):
    """What is known of one metric in one slice."""

    metric: str
    band: Band
    """Exact, of the paired difference candidate − against, in the metric's own units."""
    silence: tuple[float, float] = (0.0, 0.0)
    """How far those who were asked and said nothing may move the lower limit down, and the upper one up
    (`fitrouter_evaluators.replay.study.sensitivity.silence_margins`, with `Gate.sensitivity`)."""
    span: float = math.inf
    """Between the least and the largest outcome: no difference is larger."""
    fixed: bool = True
    """The range of outcomes was known before the log (`MetricOutcomes.fixed`)."""


# --- levels ---


def sequence_levels(gate: Gate, slices: Sequence[str] = ()) -> list[SequenceLevel]:
    """What sequences the gate reads, and how sure each end of theirs must be; see the module.

    Args:
        gate: the rules.
        slices: those that are in the log (`role=nurse` …), for guardrails on each of a kind.
    """
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
    """Slices that a guardrail is about."""
    if not rail.slice or "=" in rail.slice:
        return [rail.slice]
    return [name for name in slices if name.startswith(f"{rail.slice}=")]


# --- deciding ---


class _Known(NamedTuple):
    """Where the gain of one metric in one slice lies; more is better."""

    n: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"the gain lies in [{self.low:+.4g}, {self.high:+.4g}] after {self.n} units"


def decide(
    gate: Gate,
    evidence: Sequence[GateEvidence],
    diagnostics: Sequence[Diagnostics],
    *,
    satisfaction: Sequence[UserSatisfaction] = (),
    checks: Sequence[Check] = (),
) -> GateDecision:
    """The gate's answer.

    Args:
        gate: the rules.
        evidence: exact sequences at the levels of `sequence_levels`, of every metric and slice that the rules name.
        diagnostics: those of the candidate over everybody are read.
        satisfaction: across users, where rules name it.
        checks: of the log itself.

    Raises:
        InvalidLog: a check failed: nothing can be decided on such a log.
        ConfigError: a rule names a metric of which there is no evidence, or whose range was not said beforehand.
        ValueError: evidence that is not exact, or not as sure as the rules take it for.
    """
    broken = [f"{check.name}: {check.detail}" for check in checks if not check.ok]
    if broken:
        raise InvalidLog("the gate decides nothing on a log that fails its checks: " + "; ".join(broken))
    known = _known(gate, evidence)
    gain = known[gate.metric, ""]
    rules = [_enough(gate, gain), *_support(gate, diagnostics)]
    promotes = [Check(name=f"gain in {gate.metric}", ok=gain.low > gate.min_gain, detail=_gain(gate, gain))]
    keeps = (
        [f"{gate.metric}: {gain}, below {gate.keep_threshold:g}"]
        if gain.high < gate.keep_threshold and not promotes[0].ok
        else []
    )
    for rail in gate.guardrails:
        held, shown = _guarded(rail, known)
        promotes.append(held)
        keeps += shown
    promotes += _of_users(gate, satisfaction)
    every = [*rules, *promotes]
    if not rules[0].ok:
        return GateDecision(verdict="not enough evidence", reasons=[rules[0].detail], rules=every)
    if keeps:
        return GateDecision(verdict="keep", reasons=keeps, rules=every)
    lacking = [f"{rule.name}: {rule.detail}" for rule in every if not rule.ok]
    if lacking:
        return GateDecision(verdict="not enough evidence", reasons=lacking, rules=every)
    return GateDecision(verdict="promote", reasons=[rule.detail for rule in promotes], rules=every)


def _known(gate: Gate, evidence: Sequence[GateEvidence]) -> dict[tuple[str, str], _Known]:
    """(metric, slice) → where its gain lies, with all that widens it."""
    slices = sorted({one.band.slice for one in evidence if one.band.slice})
    given = {(one.metric, one.band.slice): one for one in evidence}
    found: dict[tuple[str, str], _Known] = {}
    for level in sequence_levels(gate, slices):
        one = given.get((level.metric, level.slice))
        if one is None and level.slice:
            continue  # nobody of this slice has come
        if one is None:
            raise ConfigError(
                f"the gate's rules name {level.metric!r}, of which there is no evidence; there is of "
                f"{sorted({metric for metric, where in given if not where})}. Replay that metric too, or drop the rule"
            )
        _refuse(one, level)
        low = max(one.band.low - one.silence[0], -one.span)
        high = min(one.band.high + one.silence[1], one.span)
        ends = (-high, -low) if level.metric in LESS_IS_BETTER else (low, high)
        found[level.metric, level.slice] = _Known(one.band.n, *ends)
    return found


def _refuse(one: GateEvidence, level: SequenceLevel) -> None:
    """Raise for evidence that nothing may be decided by."""
    band = one.band
    if band.kind != "exact" or band.policy != "difference":
        raise ValueError(f"a gate reads exact sequences of the difference, not {band.kind} ones of {band.policy}")
    if not one.fixed:
        raise ConfigError(
            f"the range of {level.metric!r} was read off the log, so limits on it are not exact; set "
            f"'ceilings: {{{level.metric}: …}}' in the gate"
        )
    if band.alpha > (level.low + level.high) * (1.0 + 1e-9):
        raise ValueError(
            f"a sequence of {level.metric!r} with α = {band.alpha:g}, but the rules take {level.low + level.high:g}"
        )


def _enough(gate: Gate, gain: _Known) -> Check:
    detail = f"{gain.n} units, and nothing is said before {gate.min_units}"
    return Check(name="units", ok=gain.n >= gate.min_units, detail=detail)


def _gain(gate: Gate, gain: _Known) -> str:
    return f"{gate.metric}: {gain}; promoted above {gate.min_gain:g}, kept below {gate.keep_threshold:g}"


def _support(gate: Gate, diagnostics: Sequence[Diagnostics]) -> list[Check]:
    candidate = next((d for d in diagnostics if d.policy == "candidate" and not d.slice), None)
    if candidate is None:
        raise ValueError("a gate needs the diagnostics of the candidate over everybody")
    detail = f"the log has none of {candidate.unsupported:.2%} of the candidate; {gate.max_unsupported:.2%} may lack"
    found = [Check(name="support", ok=candidate.unsupported <= gate.max_unsupported, detail=detail)]
    if gate.max_weight is not None:
        detail = f"the largest importance weight is {candidate.max_weight:.4g}; {gate.max_weight:g} is allowed"
        found.append(Check(name="largest weight", ok=candidate.max_weight <= gate.max_weight, detail=detail))
    return found


def _guarded(rail: Guardrail, known: Mapping[tuple[str, str], _Known]) -> tuple[Check, list[str]]:
    """Whether a guardrail lets a promotion pass, and where it is shown to be broken."""
    slices = sorted(where for metric, where in known if metric == rail.metric and where)
    places = [place for place in _places(rail, slices) if (rail.metric, place) in known]
    if not places:
        detail = f"no unit of {rail.slice!r} in the log; correct the name, or wait for some"
        return Check(name=f"guardrail {rail.name}", ok=False, detail=detail), []
    broken, open_ = [], []
    for place in places:
        gain = known[rail.metric, place]
        said = f"{place + ': ' if place else ''}{gain}, {rail.worst:+.4g} is accepted"
        if gain.high < rail.worst:
            broken.append(said)
        elif rail.require == "proof" and not gain.low > rail.worst:
            open_.append(said)
    rest = f"in {len(places)} slices" if len(places) > 1 else f"{known[rail.metric, places[0]]}"
    passes = f"more harm than {-rail.worst:g} is {'excluded' if rail.require == 'proof' else 'not shown'} ({rest})"
    detail = "; ".join([*broken, *open_]) or passes
    ok = not broken and not open_
    return Check(name=f"guardrail {rail.name}", ok=ok, detail=detail), [f"{rail.name}: {one}" for one in broken]


def _of_users(gate: Gate, satisfaction: Sequence[UserSatisfaction]) -> list[Check]:
    """Rules about users; numbers at one look, that withhold only."""
    users, found = gate.users, []
    asked = users.max_worse_off is not None or users.max_worst_decile_decrease is not None
    if asked and not any(not one.role for one in satisfaction):
        return [Check(name="users", ok=False, detail="the log knows too few users, or too little of each, to say")]
    for one in satisfaction if users.per_role else [one for one in satisfaction if not one.role]:
        of = f" of role {one.role}" if one.role else ""
        if users.max_worse_off is not None:
            low, high = one.worse_off_low, one.worse_off_high
            detail = f"{one.worse_off:.0%} [{low:.0%}, {high:.0%}]{of}; {users.max_worse_off:.0%} are accepted"
            found.append(Check(name="users worse off", ok=one.worse_off <= users.max_worse_off, detail=detail))
        if users.max_worst_decile_decrease is not None:
            change, allowed = one.worst_decile - one.worst_decile_against, users.max_worst_decile_decrease
            detail = f"{change:+.3f} to {one.worst_decile:.3f}{of}; {-allowed:+.3f} is accepted"
            found.append(Check(name="worst decile", ok=change >= -allowed, detail=detail))
    return found

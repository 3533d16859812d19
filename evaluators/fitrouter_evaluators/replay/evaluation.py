"""Off-policy evaluation of a candidate on a log, and the gate's decision.

`evaluate` validates the log, selects its closed sessions, computes both policies' pmfs at every draw, and derives
estimates, sequences, diagnostics, user satisfaction and the gate's decision from one `Study` per metric.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from fitrouter.errors import ConfigError, InvalidLog
from fitrouter.stores.figures import many
from fitrouter.types import UNPRICED, Floats
from fitrouter_evaluators.replay.candidates._from_log import FixedCandidate
from fitrouter_evaluators.replay.candidates.learning import RejectionCandidate
from fitrouter_evaluators.replay.candidates.load import Candidate
from fitrouter_evaluators.replay.estimators import DR
from fitrouter_evaluators.replay.gate import GateEvidence, decide, sequence_levels
from fitrouter_evaluators.replay.gate_file import Gate
from fitrouter_evaluators.replay.inference.sequences import asymptotic_band, exact_band
from fitrouter_evaluators.replay.log.audit import audit
from fitrouter_evaluators.replay.log.heard import said_of_left_out
from fitrouter_evaluators.replay.log.log import Ints, Log
from fitrouter_evaluators.replay.report import (
    Band,
    Check,
    Diagnostics,
    GateDecision,
    PolicyEstimate,
    Report,
    UserSatisfaction,
    Window,
)
from fitrouter_evaluators.replay.study import personalisation
from fitrouter_evaluators.replay.study._estimate_rows import (
    Slices,
    difference_rows,
    policy_rows,
    robust_rows,
    slices_of,
)
from fitrouter_evaluators.replay.study.diagnostics import arm_shares, diagnose, weight_histogram
from fitrouter_evaluators.replay.study.satisfaction import satisfaction
from fitrouter_evaluators.replay.study.sensitivity import silence_margins
from fitrouter_evaluators.replay.study.study import Pmfs, Study, has_full_pmf
from fitrouter_evaluators.replay.study.units import Units, closed_units, runs_of

POLICIES = ("candidate", "against")
MIN_ROWS, MIN_UNITS, MIN_RUNS = 30, 10, 30
"""Fewest decisions, fewest sessions or runs, and smallest effective sample of runs, to conclude anything from."""
FAR, FAR_SE = 0.1, 5.0
"""A mean importance weight this far from 1, also in standard errors, is no chance."""
MIN_ESS_PER_USER = 5.0
"""Minimum effective sample size per user for satisfaction across users."""


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an evaluation."""

    metric: str = "fit"
    unit: str = "session"
    """session, or run: of an agent, as `outcome` needs it."""
    by: tuple[str, ...] = ()
    """Slices: role, task, user_group."""
    since: float | None = None
    until: float | None = None
    """Units that begin in [since, until), in seconds since the epoch."""
    horizon_s: float = 0.0
    """Younger decisions are excluded, labelled or not."""
    idle_s: float = 3600.0
    """Silence that closes a session."""
    alpha: float = 0.05
    sensitivity: float = 2.0
    """Γ, see `sensitivity`."""
    groups: dict[str, str] = {}
    """User → group; default: the values users declared."""


def evaluate(
    log: Log, candidate: Candidate, against: Candidate, settings: ReplaySettings, gate: Gate | None = None
) -> Report:
    """Evaluate a candidate against another policy on a log.

    Raises:
        InvalidLog: estimates from the log would be wrong, it has no usable unit, or the candidate was trained on it.
        ConfigError: a policy or the gate needs what the log does not have.
    """
    checks = audit(log)
    units = _units(log, settings)
    _check_training_window(candidate, units)
    biased = _check_gateable(candidate, gate)
    if isinstance(candidate, RejectionCandidate):
        return _rejection_report(candidate, against, units, settings, checks)
    pmfs = Pmfs(*(_pmf_at_draws(policy, units) for policy in (candidate, against)))
    ceilings = {} if gate is None else {str(metric): most for metric, most in gate.ceilings.items()}
    study = Study(units, pmfs, settings.metric, ceiling=ceilings.get(settings.metric))
    groups = _groups(log, settings.groups)
    slices = slices_of(study.units, settings.by, groups)
    known = _diagnostics(study)
    warnings = [biased] if biased else []
    warnings += _warnings(study, settings) + _costs(log, study)
    people = _satisfaction(study, known[0], settings.alpha, warnings)
    bands, count = _bands(study, settings, slices, warnings), sum(len(each.names) for each in slices)
    rows = (*difference_rows(study, slices, settings.alpha), *policy_rows(study, settings.alpha))
    refused = _refused(study, checks, known, settings.unit)
    decision = _gate_decision(gate, units, pmfs, study, _GateInputs(checks, known, people, groups)) if gate else None
    if decision is not None and refused:
        decision = msgspec.structs.replace(decision, verdict="not enough evidence", reasons=[refused])
    return _report(
        study,
        (candidate, against),
        settings,
        estimates=[_mark_biased(_in_range(row, study, known), biased) for row in rows],
        bands=[_in_range(band, study, known) for band in bands],
        diagnostics=known,
        checks=checks,
        histograms=[weight_histogram(name, w) for name, w in zip(POLICIES, study.weight, strict=True)],
        arms=arm_shares(study.units, study.pmfs),
        satisfaction=people,
        personal=_personalisation(units, settings, warnings),
        advice=_advice(study, units, known, settings),
        correction=f"Bonferroni: each of the {count} slices at α = {settings.alpha / count:.3g}" if count else "",
        sensitivity=_sensitivity_note(study, settings.sensitivity),
        warnings=warnings,
        refused=refused,
        gate=decision,
    )


def compare_models(log: Log, against: Candidate, settings: ReplaySettings) -> list[PolicyEstimate]:
    """Compare each model for all traffic with `against`, most drawn first; the last row is the value of `against`.

    Intervals are for one look and corrected for the number of models (Bonferroni).

    Raises:
        InvalidLog: as `evaluate`.
    """
    checks = audit(log)
    units = _units(log, settings)
    base, study = _pmf_at_draws(against, units), None
    drawn = np.bincount(log.options.arm[log.decisions.chosen[units.draw]], minlength=len(log.names.arms))
    arms = [log.names.arms[k] for k in np.argsort(-drawn, kind="stable")[:_MOST_MODELS] if drawn[k]]
    found, alpha = [], settings.alpha / max(len(arms), 1)
    for arm in arms:
        pmfs = Pmfs(_pmf_at_draws(FixedCandidate(arm), units), base)
        study = Study(units, pmfs, settings.metric) if study is None else study.between(pmfs)
        difference, _ = robust_rows(study, alpha)
        known = _diagnostics(study)
        row = _in_range(difference, study, known)
        refused = _refused(study, checks, known, settings.unit)
        found.append(msgspec.structs.replace(row, policy=arm, biased=refused or row.biased))
    if study is None:
        return []
    _, value = robust_rows(study, settings.alpha)
    return [*found, _in_range(value, study)]


def _refused(study: Study, checks: Sequence[Check], known: Sequence[Diagnostics], unit: str = "session") -> str:
    """Reason why nothing may be concluded from a log, with the remedy; empty if something may."""
    remedy = "log the probability with which the model was drawn, when it is drawn"
    if broken := [f"{check.name}: {check.detail}" for check in checks if not check.ok]:
        return f"the log fails its audit ({'; '.join(broken)}); {remedy}"
    rows, sessions = len(study.units.member), len(np.unique(study.units.cluster))
    if rows < MIN_ROWS or sessions < MIN_UNITS:
        return (
            f"{many(rows, 'decision')} in {many(sessions, unit)} are too few; {MIN_ROWS} in {MIN_UNITS} {unit}s "
            "are the fewest from which anything is concluded: log more"
        )
    effective = min((each.ess for each in known), default=math.inf)
    if unit == "run" and effective < MIN_RUNS:
        return (
            f"the runs count as {effective:.1f} of the policies that are compared; {MIN_RUNS} are the fewest from "
            "which anything is concluded: log more, or compare a policy that is nearer to the logged one"
        )
    for each in known:
        off = abs(each.mean_weight - 1.0)
        if off > FAR and off > FAR_SE * each.mean_weight_se and each.unsupported <= FAR:
            why = (
                "models were drawn more often than the logged probabilities imply"
                if each.mean_weight > 1.0
                else "models were drawn less often than the logged probabilities imply, or could not always be drawn"
            )
            return (
                f"the mean importance weight of {each.policy} is {each.mean_weight:.3f} ± {each.mean_weight_se:.3f} "
                f"where 1 is expected: {why}; {remedy}, and which models were eligible"
            )
    return ""


_MOST_MODELS = 12
"""Models that are compared without a candidate, the most drawn ones."""


def _report(study: Study, policies: tuple[Candidate, Candidate], settings: ReplaySettings, **parts: Any) -> Report:
    return Report(
        candidate=policies[0].description,
        against=policies[1].description,
        metric=settings.metric,
        window=_window(study, settings),
        alpha=settings.alpha,
        version=importlib.metadata.version("fitrouter"),
        made=time.time(),
        **parts,
    )


def _check_gateable(candidate: Candidate, gate: Gate | None) -> str:
    """Reason why a candidate's estimates are biased; empty if not. Raises ConfigError for a gate on such estimates."""
    biased: str = getattr(candidate, "biased", "")
    if gate is not None and (biased or isinstance(candidate, RejectionCandidate)):
        why = biased or "rejection sampling has no confidence sequences"
        raise ConfigError(f"the gate cannot decide on {candidate.description}: {why}; gate a snapshot of it instead")
    return biased


def _mark_biased(row: PolicyEstimate, biased: str) -> PolicyEstimate:
    concerned = biased and row.policy != "against" and not row.biased
    return msgspec.structs.replace(row, biased=biased) if concerned else row


_Estimated = TypeVar("_Estimated", PolicyEstimate, Band)


def _in_range(found: _Estimated, study: Study, known: Sequence[Diagnostics] = ()) -> _Estimated:
    """Clip an estimate and its limits to the metric's range, where that was known before the log.

    Where the log could not draw what a policy chooses, its outcome may be anything: the interval is wider by that mass.
    """
    span = study.observed.high - study.observed.low
    margin = span * sum(each.unsupported for each in known if found.policy in {each.policy, "difference"})
    least, most = study.observed.low, study.observed.high
    if found.policy not in POLICIES:
        least, most = least - most, most - least
    if not study.observed.fixed:
        least, most = (least if found.policy in POLICIES else -math.inf), math.inf

    def clip(value: float) -> float:
        return min(max(value, least), most)

    inside = {"value": clip(found.value), "low": clip(found.low - margin), "high": clip(found.high + margin)}
    if math.isnan(inside["value"]):  # no weight: nothing is known
        inside["low"], inside["high"] = least, most
    elif not inside["high"] - inside["low"] > 1e-9 * span:
        # All of the sample is alike, or it is one session. What it has not shown has up to this probability.
        unseen = 1.0 - (0.5 * found.alpha) ** (1.0 / min(len(np.unique(study.units.cluster)), max(found.n, 1)))
        reach = span * unseen * (1.0 if found.policy in POLICIES else 2.0)
        inside["low"], inside["high"] = clip(inside["value"] - reach), clip(inside["value"] + reach)
    inside["low"], inside["high"] = min(inside["low"], inside["value"]), max(inside["high"], inside["value"])
    if isinstance(found, Band):
        paths = {
            "means": [clip(value) for value in found.means],
            "lows": [clip(value - margin) for value in found.lows],
            "highs": [clip(value + margin) for value in found.highs],
        }
        return msgspec.structs.replace(found, **inside, **paths)
    biased = found.biased
    if found.labels == "powered" and not study.heard and not biased:
        biased = "no rating was asked for in these sessions, so that these are predictions"
    return msgspec.structs.replace(found, **inside, biased=biased)


def _rejection_report(
    candidate: RejectionCandidate, against: Candidate, units: Units, settings: ReplaySettings, checks: list[Check]
) -> Report:
    """Report of rejection sampling: the candidate on its accepted draws, `against` on the whole log."""
    other = _pmf_at_draws(against, units)
    study = Study(units, Pmfs(other, other), settings.metric)
    observed = study.observed
    found = candidate.replay(
        units.log, study.units.member, observed.y, seen=observed.seen, e=observed.e, alpha=settings.alpha
    )
    own = PolicyEstimate(
        policy="candidate",
        estimator="rejection",
        labels="asked" if study.labels == "powered" else "observed",
        value=found.value,
        se=found.se,
        low=found.low,
        high=found.high,
        n=found.matched,
        alpha=settings.alpha,
        biased=found.biased,
    )
    said = (
        f"the candidate accepted {found.matched} of {found.draws} draws and learnt from {found.labels} labels; its "
        "value is that of this short history, while `against` is evaluated on the whole log"
    )
    return _report(
        study,
        (candidate, against),
        settings,
        estimates=[
            _in_range(row, study)
            for row in (own, *(row for row in policy_rows(study, settings.alpha) if row.policy == "against"))
        ],
        bands=[],
        diagnostics=[each for each in _diagnostics(study) if each.policy == "against"],
        checks=checks,
        refused=_refused(study, checks, (), settings.unit),
        warnings=[said, *_warnings(study, settings)],
    )


def _units(log: Log, settings: ReplaySettings) -> Units:
    limits = {"since": settings.since, "until": settings.until}
    select = runs_of if settings.unit == "run" else closed_units
    units = select(log, **limits, horizon_s=settings.horizon_s, idle_s=settings.idle_s)
    if not units.n:
        reasons = "; ".join(f"{count} {reason}" for reason, count in units.excluded.items()) or "the log is empty"
        remedy = _open_sessions(units, settings) or "widen the window, or wait"
        raise InvalidLog(f"{log.source}: there is no closed session to evaluate ({reasons}); {remedy}")
    return units


_IDLE_S = (1800.0, 600.0, 300.0, 60.0, 10.0)
"""Silences that are tried where many sessions are open."""
_ASK = 0.05
"""Share of decisions that is worth asking about: the largest that the configuration takes."""


def _open_sessions(units: Units, settings: ReplaySettings) -> str:
    """Advice if more than a tenth of the decisions is in open sessions; else empty."""
    still, n = units.excluded.get("open session", 0), units.log.decisions.n
    if still <= 0.1 * n:
        return ""
    silence = f"{settings.idle_s / 60:g} min" if settings.idle_s >= 60.0 else f"{settings.idle_s:g} s"
    said = f"{still:,} of {n:,} decisions are in sessions that have not been silent for {silence} yet"
    for idle_s in (each for each in _IDLE_S if each < settings.idle_s):
        found = closed_units(
            units.log, since=settings.since, until=settings.until, horizon_s=settings.horizon_s, idle_s=idle_s
        )
        if len(found.member) > len(units.member) + 0.5 * still:
            shorter = f"{idle_s / 60:g}m" if idle_s >= 60 else f"{idle_s:g}s"
            return f"{said}: with --idle {shorter} {len(found.member):,} decisions count, or wait"
    return f"{said}: wait until they are over"


def _advice(study: Study, units: Units, known: Sequence[Diagnostics], settings: ReplaySettings) -> list[str]:
    """Advice: what limits the evidence of this log, and what to change."""
    found = []
    if study.has_labels and not study.heard:
        given = int((~np.isnan(units.log.outcomes.free_label[units.member])).sum())
        asked = int(study.observed.asked[study.units.member].sum())
        why = f"{asked:,} ratings were asked for and none was given" if asked else "no rating was asked for"
        found.append(
            f"{why} in these sessions, and the {given:,} volunteered ones do not determine a level, because people "
            f"rate more often when they are annoyed: set feedback.ask to {_ASK:g} in the configuration and show the "
            "request to people"
        )
    if remedy := _open_sessions(units, settings):
        found.append(remedy)
    remedy = "there, so that intervals are wider by as much: give the policy a share above 0 (share: 0.05), or a floor"
    return found + [
        f"{each.unsupported:.0%} of the probability of {each.policy} is on models that the log could not draw {remedy}"
        for each in known
        if each.unsupported > 0.005
    ]


def _check_training_window(candidate: Candidate, units: Units) -> None:
    first = float(units.ts[0])
    if candidate.trained_until is not None and candidate.trained_until > first:
        raise InvalidLog(
            f"the candidate ({candidate.description}) was trained until {_utc(candidate.trained_until)}, inside the "
            f"window that begins at {_utc(first)}, so it was trained on outcomes it would be evaluated on; begin the "
            "window later (--since), or train it on earlier data"
        )


def _pmf_at_draws(policy: Candidate, units: Units) -> Floats:
    """Compute the policy's probabilities at the units' draws, float64[options]; NaN elsewhere."""
    found = np.full(len(units.log.options.arm), np.nan)
    found[units.entries()] = policy.pmf(units.log, units.draw)
    return found


def _groups(log: Log, given: Mapping[str, str]) -> dict[int, str]:
    if not given:
        return personalisation.declared_groups(log)
    codes = {name: code for code, name in enumerate(log.names.users)}
    return {codes[user]: group for user, group in given.items() if user in codes}


def _window(study: Study, settings: ReplaySettings) -> Window:
    units = study.units
    ts, declined = units.log.decisions.ts[units.member], units.log.outcomes.declined
    share = declined / max(declined + len(units.draw), 1)
    return Window(
        source=units.log.source,
        since=float(ts.min()),
        until=float(ts.max()),
        decisions=len(units.member),
        units=units.n,
        draws=len(units.draw),
        users=len(np.unique(units.user[units.user >= 0])),
        labelled=study.heard if study.has_labels else units.n,
        left_out=study.units.log.outcomes.left_out,
        complete=study.complete,
        unit="closed run" if settings.unit == "run" else "closed session",
        cluster=settings.unit,
        horizon_s=settings.horizon_s,
        idle_s=settings.idle_s,
        excluded=dict(units.excluded) | ({f"declined plans, {share:.1%} of all draws": declined} if declined else {}),
    )


def _bands(study: Study, settings: ReplaySettings, slices: list[Slices], warnings: list[str]) -> list[Band]:
    """Confidence sequences of the difference and of both policies, and of the difference in every slice."""
    known, alpha, policies = has_full_pmf(study.units), settings.alpha, ("difference", *POLICIES)
    robust = {policy: _doubly_robust(study, policy) for policy in policies}
    # Without any label the doubly robust outcomes are predictions, whose spread is not that of ratings.
    shown = policies if study.heard or not study.has_labels else ()
    display = [asymptotic_band(robust[policy], alpha=alpha, policy=policy) for policy in shown]
    if not known.all():
        warnings.append(
            f"{int((~known).sum())} units have propensities but not the full pmf, so there are no exact sequences and "
            "the gate cannot decide"
        )
        return display
    share = alpha / max(sum(len(each.names) for each in slices), 1)
    parts = [(policy, "", np.arange(study.units.n), alpha) for policy in policies]
    parts += [("difference", name, rows, share) for name, rows in _slice_rows(slices)]
    exact = []
    for policy, name, rows, level in parts:
        band = _exact_band(study, policy, rows, (0.5 * level, 0.5 * level), name, robust[policy][rows])
        less, more = _silence(study, policy, rows, settings.sensitivity)
        exact.append(
            msgspec.structs.replace(
                band,
                low=band.low - less,
                high=band.high + more,
                lows=[low - less for low in band.lows],
                highs=[high + more for high in band.highs],
            )
        )
    return [*exact[: len(policies)], *display, *exact[len(policies) :]]


def _exact_band(
    study: Study, policy: str, rows: Ints, ends: tuple[float, float], name: str, centre: Floats | None = None
) -> Band:
    stream = study.stream(policy)
    bounds = (stream.bound_low, stream.bound_high)
    return exact_band(
        stream.low[:, rows], stream.high[:, rows], *bounds, alpha=ends, policy=policy, where=name, centre=centre
    )


def _silence(study: Study, policy: str, rows: Ints, gamma: float) -> tuple[float, float]:
    return silence_margins(study.units, study.observed, study.importance_weight(policy), gamma=gamma, rows=rows)


def _doubly_robust(study: Study, policy: str) -> Floats:
    """Doubly robust outcomes of a policy, or of the difference, float64[n]."""
    if policy == "difference":
        one, other = map(DR().score, study.paired)
        return one - other
    return DR().score(study.powered[POLICIES.index(policy)])


def _slice_rows(slices: list[Slices]) -> Iterator[tuple[str, Ints]]:
    for kind in slices:
        for code, name in enumerate(kind.names):
            yield name, np.flatnonzero(kind.codes == code)


def _diagnostics(study: Study) -> list[Diagnostics]:
    low, high = study.observed.low, study.observed.high
    return [
        diagnose(name, study.units, pmf, rounds, low, high)
        for name, pmf, rounds in zip(POLICIES, study.pmfs, study.powered, strict=True)
    ]


def _satisfaction(study: Study, known: Diagnostics, alpha: float, warnings: list[str]) -> list[UserSatisfaction]:
    users = len(np.unique(study.units.user[study.units.user >= 0]))
    if study.metric != "fit" or not users:
        return []
    if known.ess < MIN_ESS_PER_USER * users:
        warnings.append(
            f"an effective sample size of {known.ess:.0f} for {users} users is too small to estimate how satisfaction "
            "differs between users"
        )
        return []
    one, other = map(DR().score, study.paired)
    return satisfaction(one, other, study.units.user, study.units.role, study.units.log.names.roles, alpha=alpha)


def _personalisation(units: Units, settings: ReplaySettings, warnings: list[str]) -> list[Band]:
    """Value of personalisation, if user-blind pmfs were logged."""
    found = personalisation.with_blind_pmf(units.select(has_full_pmf(units)))
    if found.said:
        warnings.append(found.said)
    if not found.units.n:
        return []
    pmfs = np.full((2, len(units.log.options.arm)), np.nan)
    pmfs[:, found.units.entries()] = found.personal, found.blind
    study = Study(found.units, Pmfs(*pmfs), settings.metric)
    groups = _groups(units.log, settings.groups)
    bands = personalisation.personalisation_bands(
        study.units,
        _doubly_robust(study, "difference"),
        *study.stream("difference"),
        groups=groups,
        alpha=settings.alpha,
    )
    return [_in_range(band, study) for band in bands]


def _warnings(study: Study, settings: ReplaySettings) -> list[str]:
    said = []
    if study.has_labels and (n := study.units.log.outcomes.left_out):
        said.append(said_of_left_out(n))
    if study.metric == "score":
        said.append("a score is a model's prediction: use it for inspection, and decide by human ratings (fit)")
    if not study.observed.fixed:
        said.append(
            f"the range of {study.metric} was taken from the log, so its exact sequences are valid only if no larger "
            "value was possible; set a cap in the gate (ceilings)"
        )
    if study.labels == "powered" and settings.horizon_s == 0.0:
        said.append("no horizon is set, so late labels are missing, and late labels are often negative")
    return said


def _costs(log: Log, study: Study) -> list[str]:
    """A warning if the metric counts costs of models without a price."""
    n = log.outcomes.assumed
    if not n or study.metric not in {"cost", "utility"}:
        return []
    return [f"{n} answers came from models without a price. {UNPRICED}"]


def _sensitivity_note(study: Study, gamma: float) -> str:
    """State the assumption about non-response and its effect."""
    asked = study.observed.asked[study.units.member]
    answered = (study.observed.asked & study.observed.seen)[study.units.member]
    if study.labels == "observed" or not asked.any():
        return ""
    share = answered.sum() / asked.sum()
    if share == 1.0:
        return "all feedback requests were answered"
    less, more = _silence(study, "difference", np.arange(study.units.n), gamma)
    return (
        f"{share:.0%} of feedback requests were answered; assuming that the odds of answering differ between users by "
        f"at most a factor Γ = {gamma:g}, whatever their rating, moves the exact limits of the difference by "
        f"−{less:.3g} and +{more:.3g}"
    )


class _GateInputs(NamedTuple):
    checks: list[Check]
    known: list[Diagnostics]
    people: list[UserSatisfaction]
    groups: Mapping[int, str]


def _gate_decision(gate: Gate, units: Units, pmfs: Pmfs, study: Study, found: _GateInputs) -> GateDecision:
    """Make the gate's decision from exact sequences at its own levels."""
    kinds = sorted({rail.slice.split("=")[0] for rail in gate.guardrails if rail.slice})
    studies: dict[str, Study] = {gate.metric: study}
    for rail in gate.guardrails:
        if rail.metric not in studies:
            studies[rail.metric] = Study(units, pmfs, rail.metric, ceiling=gate.ceilings.get(rail.metric))
    places = {m: dict(_slice_rows(slices_of(each.units, kinds, found.groups))) for m, each in studies.items()}
    names = sorted({name for each in places.values() for name in each})
    evidence = []
    for level in sequence_levels(gate, names):
        of, here = studies[level.metric], places[level.metric].get(level.slice)
        rows = np.arange(of.units.n) if not level.slice else here
        if rows is not None and len(rows):
            evidence.append(_evidence(of, rows, level.slice, (level.low, level.high), gate.sensitivity))
    return decide(gate, evidence, found.known, satisfaction=found.people, checks=found.checks)


def _evidence(study: Study, rows: Ints, name: str, ends: tuple[float, float], gamma: float) -> GateEvidence:
    return GateEvidence(
        metric=study.metric,
        band=_exact_band(study, "difference", rows, ends, name),
        silence=_silence(study, "difference", rows, gamma),
        span=study.observed.high - study.observed.low,
        fixed=study.observed.fixed,
    )


def _utc(ts: float) -> str:
    return datetime.datetime.fromtimestamp(ts, tz=datetime.UTC).isoformat(timespec="seconds")

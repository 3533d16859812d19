"""Estimates of a report: every estimator, every label stream, and the difference in every slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter_evaluators.replay.estimators import DR, ESTIMATORS, SNIPS, Estimator, Paired
from fitrouter_evaluators.replay.estimators.rounds import Rounds
from fitrouter_evaluators.replay.estimators.tuning import tuned
from fitrouter_evaluators.replay.inference.intervals import Interval, bootstraps, deltas
from fitrouter_evaluators.replay.log.log import Ints
from fitrouter_evaluators.replay.report import PolicyEstimate
from fitrouter_evaluators.replay.study.pseudo_outcomes import rounds_of
from fitrouter_evaluators.replay.study.study import Study, in_uniform_slice
from fitrouter_evaluators.replay.study.units import Units

LEAST = 50
"""Minimum units of a reported slice."""
TUNED = ("clipped_ips", "switch_dr", "dr_os")
NAIVE = "users who volunteer feedback are not a random sample"
SCORE = "a score is a model's prediction, not an outcome"
PLAIN = [each for name, each in ESTIMATORS.items() if name not in {*TUNED, "rejection"}]


class Slices(NamedTuple):
    """One partition of the units."""

    codes: Ints
    """Slice of each unit, −1 for none, int64[n]."""
    names: tuple[str, ...]
    """`role=nurse` …"""


def slices_of(units: Units, by: Sequence[str], groups: Mapping[int, str]) -> list[Slices]:
    """Slices of at least `LEAST` units for each kind in `by` (role, task, user_group); `groups`: user code → group."""
    found = []
    for kind in by:
        if kind == "user_group":
            names = tuple(sorted(set(groups.values())))
            of = {user: names.index(group) for user, group in groups.items()}
            codes = np.array([of.get(user, -1) for user in units.user.tolist()], dtype=np.int64)
        else:
            names = units.log.names.roles if kind == "role" else units.log.names.tasks
            codes = units.role if kind == "role" else units.task
        size = np.bincount(codes[codes >= 0], minlength=len(names))
        kept = [code for code in range(len(names)) if size[code] >= LEAST]
        place = np.full(len(names) + 1, -1)
        place[kept] = np.arange(len(kept))
        found.append(Slices(place[codes], tuple(f"{kind}={names[code]}" for code in kept)))
    return found


def difference_rows(study: Study, slices: Sequence[Slices], alpha: float) -> list[PolicyEstimate]:
    """Estimate the difference candidate − against on every label stream and in every slice, doubly robust."""
    cluster, labels = study.units.cluster, study.labels
    one, other = study.paired
    paired = Paired(DR(), other)
    biased = SCORE if study.metric == "score" else ""
    both = deltas([paired, Paired(SNIPS(), other)], one, cluster=cluster, alpha=alpha)
    resampled = bootstraps([paired], one, cluster=cluster, alpha=alpha)
    found = [
        *_rows("difference", labels, both, alpha=alpha, biased=biased),
        *_rows("difference", labels, resampled, alpha=alpha, biased=biased, interval="bootstrap"),
    ]
    if labels == "powered":
        for stream, (rounds, keep) in _streams(study).items():
            said = NAIVE if stream == "naive" else ""
            sampled = deltas([Paired(DR(), rounds[1])], rounds[0], cluster=cluster[keep], alpha=alpha)
            found += _rows("difference", stream, sampled, alpha=alpha, biased=said)
    share = alpha / max(sum(len(kind.names) for kind in slices), 1)
    for kind in slices:
        if kind.names:
            more = {"cluster": cluster, "slices": kind.codes, "n_slices": len(kind.names), "alpha": share}
            sliced = deltas([paired], one, **more)  # type: ignore[arg-type]
            found += _rows("difference", labels, sliced, names=kind.names, alpha=share, biased=biased)
    return found


def robust_rows(study: Study, alpha: float) -> tuple[PolicyEstimate, PolicyEstimate]:
    """Doubly robust estimates of the difference and of the value of `against` only, for a single look."""
    one, other = study.paired
    found = []
    for policy, estimator, rounds in (("difference", Paired(DR(), other), one), ("against", DR(), other)):
        each = deltas([estimator], rounds, cluster=study.units.cluster, alpha=alpha)
        found += _rows(policy, study.labels, each, estimators=[DR()], alpha=alpha)
    return found[0], found[1]


def policy_rows(study: Study, alpha: float) -> list[PolicyEstimate]:
    """Estimate both policies: all estimators on prediction-powered outcomes, DR and SNIPS on other label streams."""
    cluster, labels = study.units.cluster, study.labels
    biased = SCORE if study.metric == "score" else ""
    found: list[PolicyEstimate] = []
    for i, policy in enumerate(("candidate", "against")):
        rounds = study.powered[i]
        estimators: list[Estimator] = [*PLAIN]
        if study.units.n > 1:
            estimators += [tuned(name, rounds)[0] for name in TUNED]
        all_of = deltas(estimators, rounds, cluster=cluster, alpha=alpha)
        found += _rows(policy, labels, all_of, estimators=estimators, alpha=alpha, biased=biased)
        found += _rejection(study, i, policy, labels, alpha, biased)
        if labels == "powered":
            for stream, (both, keep) in _streams(study).items():
                said = NAIVE if stream == "naive" else ""
                pair: list[Estimator] = [DR(), SNIPS()]
                sampled = deltas(pair, both[i], cluster=cluster[keep], alpha=alpha)
                found += _rows(policy, stream, sampled, estimators=pair, alpha=alpha, biased=said)
    return found


def _streams(study: Study) -> dict[str, tuple[tuple[Rounds, Rounds], NDArray[np.bool_]]]:
    """Rounds by label stream: requested labels only, and all labels if any were volunteered."""
    found = {"asked": study.asked}
    if (~np.isnan(study.units.log.outcomes.free_label[study.units.member])).any():
        found["naive"] = study.naive
    return found


def _rejection(study: Study, i: int, policy: str, labels: str, alpha: float, biased: str) -> list[PolicyEstimate]:
    """Rejection sampling on the uniform slice (Li, Chu, Langford and Wang 2011)."""
    units = study.units
    inside = in_uniform_slice(units)
    if len(inside) < LEAST:
        return []
    pmf = study.pmfs[i]
    rounds = rounds_of(units, pmf, None, study.powered[i].reward, seed=0)
    here = Rounds(*(None if column is None else column[inside] for column in rounds))  # type: ignore[arg-type]
    estimators: list[Estimator] = [ESTIMATORS["rejection"]]
    found = deltas(estimators, here, cluster=units.cluster[inside], alpha=alpha)
    return _rows(policy, labels, found, estimators=estimators, alpha=alpha, biased=biased)


def _rows(
    policy: str,
    labels: str,
    found: Sequence[Interval],
    *,
    estimators: Sequence[Estimator] | None = None,
    names: Sequence[str] = ("",),
    interval: str = "delta",
    alpha: float,
    biased: str = "",
) -> list[PolicyEstimate]:
    known = ["dr", "snips"]
    if estimators:
        chosen = [(each.name, getattr(each, "lam", None)) for each in estimators]
        known = [name if lam is None else f"{name} (λ = {lam:g})" for name, lam in chosen]
    return [
        PolicyEstimate(
            policy=policy,
            estimator=known[i],
            labels=labels,
            value=float(each.value[s]),
            se=float(each.se[s]),
            low=float(each.low[s]),
            high=float(each.high[s]),
            interval=interval,
            slice=name,
            n=int(each.n[s]),
            alpha=alpha,
            biased=biased,
        )
        for i, each in enumerate(found)
        for s, name in enumerate(names)
    ]

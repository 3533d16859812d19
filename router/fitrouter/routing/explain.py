"""Explanation of a decision: the terms of each model's utility, which sum to what was logged.

Some terms are not in the log (how much of the predicted rating comes from the population, the role, the user, or the
correction). A fit model splits them, with the estimates of now; the change since the decision is a term of its own,
`since`, so that the terms always sum to the logged utility.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np

from fitrouter.posterior.model import Fit
from fitrouter.routing.explanation import Account, Contrast, Explanation, Feature, Term
from fitrouter.routing.explanation_text import sentences_of
from fitrouter.types import Decision, Event, Execution, Floats, unpack

_SPLIT = ("population", "role_taste", "user_taste", "correction", "role_offset", "user_offset", "since")


def explain(
    events: Sequence[Event],
    fit: Fit | None = None,
    *,
    cost_unit_usd: float | None = None,
    latency_unit_s: float | None = None,
) -> Explanation:
    """Explain a decision.

    Args:
        events: of the decision, the decision first; for a sticky turn the session's draw may be among them.
        fit: model that splits the predicted rating into terms.
        cost_unit_usd: unit of the cost weight, for decisions that did not log it.
        latency_unit_s: unit of the latency weight, for decisions that did not log it.

    Raises:
        TypeError: the first event is no decision.
    """
    decision = events[0] if events else None
    if not isinstance(decision, Decision):
        raise TypeError(f"the first event is a {type(decision).__name__}; pass the decision first")
    table = _Table(decision, fit, cost_unit_usd, latency_unit_s)
    leader = None if table.utility is None else decision.eligible[int(table.utility.argmax())]
    first = next((e for e in events[1:] if isinstance(e, Decision) and e.id == decision.draw_id), None)
    found = Explanation(
        decision_id=decision.id,
        draw_id=decision.draw_id,
        mode=decision.mode.value,
        chosen=decision.chosen,
        propensity=decision.propensity,
        leader=leader,
        explores=decision.mode.drawn and leader not in {None, decision.chosen},
        explored=1.0 - decision.probs[decision.eligible.index(leader)] if leader and decision.probs else None,
        floor_each=decision.floor / len(decision.eligible) if decision.probs else 0.0,
        share=decision.share,
        redraw=decision.redraw,
        models=tuple(table.account(k) for k in range(len(decision.eligible))),
        contrast=table.contrast(),
        excluded=decision.excluded,
        cost_weight=decision.cost_weight,
        latency_weight=decision.latency_weight,
        budget_weight=decision.budget_weight,
        budget_unit_usd=decision.budget_unit_usd,
        own=None if table.split is None else table.split.own,
        split=table.split is not None,
        missing=table.missing,
        drew=first.propensity if first is not None else None,
        served_by=next((e.served_by for e in events if isinstance(e, Execution)), None),
    )
    return msgspec.structs.replace(found, sentences=sentences_of(found))


class _Split:
    """Terms of the predicted rating under the model of now; arrays are float64[K] unless stated otherwise."""

    def __init__(self, decision: Decision, fit: Fit, mean: Floats) -> None:
        identity, names, x = decision.identity, decision.eligible, unpack(decision.features)
        role_only = msgspec.structs.replace(identity, user=None)
        everybody = fit.tastes.population.mean
        self.profile = fit.profile(x, names)
        now = fit.estimate(identity, x, names, decision.ts)
        # With personalisation off, the logged mean holds the personal terms although they did not decide.
        off = bool(decision.personal)
        role = everybody if off else fit.taste(role_only)
        both = everybody if off else fit.taste(identity)
        self.weights = np.stack([everybody, role - everybody, both - role])
        """float64[3, D]: population taste, and the deviations of role and user."""
        with_role = now.blind if off else fit.estimate(role_only, x, names, decision.ts).mean
        with_user = now.blind if off else now.mean
        text = np.einsum("kh,bh->bk", self.profile, self.weights)
        self.blind = now.blind
        offsets = (with_role - now.blind - text[1], with_user - with_role - text[2])
        self.parts = (*text, now.blind - text[0], *offsets, mean - now.mean)
        person = (fit.tastes.user(identity) or fit.tastes.role(identity)) if fit.params.personal else None
        labelled = not off and person is not None and bool(person.weights)
        self.own = 1.0 - float(fit.weights(identity)[:2].sum()) if labelled else None
        """Weight of the personal heads."""
        self.names = tuple(sorted(fit.tastes.names, key=fit.tastes.names.__getitem__))

    def features(self, a: int, b: int) -> tuple[Feature, ...]:
        """Contributions of the features to b's lead over a."""
        gap = self.profile[b] - self.profile[a]
        values = self.weights * gap
        names = self.names if len(self.names) == len(gap) else [f"feature_{j}" for j in range(len(gap))]
        found = [
            Feature(name=name, difference=float(d), population=float(p), role=float(r), user=float(u))
            for name, d, (p, r, u) in zip(names, gap, values.T, strict=True)
            if p or r or u
        ]
        return tuple(sorted(found, key=lambda feature: -abs(feature.value)))


class _Table:
    """Terms × models of one decision."""

    def __init__(
        self, decision: Decision, fit: Fit | None, cost_unit_usd: float | None, latency_unit_s: float | None
    ) -> None:
        self.decision = decision
        self.split: _Split | None = None
        self.terms: dict[str, Floats] = {}
        self.missing = ""
        self.utility: Floats | None = None
        if not decision.mean:
            return
        mean = np.array(decision.mean)
        if fit is not None and len(unpack(decision.features)) == fit.d:
            self.split = _Split(decision, fit, mean)
            self.terms.update(zip(_SPLIT, self.split.parts, strict=True))
        else:
            self.terms["fit"] = mean
            if decision.personal:
                self.missing = "the user-blind prediction that decided is not in the log"
        self._price("cost", decision.cost_weight, decision.cost, _unit(decision, "cost_unit_usd", cost_unit_usd))
        self._price("budget", decision.budget_weight, decision.cost, decision.budget_unit_usd)
        unit_s = _unit(decision, "latency_unit_s", latency_unit_s)
        self._price("latency", decision.latency_weight, decision.latency, unit_s)
        if decision.availability:
            worth = _total(list(self.terms.values()))
            self.terms["availability"] = (np.array(decision.availability) - 1.0) * worth
        if decision.switch:
            self.terms["switch"] = -np.array(decision.switch)
        if not self.missing:
            self.utility = _total(list(self.terms.values()))

    def _price(self, name: str, weight: float, amounts: tuple[float, ...], unit: float | None) -> None:
        if not weight or not amounts:
            return
        if unit:
            self.terms[name] = -weight * np.array(amounts) / unit
        else:
            self.missing = self.missing or f"the unit of the {name} weight is not in the log"

    def _row(self, k: int) -> tuple[Term, ...]:
        return tuple(Term(name=name, value=float(values[k])) for name, values in self.terms.items())

    def account(self, k: int) -> Account:
        """The k-th eligible model."""
        decision = self.decision
        return Account(
            arm=decision.eligible[k],
            probability=_at(decision.probs, k),
            blind_probability=_at(decision.twin, k),
            personal_probability=_at(decision.personal, k),
            fit=_at(decision.mean, k),
            sd=_at(decision.sd, k),
            blind_fit=None if self.split is None else float(self.split.blind[k]),
            utility=None if self.utility is None else float(self.utility[k]),
            terms=() if self.utility is None else self._row(k),
            cost_usd=_at(decision.cost, k),
            latency_s=_at(decision.latency, k),
            availability=_at(decision.availability, k),
            candidates={name: pmf[k] for name, pmf in decision.candidates.items()},
            new=decision.eligible[k] in decision.new,
        )

    def contrast(self) -> Contrast | None:
        """The contrast of the chosen model with its closest rival; None without utilities or without a rival."""
        eligible, utility = self.decision.eligible, self.utility
        if utility is None or len(eligible) < 2 or self.decision.chosen not in eligible:
            return None
        a = eligible.index(self.decision.chosen)
        order = np.argsort(-utility, kind="stable")
        b = int(order[1] if order[0] == a else order[0])
        return Contrast(
            arm=eligible[a],
            rival=eligible[b],
            gap=float(utility[b] - utility[a]),
            terms=tuple(Term(name=name, value=float(v[b] - v[a])) for name, v in self.terms.items()),
            features=() if self.split is None else self.split.features(a, b),
        )


T = TypeVar("T")


def _at(values: tuple[T, ...], k: int) -> T | None:
    """The k-th value; None where nothing was logged."""
    return values[k] if values else None


def _unit(decision: Decision, name: str, given: float | None) -> float | None:
    """The unit of a weight, from the decision if it logged one."""
    return getattr(decision, name, None) or given


def _total(terms: Sequence[Floats]) -> Floats:
    total: Floats = np.sum(terms, axis=0)
    return total

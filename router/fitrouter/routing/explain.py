"""Explanation of a decision: the terms of each model's utility, which sum to what was logged.

All of it comes from the log, so it is the same for ever: the decision's `grounds` split the predicted rating into
terms, and the person's own votes are counted up to the position of the journal that the decision had folded. A fit
model predicts and splits the rating by the estimates of now instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from fitrouter.draw import draws, landing
from fitrouter.plain import unpack
from fitrouter.posterior.model import Fit
from fitrouter.routing.explanation import Account, Contrast, Explanation, Feature, Term
from fitrouter.routing.explanation_text import changes_of, sentences_of
from fitrouter.routing.grounds import grounds_of
from fitrouter.state.projections import ArmCounts
from fitrouter.stores.figures import tallies
from fitrouter.stores.journal import Row
from fitrouter.types import FULL_SHARE, Decision, Event, Execution, Floats, Grounds, Mode


def explain(
    events: Sequence[Event],
    fit: Fit | None = None,
    *,
    history: Iterable[Row] = (),
    counts: ArmCounts | None = None,
    cost_unit_usd: float | None = None,
    latency_unit_s: float | None = None,
) -> Explanation:
    """Explain a decision.

    Args:
        events: of the decision, the decision first; for a sticky turn the session's draw may be among them.
        fit: model of now that predicts the rating and splits it into terms, instead of the logged terms.
        history: rows of the journal on the decision's user, whose votes are counted: up to the decision, or all of
            them with a `fit`.
        counts: answers and labels of the models by now, with a `fit`.
        cost_unit_usd: unit of the cost weight, for decisions that did not log it.
        latency_unit_s: unit of the latency weight, for decisions that did not log it.

    Raises:
        TypeError: the first event is no decision.
    """
    decision = events[0] if events else None
    if not isinstance(decision, Decision):
        raise TypeError(f"the first event is a {type(decision).__name__}; pass the decision first")
    grounds = decision.grounds if fit is None else grounds_by(fit, decision, counts, exact=True)
    until = None if fit is not None else decision.policy.seq
    votes = tallies(row.event for row in history if until is None or row.seq <= until)
    table = _Table(decision, grounds, votes, cost_unit_usd, latency_unit_s)
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
        cost_unit_usd=_unit(decision, "cost_unit_usd", cost_unit_usd) or 0.0,
        tier=decision.tier,
        latency_weight=decision.latency_weight,
        budget_weight=decision.budget_weight,
        budget_unit_usd=decision.budget_unit_usd,
        own=None if grounds is None else grounds.own,
        split=grounds is not None,
        now=fit is not None,
        missing=table.missing,
        drew=first.propensity if first is not None else None,
        would=_would(decision),
        served_by=next((e.served_by for e in events if isinstance(e, Execution)), None),
    )
    return msgspec.structs.replace(found, sentences=sentences_of(found))


def contrasted(then: Explanation, now: Explanation) -> Explanation:
    """Add today's predictions to an explanation from the logged predictions."""
    said = (*then.sentences, *changes_of(then, now))
    return msgspec.structs.replace(then, today=now, sentences=said)


def grounds_by(fit: Fit, decision: Decision, counts: ArmCounts | None = None, *, exact: bool = False) -> Grounds | None:
    """Compute the grounds that a fit gives for a logged decision; None if its contexts have another size."""
    x = unpack(decision.features)
    if len(x) != fit.d:
        return None
    seen = fit.estimate(decision.identity, x, decision.eligible, decision.ts, stuck=bool(decision.stuck))
    # With personalisation off, the logged mean holds the personal terms although they did not decide.
    personal = not decision.personal
    return grounds_of(fit, seen, decision.identity, decision.eligible, personal=personal, counts=counts, exact=exact)


def terms_of(grounds: Grounds, mean: Floats) -> Floats:
    """The terms of each predicted rating, float64[6, K], in the order of `Grounds.terms`."""
    if not grounds.terms:
        return unpack(grounds.summands).reshape(6, -1)
    found = np.array([term or np.zeros(len(mean)) for term in grounds.terms])
    if not grounds.terms[3]:
        found[3] = mean - found.sum(axis=0)
    return found


def _would(decision: Decision) -> str | None:
    """Return the model that the policy alone would have drawn, for a request that the default model took."""
    pmf = decision.candidates.get(FULL_SHARE)
    if decision.mode is not Mode.SHADOW or pmf is None:
        return None
    u = float(draws(decision.seed, decision.id, 1)[0])
    return decision.eligible[landing(np.array(pmf), u)[0]]


class _Table:
    """Table of the utility terms of each model in one decision."""

    def __init__(
        self,
        decision: Decision,
        grounds: Grounds | None,
        votes: dict[str, tuple[int, int, int]],
        cost_unit_usd: float | None,
        latency_unit_s: float | None,
    ) -> None:
        self.decision, self.grounds, self.votes = decision, grounds, votes
        self.terms: dict[str, Floats] = {}
        self.rows = np.zeros((6, len(decision.eligible)))
        self.missing = ""
        self.utility: Floats | None = None
        if not decision.mean:
            return
        mean = np.array(decision.mean)
        if grounds is not None:
            self.rows = terms_of(grounds, mean)
            text, of_role, style, model, role_offset, offset = self.rows
            self.terms |= {"text": text, "role": of_role + role_offset, "style": style}
            self.terms |= {"model": model, "offset": offset}
        else:
            self.terms["fit"] = mean
            if decision.personal:
                self.missing = "the user-blind prediction that decided is not in the log"
        unit_usd = _unit(decision, "cost_unit_usd", cost_unit_usd)
        unit_s = _unit(decision, "latency_unit_s", latency_unit_s)
        self._weigh("price", "cost", decision.cost_weight, decision.cost, unit_usd)
        self._weigh("price", "budget", decision.budget_weight, decision.cost, decision.budget_unit_usd)
        self._weigh("latency", "latency", decision.latency_weight, decision.latency, unit_s)
        if decision.availability:
            worth = _total(list(self.terms.values()))
            self.terms["availability"] = (np.array(decision.availability) - 1.0) * worth
        if decision.switch:
            self._add("price", -np.array(decision.switch))
        if not self.missing:
            self.utility = _total(list(self.terms.values()))

    def _weigh(self, term: str, name: str, weight: float, amounts: tuple[float, ...], unit: float | None) -> None:
        if not weight or not amounts:
            return
        if unit:
            self._add(term, -weight * np.array(amounts) / unit)
        else:
            self.missing = self.missing or f"the unit of the {name} weight is not in the log"

    def _add(self, term: str, values: Floats) -> None:
        self.terms[term] = self.terms.get(term, 0.0) + values

    def _row(self, k: int) -> tuple[Term, ...]:
        return tuple(Term(name=name, value=float(values[k])) for name, values in self.terms.items())

    def account(self, k: int) -> Account:
        """Describe the k-th eligible model."""
        decision = self.decision
        up, down, n = self.votes.get(decision.eligible[k], (0, 0, 0))
        cost, unpriced = _at(decision.cost, k), decision.eligible[k] in decision.unpriced
        return Account(
            arm=decision.eligible[k],
            probability=_at(decision.probs, k),
            blind_probability=_at(decision.twin, k),
            personal_probability=_at(decision.personal, k),
            fit=_at(decision.mean, k),
            sd=_at(decision.sd, k),
            blind_fit=None if self.grounds is None else float(self.rows[[0, 3], k].sum()),
            utility=None if self.utility is None else float(self.utility[k]),
            terms=() if self.utility is None else self._row(k),
            cost_usd=cost if cost or not unpriced else None,
            unpriced=unpriced,
            latency_s=_at(decision.latency, k),
            availability=_at(decision.availability, k),
            switch=_at(decision.switch, k),
            candidates={name: pmf[k] for name, pmf in decision.candidates.items()},
            new=decision.eligible[k] in decision.new,
            votes_up=up,
            votes_down=down,
            votes=n,
            answers=_at(self.grounds.answers, k) if self.grounds else None,
            labels=_at(self.grounds.labels, k) if self.grounds else None,
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
            features=self._features(a, b),
        )

    def _features(self, a: int, b: int) -> tuple[Feature, ...]:
        """Return each feature's contribution to b's lead over a, the largest first; the unnamed rest comes last."""
        grounds = self.grounds
        if grounds is None:
            return ()
        n = len(grounds.features)
        profile = grounds.profile
        shown = unpack(profile).reshape(-1, n).T if isinstance(profile, bytes) and n else np.array(profile)
        gap = shown[:, b] - shown[:, a] if n else np.zeros(0)
        values = unpack(grounds.tastes).reshape(3, n) * gap
        left = [float(row[b] - row[a] - v.sum()) for row, v in zip(self.rows, values, strict=False)]
        named = [
            Feature(name=name, difference=float(d), population=float(p), role=float(r), user=float(u))
            for name, d, (p, r, u) in zip(grounds.features, gap, values.T, strict=True)
            if p or r or u
        ]
        rest = Feature(name="", difference=0.0, population=left[0], role=left[1], user=left[2])
        return (*sorted(named, key=lambda feature: -abs(feature.value)), *([rest] if any(left) else []))


T = TypeVar("T")


def _at(values: tuple[T, ...], k: int) -> T | None:
    """The k-th value; None where nothing was logged."""
    return values[k] if values else None


def _unit(decision: Decision, name: str, given: float | None) -> float | None:
    """Unit of a weight: the one that the decision logged, else the given one."""
    return getattr(decision, name, None) or given


def _total(terms: Sequence[Floats]) -> Floats:
    total: Floats = np.sum(terms, axis=0)
    return total

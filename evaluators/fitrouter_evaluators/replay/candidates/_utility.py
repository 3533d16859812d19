"""What a policy finds in the log: everything of a decision but what is believed of the fit.

utility = availability · (fit − burden) − switch, with burden = (cost weight / unit + λ / budget unit) · USD +
(latency weight / unit) · seconds, operation by operation as `routing.decider` does it, so that ties stay ties. The
budget's λ is the logged one: what another policy's spending would have made of it is not known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fitrouter.policies import Batched, Beliefs, Policy, proposals
from fitrouter.posterior.labels import Estimate
from fitrouter.types import Floats
from fitrouter_evaluators.replay.candidates._log_columns import by_size, entries, per_entry, per_row, sums
from fitrouter_evaluators.replay.candidates._mixture import Mixture
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.log.log import Ints, Log


class UtilityTerms(NamedTuple):
    """n requests with m entries altogether."""

    names: tuple[str, ...]
    """What codes of arms stand for."""
    counts: Ints
    """int64[n]: eligible arms."""
    arm: Ints
    availability: Floats
    burden: Floats
    switch: Floats
    rest: Floats
    """All [m]."""

    def pmf(self, policy: Policy, mean: Floats, sd: Floats, steps: Floats) -> Floats:
        """float64[m]: the marginal pmf of a policy.

        Args:
            policy: whose.
            mean: float64[m], believed fit.
            sd: float64[m], of the fit.
            steps: float64[n], labels that were learnt.
        """
        utility = self.availability * (mean - self.burden) - self.switch
        sd = self.availability * sd
        names = np.array(self.names, dtype=object)
        pmf = np.empty(len(utility))
        for rows, at in by_size(self.counts):
            arms = () if isinstance(policy, Batched) else names[self.arm[at]].tolist()
            pmf[at] = proposals(policy, arms, utility[at], sd[at], steps[rows])
        return self._mixed(pmf)

    def one(
        self, i: int, begin: int, policy: Policy, found: Estimate | None, steps: float, personal: bool | None = None
    ) -> Floats:
        """float64[K]: the pmf of a policy at row i, by what another learner believes.

        Args:
            i: the row.
            begin: where its entries begin.
            policy: whose.
            found: beliefs of fit and availability; None where no policy was asked.
            steps: labels behind them.
            personal: False leaves out the terms of role and user.
        """
        at = slice(begin, begin + int(self.counts[i]))
        rest = self.rest[at]
        if found is None:
            alone: Floats = rest / rest.sum()
            return alone
        mean = found.blind if personal is False else found.mean
        beliefs = Beliefs(
            arms=tuple(self.names[code] for code in self.arm[at].tolist()),
            utility=found.availability * (mean - self.burden[at]) - self.switch[at],
            sd=found.availability * found.sd,
            steps=steps,
        )
        probs: Floats = (1.0 - rest.sum()) * policy.propose(beliefs) + rest
        probs /= probs.sum()
        return probs

    def _mixed(self, pmf: Floats) -> Floats:
        counts = self.counts
        probs: Floats = np.repeat(1.0 - sums(self.rest, counts), counts) * pmf + self.rest
        probs /= np.repeat(sums(probs, counts), counts)
        return probs


def utility_terms(log: Log, rows: Ints, settings: Settings, mixture: Mixture) -> UtilityTerms:
    """What these rows hold for a candidate.

    Args:
        log: what was logged.
        rows: int64[n].
        settings: the candidate's.
        mixture: its rest on this log.

    Raises:
        InvalidLog: what it needs is not logged.
    """
    options, made = log.options, log.decisions
    at = entries(log, rows)
    counts = np.diff(made.start)[rows]
    m = len(at)
    usd = _price(log, rows, settings.cost_weight, made.cost_weight, made.cost_unit_usd, "cost")
    if made.budget_weight is not None and made.budget_unit_usd is not None:
        weight = made.budget_weight[rows]
        # λ is 0 where there is no budget, and then so is the unit.
        usd = usd + np.divide(weight, made.budget_unit_usd[rows], out=np.zeros(len(rows)), where=weight > 0.0)
    wait = _price(log, rows, settings.latency_weight, made.latency_weight, made.latency_unit_s, "latency")
    burden = _taken(log, rows, usd, options.cost, "cost") + _taken(log, rows, wait, options.latency, "latency")
    return UtilityTerms(
        names=log.names.arms,
        counts=counts,
        arm=options.arm[at],
        availability=np.ones(m) if options.availability is None else options.availability[at],
        burden=burden,
        switch=np.zeros(m) if options.switch is None else options.switch[at],
        rest=mixture.rest(rows),
    )


def _price(log: Log, rows: Ints, said: float | None, logged: Floats | None, unit: Floats | None, name: str) -> Floats:
    """float64[n]: fit that one dollar or one second costs."""
    if said == 0.0:
        return np.zeros(len(rows))
    if said is None:
        weight = per_row(log, logged, rows, f"the weight of {name} ('{name}_weight')", f"say '{name}_weight'")
    else:
        weight = np.full(len(rows), said)
    if not (weight > 0.0).any():
        return np.zeros(len(rows))
    units = per_row(log, unit, rows, f"the unit of '{name}_weight'", f"say '{name}_weight: 0'")
    return np.divide(weight, units, out=np.zeros(len(rows)), where=weight > 0.0)


def _taken(log: Log, rows: Ints, price: Floats, amount: Floats | None, name: str) -> Floats:
    """float64[m]: fit that cost or latency takes away."""
    counts = np.diff(log.decisions.start)[rows]
    if not (price > 0.0).any():
        return np.zeros(int(counts.sum()))
    spent = per_entry(log, amount, rows, f"the expected {name} ('{name}')", f"say '{name}_weight: 0'")
    return np.repeat(price, counts) * spent

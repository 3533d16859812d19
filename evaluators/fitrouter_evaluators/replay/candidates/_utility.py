"""Logged terms of a decision's utility other than the posterior of the fit.

utility = availability · (fit − price) − switch, with price = (cost weight / unit + λ / budget unit) · USD +
(latency weight / unit) · seconds, in the same order of operations as `routing.decider`, so that ties stay ties. The
budget's dual variable λ is the logged one: how another policy's spending would have changed it is unknown.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.policies import Beliefs, Policy, is_batched, proposals
from fitrouter.posterior.labels import Estimate
from fitrouter.types import Floats
from fitrouter_evaluators.replay.candidates._log_columns import by_size, entries, number, per_entry, per_row, sums
from fitrouter_evaluators.replay.candidates._mixture import Mixture
from fitrouter_evaluators.replay.candidates._settings import Settings
from fitrouter_evaluators.replay.log.log import Ints, Log


class UtilityTerms(NamedTuple):
    """Terms of the utility of n decisions with m entries in total."""

    names: tuple[str, ...]
    """Arm names by code."""
    counts: Ints
    """Numbers of the arms that may be drawn, int64[n]."""
    kept: NDArray[np.bool_]
    """Which logged entries those are, bool[m]."""
    arm: Ints
    availability: Floats
    price: Floats
    switch: Floats
    rest: Floats
    """arm, availability, price, switch and rest are of the kept entries."""

    def pmf(self, policy: Policy, mean: Floats, sd: Floats, steps: Floats) -> Floats:
        """Compute a policy's pmf, float64[m], from posterior means and sds, float64[m], and label counts `steps`."""
        utility = self.availability * (mean[self.kept] - self.price) - self.switch
        sd = self.availability * sd[self.kept]
        names = np.array(self.names, dtype=object)
        pmf = np.empty(len(utility))
        for rows, at in by_size(self.counts):
            arms = () if is_batched(policy) else names[self.arm[at]].tolist()
            pmf[at] = proposals(policy, arms, utility[at], sd[at], steps[rows])
        probs = np.zeros(len(self.kept))
        probs[self.kept] = self._mixed(pmf)
        return probs

    def decision_pmf(
        self, i: int, begin: int, policy: Policy, found: Estimate | None, steps: float, personal: bool | None = None
    ) -> Floats:
        """Compute a policy's pmf at row i, with entries from `begin` on, under another learner's estimate, float64[K].

        `found` is None where no policy decided; `personal` False leaves out the user and role terms.
        """
        at = slice(begin, begin + int(self.counts[i]))
        rest = self.rest[at]
        if found is None:
            return np.asarray(rest / rest.sum())
        mean = found.blind if personal is False else found.mean
        beliefs = Beliefs(
            arms=tuple(self.names[code] for code in self.arm[at].tolist()),
            utility=found.availability * (mean - self.price[at]) - self.switch[at],
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
    """Read the logged utility terms of these rows, as changed by a candidate's settings."""
    options, made = log.options, log.decisions
    at = entries(log, rows)
    counts = np.diff(made.start)[rows]
    kept = mixture.kept(rows)
    m = len(at)
    usd = _unit_price(log, rows, _weights(log, rows, settings), made.cost_weight, made.cost_unit_usd, "cost")
    if made.budget_weight is not None and made.budget_unit_usd is not None:
        weight = made.budget_weight[rows]
        # λ is 0 where there is no budget, and then so is the unit.
        usd = usd + np.divide(weight, made.budget_unit_usd[rows], out=np.zeros(len(rows)), where=weight > 0.0)
    wait = _unit_price(log, rows, settings.latency_weight, made.latency_weight, made.latency_unit_s, "latency")
    price = _price(log, rows, usd, options.cost, "cost") + _price(log, rows, wait, options.latency, "latency")
    return UtilityTerms(
        names=log.names.arms,
        counts=number(kept, counts),
        kept=kept,
        arm=options.arm[at][kept],
        availability=(np.ones(m) if options.availability is None else options.availability[at])[kept],
        price=price[kept],
        switch=(np.zeros(m) if options.switch is None else options.switch[at])[kept],
        rest=mixture.rest(rows)[kept],
    )


def _weights(log: Log, rows: Ints, settings: Settings) -> Floats | float | None:
    """The candidate's cost weight at each row, as the logged tiers of the requests move it; None for the logged one."""
    weight, tiers = settings.cost_weight, log.decisions.tier
    if weight is None or tiers is None:
        return weight
    asked = tiers[rows]
    moved = {tier: settings.tiers.weight(tier or "", weight) for tier in {*asked.tolist()}}
    return np.array([moved[tier] for tier in asked.tolist()]) if set(moved.values()) - {weight} else weight


def _unit_price(
    log: Log, rows: Ints, setting: Floats | float | None, logged: Floats | None, unit: Floats | None, name: str
) -> Floats:
    """Utility lost per dollar or per second at each row, float64[n]; `setting` overrides the logged weight."""
    if isinstance(setting, float) and setting == 0.0:
        return np.zeros(len(rows))
    if setting is None:
        weight = per_row(log, logged, rows, f"the {name} weight ('{name}_weight')", f"set '{name}_weight'")
    else:
        weight = np.full(len(rows), setting) if isinstance(setting, float) else setting
    if not (weight > 0.0).any():
        return np.zeros(len(rows))
    units = per_row(log, unit, rows, f"the unit of '{name}_weight'", f"set '{name}_weight: 0'")
    return np.divide(weight, units, out=np.zeros(len(rows)), where=weight > 0.0)


def _price(log: Log, rows: Ints, price: Floats, amount: Floats | None, name: str) -> Floats:
    """Utility lost to the expected cost or latency of each entry, float64[m]."""
    counts = np.diff(log.decisions.start)[rows]
    if not (price > 0.0).any():
        return np.zeros(int(counts.sum()))
    spent = per_entry(log, amount, rows, f"the expected {name} ('{name}')", f"set '{name}_weight: 0'")
    return np.repeat(price, counts) * spent

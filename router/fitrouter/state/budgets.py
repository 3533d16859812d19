"""Budgets: a tenant's spending limit, enforced by a dual variable λ on cost and a cap on the cost of a request.

A decision subtracts λ · cost/unit from each utility: the unit is the USD that a request costs on average at the limit,
λ is in units of predicted rating. λ is the dual variable of the budget constraint and is driven by a token bucket (a
virtual queue: Neely 2010, "Stochastic network optimization", §4) that each request fills by `aim` units, up to
`bucket`, and each cost empties. Any sequence of requests therefore costs at most aim · requests + bucket, plus the
excess of the last one. log λ is the sum of a slow integral of how empty the bucket is, which converges to the price of
the constraint (dual ascent with multiplicative steps: Balseiro, Lu and Mirrokni 2023, "The best of many worlds: dual
mirror descent for online allocation problems", Operations Research 71), and a fast proportional term, which reacts to
chance and shocks.

A model that is expected to cost more than the bucket holds is excluded before the pmf is computed, with a logged
reason (`over_cap`), except the cheapest one and those that cost little more than the unit. Expected costs are
multiplied by the ratio of real to expected costs seen so far, if above 1.

The hard limit of a period is kept by reservations of what each call may cost at most (`fitrouter.serving.ledger`). Here
the dearer models are excluded whose expected cost is above what is not spent yet.

The limit of a tenant's period can be changed at run time: a `PolicyChange` with the action `budget` overrides the
configuration's until the configuration changes. Spending so far, the bucket and λ stay as they are.

Times come from events, possibly out of order; there is no clock.
"""

from __future__ import annotations

import copy
import functools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fitrouter.errors import InvalidRequest
from fitrouter.plain import Projection
from fitrouter.types import Floats, PolicyChange

LOWEST, HIGHEST = 1e-4, 10.0
"""Bounds of λ, in rating per unit: from a tie-break to more than any gain in rating can outweigh."""
DEEP = 3.0
"""Bound of the emptiness in the fast term: time repays one expensive answer, it does not justify any price."""
PERIODS = 2
"""Number of periods kept, so that late events of the last one still count there."""
RATE_PRIOR = 0.02
"""Weight of the last period's request rate, as a share of a period."""
FIRST_RATE = 1000.0
"""Assumed number of requests in a period before any is known."""
PENDING = 4096
"""Number of decisions without an Execution that are kept, the last ones."""
DRIFT_MEMORY = 0.97
"""Decay per request of the sums of real and expected costs."""
DRIFT_PRIOR = 5.0
"""Prior weight of "expected costs are right", in units."""
LIMITS = 1000
"""Most tenants whose limit is changed at run time."""
_LONGEST = 200
_LIMITS = "\x1flimits"
"""Key of the changed limits in the state; no tenant has this name."""


def check_limit(tenant: object, usd: object) -> tuple[str, float | None]:
    """Check a tenant's name and the limit of its period; None for the configured limit.

    Raises:
        InvalidRequest: one of them cannot be used.

    >>> check_limit("acme", 5)
    ('acme', 5.0)
    """
    if not isinstance(tenant, str) or not tenant.strip() or len(tenant) > _LONGEST or not tenant.isprintable():
        shown = repr(tenant)[:80]
        raise InvalidRequest(f"tenant: got {shown}; give a name of at most {_LONGEST} printable characters")
    if usd is None:
        return tenant, None
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0.0 < usd <= 1e12:
        raise InvalidRequest(
            f"usd_per_period: {repr(usd)[:80]} is not allowed; give USD above 0, at most 1e12, or null"
        )
    return tenant, float(usd)


class BudgetParams(msgspec.Struct, frozen=True, kw_only=True):
    """Spending limits of a tenant, and how they are enforced.

    Raises:
        ValueError: a number is out of range.
    """

    usd_per_request: float | None = None
    """Limit of the mean cost of a request."""
    usd_per_period: float | None = None
    """Limit of the cost of a period."""
    period_s: float = 86_400.0
    usd_per_request_max: float | None = None
    """Models whose expected cost exceeds this are excluded."""
    hard: bool = True
    """Whether models that cost more than the bucket or the rest of the period are excluded; else only λ applies."""
    aim: float = 0.98
    """Share of the limit that fills the bucket; below 1, so that chance does not push the mean over the limit."""
    bucket: float = 15.0
    """Size of the bucket in units: n requests cost at most aim · n + bucket, plus the excess of the last one."""
    modest: float = 2.0
    """Allowed expected cost in units if the bucket is empty; it falls to a third at two buckets of debt."""
    start: float = 0.01
    """λ before the first request."""
    slow: float = 0.02
    """Step of log λ per request: up by this if the bucket is empty, down if it is full."""
    fast: float = 0.5
    """Proportional term of log λ: its increase if the bucket is empty instead of half full."""
    min_answer_tokens: int = 256
    """Where a hard limit does not cover an answer, `max_tokens` is lowered to this at the least; then it waits."""
    floor_share: float = 0.05
    """Share of the limit that the exploration floor spends at most."""

    def __post_init__(self) -> None:
        for name in ("usd_per_request", "usd_per_period", "period_s", "usd_per_request_max"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}; give a finite number above 0, or leave it out")
        if not 0.0 < self.aim <= 1.0:
            raise ValueError(f"aim is {self.aim!r}; allowed is a share above 0, at most 1")
        if not 1.0 <= self.bucket < math.inf:
            raise ValueError(f"bucket is {self.bucket!r}; allowed is 1 or more units")
        if not LOWEST <= self.start <= HIGHEST:
            raise ValueError(f"start is {self.start!r}; allowed is {LOWEST} to {HIGHEST}")

    @property
    def limited(self) -> bool:
        """Whether there is a limit that λ enforces."""
        return self.usd_per_request is not None or self.usd_per_period is not None


class _Account:
    """Spending of one tenant."""

    def __init__(self, params: BudgetParams) -> None:
        self.log_weight = math.log(params.start)
        self.level = 0.5 * params.bucket
        """Contents of the bucket in units; negative for a debt."""
        self.pending: OrderedDict[str, float] = OrderedDict()
        """Decision without an Execution → expected cost in units."""
        self.compared = (0.0, 0.0)
        """Decaying sums of the real and of the expected costs of the same requests, in units."""
        self.periods: dict[int, tuple[float, int]] = {}
        """Period → USD and requests."""
        self.first = 0.0
        """Time of the first request."""


class _StoredBudget(msgspec.Struct, array_like=True):
    log_weight: float
    level: float
    pending: list[tuple[str, float]]
    compared: tuple[float, float]
    periods: list[tuple[int, float, int]]
    first: float


class Budgets(Projection):
    """Budgets and spending of all tenants.

    Args:
        default: budget of tenants that are not named; None for none.
        tenants: tenant → budget.
    """

    stored_type = dict[str, _StoredBudget | dict[str, float]]

    def __init__(self, default: BudgetParams | None = None, tenants: Mapping[str, BudgetParams] | None = None) -> None:
        self.default, self.tenants = default, dict(tenants or {})
        self.limits: dict[str, float] = {}
        """Tenant → USD per period, over the configuration's."""
        self._accounts: dict[str, _Account] = {}

    def params(self, tenant: str) -> BudgetParams | None:
        """The budget of a tenant; None where it has none."""
        params, limit = self.tenants.get(tenant, self.default), self.limits.get(tenant)
        return params if limit is None else _limited(params or BudgetParams(), limit)

    def trial(self, tenant: str, usd_per_period: float | None) -> Budgets:
        """Return a copy with another limit of a tenant and the same spending, to be read only."""
        tried = copy.copy(self)
        tried.limits = _changed(self.limits, tenant, usd_per_period)
        return tried

    def spenders(self) -> list[str]:
        """Return the tenants with a budget that have spent anything."""
        return sorted(self._accounts)

    # --- learning ---

    def observe_change(self, change: PolicyChange) -> None:
        """Apply a change of a limit, or drop all changes because the configuration has changed."""
        match change.action:
            case "budget":
                try:
                    tenant, usd = check_limit(change.settings.get("tenant"), change.settings.get("usd_per_period"))
                except InvalidRequest:
                    return
                self.limits = _changed(self.limits, tenant, usd)
            case "config":
                self.limits = {}
            case _:
                return
        for tenant in [name for name in self._accounts if self.params(name) is None]:
            del self._accounts[tenant]

    def observe_decision(self, tenant: str, ts: float, expected_usd: float, decision_id: str) -> None:
        """Reserve the expected cost of a decision until `observe` reports the real one.

        Optional: it matters if many answers are pending at once.
        """
        params = self.params(tenant)
        if params is None or not params.limited or not (math.isfinite(expected_usd) and math.isfinite(ts)):
            return
        account = self._account(tenant, params, ts)
        account.pending[decision_id] = self._units(tenant, ts, expected_usd)
        if len(account.pending) > PENDING:
            account.pending.popitem(last=False)

    def release(self, tenant: str, decision_id: str) -> None:
        """Give back what `observe_decision` reserved, for a request that was not made."""
        if (account := self._accounts.get(tenant)) is not None:
            account.pending.pop(decision_id, None)

    def observe(self, tenant: str, ts: float, cost_usd: float, decision_id: str = "") -> None:
        """Book the cost of a request, also of a failed one."""
        params = self.params(tenant)
        if params is None or not (math.isfinite(cost_usd) and math.isfinite(ts)):
            return
        cost = self._units(tenant, ts, cost_usd)
        account = self._account(tenant, params, ts)
        if params.usd_per_period is not None:
            self._count(account, int(ts // params.period_s), max(cost_usd, 0.0))
        if not params.limited:
            return
        expected = account.pending.pop(decision_id, None)
        if expected is not None:
            real, predicted = account.compared
            account.compared = DRIFT_MEMORY * real + cost, DRIFT_MEMORY * predicted + expected
        account.level = min(account.level + params.aim, params.bucket) - cost
        moved = account.log_weight + params.slow * min(_emptiness(params, account), 1.0)
        account.log_weight = min(max(moved, math.log(LOWEST)), math.log(HIGHEST))

    def book(self, tenant: str, ts: float, cost_usd: float, requests: int) -> None:
        """Add a sum of costs to the period and the bucket, without a step of λ: only single requests move it."""
        params = self.params(tenant)
        if params is None:
            return
        units = self._units(tenant, ts, cost_usd)
        account = self._account(tenant, params, ts)
        if params.usd_per_period is not None:
            self._count(account, int(ts // params.period_s), cost_usd, requests)
        account.level = min(account.level + params.aim * requests, params.bucket) - units

    def _account(self, tenant: str, params: BudgetParams, ts: float) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(params)
            account.first = ts
        return account

    def _units(self, tenant: str, ts: float, usd: float) -> float:
        return min(max(usd, 0.0) / self.unit(tenant, ts), 1e6)

    @staticmethod
    def _count(account: _Account, period: int, cost_usd: float, requests: int = 1) -> None:
        usd, n = account.periods.get(period, (0.0, 0))
        account.periods[period] = usd + cost_usd, n + requests
        for old in sorted(account.periods)[:-PERIODS]:
            del account.periods[old]

    # --- reading ---

    def weight(self, tenant: str, ts: float = 0.0) -> float:  # noqa: ARG002 - every reading is of a time
        """Return λ ≥ 0, the rating that one unit of cost is worth."""
        params = self.params(tenant)
        if params is None or not params.limited:
            return 0.0
        account = self._accounts.get(tenant)
        if account is None:
            return params.start
        fast = params.fast * min(_emptiness(params, account), DEEP)
        return min(max(math.exp(account.log_weight + fast), LOWEST), HIGHEST)

    def unit(self, tenant: str, ts: float = 0.0) -> float:
        """Return the unit of cost: USD that a request costs on average at the limit; infinite without a limit.

        For a period's limit, the rest of the money divided by the expected number of requests until its end.
        """
        params = self.params(tenant)
        if params is None:
            return math.inf
        unit = math.inf if params.usd_per_request is None else params.usd_per_request
        if params.usd_per_period is None:
            return unit
        left = max(params.usd_per_period - self.spent(tenant, ts), 1e-3 * params.usd_per_period)
        return min(unit, left / self._to_come(params, self._accounts.get(tenant), ts))

    @staticmethod
    def _to_come(params: BudgetParams, account: _Account | None, ts: float) -> float:
        """Expected number of requests until the end of the period, at least one."""
        period = int(ts // params.period_s)
        start, rate, n = period * params.period_s, FIRST_RATE, 0
        if account is not None:
            before = account.periods.get(period - 1)
            rate = float(before[1]) if before else FIRST_RATE
            n = account.periods.get(period, (0.0, 0))[1]
            start = max(start, account.first) if before is None else start
        elapsed = max(ts - start, 0.0) / params.period_s
        rate = (n + RATE_PRIOR * rate) / (elapsed + RATE_PRIOR)
        return max(1.0, rate * (1.0 - (ts / params.period_s - period)))

    def spent(self, tenant: str, ts: float) -> float:
        """USD spent in the period of a time; 0 for a budget without a period's limit."""
        params, account = self.params(tenant), self._accounts.get(tenant)
        if params is None or account is None:
            return 0.0
        return account.periods.get(int(ts // params.period_s), (0.0, 0))[0]

    def left(self, tenant: str, ts: float) -> float:
        """USD that are left of a tenant's hard limit; infinite without one."""
        params = self.params(tenant)
        if params is None or not params.hard or params.usd_per_period is None:
            return math.inf
        return params.usd_per_period - self.spent(tenant, ts)

    def period_left_s(self, tenant: str, ts: float) -> float:
        """Seconds until the tenant's period ends."""
        params = self.params(tenant)
        return 60.0 if params is None or params.usd_per_period is None else params.period_s - ts % params.period_s

    def cap(self, tenant: str, ts: float) -> float:
        """Largest expected cost of one request now, in USD, for `over_cap`; 0 allows only the cheapest model."""
        params = self.params(tenant)
        if params is None:
            return math.inf
        cap = math.inf if params.usd_per_request_max is None else params.usd_per_request_max
        if not (params.hard and params.limited):
            return cap
        if params.usd_per_period is not None:
            cap = min(cap, max(params.usd_per_period - self.spent(tenant, ts), 0.0))
        account = self._accounts.get(tenant)
        if account is None:
            return min(cap, 0.5 * params.bucket * self.unit(tenant, ts))
        level = _level(params, account)
        modest = params.modest * min(max(1.0 + level / (3.0 * params.bucket), 1.0 / 3.0), 1.0)
        return min(cap, max(level, modest) * self.unit(tenant, ts) / _cost_ratio(account))

    def floor(self, tenant: str, costs: Floats, floor: float, ts: float = 0.0) -> float:
        """The exploration floor, reduced so that it spends at most `floor_share` of the limit.

        Args:
            tenant: whose budget.
            costs: expected USD of the models that the floor explores, float64[K].
            floor: share of the traffic that explores.
            ts: time of the request.
        """
        params = self.params(tenant)
        if params is None or not params.limited:
            return floor
        spends = floor * float(np.einsum("k->", costs)) / len(costs)
        pays = params.floor_share * self.unit(tenant, ts)
        return floor if spends <= pays else floor * pays / spends

    # --- state ---

    def _store(self) -> dict[str, _StoredBudget | dict[str, float]]:
        accounts: dict[str, _StoredBudget | dict[str, float]] = {
            tenant: _StoredBudget(
                account.log_weight,
                account.level,
                list(account.pending.items()),
                account.compared,
                [(period, usd, n) for period, (usd, n) in sorted(account.periods.items())],
                account.first,
            )
            for tenant, account in sorted(self._accounts.items())
        }
        return accounts | ({_LIMITS: dict(sorted(self.limits.items()))} if self.limits else {})

    def _restore(self, stored: dict[str, _StoredBudget | dict[str, float]]) -> bool:
        fresh, accounts = Budgets(self.default, self.tenants), {}
        match stored.pop(_LIMITS, {}):
            case dict(limits) if all(math.isfinite(usd) and usd > 0.0 for usd in limits.values()):
                fresh.limits = limits
            case _:
                return False
        for tenant, found in stored.items():
            params = fresh.params(tenant)
            if params is None or not isinstance(found, _StoredBudget) or not _valid(found, params):
                return False
            account = accounts[tenant] = _Account(params)
            account.log_weight, account.first, account.compared = found.log_weight, found.first, found.compared
            account.level = found.level
            account.pending.update(found.pending)
            account.periods = {period: (usd, n) for period, usd, n in found.periods}
        self._accounts, self.limits = accounts, fresh.limits
        return True


@functools.lru_cache(LIMITS)
def _limited(params: BudgetParams, usd_per_period: float) -> BudgetParams:
    return msgspec.structs.replace(params, usd_per_period=usd_per_period)


def _changed(limits: Mapping[str, float], tenant: str, usd: float | None) -> dict[str, float]:
    kept = {name: limit for name, limit in limits.items() if name != tenant}
    return kept if usd is None or len(kept) >= LIMITS else {**kept, tenant: usd}


def _level(params: BudgetParams, account: _Account) -> float:
    """Contents of the bucket in units, net of the expected costs of pending decisions."""
    pending = params.aim * len(account.pending) - _cost_ratio(account) * math.fsum(account.pending.values())
    return min(account.level + pending, params.bucket)


def _emptiness(params: BudgetParams, account: _Account) -> float:
    """How empty the bucket is: −1 full, 0 half full, 1 empty, more in debt."""
    return 1.0 - 2.0 * _level(params, account) / params.bucket


def _cost_ratio(account: _Account) -> float:
    """Ratio of real to expected costs, at least 1, by which expected costs are corrected."""
    real, predicted = account.compared
    return max((real + DRIFT_PRIOR) / (predicted + DRIFT_PRIOR), 1.0)


def _valid(stored: _StoredBudget, params: BudgetParams) -> bool:
    """Whether all numbers of a stored account are possible."""
    costs = [*stored.compared, *(expected for _, expected in stored.pending)]
    numbers = [stored.log_weight, stored.level, stored.first, *costs, *(usd for _, usd, _ in stored.periods)]
    return (
        all(math.isfinite(number) for number in numbers)
        and math.log(LOWEST) <= stored.log_weight <= math.log(HIGHEST)
        and stored.level <= params.bucket
        and len(stored.pending) <= PENDING
        and all(cost >= 0.0 for cost in costs)
        and len(stored.periods) <= PERIODS
        and all(usd >= 0.0 and n > 0 for _, usd, n in stored.periods)
    )


def over_cap(names: Sequence[str], costs: Floats, cap: float) -> list[tuple[str, str]]:
    """Return (arm, reason) for the models that are too expensive for one request; never for the cheapest one.

    Args:
        names: K arms.
        costs: float64[K], their expected USD.
        cap: USD, `Budgets.cap`.

    >>> over_cap(("large", "small"), np.array([0.02, 0.001]), 0.0005)
    [('large', 'budget: expected to cost 0.02 USD, allowed is 0.0005')]
    """
    cheapest = int(costs.argmin())
    return [
        (name, f"budget: expected to cost {cost:.4g} USD, allowed is {cap:.4g}")
        for k, (name, cost) in enumerate(zip(names, costs.tolist(), strict=True))
        if k != cheapest and cost > cap
    ]

"""Budgets: what a tenant may spend, as a price on cost that decisions read.

A decision subtracts λ·cost/unit from its utility: cost in units of what a request may cost, λ in fit. λ is the dual of
the budget constraint, and a virtual queue holds it: a bucket that fills by `aim` units a request, up to `bucket`, and
that costs empty (Neely 2010, "Stochastic network optimization", §4: drift plus penalty with virtual queues). What any
run of requests costs is then at most aim · requests + bucket, and what the last of them cost too much, whatever their
order. log λ is a slow integral of how empty the bucket is, which finds the price that the ceiling is worth (dual
ascent with multiplicative steps: Balseiro, Lu and Mirrokni 2023, "The best of many worlds: dual mirror descent for
online allocation problems", Operations Research 71), plus a fast term in proportion to it, which answers chance and
shocks.

A model that is expected to cost more than the bucket holds is excluded before the pmf, with a logged reason
(`over_cap`; the cheapest always stays, and what costs little more than the ceiling). Expected costs are believed as far
as they have proved true.

A fold: no clock, no random numbers; times come from events, and may come out of order.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fitrouter.types import Floats, Projection

LOWEST, HIGHEST = 1e-4, 10.0
"""Bounds of λ, in fit per unit: from a tie-break to more than any gain in fit can pay."""
DEEP = 3.0
"""How empty the bucket counts as at most in λ: one dear answer is no reason to pay any price, time pays it back."""
PERIODS = 2
"""Periods that are kept: late events of the last one still count there."""
RATE_PRIOR = 0.02
"""Share of a period for which the rate of requests that was known before counts."""
FIRST_RATE = 1000.0
"""Requests a period before any period is known."""
PENDING = 4096
"""Decisions whose answer is awaited that are remembered, the last ones."""
DRIFT_MEMORY = 0.97
"""What is left of the comparison of expected and real costs after another request."""
DRIFT_PRIOR = 5.0
"""Units for which expected costs are believed before they are compared with real ones."""


class BudgetParams(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant may spend, and how it is kept.

    Raises:
        ValueError: a number is not allowed.
    """

    usd_per_request: float | None = None
    """Ceiling of the mean cost of a request."""
    usd_per_period: float | None = None
    """Ceiling of what a period costs."""
    period_s: float = 86_400.0
    usd_per_request_max: float | None = None
    """Models whose expected cost exceeds this are excluded."""
    hard: bool = True
    """Models that the bucket or the rest of the period cannot pay are excluded; else only λ steers."""
    aim: float = 0.98
    """Share of the ceiling that fills the bucket, so that chance does not push the mean over it."""
    bucket: float = 15.0
    """Units that can be saved: n requests cost at most aim · n + bucket, and what the last one costs too much."""
    modest: float = 2.0
    """Units that a model may be expected to cost though the bucket is empty; a third of it in two buckets of debt."""
    start: float = 0.01
    """λ before the first request."""
    slow: float = 0.02
    """How far log λ moves in a request by an empty bucket, and back by a full one."""
    fast: float = 0.5
    """How much higher log λ is while the bucket is empty than while it is half full."""
    floor_share: float = 0.05
    """Share of the ceiling that the exploration floor may spend."""

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
    def paced(self) -> bool:
        """Whether there is a ceiling that λ keeps."""
        return self.usd_per_request is not None or self.usd_per_period is not None


class _Account:
    """What is known of one tenant's spending."""

    def __init__(self, params: BudgetParams) -> None:
        self.log_weight = math.log(params.start)
        self.level = 0.5 * params.bucket
        """Units that may be spent at once; below 0 a debt."""
        self.pending: OrderedDict[str, float] = OrderedDict()
        """Decision → units that it is expected to cost, until its Execution tells."""
        self.compared = (0.0, 0.0)
        """Fading sums of the real and of the expected costs of the same requests, in units."""
        self.periods: dict[int, tuple[float, int]] = {}
        """Period → USD and requests."""
        self.first = 0.0
        """Time of the first request."""


class _Stored(msgspec.Struct, array_like=True):
    log_weight: float
    level: float
    pending: list[tuple[str, float]]
    compared: tuple[float, float]
    periods: list[tuple[int, float, int]]
    first: float


class Budgets(Projection):
    """The spending of all tenants.

    Args:
        default: of tenants that are not named; None for no budget.
        tenants: tenant → its own.
    """

    stored_type = dict[str, _Stored]

    def __init__(self, default: BudgetParams | None = None, tenants: Mapping[str, BudgetParams] | None = None) -> None:
        self.default, self.tenants = default, dict(tenants or {})
        self._accounts: dict[str, _Account] = {}

    def params(self, tenant: str) -> BudgetParams | None:
        """The budget of a tenant; None where it has none."""
        return self.tenants.get(tenant, self.default)

    def known(self) -> list[str]:
        """Tenants that have spent."""
        return sorted(self._accounts)

    # --- learning ---

    def observe_decision(self, tenant: str, ts: float, expected_usd: float, decision_id: str) -> None:
        """Fold what a decision's model is expected to cost: it is as good as spent until `observe` says what it was.

        Without it, everything is learnt from real costs alone, which suffices where few answers are under way at once.
        """
        params = self.params(tenant)
        if params is None or not params.paced or not (math.isfinite(expected_usd) and math.isfinite(ts)):
            return
        account = self._account(tenant, params, ts)
        account.pending[decision_id] = self._units(tenant, ts, expected_usd)
        if len(account.pending) > PENDING:
            account.pending.popitem(last=False)

    def observe(self, tenant: str, ts: float, cost_usd: float, decision_id: str = "") -> None:
        """Fold what one request cost (every Execution; one that failed may have cost 0)."""
        params = self.params(tenant)
        if params is None or not (math.isfinite(cost_usd) and math.isfinite(ts)):
            return
        cost = self._units(tenant, ts, cost_usd)
        account = self._account(tenant, params, ts)
        if params.usd_per_period is not None:
            self._count(account, int(ts // params.period_s), max(cost_usd, 0.0))
        if not params.paced:
            return
        expected = account.pending.pop(decision_id, None)
        if expected is not None:
            real, said = account.compared
            account.compared = DRIFT_MEMORY * real + cost, DRIFT_MEMORY * said + expected
        account.level = min(account.level + params.aim, params.bucket) - cost
        moved = account.log_weight + params.slow * min(_empty(params, account), 1.0)
        account.log_weight = min(max(moved, math.log(LOWEST)), math.log(HIGHEST))

    def _account(self, tenant: str, params: BudgetParams, ts: float) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(params)
            account.first = ts
        return account

    def _units(self, tenant: str, ts: float, usd: float) -> float:
        return min(max(usd, 0.0) / self.unit(tenant, ts), 1e6)

    @staticmethod
    def _count(account: _Account, period: int, cost_usd: float) -> None:
        usd, n = account.periods.get(period, (0.0, 0))
        account.periods[period] = usd + cost_usd, n + 1
        for old in sorted(account.periods)[:-PERIODS]:
            del account.periods[old]

    # --- reading ---

    def weight(self, tenant: str, ts: float = 0.0) -> float:  # noqa: ARG002 - every reading is of a time
        """λ ≥ 0: fit that one unit costs."""
        params = self.params(tenant)
        if params is None or not params.paced:
            return 0.0
        account = self._accounts.get(tenant)
        if account is None:
            return params.start
        fast = params.fast * min(_empty(params, account), DEEP)
        return min(max(math.exp(account.log_weight + fast), LOWEST), HIGHEST)

    def unit(self, tenant: str, ts: float = 0.0) -> float:
        """USD that a request may cost on average, at a time; infinite without a ceiling.

        Of a period it is what is left, shared among the requests that are still to come at the rate seen so far.
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
        """Requests until the end of the period, at least one."""
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
        """USD in the period that a time belongs to; 0 for a budget without one."""
        params, account = self.params(tenant), self._accounts.get(tenant)
        if params is None or account is None:
            return 0.0
        return account.periods.get(int(ts // params.period_s), (0.0, 0))[0]

    def cap(self, tenant: str, ts: float) -> float:
        """USD that one request may be expected to cost now, for `over_cap`; 0 leaves the cheapest model alone."""
        params = self.params(tenant)
        if params is None:
            return math.inf
        cap = math.inf if params.usd_per_request_max is None else params.usd_per_request_max
        if not (params.hard and params.paced):
            return cap
        if params.usd_per_period is not None:
            cap = min(cap, max(params.usd_per_period - self.spent(tenant, ts), 0.0))
        account = self._accounts.get(tenant)
        if account is None:
            return min(cap, 0.5 * params.bucket * self.unit(tenant, ts))
        level = _level(params, account)
        modest = params.modest * min(max(1.0 + level / (3.0 * params.bucket), 1.0 / 3.0), 1.0)
        return min(cap, max(level, modest) * self.unit(tenant, ts) / _believed(account))

    def floor(self, tenant: str, costs: Floats, floor: float, ts: float = 0.0) -> float:
        """The exploration floor that this budget can pay: at most `floor_share` of the ceiling is spent by it.

        Args:
            tenant: whose budget.
            costs: float64[K], expected USD of the eligible models.
            floor: share of the traffic that is to be spread over all of them.
            ts: of the request.
        """
        params = self.params(tenant)
        if params is None or not params.paced:
            return floor
        spends = floor * float(np.einsum("k->", costs)) / len(costs)
        pays = params.floor_share * self.unit(tenant, ts)
        return floor if spends <= pays else floor * pays / spends

    # --- state ---

    def _store(self) -> dict[str, _Stored]:
        return {
            tenant: _Stored(
                account.log_weight,
                account.level,
                list(account.pending.items()),
                account.compared,
                [(period, usd, n) for period, (usd, n) in sorted(account.periods.items())],
                account.first,
            )
            for tenant, account in sorted(self._accounts.items())
        }

    def _restore(self, stored: dict[str, _Stored]) -> bool:
        accounts = {}
        for tenant, found in stored.items():
            params = self.params(tenant)
            if params is None or not _sound(found, params):
                return False
            account = accounts[tenant] = _Account(params)
            account.log_weight, account.first, account.compared = found.log_weight, found.first, found.compared
            account.level = found.level
            account.pending.update(found.pending)
            account.periods = {period: (usd, n) for period, usd, n in found.periods}
        self._accounts = accounts
        return True


def _level(params: BudgetParams, account: _Account) -> float:
    """Units that the bucket holds once the decisions that are under way have cost what is expected of them."""
    under_way = params.aim * len(account.pending) - _believed(account) * math.fsum(account.pending.values())
    return min(account.level + under_way, params.bucket)


def _empty(params: BudgetParams, account: _Account) -> float:
    """How empty the bucket is: −1 full, 0 half full, 1 empty, more in debt."""
    return 1.0 - 2.0 * _level(params, account) / params.bucket


def _believed(account: _Account) -> float:
    """Real costs in expected ones, at least 1: how far expected costs are to be raised before they are believed."""
    real, said = account.compared
    return max((real + DRIFT_PRIOR) / (said + DRIFT_PRIOR), 1.0)


def _sound(stored: _Stored, params: BudgetParams) -> bool:
    """Whether every number is one that folding could have led to."""
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
    """(arm, reason) of the models that are too dear for one request; the cheapest never is.

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

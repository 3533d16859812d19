"""Hedging: a slow call is repeated on the same model, and the first answer counts.

The second call is another draw of the arm that was drawn, so that no propensity changes. What is slow is told from the
model's own latencies: more than 95 % of its last calls. A budget for each tenant bounds second calls to a share of its
requests.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque

QUANTILE = 0.95
"""Of a model's latencies, after which it is called once more."""
KEPT = 200
"""Latencies kept of each model, whole answers and streams apart."""
LEAST = 20
"""Latencies that a quantile needs."""
BURST = 10.0
"""Second calls that a tenant can save up."""
TENANTS = 10_000
"""Tenants with a budget; the one that is silent longest is forgotten."""


class Hedges:
    """Known latencies of models, and each tenant's budget of second calls.

    Args:
        share: second calls for each request of a tenant; 0 for none.
    """

    def __init__(self, share: float = 0.0) -> None:
        self.share = share
        self._latencies: dict[tuple[str, bool], deque[float]] = {}
        self._budgets: OrderedDict[str, float] = OrderedDict()

    def count(self, tenant: str) -> None:
        """Count a request of a tenant, which adds to its budget of second calls."""
        if not self.share:
            return
        self._budgets[tenant] = min(self._budgets.get(tenant, 0.0) + self.share, BURST)
        self._budgets.move_to_end(tenant)
        if len(self._budgets) > TENANTS:
            self._budgets.popitem(last=False)

    def affords(self, tenant: str) -> bool:
        """Whether the tenant's budget holds a second call.

        A sum of shares may miss 1 by rounding.
        """
        return self._budgets.get(tenant, 0.0) >= 1.0 - 1e-9

    def spend(self, tenant: str) -> None:
        """Take one second call from the tenant's budget."""
        self._budgets[tenant] = self._budgets.get(tenant, 0.0) - 1.0

    def observe(self, arm: str, *, stream: bool, seconds: float) -> None:
        """Keep a latency: to the first token of a stream, or to a whole answer.

        Of a call that was given up it is the time until then. That is above the quantile, so the quantile stays right.
        """
        if self.share:
            self._latencies.setdefault((arm, stream), deque(maxlen=KEPT)).append(seconds)

    def after_s(self, arm: str, *, stream: bool) -> float:
        """Seconds after which a call counts as slow; infinite if hedging is off or too few latencies are known."""
        known = self._latencies.get((arm, stream), ())
        if len(known) < LEAST:
            return math.inf
        return sorted(known)[math.ceil(QUANTILE * len(known)) - 1]

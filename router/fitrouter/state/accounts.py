"""Spending of API keys that have a limit per day (UTC): what their calls cost, and what is reserved for calls to come.

The limit is the key's and comes with each request, so that it can change without a refit; the spending is folded from
executions, so that it is the same in every process and survives restarts. Reservations are this process's own, those
of other processes count once their executions are folded.
"""

from __future__ import annotations

import math

from fitrouter.types import Payer, Projection

DAY_S = 86_400.0
KEYS = 10_000
"""Keys whose spending is known, those that spent last."""
DAYS = 2
"""Days kept of each, so that late events of the last one still count there."""


class Accounts(Projection):
    """Spending of each API key over the last days."""

    stored_type = dict[str, list[tuple[int, float]]]

    def __init__(self) -> None:
        self._days: dict[str, dict[int, float]] = {}
        """Key → day → USD."""
        self.holds: dict[str, dict[str, tuple[float, float]]] = {}
        """Key → decision → USD that are reserved, and when that ends. Not part of the state."""

    def observe(self, key: str, ts: float, cost_usd: float, decision_id: str) -> None:
        """Book the cost of a request."""
        self.holds.get(key, {}).pop(decision_id, None)
        days = self._days.pop(key, {})
        day = int(ts // DAY_S)
        days[day] = days.get(day, 0.0) + max(float(cost_usd), 0.0)
        self._days[key] = {day: days[day] for day in sorted(days)[-DAYS:]}
        if len(self._days) > KEYS:
            del self._days[next(iter(self._days))]

    def left(self, payer: Payer | None, ts: float) -> float:
        """USD that a key can still spend today, neither spent nor reserved; infinite without a limit."""
        if payer is None:
            return math.inf
        holds = self.holds.get(payer.name, {})
        for decision_id in [name for name, (_, ends) in holds.items() if ends <= ts]:
            del holds[decision_id]
        spent = self._days.get(payer.name, {}).get(int(ts // DAY_S), 0.0)
        return payer.usd_per_day - spent - math.fsum(usd for usd, _ in holds.values())

    def reserve(self, payer: Payer | None, ts: float, decision_id: str, usd: float, ends: float) -> bool:
        """Reserve the cost of a request before a call, replacing its earlier reservation; False if it is not covered.

        Args:
            payer: the key and its limit; None for a request without one.
            ts: seconds since the epoch.
            decision_id: of the request.
            usd: expected cost of the call, and the cost of earlier ones.
            ends: when the reservation ends if nothing is booked.
        """
        if payer is None:
            return True
        own = self.holds.get(payer.name, {}).get(decision_id, (0.0, 0.0))[0]
        if usd > own and usd - own > self.left(payer, ts):
            return False
        self.settle(payer.name, ts, decision_id, usd, ends)
        return True

    def settle(self, key: str, ts: float, decision_id: str, usd: float, ends: float = math.inf) -> None:
        """Replace a reservation by the real cost, which counts until its Execution is folded, or the day ends."""
        if key:
            day_ends = (ts // DAY_S + 1.0) * DAY_S
            self.holds.setdefault(key, {})[decision_id] = usd, min(ends, day_ends)

    def _store(self) -> dict[str, list[tuple[int, float]]]:
        return {key: sorted(days.items()) for key, days in self._days.items()}

    def _restore(self, stored: dict[str, list[tuple[int, float]]]) -> bool:
        if any(not 0.0 <= usd < math.inf for days in stored.values() for _, usd in days):
            return False
        self._days = {key: dict(days) for key, days in stored.items()}
        return True


def day_left_s(ts: float) -> float:
    """Seconds until the day (UTC) ends."""
    return DAY_S - ts % DAY_S

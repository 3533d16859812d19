"""Spending of API keys that have a limit per day (UTC): what their calls cost.

The limit is the key's and comes with each request, so that it can change without a refit; the spending is folded from
executions, so that it is the same in every process and survives restarts. `fitrouter.serving.ledger` reserves.
"""

from __future__ import annotations

import math

from fitrouter.plain import Projection
from fitrouter.types import Payer

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

    def observe(self, key: str, ts: float, cost_usd: float) -> None:
        """Book the cost of a request."""
        days = self._days.pop(key, {})
        day = int(ts // DAY_S)
        days[day] = days.get(day, 0.0) + max(float(cost_usd), 0.0)
        self._days[key] = {day: days[day] for day in sorted(days)[-DAYS:]}
        if len(self._days) > KEYS:
            del self._days[next(iter(self._days))]

    def spent(self, key: str, ts: float) -> float:
        """USD that a key has spent on the day of a time."""
        return self._days.get(key, {}).get(int(ts // DAY_S), 0.0)

    def left(self, payer: Payer | None, ts: float) -> float:
        """USD that a key has not spent today; infinite without a limit."""
        return math.inf if payer is None else payer.usd_per_day - self.spent(payer.name, ts)

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

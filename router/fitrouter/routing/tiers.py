"""The cost tier of a request: price counts less, as configured, or more in its decision."""

from __future__ import annotations

import msgspec

from fitrouter.errors import InvalidRequest

QUALITY, BALANCED, ECONOMY = "quality", "balanced", "economy"
TIERS = (QUALITY, BALANCED, ECONOMY)


class Tiers(msgspec.Struct, frozen=True, kw_only=True):
    """How a tier moves the cost weight: never below 0, never across the configured weight."""

    quality_factor: float = 0.25
    economy_factor: float = 4.0
    economy_least: float = 0.05
    economy_most: float = 1.0

    def weight(self, tier: str, cost_weight: float) -> float:
        """The cost weight of a request of a tier.

        >>> [Tiers().weight(tier, 0.1) for tier in TIERS], Tiers().weight("economy", 0.0)
        ([0.025, 0.1, 0.4], 0.05)
        """
        if tier == QUALITY:
            return cost_weight * self.quality_factor
        if tier == ECONOMY:
            raised = min(max(cost_weight * self.economy_factor, self.economy_least), self.economy_most)
            return max(raised, cost_weight)
        return cost_weight


def checked_tier(given: str) -> str:
    """Return a tier as it is logged: empty for `balanced`, which changes nothing.

    Raises:
        InvalidRequest: there is no such tier.
    """
    if given and given not in TIERS:
        raise InvalidRequest(f"tier: got {given[:40]!r}; allowed are {', '.join(TIERS)}")
    return "" if given == BALANCED else given

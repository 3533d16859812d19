"""Estimates of changes to the policy, before they are applied."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from fitrouter.config import Config
from fitrouter.errors import StoreError
from fitrouter.policies import used
from fitrouter.router import Router
from fitrouter.state.settings import names_of
from fitrouter_dashboards.console import Reads
from fitrouter_dashboards.console.estimate import estimate
from fitrouter_dashboards.console.models import spending
from fitrouter_integrations.gateway.asgi._wire import Problem
from fitrouter_integrations.gateway.parsing._requests import policy_change


class Estimates:
    """Estimates changes of the policy by replaying them on the log, one at a time.

    Args:
        router: whose policy would change.
        config: settings that are in force without a change.
        reads: the warehouse, for what was spent.
    """

    def __init__(self, router: Router, config: Config, reads: Reads) -> None:
        self._router, self._config, self._reads = router, config, reads
        self._busy = asyncio.Lock()

    async def of(self, change: dict[str, Any]) -> dict[str, Any]:
        """Estimate a change in the form of `POST /v1/policy`; returns an `error` in words where that is impossible."""
        if change.get("action") == "budget":
            return {"budget": await self._budget(change)}
        warehouse = self._router.warehouse
        if warehouse is None:
            return {"error": "a change is estimated from tables, for which DuckDB is needed: `fitrouter[warehouse]`"}
        if not warehouse.path.exists():
            return {
                "error": "there is nothing to replay yet: requests are copied from the log some seconds after they end"
            }
        candidate = self._candidate(change)
        if candidate is None:
            return {"error": "what would run then is not in the log; apply it, and see what is logged"}
        if self._busy.locked():
            raise Problem(429, "busy", "another estimate is being made; try again", headers={"retry-after": "2"})
        async with self._busy:
            return await estimate(self._config, warehouse.path, candidate)

    async def _budget(self, change: dict[str, Any]) -> dict[str, Any]:
        """Return a tenant's budget before and after a change, and what its last periods have cost."""
        _, settings, tenant = policy_change(change)
        before, after = self._router.policy.budget(tenant), self._router.policy.budget(tenant, **settings)
        read = partial(spending, self._reads, tenant, self._router.clock(), after.period_s)
        found: dict[str, Any] = {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after)}
        try:
            return found | {"periods": await self._reads.get(("spending", tenant, after.period_s), read)}
        except StoreError as error:
            return found | {"periods": [], "error": str(error)}

    def _candidate(self, change: dict[str, Any]) -> dict[str, Any] | None:
        """Convert a change to a candidate of replay; None for unknown settings, and for models that were paused."""
        standing = self._router.policy.standing()
        match change.get("action"), change.get("name"), change.get("settings"):
            case "promote", str(name), _ if name in standing.candidates:
                return standing.candidates[name]
            case "set", _, {"force": str(model)} if model in self._router.models:
                return {"fixed": self._router.models[model].arm}
            case "set", _, dict(settings) if isinstance(names := settings.get("paused"), str):
                now, then, models = names_of(standing.settings.get("paused", "")), names_of(names), self._router.models
                arms = [models[name].arm if name in models else name for name in then if name not in now]
                return None if set(now) - set(then) else {**settings, "paused": ",".join(arms)}
            case "set", _, dict(settings):
                return settings
            case "restore", _, _:
                before = standing.versions[-2:-1]
                if before == ("configuration",):
                    return self._configured_policy()
                return standing.candidates.get(before[0]) if before else None
        raise Problem(400, "invalid_request", "give an action: set, promote, restore or budget, as for POST /v1/policy")

    def _configured_policy(self) -> dict[str, Any]:
        """Return the policy settings of the configuration file as a candidate of replay."""
        policy, objective = self._config.policy, self._config.objective
        return used(policy.model_dump(), policy.algorithm) | {
            "floor": policy.floor,
            "uniform_slice": policy.uniform_slice,
            "share": self._config.share,
            "cost_weight": objective.cost_weight,
            "latency_weight": objective.latency_weight,
        }

"""Run-time control of the policy. Each change is an event that is durable before it takes effect."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.policies import unread
from fitrouter.routing.decider import Decider
from fitrouter.serving.recorder import STORE_WAIT_S, Recorder
from fitrouter.state.budgets import LIMITS, BudgetParams, check_limit
from fitrouter.state.settings import check_settings, names_of
from fitrouter.types import ModelCard, PolicyChange


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force."""

    live: str
    """Name of the version in force."""
    algorithm: str
    settings: dict[str, Any]
    """Overrides of the configuration."""
    versions: tuple[str, ...]
    """Versions that `restore` steps back through, the current one last."""
    candidates: dict[str, dict[str, Any]]
    """Shadow policies."""
    config_hash: str
    """Hash of the configuration with its overrides, as decisions log it."""
    budgets: dict[str, float] = {}
    """Tenant → USD per period, where it overrides the configuration."""
    unpriced: tuple[str, ...] = ()
    """Models without a price, which `fitrouter.types.UNPRICED` says how budgets weigh."""
    share: float = 1.0
    """Of the requests that the policy routes; the default model answers the others."""


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's budget: the limit of a period, and what is spent and allowed now."""

    usd_per_period: float | None
    period_s: float
    hard: bool
    spent_usd: float
    """In this period, models without a price as they are weighed; 0 where no limit counts it yet."""
    request_usd: float | None
    """What a request may cost on average until the end of the period; None without a limit."""
    price: float
    """λ: rating that `request_usd` costs on top of the cost weight."""


class Personalisation(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated effect of the role and user terms, overall or for one role."""

    labels: int
    gain: float
    low: float
    high: float
    verdict: str
    off: bool
    """Whether decisions leave the terms out."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """Reports of a tenant's monitors; see `fitrouter.monitors`."""

    personalisation: dict[str, Personalisation]
    """Role (empty for all) → report."""
    flattered: dict[str, str]
    """Model whose scores exceed its ratings → size of the bias."""
    evidence_against_propensities: float
    """An e-value; 1000 raises the alarm."""


class PolicyControl:
    """Shows and changes the policy; a change takes effect once it is folded.

    Args:
        decider: whose policy is controlled.
        recorder: makes the events durable.
        clock: seconds since the epoch.
        folded: waits until durable events are folded.
        models: name → card; the names are those that `force` and `paused` accept now.
    """

    def __init__(
        self,
        decider: Decider,
        recorder: Recorder,
        clock: Callable[[], float],
        folded: Callable[[], Any],
        models: Callable[[], Mapping[str, ModelCard]],
    ) -> None:
        self._decider, self._recorder, self._clock = decider, recorder, clock
        self._folded, self._models = folded, models

    def standing(self, tenant: str | None = None) -> Standing:
        """Return the policy in force, with the changed limits of one tenant, or of all for None."""
        policy, rules = self._decider.live()
        control = self._decider.learner.facts().policy_settings
        return Standing(
            live=control.live,
            algorithm=policy.name,
            settings=dict(control.settings),
            versions=("configuration", *(name for name, _ in control.history)),
            candidates=self._decider.candidates,
            config_hash=rules.config_hash,
            budgets={
                name: usd
                for name, usd in self._decider.learner.facts().budgets.limits.items()
                if tenant in {None, name}
            },
            unpriced=tuple(name for name, card in self._models().items() if not card.prices.known),
            share=rules.share,
        )

    def budget(self, tenant: str, **changed: float | None) -> BudgetState:
        """Return a tenant's budget now, or as it would be with another `usd_per_period`."""
        now, budgets = self._clock(), self._decider.learner.facts(tenant).budgets
        if changed:
            budgets = budgets.trial(tenant, changed["usd_per_period"])
        params, unit = budgets.params(tenant), budgets.unit(tenant, now)
        return BudgetState(
            usd_per_period=None if params is None else params.usd_per_period,
            period_s=(params or BudgetParams()).period_s,
            hard=(params or BudgetParams()).hard,
            spent_usd=budgets.spent(tenant, now),
            request_usd=unit if math.isfinite(unit) else None,
            price=budgets.weight(tenant, now),
        )

    @property
    def default(self) -> str | None:
        """The arm of the default model."""
        return self._decider.rules.default_arm

    def outlook(self, tenant: str = "default") -> Outlook:
        """Reports of a tenant's monitors."""
        state = self._decider.learner.of(tenant)
        projections, bias = state.projections, state.fit.reward_bias
        found = {}
        for key in ("", *projections.personalisation.roles()):
            owner, _, role = key.partition("\x1f")
            report = projections.personalisation.report(key or None)
            if report is not None and (not key or owner == tenant):
                report = report.printed()
                found[role] = Personalisation(
                    labels=report.n,
                    gain=report.gain,
                    low=report.low,
                    high=report.high,
                    verdict=report.verdict,
                    off=report.off,
                )
        return Outlook(
            personalisation=found,
            flattered={arm: bias.describe(arm) for arm in bias.flagged()},
            evidence_against_propensities=projections.propensities.evidence["all"],
        )

    async def set(self, settings: Mapping[str, Any]) -> Standing:
        """Override settings of the policy; see `fitrouter.state.settings.SETTINGS`.

        Raises:
            InvalidRequest: a setting is unknown, out of range or another policy's, or the policy cannot be built.
            StoreError: it cannot be made durable now; try again.
        """
        checked = check_settings(settings)
        if checked.get("share", 1.0) < 1.0 and self._decider.rules.default_arm is None:
            raise InvalidRequest(
                f"share: {checked['share']:g} needs a model for the rest of the traffic; set 'default_model' in the "
                "configuration"
            )
        models = set(self._models())
        if checked.get("force") and checked["force"] not in models:
            known = ", ".join(sorted(models))
            raise InvalidRequest(f"force: unknown model {checked['force']!r}; models are {known}")
        paused = set(names_of(checked.get("paused", "")))
        if unknown := sorted(paused - models):
            raise InvalidRequest(f"paused: unknown model {unknown[0]!r}; models are {', '.join(sorted(models))}")
        if paused >= models:
            raise InvalidRequest("paused: these are all models; leave one that answers")
        settings = self._decider.learner.facts().policy_settings.settings | checked
        if wrong := unread(checked, settings.get("algorithm", self._decider.parameters["algorithm"])):
            raise InvalidRequest(wrong)
        self._try(settings)
        return await self._append("set", settings=checked)

    async def promote(self, name: str) -> Standing:
        """Make a candidate the live policy; `restore` reverts it.

        Raises:
            InvalidRequest: unknown candidate, or it may not take traffic.
            StoreError: it cannot be made durable now; try again.
        """
        candidates = self._decider.candidates
        if name not in candidates:
            known = ", ".join(repr(known) for known in candidates) or "none"
            raise InvalidRequest(f"unknown candidate {name!r}; 'policy.candidates' defines {known}")
        self._try(candidates[name])
        return await self._append("promote", name=name, settings=candidates[name])

    async def restore(self) -> Standing:
        """Revert to the previous version.

        Raises:
            InvalidRequest: the configuration itself is in force.
            StoreError: it cannot be made durable now; try again.
        """
        if not self._decider.learner.facts().policy_settings.history:
            raise InvalidRequest("there is no previous version: the configuration is in force")
        return await self._append("restore")

    async def set_budget(self, tenant: str, usd_per_period: float | None) -> Standing:
        """Change the limit of a tenant's period. `restore` leaves it; a changed configuration drops it.

        Args:
            tenant: whose.
            usd_per_period: None for that of the configuration.

        Raises:
            InvalidRequest: the name or the number cannot be used, or there are too many limits.
            StoreError: it cannot be made durable now; try again.
        """
        tenant, usd = check_limit(tenant, usd_per_period)
        limits = self._decider.learner.facts().budgets.limits
        if usd is not None and tenant not in limits and len(limits) >= LIMITS:
            raise InvalidRequest(f"tenant: {LIMITS} limits are changed already; set this one in the configuration")
        return await self._append("budget", settings={"tenant": tenant, "usd_per_period": usd})

    @property
    def outdated(self) -> bool:
        """Whether the configuration changed since the run-time overrides were made, so that a start drops them."""
        facts = self._decider.learner.facts()
        control, budgets = facts.policy_settings, facts.budgets
        return bool(control.history or budgets.limits) and control.config_hash != self._decider.rules.config_hash

    async def apply_configuration(self) -> None:
        """Drop run-time overrides that are outdated. Called at the start."""
        if self.outdated:
            await self._append("config")

    def _try(self, settings: Mapping[str, Any]) -> None:
        try:
            self._decider.build(settings)
        except ConfigError as error:
            raise InvalidRequest(str(error)) from None

    async def _append(self, action: str, *, name: str = "", settings: Mapping[str, Any] | None = None) -> Standing:
        now = self._clock()
        await self._recorder.keep(
            PolicyChange(
                id=uuid7(now),
                ts=now,
                action=action,
                name=name,
                settings=dict(settings or {}),
                config_hash=self._decider.rules.config_hash,
            )
        )
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await self._folded()
        except TimeoutError:  # it is durable, and takes effect once it is folded
            pass
        return self.standing()

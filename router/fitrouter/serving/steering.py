"""Steering: changes of the policy while the router runs, each an event before it is in force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import ConfigError, InvalidRequest, StoreError
from fitrouter.hooks import Hooks
from fitrouter.routing.decider import Decider
from fitrouter.serving.recorder import STORE_WAIT_S
from fitrouter.state.settings import check_settings
from fitrouter.stores.journal import Entry, Journal
from fitrouter.types import PolicyChange


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where the policy stands."""

    live: str
    """Name of the version in force."""
    algorithm: str
    settings: dict[str, Any]
    """What is laid over the configuration."""
    versions: tuple[str, ...]
    """Versions that `restore` goes back through, the last one in force."""
    candidates: dict[str, dict[str, Any]]
    """Policies in shadow."""
    config_hash: str
    """Of the configuration with what is laid over it, as decisions log it."""


class Personalisation(msgspec.Struct, frozen=True, kw_only=True):
    """What the twin says of the terms of role and user, overall or in one role."""

    labels: int
    gain: float
    low: float
    high: float
    verdict: str
    off: bool
    """Whether they are left out of decisions."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What the watchers say; see `fitrouter.monitors`."""

    personalisation: dict[str, Personalisation]
    """Role, empty for all → report."""
    flattered: dict[str, str]
    """Model that the score flatters → by how much."""
    evidence_against_propensities: float
    """An e-value: 1000 is the alarm."""


class Steering:
    """Takes changes of the policy; they are in force once the fold has read them."""

    def __init__(
        self,
        decider: Decider,
        journal: Journal,
        hooks: Hooks,
        clock: Callable[[], float],
        folded: Callable[[], Any],
        models: Collection[str],
    ) -> None:
        self.models = models
        self.decider, self.journal, self.hooks, self.clock, self.folded = decider, journal, hooks, clock, folded

    def standing(self) -> Standing:
        """What is in force now."""
        policy, rules = self.decider.live()
        control = self.decider.learner.projections.policy_settings
        return Standing(
            live=control.live,
            algorithm=policy.name,
            settings=dict(control.settings),
            versions=("configuration", *(name for name, _ in control.history)),
            candidates=self.decider.candidates,
            config_hash=rules.config_hash,
        )

    def outlook(self, tenant: str = "default") -> Outlook:
        """What the watchers say, with the roles of one tenant."""
        watch, flattery = self.decider.learner.projections, self.decider.learner.fit.reward_bias
        found = {}
        for key in ("", *watch.personalisation.roles()):
            owner, _, role = key.partition("\x1f")
            report = watch.personalisation.report(key or None)
            if report is not None and (not key or owner == tenant):
                found[role] = Personalisation(
                    labels=report.n,
                    gain=report.gain,
                    low=_finite(report.low),
                    high=_finite(report.high),
                    verdict=report.verdict,
                    off=report.off,
                )
        return Outlook(
            personalisation=found,
            flattered={arm: flattery.say(arm) for arm in flattery.flagged()},
            evidence_against_propensities=watch.propensities.evidence["all"],
        )

    async def set(self, settings: Mapping[str, Any]) -> Standing:
        """Lay settings over those in force, see `fitrouter.state.settings.SETTINGS`.

        Raises:
            InvalidRequest: a setting is unknown or out of range, or no policy can be made of them.
            StoreError: it cannot be made durable now; try again.
        """
        checked = check_settings(settings)
        if checked.get("share", 1.0) < 1.0 and self.decider.rules.default_arm is None:
            raise InvalidRequest(
                f"share: {checked['share']:g} leaves traffic to the default model, and there is none; set "
                "'default_model' in the configuration"
            )
        if checked.get("force") and checked["force"] not in self.models:
            raise InvalidRequest(f"force: there is no model {checked['force']!r}; there are {', '.join(self.models)}")
        self._try(self.decider.learner.projections.policy_settings.settings | checked)
        return await self._say("set", settings=checked)

    async def promote(self, name: str) -> Standing:
        """Let a candidate decide from now on; `restore` takes it back.

        Raises:
            InvalidRequest: there is no such candidate, or it may not take traffic.
            StoreError: it cannot be made durable now; try again.
        """
        candidates = self.decider.candidates
        if name not in candidates:
            known = ", ".join(repr(known) for known in candidates) or "none"
            raise InvalidRequest(f"there is no candidate {name!r}; 'policy.candidates' names {known}")
        self._try(candidates[name])
        return await self._say("promote", name=name, settings=candidates[name])

    async def restore(self) -> Standing:
        """Go back to the version before.

        Raises:
            InvalidRequest: the configuration itself is in force.
            StoreError: it cannot be made durable now; try again.
        """
        if not self.decider.learner.projections.policy_settings.history:
            raise InvalidRequest("there is no version before: the configuration is in force as it is")
        return await self._say("restore")

    async def heed_the_file(self) -> None:
        """At a start: where the configuration was changed since settings were laid over it, it goes before."""
        control = self.decider.learner.projections.policy_settings
        if control.history and control.config_hash != self.decider.rules.config_hash:
            await self._say("config")

    def _try(self, settings: Mapping[str, Any]) -> None:
        try:
            self.decider.build(settings)
        except ConfigError as error:
            raise InvalidRequest(str(error)) from None

    async def _say(self, action: str, *, name: str = "", settings: Mapping[str, Any] | None = None) -> Standing:
        now = self.clock()
        event = PolicyChange(
            id=uuid7(now),
            ts=now,
            action=action,
            name=name,
            settings=dict(settings or {}),
            config_hash=self.decider.rules.config_hash,
        )
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await asyncio.wrap_future(self.journal.append(Entry(event)))
        except Exception as error:
            self.hooks.trouble("journal", error)
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the journal failed ({type(error).__name__}); try again") from error
        self.hooks.happened(event)
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await self.folded()
        except TimeoutError:  # it is durable, and will be in force once the fold gets there
            pass
        return self.standing()


def _finite(value: float) -> float:
    """A label's difference lies within ±1, and JSON knows no infinity."""
    return min(max(value, -1.0), 1.0)

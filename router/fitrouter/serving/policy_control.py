"""Run-time control of the policy. Each change is an event that is durable before it takes effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.routing.decider import Decider
from fitrouter.serving.recorder import STORE_WAIT_S, Recorder
from fitrouter.state.settings import check_settings
from fitrouter.types import PolicyChange


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
    """Reports of the monitors; see `fitrouter.monitors`."""

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
        models: names that `force` accepts.
    """

    def __init__(
        self,
        decider: Decider,
        recorder: Recorder,
        clock: Callable[[], float],
        folded: Callable[[], Any],
        models: Collection[str],
    ) -> None:
        self._decider, self._recorder, self._clock = decider, recorder, clock
        self._folded, self._models = folded, models

    def standing(self) -> Standing:
        """The policy in force."""
        policy, rules = self._decider.live()
        control = self._decider.learner.projections.policy_settings
        return Standing(
            live=control.live,
            algorithm=policy.name,
            settings=dict(control.settings),
            versions=("configuration", *(name for name, _ in control.history)),
            candidates=self._decider.candidates,
            config_hash=rules.config_hash,
        )

    def outlook(self, tenant: str = "default") -> Outlook:
        """Reports of the monitors, with the roles of one tenant."""
        projections, bias = self._decider.learner.projections, self._decider.learner.fit.reward_bias
        found = {}
        for key in ("", *projections.personalisation.roles()):
            owner, _, role = key.partition("\x1f")
            report = projections.personalisation.report(key or None)
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
            flattered={arm: bias.describe(arm) for arm in bias.flagged()},
            evidence_against_propensities=projections.propensities.evidence["all"],
        )

    async def set(self, settings: Mapping[str, Any]) -> Standing:
        """Override settings; see `fitrouter.state.settings.SETTINGS`.

        Raises:
            InvalidRequest: a setting is unknown or out of range, or the policy cannot be built.
            StoreError: it cannot be made durable now; try again.
        """
        checked = check_settings(settings)
        if checked.get("share", 1.0) < 1.0 and self._decider.rules.default_arm is None:
            raise InvalidRequest(
                f"share: {checked['share']:g} needs a model for the rest of the traffic; set 'default_model' in the "
                "configuration"
            )
        if checked.get("force") and checked["force"] not in self._models:
            raise InvalidRequest(f"force: unknown model {checked['force']!r}; models are {', '.join(self._models)}")
        self._try(self._decider.learner.projections.policy_settings.settings | checked)
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
        if not self._decider.learner.projections.policy_settings.history:
            raise InvalidRequest("there is no previous version: the configuration is in force")
        return await self._append("restore")

    async def apply_configuration(self) -> None:
        """Drop run-time overrides if the configuration changed since they were made. Called at the start."""
        control = self._decider.learner.projections.policy_settings
        if control.history and control.config_hash != self._decider.rules.config_hash:
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


def _finite(value: float) -> float:
    """Clamp to ±1: differences of labels lie there, and JSON has no infinity."""
    return min(max(value, -1.0), 1.0)

"""The models that a router routes among: those of the configuration, and those that were added at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fitrouter.config import parse_addition
from fitrouter.draw import uuid7
from fitrouter.errors import ConfigError, InvalidRequest, UnknownModel
from fitrouter.hooks import Hooks
from fitrouter.providers import Provider
from fitrouter.routing.breakers import TenantBreakers
from fitrouter.routing.decider import Decider
from fitrouter.routing.eligibility import Models
from fitrouter.serving.attempts import Caller
from fitrouter.serving.recorder import STORE_WAIT_S, Recorder
from fitrouter.state.added_models import ADD, LIMIT, REMOVE, AddedModel
from fitrouter.state.settings import names_of
from fitrouter.types import ModelCard, ModelChange, PolicyChange

GRACE_S = 600.0
"""How long the provider of a removed model stays open, for calls under way."""
RETIRED = 1024
"""Removed arms whose cards are kept, for calls under way."""


class Connected(NamedTuple):
    """A provider of an added model, with its concurrency limit."""

    provider: Provider
    concurrency: int


class Extension(NamedTuple):
    """A configuration together with the added models."""

    cards: Sequence[ModelCard]
    """Of all arms."""
    providers: Mapping[str, Connected]
    """Providers to connect, by name."""
    rules: Mapping[str, Any]
    """Fields of the decider's rules that depend on the models."""
    faults: Mapping[str, str]
    """Added model → why it cannot be used here."""


Extend: TypeAlias = Callable[[Sequence[AddedModel], Collection[str]], Extension]
"""The configuration with added models; the second argument are ids of additions whose providers are connected."""


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """A model that was added at run time."""

    name: str
    ts: float
    """When it was added, seconds since the epoch."""
    fault: str = ""
    """Why this process cannot use it; empty if it can."""


class ModelRegistry:
    """The models in use. `current` takes what the fold has added or removed; it runs on the event loop only.

    Args:
        known: arm → card of all models in use, and of removed ones for the calls under way: those of the configuration
            at first. Changed in place, as the caller reads it.
        extend: makes models of additions; None where there is no configuration, so that none can be added.
        caller: calls the providers, those of added models too.
        breakers: of the models.
        decider: whose rules name the registry, and whose learner folds additions.
        recorder: makes the events durable.
        folded: waits until durable events are folded.
        clock: seconds since the epoch.
        hooks: told of additions that cannot be used here.

    Attributes:
        models: those in use, replaced when they change.
    """

    def __init__(
        self,
        known: dict[str, ModelCard],
        *,
        extend: Extend | None,
        caller: Caller,
        breakers: TenantBreakers,
        decider: Decider,
        recorder: Recorder,
        folded: Callable[[], Any],
        clock: Callable[[], float],
        hooks: Hooks,
    ) -> None:
        self.extend, self._decider, self._recorder = extend, decider, recorder
        self._folded, self._clock, self._hooks = folded, clock, hooks
        self._caller, self._breakers = caller, breakers
        self.known, self.models = known, Models(known.values())
        self._applied: tuple[AddedModel, ...] = ()
        self._faults: Mapping[str, str] = {}
        self._connected: dict[str, tuple[str, Provider]] = {}
        """Name of a provider of an added model → id of the addition, and the provider."""
        self._closing: dict[asyncio.Task[None], Provider] = {}

    @property
    def added(self) -> tuple[AddedModel, ...]:
        """Models that were added at run time and not removed, as far as they are folded."""
        return self._decider.learner.facts().added_models.models

    @property
    def retired(self) -> frozenset[str]:
        """Arms, models and `provider NAME` that were removed since this process started, as labels of metrics."""
        return _labels(list(self.known.values())) - _labels(self.models.cards.values())

    def additions(self) -> list[Addition]:
        """The models that were added at run time."""
        return [Addition(name=each.name, ts=each.ts, fault=self._faults.get(each.name, "")) for each in self.added]

    def current(self) -> Models:
        """The models in use, with the changes that are folded now."""
        self._refresh()
        return self.models

    def _refresh(self) -> None:
        added = self.added
        if added is self._applied or added == self._applied or self.extend is None:
            return
        found = self.extend(added, {event for event, _ in self._connected.values()})
        for name, fault in found.faults.items():
            if fault != self._faults.get(name):
                self._hooks.trouble("models", ConfigError(f"the added model {name!r} is not used: {fault}"))
        self._applied, self._faults = added, found.faults
        events = {each.settings.get("model", {}).get("provider"): each.event for each in added}
        for name, (provider, concurrency) in found.providers.items():
            self._disconnect(name)
            self._connected[name] = events[name], provider
            self._caller.connect(name, provider, concurrency)
        self.models = Models(found.cards)
        self.known.update(self.models.cards)
        for arm in [arm for arm in self.known if arm not in self.models.cards][:-RETIRED]:
            del self.known[arm]
        self._breakers.renew(self.models.cards)
        for name in self._connected.keys() - {card.provider for card in found.cards}:
            self._disconnect(name)
        self._decider.renew(**found.rules)

    def _disconnect(self, name: str) -> None:
        """Close a provider once no call can be under way."""
        if name not in self._connected:
            return
        _, provider = self._connected.pop(name)
        try:
            closing = asyncio.get_running_loop().create_task(self._close(name, provider), name=f"close {name}")
        except RuntimeError:  # nothing was called without a loop
            return
        self._closing[closing] = provider
        closing.add_done_callback(lambda task: self._closing.pop(task, None))

    async def _close(self, name: str, provider: Provider) -> None:
        await asyncio.sleep(GRACE_S)
        if self._caller.providers.get(name) is provider:
            del self._caller.providers[name], self._caller.slots[name]
        await provider.aclose()

    async def aclose(self) -> None:
        """Close the providers of removed models."""
        waiting = dict(self._closing)
        for task in waiting:
            task.cancel()
        for provider in waiting.values():
            await provider.aclose()

    # --- changes ---

    async def add(self, given: Mapping[str, Any]) -> Addition:
        """Add a model, for all processes over the journal and until it is removed.

        It begins at the prior of a new model, with its share of exploration; a name that was removed goes on with what
        was learnt of it.

        Args:
            given: as in the configuration file; `provider` is a name, or a server of its own (`parse_addition`).

        Raises:
            InvalidRequest: it is invalid, its name is taken, or there are too many.
            StoreError: it cannot be made durable now; try again.
        """
        self._refresh()
        if self.extend is None:
            raise InvalidRequest("models cannot be added: this router was made without a configuration")
        now = self._clock()
        try:
            addition = parse_addition(given)
        except ConfigError as error:
            raise InvalidRequest(str(error)) from None
        name = addition.model.name
        if name in {each.name for each in self.added}:
            raise InvalidRequest(f"name: {name!r} was added already; remove it first, or choose another name")
        if len(self.added) >= LIMIT:
            raise InvalidRequest(f"{LIMIT} models were added already; remove one, or put them into the file")
        event = PolicyChange(id=uuid7(now), ts=now, action=ADD, name=name, settings=addition.record)
        trial = self.extend([*self.added, AddedModel(name, event.id, now, addition.record)], ())
        if name in trial.faults:
            raise InvalidRequest(trial.faults[name])
        await self._append(event)
        standing = {each.name: each.event for each in self.added}
        if standing.get(name, event.id) != event.id:
            raise InvalidRequest(f"name: {name!r} was added by somebody else at the same time")
        return next((each for each in self.additions() if each.name == name), Addition(name=name, ts=now))

    async def remove(self, name: str) -> None:
        """Remove a model that was added; calls under way end normally.

        Raises:
            UnknownModel: there is none of this name.
            InvalidRequest: the configuration file has it, all traffic is sent to it, or it is the last one that is not
                paused.
            StoreError: it cannot be made durable now; try again.
        """
        self._refresh()
        if name not in {each.name for each in self.added}:
            if name in {card.name for card in self.models.cards.values()}:
                raise InvalidRequest(
                    f"{name!r} is a model of the configuration file: remove it there and restart, or pause it"
                )
            raise UnknownModel(f"no model {name!r} was added; GET /v1/models lists the models")
        settings = self._decider.learner.facts().policy_settings.settings
        own = {each for each, card in self.models.names.items() if card.name == name}
        if settings.get("force") in own:
            raise InvalidRequest(f"all traffic is sent to {settings['force']!r}; end that first (setting 'force')")
        paused = set(names_of(settings.get("paused", "")))
        if own and not self.models.names.keys() - own - paused:
            raise InvalidRequest(f"{name!r} is the last model that is not paused; call another one again first")
        now = self._clock()
        await self._append(PolicyChange(id=uuid7(now), ts=now, action=REMOVE, name=name))

    async def _append(self, change: PolicyChange) -> None:
        """Append a change durably and apply it, then log the models in use."""
        await self._recorder.keep(change)
        await self._settle()
        self._refresh()
        now, rules = self._clock(), self._decider.rules
        cards = self.models.roster.cards
        await self._recorder.keep(ModelChange(id=uuid7(now), ts=now, cards=cards, registry=rules.registry))
        await self._settle()

    async def _settle(self) -> None:
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await self._folded()
        except TimeoutError:  # it is durable, and takes effect once it is folded
            pass


def _labels(cards: Iterable[ModelCard]) -> frozenset[str]:
    return frozenset(label for card in cards for label in (card.arm, card.name, f"provider {card.provider}"))

"""Learner that keeps tenants apart: each has a state of its own, which only its own events change.

Nothing that a tenant sends, a vote, a report or an erasure, changes one bit of what another tenant's decisions read.
The price is that each tenant begins at the prior. Every tenant's learner costs memory for all models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import msgspec

from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.tastes import OVERALL
from fitrouter.state.added_models import AddedModels
from fitrouter.state.learner import Learner
from fitrouter.state.reading import tenant_of
from fitrouter.state.settings import PolicySettings
from fitrouter.stores.journal import Row
from fitrouter.types import (
    ArtifactChange,
    Erasure,
    Event,
    Floats,
    Identity,
    ModelChange,
    PolicyChange,
    RoleText,
    Salvage,
)

TENANTS = 10_000
"""Tenants that have a learner; those that come later are served by the prior."""
LEAST_USERS = 100
"""Users of a tenant that stay in memory, however many tenants there are."""
_TENANTS = "tenants"
_PREFIX = "tenant:"


class _StoredTenants(msgspec.Struct, array_like=True):
    tenants: list[str]
    """In the order of their first events."""
    registries: list[list[str]]


class TenantLearner(Learner):
    """Learner of all tenants; its own state is that of the first tenant, so that a lone tenant costs nothing extra.

    It also holds what belongs to no tenant: the policy's settings, and the position in the journal.
    """

    kind: ClassVar[str] = "tenants"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.others: dict[str, Learner] = {}
        """Tenant → learner, without the first tenant."""
        self._registries: list[list[str]] = []
        """Arms of each model registry so far, which a new tenant's learner starts with."""
        self._front = 0
        """The last event that was ever folded; `seq` goes back for a refit."""
        self._nobody: Learner | None = None
        """The learner of tenants without events."""

    def of(self, tenant: str) -> Learner:
        """The learner of a tenant; one at the prior if the tenant has no events yet."""
        if self.tenant is None or tenant == self.tenant:
            return self
        found = self.others.get(tenant)
        if found is None:
            found = self._nobody = self._nobody or self._new(tenant)
        return found

    def parts(self) -> Sequence[Learner]:
        """The learners of all tenants."""
        return (self, *self.others.values())

    def _one(self) -> Learner:
        return self._made(Learner)

    def _new(self, tenant: str) -> Learner:
        made = self.part(tenant)
        for arms in self._registries:
            made.join(arms)
        made.projections.budgets.limits = self.projections.budgets.limits
        return made

    def score(self, identity: Identity, h: Floats, dimension: str = OVERALL) -> tuple[float, float]:
        """Posterior mean and sd of this user's rating of an answer with features h. May block on the disk."""
        part = self.of(identity.tenant)
        return super().score(identity, h, dimension) if part is self else part.score(identity, h, dimension)

    def heads(self, identity: Identity, dimension: str = OVERALL) -> list[Gaussian]:
        """Return Gaussians whose sum is the user's taste in a dimension. May block on the disk."""
        part = self.of(identity.tenant)
        return super().heads(identity, dimension) if part is self else part.heads(identity, dimension)

    def dimensions(self) -> tuple[str, ...]:
        """Labelled dimensions other than `overall`, of any tenant."""
        return tuple(dict.fromkeys(name for part in self.parts() for name in part.fit.tastes.others))

    # --- folding ---

    def fold(self, row: Row, related: Sequence[Event]) -> None:
        """Fold an event into the learners that it concerns."""
        if isinstance(row.event, ModelChange) and row.seq > self._front:
            self._registries.append(sorted(card.arm for card in row.event.cards))
            self._nobody = None
        self._front = max(self._front, row.seq)
        if isinstance(row.event, PolicyChange):  # all but limits is the first tenant's to hold
            self._nobody = None
            for part in self.others.values():
                if row.seq > part.skip_to:
                    part.seq, part.moved = row.seq, True
                    part.projections.budgets.observe_change(row.event)
        if isinstance(row.event, Erasure):
            for part in self.parts():
                part.rewrite()
        for part in self._concerned(row.event, related):
            if row.seq <= part.skip_to:
                continue
            if part is self:
                super().fold(row, related)
            else:
                part.seq = row.seq
                part.fold(row, related)

    def _concerned(self, event: Event, related: Sequence[Event]) -> Sequence[Learner]:
        """The learners that an event changes."""
        tenant = tenant_of(event, related)
        if tenant is not None:
            self.tenant = tenant if self.tenant is None else self.tenant
            if tenant != self.tenant and tenant not in self.others and len(self.others) < TENANTS - 1:
                self.others[tenant] = self._new(tenant)
            return () if (part := self.of(tenant)) is self._nobody else (part,)
        if isinstance(event, PolicyChange):
            return (self,)
        return () if isinstance(event, ArtifactChange | RoleText | Salvage) else self.parts()

    def refitted(self, part: Learner, fresh: Learner) -> None:
        """Replace the state of one tenant by a refitted one; it alone folds the events since then again."""
        read, skipped = self.seq, self.skipped
        for each in self.parts():
            each.skip_to = max(each.skip_to, read)
        Learner.take_over(part, fresh)
        if part is not self:
            part.projections.policy_settings = PolicySettings()  # they are the first tenant's to hold
            part.projections.added_models = AddedModels()
        part.skip_to, self.skipped = fresh.seq, skipped
        self.seq, self.revision = min(read, fresh.seq), self.revision + 1

    @property
    def parts_ahead(self) -> bool:
        """Whether some of the `parts` are ahead of `seq`, after the refit of another one."""
        return any(part.skip_to > self.seq for part in self.parts())

    def take_over(self, other: Learner) -> None:
        """Take over another learner's state; everything is then part of the next snapshot."""
        super().take_over(other)
        if isinstance(other, TenantLearner):
            self.tenant, self.others, self._registries = other.tenant, other.others, other._registries
            self._nobody, self._front = None, other.seq

    def shrink(self) -> None:
        """Move the users that were not used for longest out of memory. Blocks on the disk."""
        parts = self.parts()
        if self.limit is not None:
            for part in parts:
                part.users.limit = max(self.limit // len(parts), LEAST_USERS)
        super().shrink()

    # --- state ---

    def dirty(self) -> Iterator[tuple[str, bytes]]:
        """Yield the keys that changed since the last snapshot, with their bytes; empty bytes for an erased key."""
        yield from super().dirty()
        yield _TENANTS, self._encoded_tenants()
        for name, part in self.others.items():
            if part.moved:
                yield from ((_key(name, key), payload) for key, payload in part.dirty())

    def state(self) -> Iterator[tuple[str, bytes]]:
        """All keys in order, with their bytes."""
        yield from super().state()
        yield _TENANTS, self._encoded_tenants()
        for name, part in sorted(self.others.items()):
            yield from ((_key(name, key), payload) for key, payload in part.state())

    def _encoded_tenants(self) -> bytes:
        first = [] if self.tenant is None else [self.tenant]
        return msgspec.msgpack.encode(_StoredTenants([*first, *self.others], self._registries))

    def _place(self, key: str) -> tuple[Learner, str]:
        if not key.startswith(_PREFIX):
            return self, key
        _, name, own = key.split(":", 2)
        tenant = unquote(name)
        if tenant not in self.others:
            self.others[tenant] = self.part(tenant)
        return self.others[tenant], own

    def _load(self, state: dict[str, bytes]) -> bool:
        states: dict[Learner, dict[str, bytes]] = {self: {}}
        try:
            stored = msgspec.msgpack.decode(state.pop(_TENANTS, b""), type=_StoredTenants)
        except msgspec.DecodeError:
            return False
        before = self.others  # made by `put_aside`
        self.others = {name: before.get(name) or self.part(name) for name in stored.tenants[1:]}
        for key, payload in state.items():
            part, own = self._place(key)
            states.setdefault(part, {})[own] = payload
        self.tenant, self._registries = next(iter(stored.tenants), None), stored.registries
        return super()._load(states.pop(self)) and all(part._load(own) for part, own in states.items())


def _key(tenant: str, key: str) -> str:
    return f"{_PREFIX}{quote(tenant, safe='')}:{key}"

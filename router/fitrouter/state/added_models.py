"""Models that were added at run time, besides those of the configuration file.

A `PolicyChange` with the action `add_model` names a model and holds its settings; `remove_model` takes it away again.
They are events, so that all processes over a journal fold to the same models, also after a restart.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fitrouter.plain import Projection
from fitrouter.types import PolicyChange

ADD, REMOVE = "add_model", "remove_model"
"""Actions of `PolicyChange`."""
LIMIT = 32
"""Models at a time."""
LONGEST = 20_000
"""Bytes of a model as JSON."""


class AddedModel(msgspec.Struct, frozen=True, array_like=True):
    """A model that was added at run time."""

    name: str
    event: str
    """Id of the event that added it."""
    ts: float
    settings: dict[str, Any]
    """See `fitrouter.config.ModelAddition`; checked where it is used, since the journal may be of another version."""


class AddedModels(Projection):
    """The models that were added at run time and not removed, in the order of their addition."""

    stored_type = list[AddedModel]

    def __init__(self) -> None:
        self.models: tuple[AddedModel, ...] = ()

    def observe(self, change: PolicyChange) -> None:
        """Apply an addition or removal; a repeated name is ignored, and so are additions beyond `LIMIT`."""
        known = {model.name for model in self.models}
        if change.action == REMOVE and change.name in known:
            self.models = tuple(model for model in self.models if model.name != change.name)
        elif change.action == ADD and change.name not in {*known, ""} and len(self.models) < LIMIT:
            added = AddedModel(change.name, change.id, change.ts, dict(change.settings))
            if len(msgspec.json.encode(added)) <= LONGEST:
                self.models = (*self.models, added)

    def _store(self) -> list[AddedModel]:
        return list(self.models)

    def _restore(self, stored: list[AddedModel]) -> bool:
        if len(stored) > LIMIT or len({model.name for model in stored}) < len(stored):
            return False
        self.models = tuple(stored)
        return True

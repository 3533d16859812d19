"""Protocol of reward models, and a scripted one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np

from fitrouter.errors import ConfigError
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.scoring._answer import Answer


class ModelError(ConfigError):
    """A reward model cannot be used; the message names what was given, what is allowed, and the remedy."""


def reason_of(error: BaseException) -> str:
    """Describe an error in one line."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to be scored, with the identity of the person it was given to."""

    answer: Answer
    identity: Identity = Identity()
    decision_id: str = ""
    named: frozenset[str] = frozenset()
    """Features that the person's profile names; a metric's endpoint gets texts of those who name it."""
    sampled: dict[str, float] = {}
    """Filled in by models that score a sample of the answers: their name → the probability of being drawn."""


class RewardModel(Protocol):
    """Scores answers. Its outputs are features of an answer, never labels."""

    def score(self, items: Sequence[Item]) -> Floats:
        """Score items, float64[n, dimensions], on any scale; NaN where the model has no score. Rows are independent."""
        ...


@runtime_checkable
class SlowModel(RewardModel, Protocol):
    """A reward model that takes seconds. Answers wait for it in the spool, and no other answer waits for them."""

    def start(self, item: Item) -> Future[Floats] | None:
        """Score an item in the background, giving float64[dimensions]; None if its outputs are NaN without scoring."""
        ...


class Description(NamedTuple):
    """Metadata of a reward model without loading it; its digest tells other weights apart."""

    dimensions: tuple[str, ...]
    weights: str


class ScriptedModel:
    """A `RewardModel` whose outputs a function gives, for tests and trials: a number, or one for each dimension."""

    def __init__(self, outputs: Callable[[Item], float | Sequence[float]]) -> None:
        self.outputs = outputs

    def score(self, items: Sequence[Item]) -> Floats:
        """Call the function for each item and stack its values, float64[n, dimensions]."""
        return np.array([np.atleast_1d(self.outputs(item)) for item in items], dtype=np.float64)

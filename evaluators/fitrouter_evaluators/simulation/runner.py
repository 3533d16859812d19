"""In-process runner: decisions, answers and votes of a simulation as the events of a gateway.

`Decider` decides and `Learner.apply` folds every event in journal order, so that sessions, budgets, arm counts,
availability and monitors are exercised as in a gateway. Network, disk, identities and texts are left out: contexts,
response features, tokens and votes come from the caller as numbers.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from fitrouter.plain import pack
from fitrouter.policies import Policy
from fitrouter.routing.decider import Decider, Rules
from fitrouter.serving.recorder import execution_of
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Row
from fitrouter.types import (
    Attempt,
    Decision,
    Event,
    Feedback,
    FeedbackKind,
    Floats,
    Identity,
    ModelCard,
    ModelChange,
    Score,
)


class Turn(NamedTuple):
    """An answered decision with all its events so far, which a vote on it is folded with."""

    decision: Decision
    events: tuple[Event, ...]


class InProcess:
    """In-process router, without a gateway.

    Args:
        learner: folds the events; without a scorer it must not expect scores.
        policy: proposes probabilities.
        rules: of the decider; `rules.seed` seeds all draws.
        cards: the models on offer at the start.
        ts: time of the start.
    """

    def __init__(
        self, learner: Learner, policy: Policy, rules: Rules, cards: Sequence[ModelCard], ts: float = 0.0
    ) -> None:
        self.learner, self.cards = learner, tuple(cards)
        self.decider = Decider(policy, learner, rules)
        self.offer(cards, ts)

    def fold(self, event: Event, related: Sequence[Event] = ()) -> None:
        """Fold an event at the next position of the journal; `related` are earlier events of its decision."""
        self.learner.apply(Row(self.learner.seq + 1, event), related)

    def offer(self, cards: Sequence[ModelCard], ts: float) -> None:
        """Replace the models on offer, or their prices."""
        self.cards, name = tuple(cards), f"registry {self.learner.seq}"
        self.fold(ModelChange(id=name, ts=ts, cards=self.cards, registry=name))

    def decide(
        self,
        number: int,
        ts: float,
        identity: Identity,
        x: Floats,
        *,
        cards: Sequence[ModelCard] | None = None,
        prompt_tokens: int = 0,
    ) -> Decision:
        """Draw a model of `cards` (None: all on offer) for a request with context x. Nothing is folded before `answer`.

        The number becomes the decision id, which keys the draw. Without a session the request is a conversation of its
        own.
        """
        name = str(uuid.UUID(int=number))
        if identity.session is None:
            identity = msgspec.structs.replace(identity, session=name)
        return self.decider.decide(
            name,
            ts,
            identity,
            x,
            self.cards if cards is None else cards,
            prompt_tokens=prompt_tokens,
            seq=self.learner.seq,
        )

    def answer(
        self,
        decision: Decision,
        *,
        h: Floats | None = None,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        seconds: float = 0.0,
        cost_usd: float = 0.0,
    ) -> Turn:
        """Fold a decision, the answer of its model, and the answer's score; h is None where no scorer runs.

        Raises:
            ValueError: h is not as long as the learner's features, which would ignore it.
        """
        if h is not None and len(h) != self.learner.fit.D:
            raise ValueError(f"h has {len(h)} features; the learner has {self.learner.fit.D}")
        events = answer_events(
            decision,
            h=h,
            schema=self.learner.schema,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            seconds=seconds,
            cost_usd=cost_usd,
        )
        for place, event in enumerate(events):
            self.fold(event, events[:place])
        return Turn(decision, events)

    def vote(
        self,
        turn: Turn,
        kind: FeedbackKind,
        value: float,
        *,
        scale: tuple[float, float] = (0.0, 1.0),
        ts: float | None = None,
    ) -> None:
        """Fold the user's vote on an answer, at the time of the decision if `ts` is None."""
        self.fold(vote_event(turn.decision, kind, value, scale=scale, ts=ts), turn.events)


def answer_events(
    decision: Decision,
    *,
    h: Floats | None = None,
    schema: str = "",
    prompt_tokens: int = 0,
    completion_tokens: int = 0,
    seconds: float = 0.0,
    cost_usd: float = 0.0,
) -> tuple[Event, ...]:
    """A decision, the Execution of its model, and the Score of the answer if it has features h, in this order."""
    arm = decision.chosen
    execution = execution_of(
        decision,
        decision.ts,
        status="ok",
        served_by=arm,
        attempts=(Attempt(model=arm, probability=1.0, ms=1000.0 * seconds),),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost_usd=cost_usd,
        latency_ms=1000.0 * seconds,
    )
    if h is None:
        return decision, execution
    score = Score(
        id=f"{decision.id}:score",
        ts=decision.ts,
        decision_id=decision.id,
        identity=decision.identity,
        served_by=arm,
        features=decision.features,
        h=pack(h),
        schema=schema,
    )
    return decision, execution, score


def vote_event(
    decision: Decision,
    kind: FeedbackKind,
    value: float,
    *,
    scale: tuple[float, float] = (0.0, 1.0),
    ts: float | None = None,
) -> Feedback:
    """The user's vote on the answer to a decision, at the time of the decision if `ts` is None."""
    return Feedback(
        id=f"{decision.id}:{kind.value}",
        ts=decision.ts if ts is None else ts,
        decision_id=decision.id,
        identity=decision.identity,
        kind=kind,
        value=float(value),
        scale=scale,
        asked=decision.asked,
    )

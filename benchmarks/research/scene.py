"""A world without texts, and the router in it: what the labs (`benchmarks.research.labs`) change and play.

Contexts are numbers and labels are thumbs; but decisions are made by `Decider`, and every event goes
through `fitrouter.state.learner.Learner.apply`, as in the gateway. Equal seeds and setups give equal outcomes.

    logit P(thumb up of model k on x) = θ_kᵀu + b_k + luck_{k, cluster(x)} [+ role_{r,k} + user_{u,k}]

with u on the unit sphere in 24 dimensions, around one of 24 clusters; the luck of a cluster is what no linear model
sees. x is [1, √¾ u], as `fitrouter.context.features` scales a prompt.
"""

from __future__ import annotations

import math
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.monitors.drift import Drift, DriftParams
from fitrouter.policies import SquareCB
from fitrouter.posterior.labels import FitParams
from fitrouter.posterior.people import DAY_S
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Row
from fitrouter.types import (
    Attempt,
    Decision,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Floats,
    Identity,
    ModelCard,
    ModelChange,
    Prices,
    Score,
    pack,
)

K = 8
"""Models of a lab."""
_TEXT, _CLUSTERS = 24, 24
_TOKENS = 500
"""Of every answer, in the lab of prices."""
_SCHEMA = "lab"
_ONE = pack(np.ones(1))


def logit(p: Floats) -> Floats:
    """log(p / (1 − p))."""
    result: Floats = np.log(p) - np.log1p(-p)
    return result


def sigmoid(logits: Floats) -> Floats:
    """P of a logit."""
    result: Floats = 1.0 / (1.0 + np.exp(-logits))
    return result


class People(msgspec.Struct, frozen=True, kw_only=True):
    """Who comes: Zipf users in roles, whose models differ by normal offsets in logits."""

    users: int = 200
    roles: int = 5
    zipf: float = 0.8
    user_sd: float = 0.6
    role_sd: float = 0.6


class Scene(msgspec.Struct, frozen=True):
    """One seed of a lab's world: what is common to every setup that is compared on it."""

    seed: int
    x: Floats
    """float64[T, d]"""
    p: Floats
    """float64[T, K]: P(label = 1)."""
    luck: Floats
    """float64[T, K] uniforms: label = 1 where below p."""
    rated: Floats
    """float64[T] uniforms: there is a label where below the feedback rate."""
    here: Any
    """bool[T, K]: which models are on offer."""
    price: Floats
    """float64[T, K]: USD of a million output tokens."""
    user: Any
    """int[T]; −1 for nobody."""
    role: Any
    """int[T]; −1 for none."""


def draw(seed: int, rounds: int, people: People | None = None, *, lab: int = 0) -> Scene:
    """A world where nothing happens yet; labs change p, here and price."""
    rng = np.random.default_rng([2026, lab, seed])
    centres = rng.normal(size=(_CLUSTERS, _TEXT)) / math.sqrt(_TEXT)
    cluster = rng.integers(_CLUSTERS, size=rounds)
    u = centres[cluster] + 0.5 * rng.normal(size=(rounds, _TEXT)) / math.sqrt(_TEXT)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    logits = u @ (1.2 * rng.normal(size=(K, _TEXT))).T + 0.6 + 0.35 * rng.normal(size=K)
    logits += 0.5 * rng.normal(size=(_CLUSTERS, K))[cluster]
    user = role = np.full(rounds, -1)
    if people is not None:
        activity = np.arange(1, people.users + 1) ** -people.zipf
        user = rng.choice(people.users, rounds, p=activity / activity.sum())
        role = rng.integers(people.roles, size=people.users)[user]
        logits += people.role_sd * rng.normal(size=(people.roles, K))[role]
        logits += people.user_sd * rng.normal(size=(people.users, K))[user]
    return Scene(
        seed=seed,
        x=np.concatenate([np.ones((rounds, 1)), math.sqrt(0.75) * u], axis=1),
        p=sigmoid(logits),
        luck=rng.random((rounds, K)),
        rated=rng.random(rounds),
        here=np.ones((rounds, K), dtype=bool),
        price=np.ones((rounds, K)),
        user=user,
        role=role,
    )


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How the router is set up; what is left out is as shipped."""

    gamma: float = 2560.0
    params: FitParams = FitParams()
    rules: Rules = Rules()
    delay: int = 0
    """Rounds until a label is there."""
    feedback: float = 1.0
    """Share of the answers that get a label."""
    drift: DriftParams = DriftParams()
    separate: bool = False
    """A learner of its own for every user."""
    votes_per_day: int = 10**9
    """A user's votes that count for others; labs without people have one nameless voter, and no cap."""
    rounds_per_day: int = 200


class Outcome(msgspec.Struct, frozen=True):
    """What happened, round by round; float64[T] unless said otherwise."""

    regret: Floats
    """Expected utility of the best model on offer minus that of the chosen one."""
    probs: Floats
    """float64[T, K]; 0 for a model that is not on offer."""
    chosen: Any
    """int[T]"""
    best: Any
    """int[T]: the model of highest expected utility on offer."""
    alarms: tuple[tuple[int, int], ...]
    """(round, model) of every alarm of drift."""


class _Answer(NamedTuple):
    """An answer whose label is on its way."""

    due: int
    model: int
    decision: Decision
    events: tuple[Event, ...]
    y: float


class _Play:
    """One setup in one scene."""

    def __init__(self, scene: Scene, setup: Setup) -> None:
        self.scene, self.setup = scene, setup
        self.rules = msgspec.structs.replace(setup.rules, seed=scene.seed, encoder=_SCHEMA)
        self.routers: dict[int, tuple[Learner, Decider]] = {}
        self.seq = 0
        self.cards: tuple[ModelCard, ...] = ()
        self.waiting: deque[_Answer] = deque()
        self.alarms: list[tuple[int, int]] = []

    def run(self) -> Outcome:
        scene, T = self.scene, len(self.scene.x)
        regret, probs, (best, chosen) = np.empty(T), np.zeros((T, K)), np.empty((2, T), dtype=np.intp)
        for t in range(T):
            self._offer(t)
            here = np.flatnonzero(scene.here[t])
            decision = self._router(t)[1].decide(
                str(uuid.UUID(int=t)), self._time(t), self._who(t), scene.x[t], self.cards
            )
            probs[t, here] = decision.probs
            worth = scene.p[t] - cost_in_fit(self.rules, scene.price[t])
            chosen[t] = here[decision.eligible.index(decision.chosen)]
            best[t] = here[worth[here].argmax()]
            regret[t] = worth[best[t]] - worth[chosen[t]]
            self._answer(t, decision, int(chosen[t]))
            while self.waiting and self.waiting[0].due <= t:
                self._hear(t, self.waiting.popleft())
        return Outcome(regret, probs, chosen, best, tuple(self.alarms))

    def _time(self, t: int) -> float:
        return 1e9 + t * DAY_S / self.setup.rounds_per_day

    def _who(self, t: int) -> Identity:
        user, role = int(self.scene.user[t]), int(self.scene.role[t])
        return Identity(user=f"u{user}" if user >= 0 else None, role=f"r{role}" if role >= 0 else None)

    def _router(self, t: int) -> tuple[Learner, Decider]:
        """Who decides round t and learns from it."""
        key = int(self.scene.user[t]) if self.setup.separate else -1
        if key not in self.routers:
            learner = Learner(
                self.scene.x.shape[1],
                1,
                schema=_SCHEMA,
                params=self.setup.params,
                votes_per_day=self.setup.votes_per_day,
            )
            learner.fit.drift = Drift(self.setup.drift)
            self.routers[key] = learner, self._decider(learner)
            self._fold(learner, self._registry(t))
        return self.routers[key]

    def _decider(self, learner: Learner) -> Decider:
        return Decider(SquareCB(self.setup.gamma), learner, self.rules)

    def _offer(self, t: int) -> None:
        """Where the models on offer, or their prices, are others than before: a gateway starts again with them."""
        scene = self.scene
        if t and (scene.here[t] == scene.here[t - 1]).all() and (scene.price[t] == scene.price[t - 1]).all():
            return
        self.cards = tuple(
            ModelCard(name=f"m{k}", provider="lab", prices=Prices(output=float(scene.price[t, k])))
            for k in np.flatnonzero(scene.here[t])
        )
        for key, (learner, _) in self.routers.items():
            self._fold(learner, self._registry(t))
            self.routers[key] = learner, self._decider(learner)

    def _registry(self, t: int) -> list[Event]:
        return [ModelChange(id=f"registry {t}", ts=self._time(t), cards=self.cards, registry=f"lab {t}")]

    def _fold(self, learner: Learner, events: Sequence[Event], related: Sequence[Event] = ()) -> None:
        for place, event in enumerate(events):
            self.seq += 1
            learner.apply(Row(self.seq, event), [*related, *events[:place]])

    def _answer(self, t: int, decision: Decision, chosen: int) -> None:
        """The answer is there at once, and what a scorer would say of it: that it is an answer."""
        execution = Execution(
            id=f"{decision.id}:execution",
            ts=decision.ts,
            decision_id=decision.id,
            identity=decision.identity,
            chosen=decision.chosen,
            served_by=decision.chosen,
            status="ok",
            attempts=(Attempt(model=decision.chosen, probability=1.0),),
            features=decision.features,
            completion_tokens=_TOKENS,
        )
        score = Score(
            id=f"{decision.id}:score",
            ts=decision.ts,
            decision_id=decision.id,
            identity=decision.identity,
            served_by=decision.chosen,
            features=decision.features,
            h=_ONE,
            schema=_SCHEMA,
        )
        self._fold(self._router(t)[0], [decision, execution, score])
        if self.scene.rated[t] < self.setup.feedback:
            y = float(self.scene.luck[t, chosen] < self.scene.p[t, chosen])
            self.waiting.append(_Answer(t + self.setup.delay, chosen, decision, (execution, score), y))

    def _hear(self, t: int, answer: _Answer) -> None:
        """A label arrives."""
        decision = answer.decision
        learner = self._router(uuid.UUID(decision.id).int)[0]
        vote = Feedback(
            id=f"{decision.id}:vote",
            ts=self._time(t),
            decision_id=decision.id,
            identity=decision.identity,
            kind=FeedbackKind.THUMB,
            value=answer.y,
        )
        drift, arm = learner.fit.drift, decision.chosen
        before = drift.statistics(arm).labels
        self._fold(learner, [vote], answer.events)
        if drift.statistics(arm).labels < before:
            self.alarms.append((t, answer.model))


def cost_in_fit(rules: Rules, price: Floats) -> Floats:
    """What an answer at these prices (USD of a million output tokens) costs, in fit."""
    result: Floats = rules.cost_weight * price * (_TOKENS / 1e6 / rules.cost_unit_usd)
    return result


def play(scene: Scene, setup: Setup) -> Outcome:
    """Run a setup through a scene."""
    return _Play(scene, setup).run()

"""Simulated world without texts for the labs (`benchmarks.research.labs`), on the in-process runner.

Contexts are numbers and labels are thumbs. Equal seeds and setups give equal outcomes.

    logit P(thumb up of model k on x) = θ_kᵀu + b_k + luck_{k, cluster(x)} [+ role_{r,k} + user_{u,k}]

with u on the unit sphere in 24 dimensions, around one of 24 clusters; the luck of a cluster is invisible to
linear models. x is [1, √¾ u], as `fitrouter.context.features` scales a prompt.
"""

from __future__ import annotations

import math
import uuid
from collections import deque
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.monitors.drift import Drift, DriftParams
from fitrouter.policies import SquareCB
from fitrouter.posterior.labels import FitParams
from fitrouter.posterior.people import DAY_S
from fitrouter.routing.decider import Rules
from fitrouter.state.learner import Learner
from fitrouter.types import FeedbackKind, Floats, Identity, ModelCard, Prices
from fitrouter_evaluators.simulation.runner import InProcess, Turn
from fitrouter_evaluators.training.hierarchy import sigmoid

K = 8
"""Models of a lab."""
_TEXT, _CLUSTERS = 24, 24
_TOKENS = 500
"""Of every answer, in the lab of prices."""
_SCHEMA = "lab"
_ONE = np.ones(1)


def logit(p: Floats) -> Floats:
    """Return log(p / (1 − p))."""
    result: Floats = np.log(p) - np.log1p(-p)
    return result


class People(msgspec.Struct, frozen=True, kw_only=True):
    """Users: Zipf-distributed, in roles, with normal offsets of models in logits."""

    users: int = 200
    roles: int = 5
    zipf: float = 0.8
    user_sd: float = 0.6
    role_sd: float = 0.6


class Scene(msgspec.Struct, frozen=True):
    """One seed of a lab's world, common to all compared setups."""

    seed: int
    x: Floats
    """float64[T, d]"""
    p: Floats
    """float64[T, K]: P(label = 1)."""
    luck: Floats
    """float64[T, K] uniforms: label = 1 where below p."""
    rated: Floats
    """float64[T] uniforms: labelled where below the feedback rate."""
    here: Any
    """bool[T, K]: which models are on offer."""
    price: Floats
    """float64[T, K]: USD of a million output tokens."""
    user: Any
    """int[T]; −1 for nobody."""
    role: Any
    """int[T]; −1 for none."""


def draw(seed: int, rounds: int, people: People | None = None, *, lab: int = 0) -> Scene:
    """Draw a stationary world; labs change p, here and price."""
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
    """Settings of the router; the defaults are those that ship."""

    gamma: float = 2560.0
    params: FitParams = FitParams()
    rules: Rules = Rules()
    delay: int = 0
    """Rounds until a label arrives."""
    feedback: float = 1.0
    """Share of the answers that get a label."""
    drift: DriftParams = DriftParams()
    separate: bool = False
    """A learner of its own for every user."""
    votes_per_day: int = 10**9
    """A user's votes that count for others; labs without people have one nameless voter, and no cap."""
    rounds_per_day: int = 200


class Outcome(msgspec.Struct, frozen=True):
    """Results of a run by round; float64[T] unless stated otherwise."""

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


class _Due(NamedTuple):
    """An answer whose label has not arrived yet."""

    at: int
    model: int
    turn: Turn
    y: float


class _Play:
    """Runs one setup in one scene."""

    def __init__(self, scene: Scene, setup: Setup) -> None:
        self.scene, self.setup = scene, setup
        self.rules = msgspec.structs.replace(setup.rules, seed=scene.seed, encoder=_SCHEMA)
        self.routers: dict[int, InProcess] = {}
        self.cards: tuple[ModelCard, ...] = ()
        self.waiting: deque[_Due] = deque()
        self.alarms: list[tuple[int, int]] = []

    def run(self) -> Outcome:
        scene, T = self.scene, len(self.scene.x)
        regret, probs, (best, chosen) = np.empty(T), np.zeros((T, K)), np.empty((2, T), dtype=np.intp)
        for t in range(T):
            self._offer(t)
            here, router = np.flatnonzero(scene.here[t]), self._router(t)
            decision = router.decide(t, self._time(t), self._identity(t), scene.x[t])
            probs[t, here] = decision.probs
            utility = scene.p[t] - cost_in_fit(self.rules, scene.price[t])
            k = chosen[t] = here[decision.eligible.index(decision.chosen)]
            best[t] = here[utility[here].argmax()]
            regret[t] = utility[best[t]] - utility[k]
            turn = router.answer(decision, h=_ONE, completion_tokens=_TOKENS)
            if scene.rated[t] < self.setup.feedback:
                y = float(scene.luck[t, k] < scene.p[t, k])
                self.waiting.append(_Due(t + self.setup.delay, int(k), turn, y))
            while self.waiting and self.waiting[0].at <= t:
                self._vote(t, self.waiting.popleft())
        return Outcome(regret, probs, chosen, best, tuple(self.alarms))

    def _time(self, t: int) -> float:
        return 1e9 + t * DAY_S / self.setup.rounds_per_day

    def _identity(self, t: int) -> Identity:
        user, role = int(self.scene.user[t]), int(self.scene.role[t])
        return Identity(user=f"u{user}" if user >= 0 else None, role=f"r{role}" if role >= 0 else None)

    def _router(self, t: int) -> InProcess:
        """Return the router of round t: the common one, or the user's own."""
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
            self.routers[key] = InProcess(learner, SquareCB(self.setup.gamma), self.rules, self.cards, self._time(t))
        return self.routers[key]

    def _offer(self, t: int) -> None:
        """Announce the models on offer and their prices, where they differ from the round before."""
        scene = self.scene
        if t and (scene.here[t] == scene.here[t - 1]).all() and (scene.price[t] == scene.price[t - 1]).all():
            return
        self.cards = tuple(
            ModelCard(name=f"m{k}", provider="lab", prices=Prices(output=float(scene.price[t, k])))
            for k in np.flatnonzero(scene.here[t])
        )
        for router in self.routers.values():
            router.offer(self.cards, self._time(t))

    def _vote(self, t: int, due: _Due) -> None:
        """Record a label that arrives in round t, and the alarm that it raises."""
        router, arm = self._router(uuid.UUID(due.turn.decision.id).int), due.turn.decision.chosen
        drift = router.learner.fit.drift
        before = drift.statistics(arm).labels
        router.vote(due.turn, FeedbackKind.THUMB, due.y, ts=self._time(t))
        if drift.statistics(arm).labels < before:
            self.alarms.append((t, due.model))


def cost_in_fit(rules: Rules, price: Floats) -> Floats:
    """Convert prices (USD of a million output tokens) to the cost of an answer in units of fit."""
    result: Floats = rules.cost_weight * price * (_TOKENS / 1e6 / rules.cost_unit_usd)
    return result


def play(scene: Scene, setup: Setup) -> Outcome:
    """Run a setup through a scene."""
    return _Play(scene, setup).run()

"""Contextual bandits of other libraries with one interface, and a synthetic routing world for all of them.

Each has `decide(x) -> arm` and `update(x, arm, reward)`, with x a raw context, float64[d] that ends in a constant.
Libraries are imported where they are used: the environment that has them is made by `policies.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

Floats = np.ndarray


class World(NamedTuple):
    """A stream of prompts with the rewards of all models."""

    x: Floats
    """float64[T, d]: an embedding of length 1, and the constant ½."""
    p: Floats
    """float64[T, K]: P(success)."""
    r: Floats
    """float64[T, K]: success, 0 or 1."""


def world(d: int, K: int, T: int, seed: int) -> World:
    """Generate a world: 24 clusters of prompts in an 8-d latent space, seen through d − 1 noisy dimensions.

    Arm k succeeds with probability σ(b_k + 2.64 u_k·z/|z| + offset of cluster and arm): linear models are nearly right.
    """
    rng = np.random.default_rng(10_000 + seed)
    L, C = 8, 24
    centres = rng.normal(size=(C, L))
    cluster = rng.integers(C, size=T)
    z = centres[cluster] + 0.5 * rng.normal(size=(T, L))
    seen = z @ (rng.normal(size=(L, d - 1)) / math.sqrt(L)) + 0.5 * rng.normal(size=(T, d - 1))
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    x = np.ascontiguousarray(np.concatenate([seen, np.full((T, 1), 0.5)], axis=1))
    direction = rng.normal(size=(K, L))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    level = rng.normal(size=K) * 0.5
    offset = 0.6 * rng.normal(size=(C, K))
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    p = 1.0 / (1.0 + np.exp(-(level + 2.64 * unit @ direction.T + offset[cluster])))
    return World(x, p, (rng.random((T, K)) < p).astype(float))


class Peer(Protocol):
    """Interface of another library's bandit."""

    def decide(self, x: Floats, /) -> int: ...

    def update(self, x: Floats, arm: int, reward: float, /) -> None: ...


class VowpalWabbit:
    """Vowpal Wabbit with action-dependent features: context × arm, costs, and the pmf that it returns."""

    def __init__(self, _d: int, K: int, seed: int, flags: str) -> None:
        import vowpalwabbit

        self.rng = np.random.default_rng(seed)
        self.vw = vowpalwabbit.Workspace(
            f"--cb_explore_adf {flags} -q ua --ignore_linear u -b 18 --quiet --random_seed {seed + 1}"
        )
        self.arms = [f"|a a{k}" for k in range(K)]
        self.shared, self.chosen = "", 1.0

    def decide(self, x: Floats) -> int:
        self.shared = "shared |u " + " ".join([f"{i}:{value:.6g}" for i, value in enumerate(x.tolist())])
        examples = self.vw.parse([self.shared, *self.arms])
        pmf = np.array(self.vw.predict(examples))
        self.vw.finish_example(examples)
        edges = pmf.cumsum()
        arm = min(int(np.searchsorted(edges, self.rng.random() * edges[-1])), len(pmf) - 1)
        self.chosen = float(pmf[arm])
        return arm

    def update(self, _x: Floats, arm: int, reward: float) -> None:
        arms = list(self.arms)
        arms[arm] = f"0:{-reward}:{self.chosen:.6f} {arms[arm]}"
        examples = self.vw.parse([self.shared, *arms])
        self.vw.learn(examples)
        self.vw.finish_example(examples)


class MabWiser:
    def __init__(self, d: int, K: int, seed: int, alpha: float) -> None:
        from mabwiser.mab import MAB, LearningPolicy

        self.mab = MAB(list(range(K)), LearningPolicy.LinUCB(alpha=alpha), seed=seed)
        self.mab.fit(np.arange(K), np.zeros(K), np.zeros((K, d)))

    def decide(self, x: Floats) -> int:
        return int(self.mab.predict(x[None]))

    def update(self, x: Floats, arm: int, reward: float) -> None:
        self.mab.partial_fit(np.array([arm]), np.array([reward]), x[None])


class ContextualBandits:
    def __init__(self, _d: int, K: int, seed: int, alpha: float) -> None:
        from contextualbandits.online import LinUCB

        self.first: int | None = int(np.random.default_rng(seed).integers(K))
        self.model = LinUCB(
            nchoices=K, alpha=alpha, random_state=seed + 1, beta_prior=None, fit_intercept=False, njobs=1
        )

    def decide(self, x: Floats) -> int:
        if self.first is not None:
            return self.first
        return int(np.asarray(self.model.predict(x[None])).ravel()[0])

    def update(self, x: Floats, arm: int, reward: float) -> None:
        self.model.partial_fit(x[None], np.array([arm]), np.array([reward]))
        self.first = None


class River:
    def __init__(self, _d: int, K: int, seed: int) -> None:
        from river import bandit

        self.model, self.arms = bandit.LinUCBDisjoint(seed=seed + 1), list(range(K))
        self.features: dict[int, float] = {}

    def decide(self, x: Floats) -> int:
        self.features = dict(enumerate(x.tolist()))
        return int(self.model.pull(self.arms, context=self.features))

    def update(self, _x: Floats, arm: int, reward: float) -> None:
        self.model.update(arm, self.features, reward)


class ParetoBandit:
    """ParetoBandit's router without budget and pretrained priors; it adds its own constant."""

    def __init__(self, d: int, K: int, seed: int, alpha: float) -> None:
        from pareto_bandit import BanditRouter
        from pareto_bandit.feature_service import FeatureService
        from pareto_bandit.storage import EphemeralContextStore

        np.random.seed(seed)
        self.names = [f"m{k:02d}" for k in range(K)]
        self.router: Any = BanditRouter.create(
            model_registry={name: {"input_cost_per_m": 1.0, "output_cost_per_m": 1.0} for name in self.names},
            feature_service=FeatureService.for_precomputed(d - 1),
            context_store=EphemeralContextStore(),
            priors="none",
            alpha=alpha,
            cost_penalty=0.0,
        )
        self.request: str = ""

    def decide(self, x: Floats) -> int:
        name, log = self.router.route(x[:-1])
        log.cost_usd = 0.001
        self.request = log.request_id
        return self.names.index(name)

    def update(self, _x: Floats, _arm: int, reward: float) -> None:
        self.router.process_feedback(self.request, reward=reward)


PEERS: dict[str, Callable[[int, int, int], Peer]] = {
    "VW squarecb, gamma_scale 100": lambda d, K, s: VowpalWabbit(d, K, s, "--squarecb --gamma_scale 100"),
    "VW squarecb": lambda d, K, s: VowpalWabbit(d, K, s, "--squarecb"),
    "VW bag 5": lambda d, K, s: VowpalWabbit(d, K, s, "--bag 5"),
    "river LinUCBDisjoint": River,
    "contextualbandits LinUCB, alpha 1": lambda d, K, s: ContextualBandits(d, K, s, 1.0),
    "MABWiser LinUCB, alpha 1": lambda d, K, s: MabWiser(d, K, s, 1.0),
    "ParetoBandit, alpha 0.05": lambda d, K, s: ParetoBandit(d, K, s, 0.05),
}
"""Documented settings of the libraries, and the best ones of earlier experiments."""

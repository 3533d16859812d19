"""Streams of a response matrix through the in-process router, one prompt after the other.

The chosen model's cost is converted to tokens at its card's prices and learned as tokens, so that expected costs are
computed as in a gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.config import PolicyConfig
from fitrouter.context.encoders import Encoder
from fitrouter.context.features import context_features, estimate_tokens, read_prompt
from fitrouter.policies import build_policy
from fitrouter.posterior.labels import FitParams
from fitrouter.routing.decider import Rules
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.types import FeedbackKind, Floats, Identity, ModelCard, Prices, Request
from fitrouter_evaluators.datasets import MatrixRow
from fitrouter_evaluators.simulation.runner import InProcess

TYPICAL_TOKENS = 400.0
"""Tokens of a typical answer, from which prices are derived if a matrix has none."""
START, SECONDS = 1e9, 60.0
"""Time of the first prompt, and interval between prompts."""
_SCHEMA = "level"
"""Schema of the only response feature, 1: a matrix has labels, costs and contexts only."""
_UNCAPPED = 1 << 40
"""Votes of a user and day that count for others; a matrix needs no cap."""

_SHIPPED = PolicyConfig()


class Matrix(NamedTuple):
    """Every model's answer to N prompts, as arrays; models are in canonical order."""

    cards: tuple[ModelCard, ...]
    x: Floats
    """The contexts, float64[N, d]."""
    tokens: NDArray[np.int64]
    """int64[N], of the prompts, as the router estimates them."""
    reward: Floats
    """float64[N, K] in [0, 1]; NaN where a model has no answer."""
    cost: Floats
    """USD, float64[N, K]; 0 where it is not known."""
    seconds: Floats
    """Latencies, float64[N, K]; 0 where they are not known."""
    users: tuple[str | None, ...]
    roles: tuple[str | None, ...]
    scale: tuple[float, float] = (0.0, 1.0)
    """Rewards in the file that became 0 and 1."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(card.name for card in self.cards)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a router; the defaults are those that ship."""

    algorithm: str = _SHIPPED.algorithm
    gamma: float = _SHIPPED.parameters["gamma"]
    floor: float = _SHIPPED.floor
    cost_weight: float = 0.0
    cost_unit_usd: float = 0.01
    fit: FitParams = FitParams()
    personal: bool = True
    default: str | None = None
    seed: int = 0


class Played(NamedTuple):
    """Results of a stream, one entry per prompt in the order played, length T."""

    chosen: NDArray[np.int64]
    reward: Floats
    cost: Floats
    weight: Floats
    """λ of the budget."""


def matrix_of(
    rows: Sequence[MatrixRow], encoder: Encoder, prices: Mapping[str, tuple[float, float]] | None = None
) -> Matrix:
    """Convert the rows of a matrix to arrays.

    Args:
        rows: of the open format.
        encoder: reads the prompts.
        prices: model → USD per million tokens of prompt and answer. Where None they are made such that an answer of
            `TYPICAL_TOKENS` costs the model's mean, as a price list would state before the first request.

    Raises:
        ValueError: there are no rows, or fewer than two models.
    """
    models = tuple(sorted({name for row in rows for name in row.models}))
    if len(models) < 2:
        raise ValueError(
            f"there are {len(rows)} rows of {len(models)} models; a matrix to route needs two or more models"
        )
    reward = np.full((len(rows), len(models)), np.nan)
    cost, seconds = np.zeros_like(reward), np.zeros_like(reward)
    x, tokens = [], []
    known: dict[str, tuple[Floats, int]] = {}
    for n, row in enumerate(rows):
        for k, name in enumerate(models):
            cell = row.models.get(name)
            if cell is not None:
                reward[n, k], cost[n, k], seconds[n, k] = cell.reward, cell.cost_usd or 0.0, cell.latency_s or 0.0
        if row.prompt not in known:
            request = Request(messages=({"role": "user", "content": row.prompt},))
            known[row.prompt] = (
                context_features(read_prompt(request), encoder),
                estimate_tokens(request.messages, request.params),
            )
        x.append(known[row.prompt][0])
        tokens.append(known[row.prompt][1])
    low, high = min(0.0, float(np.nanmin(reward))), max(1.0, float(np.nanmax(reward)))
    mean = np.nansum(cost * np.isfinite(reward), axis=0) / np.maximum(np.isfinite(reward).sum(axis=0), 1)
    listed = (
        {name: (0.0, 1e6 * float(mean[k]) / TYPICAL_TOKENS) for k, name in enumerate(models)}
        if prices is None
        else prices
    )
    cards = tuple(
        ModelCard(name=name, provider="matrix", prices=Prices(input=listed[name][0], output=listed[name][1]))
        for name in models
    )
    return Matrix(
        cards,
        np.array(x),
        np.array(tokens),
        (reward - low) / (high - low),
        cost,
        seconds,
        tuple(row.user for row in rows),
        tuple(row.role for row in rows),
        (low, high),
    )


def play(
    matrix: Matrix,
    order: NDArray[np.int64],
    setting: Setting,
    budget: BudgetParams | None = None,
    shock: Floats | None = None,
    *,
    announced: bool = True,
) -> Played:
    """Stream the prompts once in the given order through a router with a new learner.

    Args:
        matrix: the answers.
        order: int64[T], the prompts.
        setting: of the router.
        budget: cap on spending; None for none.
        shock: float64[T, K], factors of the costs over time.
        announced: price lists change; otherwise models use more tokens.
    """
    learner = Learner(
        matrix.x.shape[1],
        1,
        schema=_SCHEMA,
        params=setting.fit,
        votes_per_day=_UNCAPPED,
        projections=ProjectionParams(budget=budget),
    )
    rules = Rules(
        floor=setting.floor,
        cost_weight=setting.cost_weight,
        cost_unit_usd=setting.cost_unit_usd,
        personal=setting.personal,
        default_arm=setting.default,
        seed=setting.seed,
    )
    policy = build_policy(setting.algorithm, gamma=setting.gamma, default_model=setting.default)
    router = InProcess(learner, policy, rules, matrix.cards, START)
    T, index = len(order), {card.arm: k for k, card in enumerate(matrix.cards)}
    chosen, reward, cost, weight = np.empty(T, dtype=np.int64), np.empty(T), np.empty(T), np.empty(T)
    for t, n in enumerate(order.tolist()):
        ts = START + t * SECONDS
        if shock is not None and announced and (t == 0 or (shock[t] != shock[t - 1]).any()):
            router.offer(_dearer(matrix.cards, shock[t]), ts)
        decision = router.decide(
            t,
            ts,
            Identity(user=matrix.users[n], role=matrix.roles[n]),
            matrix.x[n],
            cards=[card for k, card in enumerate(router.cards) if np.isfinite(matrix.reward[n, k])],
            prompt_tokens=int(matrix.tokens[n]),
        )
        k = index[decision.chosen]
        chosen[t], reward[t], weight[t] = k, matrix.reward[n, k], decision.budget_weight
        cost[t] = matrix.cost[n, k] * (1.0 if shock is None else shock[t, k])
        turn = router.answer(
            decision,
            h=np.ones(1),
            prompt_tokens=int(matrix.tokens[n]),
            completion_tokens=_tokens(router.cards[k].prices, float(cost[t]), int(matrix.tokens[n])),
            cost_usd=float(cost[t]),
            seconds=float(matrix.seconds[n, k]),
        )
        router.vote(turn, FeedbackKind.RATING, float(reward[t]))
    return Played(chosen, reward, cost, weight)


def _dearer(cards: Sequence[ModelCard], factors: Floats) -> list[ModelCard]:
    """Multiply the models' prices by factors."""
    return [
        msgspec.structs.replace(card, prices=Prices(input=card.prices.input * f, output=card.prices.output * f))
        for card, f in zip(cards, factors.tolist(), strict=True)
    ]


def _tokens(prices: Prices, cost_usd: float, prompt_tokens: int) -> int:
    """Number of completion tokens that makes an answer cost this much."""
    if prices.output <= 0.0:
        return 0
    return max(round((1e6 * cost_usd - prices.input * prompt_tokens) / prices.output), 0)

"""A matrix streamed through the router's own code: decision, execution, score, label, one prompt after the other.

Only the network, the disk and the text are left out. The chosen model's cost becomes tokens at its card's prices and is
learnt as tokens, so that expected costs come from where they come from in the gateway.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder
from fitrouter.context.features import context_features, estimate_tokens, read_prompt
from fitrouter.policies import build_policy
from fitrouter.posterior.labels import FitParams
from fitrouter.routing.decider import Decider, Rules
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
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
    Request,
    Score,
    pack,
)
from fitrouter_evaluators.datasets import MatrixRow

TYPICAL_TOKENS = 400.0
"""Tokens that the price list of a matrix without prices is made for."""
START, SECONDS = 1e9, 60.0
"""Time of the first prompt, and between two."""
_SCHEMA = "level"
"""An answer's only feature is 1: labels, costs and contexts are all that is known of a matrix."""
_EVERY_VOTE = 1 << 40
"""Votes of one user and day that count for others: a matrix has no crowd to guard against."""


class Matrix(NamedTuple):
    """Every model's answer to N prompts, as arrays; models are in canonical order."""

    cards: tuple[ModelCard, ...]
    x: Floats
    """float64[N, d], the contexts."""
    tokens: NDArray[np.int64]
    """int64[N], of the prompts, as the router estimates them."""
    reward: Floats
    """float64[N, K] in [0, 1]; NaN where a model has no answer."""
    cost: Floats
    """float64[N, K], USD; 0 where it is not known."""
    seconds: Floats
    """float64[N, K], latencies; 0 where they are not known."""
    users: tuple[str | None, ...]
    roles: tuple[str | None, ...]
    scale: tuple[float, float] = (0.0, 1.0)
    """What 0 and 1 of `reward` were in the file."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(card.name for card in self.cards)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How a contender decides and learns; the defaults are what ships."""

    algorithm: str = "squarecb"
    gamma: float = 2560.0
    floor: float = 0.05
    cost_weight: float = 0.0
    cost_unit_usd: float = 0.01
    fit: FitParams = FitParams()
    personal: bool = True
    default: str | None = None
    seed: int = 0


class Played(NamedTuple):
    """What happened, prompt by prompt; arrays of length T."""

    chosen: NDArray[np.int64]
    reward: Floats
    cost: Floats
    weight: Floats
    """λ of the budget."""


def matrix_of(
    rows: Sequence[MatrixRow], encoder: Encoder, prices: Mapping[str, tuple[float, float]] | None = None
) -> Matrix:
    """The arrays of a matrix.

    Args:
        rows: of the open format.
        encoder: reads the prompts.
        prices: model → USD per million tokens of prompt and answer. Where None they are made such that an answer of
            `TYPICAL_TOKENS` costs the model's mean: what a price list tells before the first request.

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
    """Stream the prompts once, in an order, from nothing known.

    Args:
        matrix: the answers.
        order: int64[T], the prompts.
        setting: of the contender.
        budget: what may be spent.
        shock: float64[T, K], factors of the costs over time.
        announced: it is the price lists that change; else models need more tokens for the same.
    """
    return _Stream(matrix, setting, budget).run(order, shock, announced=announced)


class _Stream:
    """One contender in one stream."""

    def __init__(self, matrix: Matrix, setting: Setting, budget: BudgetParams | None) -> None:
        self.matrix, self.cards = matrix, matrix.cards
        self.index = {card.arm: k for k, card in enumerate(matrix.cards)}
        self.learner = Learner(
            matrix.x.shape[1],
            1,
            schema=_SCHEMA,
            params=setting.fit,
            votes_per_day=_EVERY_VOTE,
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
        self.rules = rules
        self.policy = build_policy(setting.algorithm, gamma=setting.gamma, default_model=setting.default)
        self.decider = Decider(self.policy, self.learner, rules)
        self.seq = 0
        self._fold([ModelChange(id="registry", ts=START, cards=matrix.cards, registry="matrix")])

    def run(self, order: NDArray[np.int64], shock: Floats | None = None, *, announced: bool = True) -> Played:
        """The stream, prompt by prompt."""
        T, matrix = len(order), self.matrix
        chosen, reward, cost, weight = np.empty(T, dtype=np.int64), np.empty(T), np.empty(T), np.empty(T)
        for t, n in enumerate(order.tolist()):
            if shock is not None and announced and (t == 0 or (shock[t] != shock[t - 1]).any()):
                self._announce(t, shock[t])
            decision = self._decide(t, n)
            k = self.index[decision.chosen]
            factor = 1.0 if shock is None else float(shock[t, k])
            chosen[t], reward[t], cost[t] = k, matrix.reward[n, k], matrix.cost[n, k] * factor
            weight[t] = decision.budget_weight
            self._answer(decision, n, k, float(cost[t]), float(reward[t]))
        return Played(chosen, reward, cost, weight)

    def _announce(self, t: int, factors: Floats) -> None:
        """New price lists: an event, and a decider that reads them, as after the restart that a new file needs."""
        self.cards = tuple(
            msgspec.structs.replace(card, prices=Prices(input=card.prices.input * f, output=card.prices.output * f))
            for card, f in zip(self.matrix.cards, factors.tolist(), strict=True)
        )
        self._fold([ModelChange(id=f"prices {t}", ts=START + t * SECONDS, cards=self.cards, registry=f"prices {t}")])
        self.decider = Decider(self.policy, self.learner, self.rules)

    def _decide(self, t: int, n: int) -> Decision:
        matrix = self.matrix
        return self.decider.decide(
            str(uuid.UUID(int=t)),
            START + t * SECONDS,
            Identity(user=matrix.users[n], role=matrix.roles[n]),
            matrix.x[n],
            [card for k, card in enumerate(self.cards) if np.isfinite(matrix.reward[n, k])],
            prompt_tokens=int(matrix.tokens[n]),
            seq=self.seq,
        )

    def _answer(self, decision: Decision, n: int, k: int, cost: float, reward: float) -> None:
        """The events of one answer, in the order of the journal."""
        who, arm, prompt = decision.identity, decision.chosen, int(self.matrix.tokens[n])
        prices, ts = self.cards[k].prices, decision.ts
        written = (1e6 * cost - prices.input * prompt) / prices.output if prices.output > 0.0 else 0.0
        execution = Execution(
            id=f"{decision.id}:execution",
            ts=ts,
            decision_id=decision.id,
            identity=who,
            chosen=arm,
            served_by=arm,
            status="ok",
            attempts=(Attempt(model=arm, probability=1.0),),
            features=decision.features,
            prompt_tokens=prompt,
            completion_tokens=max(round(written), 0),
            cost_usd=cost,
            latency_ms=1000.0 * float(self.matrix.seconds[n, k]),
        )
        score = Score(
            id=f"{decision.id}:score",
            ts=ts,
            decision_id=decision.id,
            identity=who,
            served_by=arm,
            features=decision.features,
            h=pack(np.ones(1)),
            schema=_SCHEMA,
        )
        vote = Feedback(
            id=f"{decision.id}:vote",
            ts=ts,
            decision_id=decision.id,
            identity=who,
            kind=FeedbackKind.RATING,
            value=reward,
        )
        self._fold([decision, execution, score, vote])

    def _fold(self, events: Sequence[Event]) -> None:
        for place, event in enumerate(events):
            self.seq += 1
            self.learner.apply(Row(self.seq, event), events[:place])

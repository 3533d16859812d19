"""Fit report of a person or role: how well each model fits them, on what, how sure that is, and what it is worth."""

from __future__ import annotations

import asyncio
import functools
import math
from contextlib import suppress

import msgspec
import numpy as np

from fitrouter.config import Config
from fitrouter.errors import NoWarehouse
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.heads import HINGES, length_columns
from fitrouter.posterior.likelihoods import SIGNALS
from fitrouter.posterior.tastes import OVERALL
from fitrouter.router import Router
from fitrouter.routing.explanation_text import FEATURES
from fitrouter.stores.figures import MODEL, Traffic, chance, figures, percent, traffic
from fitrouter.types import FeedbackKind, Floats, Identity
from fitrouter_evaluators.personal.answers import AnswerPool, NoAnswers
from fitrouter_evaluators.personal.base import Base, base_of, faults
from fitrouter_evaluators.personal.leaderboard import Drawn, Leaderboard, Leaderboards, require_somebody
from fitrouter_evaluators.personal.quizzes import Quizzes
from fitrouter_evaluators.personal.scores import (
    CLAIM,
    Dimension,
    Reason,
    on_scale,
    predicted,
    reasons_of,
)

QUOTE = 280
"""Most characters of a quote."""
LAST = 5000
"""Answers of a tenant of which cost and latency are told."""
_LIKES, _MOST_RATINGS = 5, 200


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded answer as evidence: the one of its model that fits them best, or worst."""

    prompt: str
    text: str
    rating: float
    best: bool


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Cost and latency of a model's answers in this tenant."""

    answers: int
    cost_usd: float | None
    """Mean of the answers whose price is known; None if that of none is."""
    latency_s: float
    """Median."""
    tokens: str = ""
    """Of all these answers, in words."""


class ModelFit(msgspec.Struct, frozen=True, kw_only=True):
    """Details of one model in the report, beside its standing."""

    model: str
    dimensions: dict[str, Dimension]
    """Of the model's expected answer to their tasks."""
    style: tuple[Reason, ...]
    """How its answers differ from the average answer, where they care."""
    usage: ModelUsage | None
    quotes: tuple[Quote, ...]
    base: Base | None = None
    """Of its recorded answers; None where none are kept."""


class Like(msgspec.Struct, frozen=True, kw_only=True):
    """A feature of answers that the person or role likes or dislikes."""

    feature: str
    likes: bool
    sure: float
    words: str


class PersonalGain(msgspec.Struct, frozen=True, kw_only=True):
    """Gain of the person's first model over everybody's first."""

    satisfaction: float
    low: float
    high: float
    """Difference of ratings with an 80% interval."""
    usd_per_1000: float | None
    """Difference of the cost of 1,000 answers; None where it is not known."""


class FitReport(msgspec.Struct, frozen=True, kw_only=True):
    """A fit report."""

    board: Leaderboard
    models: tuple[ModelFit, ...]
    likes: tuple[Like, ...]
    worth: PersonalGain | None
    """None where both have the same first model."""
    change: tuple[str, ...]
    """What would change the ranking."""
    saved: tuple[str, ...] = ()
    """What routing saved all people of the tenant, against the default and the best single model, in words."""


class Reports:
    """Fit reports over a router.

    Args:
        router: started, or `Router.offline`.
        config: locates recorded answers for quotes.
    """

    def __init__(self, router: Router, config: Config) -> None:
        self.router, self._quizzes = router, Quizzes(router, config)
        self.boards = Leaderboards(router, config, self._quizzes.pool)

    async def of(self, identity: Identity) -> FitReport:
        """The report of a user (in a role, if one is given), or of a role.

        Raises:
            InvalidRequest: neither user nor role, or a role of too few people.
            StoreError: a store cannot be read now.
        """
        require_somebody(identity, "report")
        who = await self.router.people.recall(identity)
        return await asyncio.to_thread(self.read, who, identity)

    def read(self, who: Identity, identity: Identity) -> FitReport:
        """Compute the fit report of `who`, the identity as recorded in events; blocks."""
        drawn = self.boards.drawn(who, identity)
        board, names = drawn.board, drawn.names
        profiles, own, common = drawn.own.profile, drawn.own.means.taste, drawn.common.means.taste
        people = self.router.people
        tastes = {name: people.taste(who, name) for name in people.dimensions(who.tenant) if name != OVERALL}
        usage, (quotes, bases) = self._usage(who.tenant), self._recorded(own.mean)
        apart = profiles - profiles.mean(axis=0)
        models = []
        for standing in board.models:
            k = names.index(standing.model)
            dimensions = {name: predicted(mine, theirs, profiles[k]) for name, (mine, theirs) in tastes.items()}
            overall = Dimension(
                mean=standing.rating,
                sd=float(drawn.own.ratings[:, k].std()),
                low=standing.low,
                high=standing.high,
                population=standing.population,
            )
            models.append(
                ModelFit(
                    model=standing.model,
                    dimensions={OVERALL: overall, **dimensions},
                    style=reasons_of(self.router.people.features, apart[k], own, common),
                    usage=usage.get(standing.model),
                    quotes=quotes.get(standing.model, ()),
                    base=bases.get(standing.model),
                )
            )
        return FitReport(
            board=board,
            models=tuple(models),
            likes=self._likes(own) if board.labels else (),  # else they are everybody's
            worth=_personal_gain(drawn, usage),
            change=(*_settled(drawn), *self._counterfactuals(drawn, apart, own.mean, common.mean)),
        )

    def _likes(self, own: Gaussian) -> tuple[Like, ...]:
        found, names = [], self.router.people.features
        slopes = np.eye(len(own.mean))
        if lengths := length_columns(names):  # the curve's mean slope within one standard deviation of the average
            slopes[lengths[0], lengths[1:]] = [min(1.0 - t, 2.0) / 2.0 for t in HINGES.values()]
        mean, sd = slopes @ own.mean, np.sqrt(np.maximum(np.vecdot(slopes @ own.cov, slopes), 0.0))
        for j in np.argsort(-np.abs(mean), kind="stable").tolist() if names else []:
            name = names[j]
            sure = 0.5 * (1.0 + math.erf(abs(float(mean[j])) / max(float(sd[j]), 1e-12) / math.sqrt(2.0)))
            if name in FEATURES and sure >= CLAIM and mean[j]:
                likes = bool(mean[j] > 0)
                found.append(Like(feature=name, likes=likes, sure=sure, words=FEATURES[name][0 if likes else 1]))
        return tuple(found[:_LIKES])

    def _counterfactuals(self, drawn: Drawn, apart: Floats, mean: Floats, common: Floats) -> tuple[str, ...]:
        """Sentences on which other model would be first if the person's taste in a feature were everybody's."""
        ratings, first = drawn.own.ratings.mean(axis=0), drawn.names.index(drawn.board.first)
        said: list[str] = []
        if not self.router.people.features:  # without a scorer
            return ()
        for j in np.argsort(-np.abs((mean - common) * np.abs(apart).max(axis=0)), kind="stable").tolist()[:10]:
            without = ratings - (mean[j] - common[j]) * apart[:, j]
            other = int(without.argmax())
            if other != first and self.router.people.features[j] in FEATURES:
                words = FEATURES[self.router.people.features[j]][0 if mean[j] > common[j] else 1]
                said.append(
                    f"If they cared no more than everybody for a model that {words}, {drawn.names[other]} would be "
                    "first."
                )
        return tuple(said[:2])

    def _usage(self, tenant: str) -> dict[str, ModelUsage]:
        """Usage of each model in the latest answers of the tenant."""
        warehouse, moving = self.router.warehouse, dict[str, Traffic]()
        if warehouse is not None:
            with suppress(NoWarehouse):  # nothing has been asked yet
                whole = functools.partial(warehouse.queries, whole=True)
                (groups,) = figures(whole, traffic(Identity(tenant=tenant), by=MODEL, last=LAST))
                moving = groups.by
        found = {}
        for arm, each in moving.items():
            try:
                name = self.router.name_of(arm)
            except KeyError:  # a model, or a revision, that is configured no more
                continue
            latency_s = (each.p50_ms or 0.0) / 1000.0
            found[name] = ModelUsage(
                answers=each.requests, cost_usd=each.cost.each, latency_s=latency_s, tokens=each.tokens
            )
        return found

    def _recorded(self, taste: Floats) -> tuple[dict[str, tuple[Quote, ...]], dict[str, Base]]:
        """Quotes of the best and worst fitting recorded answers by model, and bases by model; empty without records."""
        try:
            pool: AnswerPool = self._quizzes.pool()
        except NoAnswers:
            return {}, {}
        wrong = [[faults(p, text) for text in row] for p, row in zip(pool.prompts, pool.texts, strict=True)]
        broken = np.array([[bool(each) for each in row] for row in wrong])
        ratings = on_scale(np.nan_to_num(pool.h) @ taste[: pool.h.shape[2]], broken)
        found = {}
        for k, model in enumerate(pool.models):
            places = int(ratings[:, k].argmax()), int(ratings[:, k].argmin())
            found[model] = tuple(
                Quote(
                    prompt=clipped(pool.prompts[p]),
                    text=clipped(pool.texts[p][k]),
                    rating=float(ratings[p, k]),
                    best=best,
                )
                for p, best in zip(places, (True, False), strict=True)
            )
        bases = {model: base_of([row[k] for row in wrong]) for k, model in enumerate(pool.models)}
        return found, bases


def _personal_gain(drawn: Drawn, usage: dict[str, ModelUsage]) -> PersonalGain | None:
    a, b = drawn.names.index(drawn.board.first), drawn.names.index(drawn.board.population_first)
    if a == b:
        return None
    gap = drawn.own.ratings[:, a] - drawn.own.ratings[:, b]
    low, high = np.quantile(gap, (0.1, 0.9)).tolist()
    mine, theirs = usage.get(drawn.board.first), usage.get(drawn.board.population_first)
    costs = [None if each is None else each.cost_usd for each in (mine, theirs)]
    usd = None if costs[0] is None or costs[1] is None else 1000.0 * (costs[0] - costs[1])
    return PersonalGain(satisfaction=float(gap.mean()), low=low, high=high, usd_per_1000=usd)


def _settled(drawn: Drawn) -> tuple[str, ...]:
    """Number of further ratings that would settle which of the two leading models is better."""
    if len(drawn.names) < 2:
        if drawn.board.unranked:
            return (f"{drawn.board.first} is the only model that has answered; ask another one to compare it with.",)
        return ("There is one model; configure another one to compare it with.",)
    first, rival = (drawn.names.index(each.model) for each in drawn.board.models[:2])
    gap = drawn.own.ratings[:, first] - drawn.own.ratings[:, rival]
    mean, sd, sure = float(gap.mean()), float(gap.std()), float((gap > 0).mean())
    a, b = drawn.names[first], drawn.names[rival]
    if sure >= CLAIM:
        top = percent(drawn.board.models[0].rating)
        change = f"ratings of {b} above {top}%" if top < 100 else f"lower ratings of {a}"
        return (f"{a} beats {b} with a probability of {chance(sure)}; {change} could change that.",)
    wanted = max(mean, 1e-3) / 0.8416
    noise = 2.0 * SIGNALS[FeedbackKind.RATING].noise
    known = 1.0 / sd**2 if sd > wanted else 0.0
    more = math.floor(noise * (1.0 / wanted**2 - known)) + 1
    said = (
        f"about {more} more rating{'s' * (more > 1)} of each"
        if more <= _MOST_RATINGS
        else "more than anybody gives: they are near"
    )
    return (f"{a} beats {b} with a probability of {chance(sure)}; to be {CLAIM:.0%} sure takes {said}.",)


def clipped(text: str) -> str:
    """Shorten a text to one line of at most `QUOTE` characters."""
    line = " ".join(text[: 8 * QUOTE].split())
    return line if len(line) <= QUOTE else line[: QUOTE - 1] + "…"

"""Leaderboard of models for a person or a role, beside the population's, and what separates the two.

Ratings are joint draws of a person's exact posterior given their own votes (`posterior.person_draws`), or, for a role,
of the posterior that decisions read; they are averaged over the person's own tasks: the contexts of their latest
requests, else of the tenant's. Where nobody has made a request, the recorded answers of the quiz stand for them: what
the models wrote there is known, and questions of a quiz are chosen to be short. Their differences are split by the same
posterior (`reasons`). A personal ranking is claimed only where the first model beats the population's first with a
probability of .8 or more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.config import Config
from fitrouter.errors import InvalidRequest, NoWarehouse, StoreError
from fitrouter.posterior.arms import base_arm
from fitrouter.posterior.draws import RatingDraws
from fitrouter.posterior.labels import Answered, Label
from fitrouter.posterior.person_draws import MOST_VOTES
from fitrouter.router import Router
from fitrouter.stores.figures import chance, many
from fitrouter.types import FeedbackKind, Floats, Identity
from fitrouter_evaluators.personal import reasons
from fitrouter_evaluators.personal.answers import AnswerPool, NoAnswers, PoolReader
from fitrouter_evaluators.personal.filters import Filters, Found, domains
from fitrouter_evaluators.personal.reasons import Difference, split
from fitrouter_evaluators.personal.scores import CLAIM, MetricMean, metric_means, votes_said

DRAWS, CONTEXTS, ROLE_PEOPLE = 4000, 64, 5
"""Posterior draws; requests whose contexts are read; fewest people of a role's ranking."""
SEARCHED = LATEST = 1000
"""Requests among which those about a domain are looked for; answers whose metrics are read, in whatever domain."""
NEAR = 0.02
"""Difference of ratings that nobody notices."""

_ALL = Filters()
_VOTES = """
    WITH vote AS (
        SELECT * FROM feedback WHERE tenant = ? AND "user" = ? AND dimension = 'overall' AND y IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY decision_id, kind, other ORDER BY seq DESC) = 1
        ORDER BY seq DESC LIMIT ?
    ), score AS (
        SELECT decision_id, served_by, features, h
        FROM scores JOIN (SELECT decision_id, features FROM decisions) USING (decision_id)
        WHERE status = 'ok' AND schema = ? AND len(features) = ?  -- arrays are read for these votes only
            AND decision_id IN (SELECT decision_id FROM vote UNION ALL SELECT other FROM vote)
        QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY seq) = 1
    ), execution AS (
        SELECT decision_id, max(completion_tokens) AS tokens FROM executions
        WHERE decision_id IN (SELECT decision_id FROM vote) GROUP BY decision_id
    )
    SELECT vote.kind, vote.y, tokens, a.served_by, a.features, a.h, b.served_by, b.features, b.h
    FROM vote JOIN score AS a USING (decision_id) LEFT JOIN execution USING (decision_id)
    LEFT JOIN score AS b ON vote.other = b.decision_id
    ORDER BY vote.seq
"""
_MEASURED = """
    SELECT served_by, h FROM scores WHERE tenant = ? AND {column} = ? AND status = 'ok' AND schema = ?
    ORDER BY seq DESC LIMIT ?
"""
_OWN = """
    WITH vote AS (SELECT DISTINCT decision_id, other FROM feedback WHERE tenant = ? AND {column} = ?),
    side AS (SELECT decision_id FROM vote UNION ALL SELECT other FROM vote WHERE other IS NOT NULL)
    SELECT DISTINCT served_by FROM executions
    WHERE served_by IS NOT NULL AND decision_id IN (SELECT decision_id FROM side)
"""
_OTHERS = """
    WITH rated AS (
        SELECT served_by FROM executions SEMI JOIN (SELECT decision_hash FROM feedback WHERE tenant = $1)
            USING (decision_hash) WHERE tenant = $1
        UNION SELECT served_by FROM executions
            WHERE decision_id IN (SELECT other FROM feedback WHERE tenant = $1 AND other <> '')
    )
    SELECT DISTINCT served_by, served_by IN (SELECT served_by FROM rated WHERE served_by IS NOT NULL) FROM executions
    WHERE tenant = $1 AND served_by IS NOT NULL
"""


class LeaderboardRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a leaderboard. Ratings are on a scale from 0 to 1."""

    model: str
    rank: int
    rating: float
    low: float
    high: float
    """80% interval of the rating."""
    lead: float
    lead_low: float | None
    lead_high: float | None
    """Rating minus the mean of the models' ratings, with an 80% interval: what is common to all models cancels.

    None where there is one model.
    """
    best: float
    """Probability that no model is better."""
    population: float
    """Rating by the population."""
    population_rank: int
    metrics: dict[str, MetricMean] = {}
    """Metric → its mean over the model's latest answers to them; `mean` is that of all, weighted for them."""
    basis: str = ""
    """What its place rests on: `own`, votes of theirs on its answers; `others`, other people's alone; `answers`, which
    nobody has rated; `prior`, since no model has ever answered. Empty where the log cannot tell."""


class Leaderboard(msgspec.Struct, frozen=True, kw_only=True):
    """Models ranked for a person or role."""

    user: str | None
    role: str | None
    models: tuple[LeaderboardRow, ...]
    first: str
    population_first: str
    beats: float
    """Probability that the first model is better for them than the population's first; 0 if they are the same."""
    near: float
    """Probability that no model is better than the first by more than .02."""
    claimed: bool
    """Whether the ranking is claimed to differ from the population's: `beats` is .8 or more, and they have voted."""
    why: tuple[Difference, ...]
    """Parts of the rating of the person's first minus that of everybody's first, to which they add up."""
    labels: int
    """Votes that the person or the role's people have given."""
    people: int | None
    """People of a role."""
    tasks: int
    """Requests whose contexts were averaged."""
    prompts: int = 0
    """Prompts with recorded answers that were averaged, where nobody has made a request; without both it is an average
    task."""
    sentences: tuple[str, ...]
    unranked: tuple[str, ...] = ()
    """Models that have never answered here, while others have: of them there is nothing to rank."""
    unmeasured: tuple[str, ...] = ()
    """Metrics that none of the latest answers has."""
    filters: Filters = Filters()
    """What it is restricted to: all figures are among the models and prompts that fit."""
    left_out: dict[str, str] = {}
    """Model that does not fit, or of which that is not known → why."""
    searched: int = 0
    """Requests or recorded prompts among which those about the domain were looked for; 0 without a domain."""
    told: Found | None = None
    """How well the encoder tells domains; None without one."""


class Tasks(NamedTuple):
    """Tasks that models are ranked for."""

    x: Floats
    """Contexts, float64[n, d]."""
    requests: int = 0
    prompts: int = 0
    searched: int = 0
    """Requests or prompts among which they were looked for, where a domain is given."""
    pool: AnswerPool | None = None
    """The recorded answers, if they are of these."""
    of_pool: Any = None
    """Whether a prompt of the pool is one of the tasks, bool[P]."""


class Drawn(NamedTuple):
    """A leaderboard with the draws that it was computed from."""

    board: Leaderboard
    names: tuple[str, ...]
    """Of the models that are ranked."""
    own: RatingDraws
    common: RatingDraws


class Leaderboards:
    """Leaderboards over a router.

    Args:
        router: started, or `Router.offline`.
        config: locates recorded answers.
        pool: reads them, where somebody reads them already; they take seconds.
    """

    def __init__(self, router: Router, config: Config, pool: PoolReader | None = None) -> None:
        self.router, self._pool = router, pool or PoolReader(router, config)
        self._encoder = config.encoder
        self._unknown = {each.name for each in config.models if "context_window" not in each.model_fields_set}

    async def of(self, identity: Identity, filters: Filters = _ALL) -> Leaderboard:
        """The leaderboard of a user (in a role, if one is given), or of a role, among what fits the filters.

        Raises:
            InvalidRequest: neither user nor role, a role of too few people, or nothing fits the filters.
            StoreError: a store cannot be read now.
        """
        require_somebody(identity, "leaderboard")
        who = await self.router.people.recall(identity)
        return await asyncio.to_thread(self.read, who, identity, filters)

    def read(self, who: Identity, identity: Identity, filters: Filters = _ALL) -> Leaderboard:
        """Compute the leaderboard of `who`, the identity as recorded in events; blocks."""
        return self.drawn(who, identity, filters).board

    def drawn(self, who: Identity, identity: Identity, filters: Filters = _ALL) -> Drawn:
        """Compute the leaderboard together with the draws behind it."""
        labels, people = votes_and_people(self.router, who, identity)
        cards = {name: card for name, card in self.router.models.items() if card.variant is None}
        models, left = filters.models(cards, self._unknown)
        tasks = self._tasks(who, filters.domain)
        bases = self._bases(who, models)
        names = tuple(name for name in models if bases.get(name) != "prior") or tuple(models)
        known = self.router.people
        votes = self.votes(who) if who.user and known.features else None  # without a scorer nothing has features
        written = None if tasks.pool is None else _written(tasks.pool, tasks.of_pool, names, len(known.features))
        of_them, common = known.draw_ratings(who, tasks.x, names, DRAWS, [0], votes, written)
        own = of_them.ratings
        rows = ranked(names, own, common.ratings)
        metrics = self._metrics(who)
        found = tuple(
            msgspec.structs.replace(each, basis=bases.get(each.model, ""), metrics=metrics.get(each.model, {}))
            for each in rows
        )
        first, theirs = found[0].model, min(found, key=lambda each: each.population_rank).model
        a, b = names.index(first), names.index(theirs)
        beats = 0.0 if a == b else float((own[:, a] > own[:, b]).mean())
        board = Leaderboard(
            user=identity.user,
            role=identity.role,
            models=found,
            first=first,
            population_first=theirs,
            beats=beats,
            near=float((own[:, a] >= own.max(axis=1) - NEAR).mean()),
            claimed=beats >= CLAIM and labels > 0 and found[0].basis != "prior",
            why=() if a == b else split(of_them, common, known.features, a, b, found[0].basis),
            labels=labels,
            people=None if who.user else people,
            tasks=tasks.requests,
            prompts=tasks.prompts,
            sentences=(),
            unranked=tuple(name for name in models if name not in names),
            unmeasured=tuple(
                name
                for name in known.features
                if metrics and name.startswith("rm.") and not any(name in each for each in metrics.values())
            ),
            filters=filters,
            left_out=left,
            searched=tasks.searched,
            told=None if filters.domain is None else domains(self._encoder).measured,
        )
        return Drawn(msgspec.structs.replace(board, sentences=sentences(board)), names, of_them, common)

    def _tasks(self, who: Identity, domain: str | None) -> Tasks:
        """Find the tasks that models are ranked for: requests, else recorded answers, else prompts that were compared.

        Without any of them an average task counts.

        Raises:
            InvalidRequest: none is about the domain.
        """
        searched = 0

        def about(x: Any) -> Any:
            """Whether each is about the domain."""
            nonlocal searched
            searched += len(x)
            told = domains(self._encoder).of(np.array(x)) if domain and len(x) else ["" for _ in x]
            return np.array([name == (domain or "") for name in told], dtype=bool)

        def looked() -> int:
            return searched if domain else 0

        if (found := self._contexts(who, domain)) and (fits := about(found)).any():
            x = np.array(found)[fits][:CONTEXTS]
            return Tasks(x, requests=len(x), searched=looked())
        try:
            pool = self._pool()
        except NoAnswers:
            found = self._contexts(who, domain, recorded=True)
            if found and (fits := about(found)).any():
                x = np.array(found)[fits][:CONTEXTS]
                return Tasks(x, prompts=len(x), searched=looked())
        else:
            of_pool = pool.typical.copy()
            of_pool[of_pool] = about(pool.x[pool.typical])
            if of_pool.any():
                return Tasks(pool.x[of_pool], 0, int(of_pool.sum()), looked(), pool, of_pool)
        if domain:
            raise InvalidRequest(
                f"domain: none of {many(searched, 'request or recorded prompt', 'requests and recorded prompts')} is "
                f"about {domain}, as far as the nearest examples tell; leave 'domain' out, or ask about it first"
            )
        return Tasks(np.array([self.router.people.average_context()]))

    def _contexts(self, who: Identity, domain: str | None, *, recorded: bool = False) -> list[Any]:
        """Contexts of the latest requests of the person, else of the role or tenant, or of recorded answers."""
        past = "SELECT decision_hash FROM executions WHERE tenant = $1 AND status = 'recorded'"
        for column, value in (('"user"', who.user), ("role", who.role), ("tenant", who.tenant)):
            if value:
                latest = (
                    f"SELECT rowid FROM decisions WHERE tenant = $1 AND {column} = $2 "  # noqa: S608 - constants
                    f"AND decision_hash {'' if recorded else 'NOT '}IN ({past}) ORDER BY seq DESC "
                    f"LIMIT {SEARCHED if domain else CONTEXTS}"
                )
                rows = _rows(
                    self.router,
                    f"SELECT features FROM decisions WHERE rowid IN ({latest}) AND len(features) > 0 ORDER BY seq DESC",  # noqa: S608 - constants
                    (who.tenant, value),
                )
                if len({len(row[0]) for row in rows}) == 1:
                    return [row[0] for row in rows]
        return []

    def votes(self, who: Identity) -> list[Label]:
        """The latest votes of a person on scored answers, oldest first."""
        d = len(self.router.people.average_context())
        rows = _rows(self.router, _VOTES, (who.tenant, who.user, MOST_VOTES, self.router.people.schema, d))
        return [
            Label(
                who,
                Answered(arm, np.array(x, dtype=np.float64), np.array(h, dtype=np.float64)),
                float(y),
                FeedbackKind(kind),
                against=None if other is None else Answered(other, np.array(ox, dtype=np.float64), np.array(oh)),
                tokens=int(tokens or 0),
            )
            for kind, y, tokens, arm, x, h, other, ox, oh in rows
            if kind != FeedbackKind.PAIR or other is not None
        ]

    def _metrics(self, who: Identity) -> dict[str, dict[str, MetricMean]]:
        """Means of the metrics of each model's latest answers to a person or role, as they were logged."""
        people = self.router.people
        if not any(name.startswith("rm.") for name in people.features):
            return {}
        column, value = ('"user"', who.user) if who.user else ("role", who.role)
        rows = _rows(self.router, _MEASURED.format(column=column), (who.tenant, value, people.schema, LATEST))
        answers: dict[str, list[Any]] = {}
        for arm, h in rows:
            answers.setdefault(_model(arm), []).append(h)
        taste, _ = people.taste(who)
        return {
            name: metric_means(people.features, np.array(h, dtype=np.float64), taste) for name, h in answers.items()
        }

    def _bases(self, who: Identity, names: Sequence[str]) -> dict[str, str]:
        """What is known of each model from votes: see `LeaderboardRow.basis`; empty without a log that can be read."""
        if self.router.warehouse is None or not _rows(self.router, "SELECT 1 FROM position", ()):
            return {}
        column, value = ('"user"', who.user) if who.user else ("role", who.role)
        found = dict.fromkeys(names, "prior")
        found |= {_model(arm): "own" for (arm,) in _rows(self.router, _OWN.format(column=column), (who.tenant, value))}
        if rest := [name for name in names if found[name] == "prior"]:
            for arm, rated in sorted(_rows(self.router, _OTHERS, (who.tenant,)), key=lambda row: bool(row[1])):
                if _model(arm) in rest:
                    found[_model(arm)] = "others" if rated else "answers"
        return found


def votes_and_people(router: Router, who: Identity, identity: Identity) -> tuple[int, int]:
    """Number of votes of a person or a role, and number of people who gave them.

    Raises:
        InvalidRequest: a role of too few people.
    """
    column, value = ('"user"', who.user) if who.user else ("role", who.role)
    rows = _rows(
        router,
        "SELECT count(DISTINCT hash(decision_hash, kind, dimension, person_hash)), count(DISTINCT person_hash) "  # noqa: S608
        f"FROM feedback WHERE tenant = ? AND {column} = ?",
        (who.tenant, value),
    )
    votes, people = (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)
    if not who.user and people < ROLE_PEOPLE:
        raise InvalidRequest(
            f"role: {many(people, 'person', 'people')} of {identity.role!r} gave feedback; a role's ranking needs "
            f"{ROLE_PEOPLE}, so that it tells nothing of one person; give a user, or wait"
        )
    return votes, people


def _rows(router: Router, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
    if router.warehouse is None:
        return []
    try:
        return router.warehouse.query(sql, params, whole=True)
    except NoWarehouse as error:
        unless_votes(router, error)
        return []


def _written(pool: AnswerPool, of_pool: Any, names: Sequence[str], size: int) -> Floats:
    """Mean features of the models' answers to some prompts, float64[K, size]; NaN for models without answers."""
    found = np.full((len(names), size), np.nan)
    mean = np.nan_to_num(pool.h[of_pool]).mean(axis=0)
    for k, name in enumerate(names):
        if name in pool.models:
            found[k] = 0.0
            found[k, : mean.shape[1]] = mean[pool.models.index(name)]
    return found


def _model(arm: str) -> str:
    """Name of the model of an arm, whatever its variant and revision."""
    return base_arm(arm).partition("@")[0]


def unless_votes(router: Router, error: NoWarehouse) -> None:
    """Raise StoreError if people have voted, so that a warehouse that is not there is no log of nothing."""
    if router.status().labels:
        text = f"votes of the log are in no table yet; a running gateway copies them within seconds: {error}"
        raise StoreError(text) from error


def require_somebody(identity: Identity, what: str) -> None:
    """Raise InvalidRequest if an identity has neither user nor role."""
    if not identity.user and not identity.role:
        raise InvalidRequest(f"{what}: no user and no role; give one of them")


def ranked(names: Sequence[str], own: Floats, common: Floats) -> tuple[LeaderboardRow, ...]:
    """Standings of models, best first, from joint draws of ratings by a person and the population, float64[S, K].

    Intervals of ratings end where the scale does.
    """
    mean, theirs = (np.clip(each.mean(axis=0), 0.0, 1.0) for each in (own, common))  # rounding
    low, high = np.clip(np.quantile(own, (0.1, 0.9), axis=0), 0.0, 1.0)
    apart = own - own.mean(axis=1, keepdims=True)
    lead_low, lead_high = np.quantile(apart, (0.1, 0.9), axis=0)
    best = np.bincount(own.argmax(axis=1), minlength=len(names)) / len(own)
    place = {int(k): rank for rank, k in enumerate(np.argsort(-theirs, kind="stable"), 1)}
    return tuple(
        LeaderboardRow(
            model=str(names[k]),
            rank=rank,
            rating=float(mean[k]),
            low=float(low[k]),
            high=float(high[k]),
            lead=float(apart[:, k].mean()),
            lead_low=float(lead_low[k]) if len(names) > 1 else None,
            lead_high=float(lead_high[k]) if len(names) > 1 else None,
            best=float(best[k]),
            population=float(theirs[k]),
            population_rank=place[k],
        )
        for rank, k in enumerate(np.argsort(-mean, kind="stable").tolist(), 1)
    )


def sentences(board: Leaderboard) -> tuple[str, ...]:
    """Describe a leaderboard in sentences."""
    whom = "this person" if board.user else "this role"
    top = board.models[0]
    if len(board.models) == 1:
        said = [f"{top.model} is the only model that is ranked, so it is compared with none"]
    elif board.first == board.population_first:
        sure = f"it is the best of all for them with a probability of {chance(top.best)}"
        said = [f"{top.model} is first for {whom} and for everybody; {sure}"]
    elif board.claimed:
        said = [
            f"{top.model} fits {whom} better than everybody's first, {board.population_first}: {chance(board.beats)} "
            f"sure, from {votes_said(board.labels, board.people)}"
        ]
    else:
        said = [
            f"{top.model} may fit {whom} better than everybody's first, {board.population_first}, but that is "
            f"{chance(board.beats)} sure, from {votes_said(board.labels, board.people)}: below {CLAIM:.0%}, or without "
            "a vote, no personal ranking is claimed"
        ]
    if words := unrated(top, board.labels):
        said.append(words)
    if board.unranked:
        has, it = ("has", "it is") if len(board.unranked) == 1 else ("have", "they are")
        said.append(f"{', '.join(board.unranked)} {has} never answered here, so {it} not ranked")
    if board.unmeasured:
        said.append(f"None of the latest answers has {', '.join(board.unmeasured)}; `fitrouter top` says which fail")
    said += restricted(board)
    if board.near > top.best + 0.05:
        said.append(f"Nothing fits noticeably better than {top.model}: {chance(board.near)} sure")
    if top.basis != "prior" and (words := reasons.said(top.model, board.why)):
        said.append(words)
    if not board.labels:
        said.append("No feedback is known: this is a stranger's ranking")
    return tuple(f"{each}." for each in said)


def restricted(board: Leaderboard) -> list[str]:
    """Say what a leaderboard is restricted to, what that leaves out, and how well a domain is told."""
    said = [f"{name} is left out: {why}" for name, why in board.left_out.items()]
    if board.told is not None:
        n = many(board.tasks, "request") if board.tasks else many(board.prompts, "recorded prompt")
        said.append(
            f"The ranking is for {n} about {board.filters.domain}, of {board.searched} that were looked at; domains "
            f"are those of the nearest examples, right for {board.told.right:.0%} of the prompts that get one"
        )
    return said


def unrated(top: LeaderboardRow, labels: int) -> str:
    """Say what the first place rests on where it is no vote of theirs; empty where it is, or where it is not known."""
    if top.basis == "prior":
        return (
            f"{top.model} has never answered here and nobody has rated it yet: its place is what is assumed of a model "
            "of which nothing is known"
        )
    if top.basis == "answers":
        return f"Nobody has rated an answer of {top.model} yet: its place is what votes on other models suggest"
    if top.basis == "others" and labels:
        return f"They have not rated an answer of {top.model} yet: its place is what other people's ratings suggest"
    return ""

"""Learners restored from a journal or a prior file, for snapshot candidates."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fitrouter.config import Config
from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_names
from fitrouter.errors import ArtifactError, ConfigError
from fitrouter.posterior.arm_prior import load as load_arm_prior
from fitrouter.posterior.labels import FitParams
from fitrouter.serving.services import load_scorer
from fitrouter.state.learner import Learner
from fitrouter.state.reading import read_batch
from fitrouter.state.refit import refit
from fitrouter.state.tenants import TenantLearner
from fitrouter.stores.journal import Journal
from fitrouter_evaluators.replay.candidates._journal import open_journal


class FrozenLearner(NamedTuple):
    """A learner, and the time of the last event it was trained on (None: untrained)."""

    learner: Learner
    trained_until: float | None


def blank_learner(config: Config, prior: Path | None = None) -> Learner:
    """An untrained learner for a configuration; `prior` replaces the configured arm prior."""
    scorer = load_scorer(config)
    d, dim, schema = len(context_names()), scorer.dim if scorer else 1, scorer.schema if scorer else ""
    path, arm_prior = prior or config.policy.prior, None
    if path is not None:
        try:
            arm_prior = load_arm_prior(path, d=d, D=dim, encoder=get_encoder(config.encoder).id, schema=schema)
        except ArtifactError as error:
            raise ConfigError(str(error)) from None
    return TenantLearner(
        d,
        dim,
        schema=schema,
        params=FitParams(personal=config.policy.personal, sensitive_roles=config.policy.sensitive_roles),
        names=scorer.names if scorer else (),
        prior=scorer.prior if scorer else None,
        votes_per_day=config.feedback.votes_per_day,
        people_per_key=config.feedback.people_per_key,
        expects_scores=scorer is not None,
        arm_prior=arm_prior,
    )


def from_journal(path: Path, config: Config, until: int | datetime.datetime | None = None) -> FrozenLearner:
    """The learner at a position (sequence number) or time of a journal; None: at its end."""
    with open_journal(path) as journal:
        return fold(journal, blank_learner(config), until)


def fold(journal: Journal, learner: Learner, until: int | datetime.datetime | None = None) -> FrozenLearner:
    """Fold a journal into a learner, up to a position or a time; refits after erasures and retracted votes."""
    last = float(until) if isinstance(until, int) else float("inf")
    moment = utc_seconds(until) if isinstance(until, datetime.datetime) else float("inf")
    trained = None
    while rows := read_batch(journal, learner.seq, waiting=learner.waiting).rows:
        for row, related in rows:
            if row.seq > last or row.event.ts > moment:
                return FrozenLearner(learner, trained)
            learner.apply(row, related)
            trained = max(row.event.ts, trained or row.event.ts)
            for part in learner.parts():
                if part.stale:
                    part.take_over(refit(journal, part, part.stale))
    return FrozenLearner(learner, trained)


def from_prior(path: Path, config: Config, arms: Iterable[str]) -> Learner:
    """An untrained learner whose arms have the posteriors of a file made by `fitrouter train policy`."""
    learner = blank_learner(config, path)
    names = sorted(arms)
    if learner.arm_prior is not None:
        learner.arm_prior.apply(learner.fit.arms, names)
    for name in names:
        learner.fit.arms.join(name)
    return learner


def utc_seconds(moment: datetime.datetime) -> float:
    """Seconds since the epoch; a time without an offset is UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()

"""Learners from a journal or a prior, as they stood: whose beliefs a snapshot goes by."""

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
from fitrouter.state.learner import Learner, read_batch
from fitrouter.state.refit import refit
from fitrouter.stores.journal import Journal
from fitrouter_evaluators.replay.candidates._journal import open_journal


class FrozenLearner(NamedTuple):
    """A learner, and the time of the last event that it has learnt from; None where it has learnt from none."""

    learner: Learner
    trained_until: float | None


def blank_learner(config: Config, prior: Path | None = None) -> Learner:
    """A learner of the configuration's kind that has heard nothing.

    Args:
        config: whose encoder, scorer and priors count.
        prior: a file that `fitrouter train policy` made, instead of the configuration's.

    Raises:
        ConfigError: a part cannot be made.
    """
    scorer = load_scorer(config)
    d, dim, schema = len(context_names()), scorer.dim if scorer else 1, scorer.schema if scorer else ""
    path, arm_prior = prior or config.policy.prior, None
    if path is not None:
        try:
            arm_prior = load_arm_prior(path, d=d, D=dim, encoder=get_encoder(config.encoder).id, schema=schema)
        except ArtifactError as error:
            raise ConfigError(str(error)) from None
    return Learner(
        d,
        dim,
        schema=schema,
        params=FitParams(personal=config.policy.personal, sensitive_roles=config.policy.sensitive_roles),
        names=scorer.names if scorer else (),
        prior=scorer.prior if scorer else None,
        votes_per_day=config.feedback.votes_per_day,
        expects_scores=scorer is not None,
        arm_prior=arm_prior,
    )


def from_journal(path: Path, config: Config, until: int | datetime.datetime | None = None) -> FrozenLearner:
    """The learner that a gateway had at a position or a time of its journal.

    Args:
        path: the journal, or its folder.
        config: of the gateway.
        until: the last sequence number, or the last moment, that counts; None for all there is.

    Raises:
        ConfigError: there is no journal.
        InvalidLog: it cannot be read.
    """
    with open_journal(path) as journal:
        return fold(journal, blank_learner(config), until)


def fold(journal: Journal, learner: Learner, until: int | datetime.datetime | None = None) -> FrozenLearner:
    """Fold a journal into a learner, up to a position or a time; what was erased or taken back is folded again."""
    last, moment, trained = _last(until), _moment(until), None
    while rows := read_batch(journal, learner.seq).rows:
        for row, related in rows:
            if row.seq > last or row.event.ts > moment:
                return FrozenLearner(learner, trained)
            learner.apply(row, related)
            trained = max(row.event.ts, trained or row.event.ts)
            if learner.stale:
                learner.take(refit(journal, learner, learner.stale))
    return FrozenLearner(learner, trained)


def from_prior(path: Path, config: Config, arms: Iterable[str]) -> Learner:
    """A learner that knows of these arms what a file of `fitrouter train policy` says, and nothing else.

    Raises:
        ConfigError: the file cannot be used with this configuration.
    """
    learner = blank_learner(config, path)
    names = sorted(arms)
    if learner.arm_prior is not None:
        learner.arm_prior.apply(learner.fit.arms, names)
    for name in names:
        learner.fit.arms.join(name)
    return learner


def _last(until: int | datetime.datetime | None) -> float:
    return float(until) if isinstance(until, int) else float("inf")


def _moment(until: int | datetime.datetime | None) -> float:
    if not isinstance(until, datetime.datetime):
        return float("inf")
    return (until if until.tzinfo else until.replace(tzinfo=datetime.UTC)).timestamp()

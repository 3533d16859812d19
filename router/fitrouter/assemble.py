"""Builds the arguments of `Router` from a configuration."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypedDict

import msgspec

from fitrouter.config import CandidateConfig, Config
from fitrouter.context.encoders import Cached, Encoder, get_encoder
from fitrouter.context.features import context_names
from fitrouter.errors import ArtifactError, ConfigError
from fitrouter.hooks import Hooks
from fitrouter.identity import canonical_role
from fitrouter.policies import build_policy
from fitrouter.posterior.arm_prior import ArmPrior
from fitrouter.posterior.arm_prior import load as load_arm_prior
from fitrouter.posterior.labels import FitParams
from fitrouter.providers import Provider, build_providers
from fitrouter.routing.decider import Decider, Rules
from fitrouter.routing.variants import expand
from fitrouter.serving.attempts import Timers
from fitrouter.serving.services import ScorerPlugin, Service, load_scorer
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Journal, SqliteJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import ModelCard


class RouterParts(TypedDict):
    """The keyword arguments of `Router`, so that `Router(**assemble(config))` is type-checked."""

    cards: Sequence[ModelCard]
    providers: Mapping[str, Provider]
    decider: Decider
    learner: Learner
    journal: Journal
    identities: Identities
    encoder: Encoder
    timers: Timers
    aliases: Mapping[str, str]
    droppable: Collection[str]
    hooks: Hooks
    services: Sequence[Service]
    feed: WarehouseFeed
    scorer: ScorerPlugin | None
    clock: Callable[[], float]


def assemble(
    config: Config,
    *,
    hooks: Hooks | None = None,
    clock: Callable[[], float] = time.time,
    providers: Mapping[str, Provider] | None = None,
) -> RouterParts:
    """Build the arguments of `Router` from a configuration; the scorer and the warehouse feed become its services.

    Args:
        config: all settings.
        hooks: called with every notice.
        clock: seconds since the epoch, for the timestamps of all events; a simulation passes its own.
        providers: instances to use instead of the configured providers of the same names.

    Raises:
        ConfigError: a setting cannot be used.
    """
    hooks = hooks or Hooks()
    config.data.mkdir(parents=True, exist_ok=True)
    cards = expand(model.card() for model in config.models)
    connected = _providers(config, providers or {})
    encoder = Cached(get_encoder(config.encoder))
    scorer = load_scorer(config)
    learner = _learner(config, encoder.id, scorer, hooks)
    journal = SqliteJournal(config.data / "journal.db")
    identities = Identities(config.data / "identities.db")
    feed = WarehouseFeed(journal, Warehouse(config.data / "fitrouter.duckdb"), clock=clock)
    services = [Service("warehouse", feed.step, hooks, idle_s=1.0)]
    if scorer is not None:
        scorer.attach(journal, identities, learner, hooks, clock)
        services.append(Service("scorer", scorer.step, hooks, idle_s=0.02))
    return {
        "cards": cards,
        "providers": connected,
        "decider": _decider(config, cards, learner, encoder.id),
        "learner": learner,
        "journal": journal,
        "identities": identities,
        "encoder": encoder,
        "timers": Timers(
            deadline_s=config.server.deadline_s,
            first_token_s=config.server.first_token_s,
            chunk_gap_s=config.server.chunk_gap_s,
        ),
        "aliases": config.aliases,
        "droppable": config.droppable,
        "hooks": hooks,
        "services": services,
        "feed": feed,
        "scorer": scorer,
        "clock": clock,
    }


def _providers(config: Config, given: Mapping[str, Provider]) -> dict[str, Provider]:
    if unknown := sorted(given.keys() - config.providers.keys()):
        raise ConfigError(f"unknown providers {unknown}; the configuration has {sorted(config.providers)}")
    configured = {name: settings for name, settings in config.providers.items() if name not in given}
    return {**build_providers(config.model_copy(update={"providers": configured})), **given}


def _learner(config: Config, encoder: str, scorer: ScorerPlugin | None, hooks: Hooks) -> Learner:
    return Learner(
        len(context_names()),
        scorer.dim if scorer else 1,
        schema=scorer.schema if scorer else "",
        params=FitParams(personal=config.policy.personal, sensitive_roles=config.policy.sensitive_roles),
        names=scorer.names if scorer else (),
        prior=scorer.prior if scorer else None,
        votes_per_day=config.feedback.votes_per_day,
        expects_scores=scorer is not None,
        projections=_projections(config),
        arm_prior=_arm_prior(config, encoder, scorer, hooks),
    )


def _decider(config: Config, cards: list[ModelCard], learner: Learner, encoder: str) -> Decider:
    arms = {model.name: model.card().arm for model in config.models}
    default_arm = arms[config.default_model] if config.default_model else None
    parameters = config.policy.model_dump(include=set(CandidateConfig.model_fields))
    return Decider(
        build_policy(**parameters, default_model=default_arm),
        learner,
        _rules(config, cards, default_arm, encoder),
        parameters=parameters,
        candidates={name: candidate.model_dump() for name, candidate in config.policy.candidates.items()},
    )


def _arm_prior(config: Config, encoder: str, scorer: ScorerPlugin | None, hooks: Hooks) -> ArmPrior | None:
    """The configured prior of the models; None without one, and where its file cannot be used (reported to hooks)."""
    if config.policy.prior is None:
        return None
    dim, schema = (scorer.dim, scorer.schema) if scorer else (1, "")
    try:
        return load_arm_prior(config.policy.prior, d=len(context_names()), D=dim, encoder=encoder, schema=schema)
    except ArtifactError as error:
        hooks.trouble("policy", error)
        return None


def _projections(config: Config) -> ProjectionParams:
    if config.budget is None:
        return ProjectionParams()
    budgets = {name: BudgetParams(**budget.model_dump()) for name, budget in config.budget.tenants.items()}
    return ProjectionParams(budget=BudgetParams(**config.budget.model_dump(exclude={"tenants"})), tenants=budgets)


def _rules(config: Config, cards: list[ModelCard], default_arm: str | None, encoder: str) -> Rules:
    registry = hashlib.sha256(msgspec.json.encode(cards)).hexdigest()[:16]
    return Rules(
        floor=config.policy.floor,
        uniform_slice=config.policy.uniform_slice,
        share=config.share,
        default_arm=default_arm,
        ask=config.feedback.ask,
        cost_weight=config.objective.cost_weight,
        cost_unit_usd=config.objective.cost_unit_usd,
        latency_weight=config.objective.latency_weight,
        latency_unit_s=config.objective.latency_unit_s,
        newcomer_floor=config.policy.newcomer_floor,
        newcomer_pulls=config.policy.newcomer_pulls,
        newcomer_labels=config.policy.newcomer_labels,
        base_delta=config.policy.base_delta,
        consistency=config.session.consistency,
        redraw_every=config.session.redraw_every,
        idle_s=config.session.idle_s,
        personal=config.policy.personal,
        impersonal_roles=tuple(filter(None, map(canonical_role, config.policy.impersonal_roles))),
        seed=config.seed,
        config_hash=config.hash(),
        registry=registry,
        encoder=encoder,
    )

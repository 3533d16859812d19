"""Builds the arguments of `Router` from a configuration."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

import msgspec

from fitrouter.config import CandidateConfig, Config, read_addition
from fitrouter.context.encoders import Cached, Encoder, get_encoder
from fitrouter.context.features import context_names
from fitrouter.errors import ArtifactError, ConfigError, StoreError, require
from fitrouter.hooks import Hooks
from fitrouter.identity import canonical_role
from fitrouter.policies import build_policy, used
from fitrouter.posterior.arm_prior import ArmPrior
from fitrouter.posterior.arm_prior import load as load_arm_prior
from fitrouter.posterior.labels import FitParams
from fitrouter.providers import Provider, build_provider, build_providers
from fitrouter.routing.decider import GUEST_SHARE, Decider, Rules
from fitrouter.routing.variants import expand
from fitrouter.serving.attempts import Timers
from fitrouter.serving.embeddings import WINDOW
from fitrouter.serving.model_registry import Connected, Extend, Extension
from fitrouter.serving.services import ScorerPlugin, Service, load_scorer
from fitrouter.serving.slots import SlotParams
from fitrouter.state.added_models import AddedModel
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.heard import Heard
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.state.tenants import TenantLearner
from fitrouter.stores._files import connect_read_only, is_unwritable
from fitrouter.stores.audits import has_passed
from fitrouter.stores.cold_feed import ColdFeed
from fitrouter.stores.contents import ContentStore
from fitrouter.stores.erasure import Eraser
from fitrouter.stores.identities import FILE as FILE_OF_IDENTITIES
from fitrouter.stores.identities import Identities, SqliteIdentities, TemporaryIdentities
from fitrouter.stores.journal import Journal, SqliteJournal, UnloggedJournal
from fitrouter.stores.keys import FILE, read_keys
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import ModelCard, Prices


class RouterParts(TypedDict):
    """The keyword arguments of `Router`, so that `Router(**assemble(config))` is type-checked."""

    cards: Sequence[ModelCard]
    embeddings: Sequence[ModelCard]
    providers: Mapping[str, Provider]
    decider: Decider
    learner: Learner
    journal: Journal
    identities: Identities
    encoder: Encoder
    timers: Timers
    slots: SlotParams
    saves: bool
    aliases: Mapping[str, str]
    droppable: Collection[str]
    implicit: bool
    token_valid_s: float
    rating_scale: tuple[float, float] | None
    hooks: Hooks
    services: Sequence[Service]
    feed: WarehouseFeed | None
    scorer: ScorerPlugin | None
    eraser: Eraser
    contents: ContentStore | None
    extend: Extend
    clock: Callable[[], float]


def assemble(
    config: Config,
    *,
    hooks: Hooks | None = None,
    clock: Callable[[], float] = time.time,
    providers: Mapping[str, Provider] | None = None,
    services: bool = True,
    scorer: ScorerPlugin | None = None,
) -> RouterParts:
    """Build the arguments of `Router` from a configuration; the scorer and the warehouse feed become its services.

    Args:
        config: all settings.
        hooks: called with every notice.
        clock: seconds since the epoch, for the timestamps of all events; a simulation passes its own.
        providers: instances to use instead of the configured providers of the same names.
        services: whether the router does what one process at a time does; else another process does it.
        scorer: to use instead of the installed one.

    Raises:
        ConfigError: a setting cannot be used.
    """
    hooks = hooks or Hooks()
    cards = expand(config.cards())
    connected = _providers(config, providers or {})
    encoder = Cached(get_encoder(config.encoder))
    scorer = scorer or load_scorer(config)
    learner = _learner(config, encoder.id, scorer, hooks)
    journal = open_journal(config)
    identities = open_identities(config, journal)
    feed = None
    steps = []
    if find_spec("duckdb"):  # else the journal has it all, and a later start with DuckDB fills the warehouse from it
        hear = Heard(config.feedback.people_per_key, config.feedback.votes_per_day)
        feed = WarehouseFeed(journal, Warehouse(config.data / "fitrouter.duckdb", hear=hear), clock=clock)
        steps.append(Service("warehouse", feed.step, hooks, idle_s=2.0, full=feed.batch))
    if (kept := config.cold).place is not None:
        cold = ColdFeed(
            journal,
            kept.place if "://" in kept.place else str(Path(kept.place).absolute()),
            config.data,
            feed,
            every_s=kept.every_s,
            days=kept.days,
            keep_days=kept.keep_days,
            clock=clock,
        )
        steps.append(Service("cold", cold.step, hooks, idle_s=2.0, retry_s=30.0))
    eraser = Eraser(journal, identities, feed, config.data, clock)
    steps.append(Service("erasure", eraser.step, hooks, idle_s=5.0, retry_s=30.0))
    encrypted = config.content == "encrypted"
    contents = ContentStore(
        config.data, journal, identities, encrypted=encrypted, days=config.content_days, clock=clock
    )
    if config.content != "none" or contents.path.exists():
        steps.append(Service("content", contents.expire, hooks, idle_s=600.0, retry_s=60.0))
    if scorer is not None:
        scorer.attach(journal, identities, learner, hooks, clock)
        steps.append(Service("scorer", scorer.step, hooks, idle_s=0.02))
    return {
        "cards": cards,
        "embeddings": [
            ModelCard(
                name=model.name,
                provider=model.provider,
                target=model.target,
                prices=Prices(input=model.price),
                context_window=WINDOW,
            )
            for model in config.embeddings
        ],
        "providers": connected,
        "decider": _decider(config, cards, learner, encoder.id, hooks),
        "learner": learner,
        "journal": journal,
        "identities": identities,
        "encoder": encoder,
        "timers": msgspec.convert(config.server, Timers, from_attributes=True),
        "slots": SlotParams(
            concurrency={name: provider.concurrency for name, provider in config.providers.items()},
            wait_s=config.server.wait_s,
            tenant_share=one_tenants_share(config),
        ),
        "aliases": config.aliases,
        "droppable": config.droppable,
        "implicit": config.feedback.implicit,
        "token_valid_s": config.feedback.token_valid_s,
        "rating_scale": config.feedback.scale,
        "hooks": hooks,
        "services": steps if services else (),
        "saves": services,
        "feed": feed,
        "scorer": scorer,
        "eraser": eraser,
        "contents": contents if config.content != "none" else None,
        "extend": extender(config),
        "clock": clock,
    }


def extender(config: Config, *, connect: bool = True) -> Extend:
    """Return the function that builds the cards and providers of a configuration with added models.

    See `fitrouter.serving.model_registry`.

    Args:
        config: all settings.
        connect: whether providers are built, which need their keys; False where no model is called.
    """
    public = not config.server.additions.private_addresses

    def extend(added: Sequence[AddedModel], connected: Collection[str]) -> Extension:
        found, cards = config, expand(config.cards())
        providers, faults = dict[str, Connected](), dict[str, str]()
        for each in added:
            try:
                addition = read_addition(each.settings)
                trial = found.with_model(addition)
                arms = expand(trial.cards())
                name = addition.model.provider
                if addition.provider is not None and connect and each.event not in connected:
                    settings = trial.providers[name]
                    providers[name] = Connected(build_provider(name, settings, public=public), settings.concurrency)
            except ConfigError as error:
                faults[each.name] = str(error)
                continue
            found, cards = trial, arms
        registry = registry_of(cards)
        rules = {"registry": registry, "impersonal_roles": _impersonal_roles(config, registry, Hooks())}
        return Extension(cards, providers, rules, faults)

    return extend


def one_tenants_share(config: Config) -> float:
    """Share of the slots that one tenant may hold: `server.tenant_share` if keys of several tenants exist, else 1."""
    stored = {key.tenant or "default" for key in read_keys(config.data / FILE)}
    return config.server.tenant_share if len({key.tenant for key in config.server.keys} | stored) > 1 else 1.0


def open_journal(config: Config) -> Journal:
    """Open the configured journal, or a journal that only reads if the disk is full or read-only.

    Raises:
        ConfigError: psycopg is not installed, or the database's role lacks a right.
        StoreError: it cannot be opened.
    """
    if config.database:
        require("psycopg", "a journal on PostgreSQL")
        from fitrouter.stores.postgres import PostgresJournal

        return PostgresJournal(config.database, config.data)
    path = config.journal_file()
    try:
        return SqliteJournal(path)
    except StoreError as error:
        if not is_unwritable(error.__cause__):
            raise
        return UnloggedJournal(path, str(error))


def open_identities(config: Config, journal: Journal) -> Identities:
    """Open the configured identity store, or a temporary copy of it if the disk is full or read-only.

    Beside a journal on PostgreSQL it is there too, unless only the folder has one, as from an earlier version.

    Raises:
        ConfigError: users are known elsewhere, or the database's role lacks a right.
        StoreError: it cannot be opened.
    """
    path = config.data / FILE_OF_IDENTITIES
    if config.database:
        from fitrouter.stores.postgres import Database, PostgresIdentities, has_identities

        database = Database(config.identities_database or config.database)
        move = f"`fitrouter users copy {path} {database.name}` moves them; stop the gateways first"
        there = _users_in(path)
        if has_identities(database) or config.identities_database:
            found = PostgresIdentities(database, config.data)
            if there:
                if not found.people(1):
                    found.close()
                    raise ConfigError(f"the users are in {str(path)!r}, and {database.name} knows none: {move}")
                found.note = (
                    f"{str(path)!r} is not used, and no erasure reaches it: {move}; then delete it and its copy"
                )
            return found
        if not there:
            if not path.is_file() and journal.latest(("decision",), 1):
                raise ConfigError(
                    f"the journal has decisions, but neither {database.name} nor {str(config.data)!r} has identities: "
                    f"find the `identities.db` of the gateways that wrote them. `fitrouter users copy FILE "
                    f"{database.name}` moves it; or set `identities` if it is lost, and all users are new"
                )
            return PostgresIdentities(database, config.data)
        kept = SqliteIdentities(path)
        kept.note = f"the users are in {str(path)!r}, which all gateways of the database have to share: {move}"
        return kept
    try:
        return SqliteIdentities(path)
    except StoreError as error:
        if not is_unwritable(error.__cause__):
            raise
        return TemporaryIdentities(path, str(error))


def _users_in(path: Path) -> bool:
    """Whether a file of identities holds any subject; True also if it cannot be read."""
    if not path.is_file():
        return False
    try:
        with closing(connect_read_only(path)) as connection:
            return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM subjects)").fetchone()[0])
    except sqlite3.Error:
        return True


def _providers(config: Config, given: Mapping[str, Provider]) -> dict[str, Provider]:
    if unknown := sorted(given.keys() - config.providers.keys()):
        raise ConfigError(f"unknown providers {unknown}; the configuration has {sorted(config.providers)}")
    configured = {name: settings for name, settings in config.providers.items() if name not in given}
    return {**build_providers(config.model_copy(update={"providers": configured})), **given}


def _learner(config: Config, encoder: str, scorer: ScorerPlugin | None, hooks: Hooks) -> Learner:
    return TenantLearner(
        len(context_names()),
        scorer.dim if scorer else 1,
        schema=scorer.schema if scorer else "",
        params=FitParams(personal=config.policy.personal, sensitive_roles=config.policy.sensitive_roles),
        names=scorer.names if scorer else (),
        prior=scorer.prior if scorer else None,
        votes_per_day=config.feedback.votes_per_day,
        people_per_key=config.feedback.people_per_key,
        expects_scores=scorer is not None,
        projections=_projections(config),
        arm_prior=_arm_prior(config, encoder, scorer, hooks),
        people=config.server.people_in_memory,
        folder=config.data,
    )


def _decider(config: Config, cards: list[ModelCard], learner: Learner, encoder: str, hooks: Hooks) -> Decider:
    arms = {card.name: card.arm for card in config.cards() if card.variant is None}
    default_arm = arms[config.default_model] if config.default_model else None
    parameters = config.policy.model_dump(include=set(CandidateConfig.model_fields))
    return Decider(
        build_policy(**parameters, default_model=default_arm),
        learner,
        _rules(config, cards, default_arm, encoder, hooks),
        parameters=parameters,
        candidates={name: used(each.model_dump(), each.algorithm) for name, each in config.policy.candidates.items()},
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
    kept = config.session.kept
    if config.budget is None:
        return ProjectionParams(sessions=kept)
    budgets = {name: BudgetParams(**budget.model_dump()) for name, budget in config.budget.tenants.items()}
    budget = BudgetParams(**config.budget.model_dump(exclude={"tenants"}))
    return ProjectionParams(budget=budget, tenants=budgets, sessions=kept)


def registry_of(cards: list[ModelCard]) -> str:
    """Hash that identifies a list of models; decisions log it, and audits name it."""
    return hashlib.sha256(msgspec.json.encode(cards)).hexdigest()[:16]


def _impersonal_roles(config: Config, registry: str, hooks: Hooks) -> tuple[str, ...]:
    """Roles without personalisation, by the configuration or for lack of a passed audit of these models."""

    def passed(role: str) -> bool:
        try:
            return has_passed(config.data, role, registry)
        except StoreError as error:
            hooks.trouble("policy", error)
            return False

    unaudited = [role for role in config.policy.high_stakes_roles if not passed(role)]
    return tuple(filter(None, map(canonical_role, (*config.policy.impersonal_roles, *unaudited))))


def _rules(config: Config, cards: list[ModelCard], default_arm: str | None, encoder: str, hooks: Hooks) -> Rules:
    registry = registry_of(cards)
    sections = (config.policy, config.objective, config.session, config)
    same = {
        name: getattr(section, name)
        for section in sections
        for name in type(section).model_fields
        if name in Rules.__struct_fields__
    }
    return Rules(
        **same
        | {
            "default_arm": default_arm,
            "ask": config.feedback.ask,
            "guests": GUEST_SHARE if config.policy.pooling == "shared" else 0.0,
            "impersonal_roles": _impersonal_roles(config, registry, hooks),
            "config_hash": config.hash(),
            "registry": registry,
            "encoder": encoder,
        }
    )

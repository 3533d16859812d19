"""Findings of `fitrouter config check`: what a configuration sets up, and what it lacks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from fitrouter.assemble import assemble
from fitrouter.config import Config, ProviderConfig, RewardModelConfig
from fitrouter.context.encoders import get_encoder
from fitrouter.errors import ConfigError, FitrouterError, MissingExtra, for_log, require
from fitrouter.providers import build_provider
from fitrouter.router import Router
from fitrouter.stores.journal import in_use
from fitrouter.stores.keys import FILE, read_keys
from fitrouter.types import UNPRICED
from fitrouter_evaluators.scoring.models.metric import METRICS, prepare
from fitrouter_integrations._http import call, url_of
from fitrouter_integrations.commands._files import flow
from fitrouter_integrations.commands.setup import _prices
from fitrouter_integrations.gateway._keys import Keys
from fitrouter_integrations.gateway._serve import require_gateway

_ANSWER_S = 2.0


class Finding(msgspec.Struct, frozen=True):
    """One line of the summary."""

    topic: str
    text: str
    ok: bool = True
    """False if something is missing before the gateway can run."""
    known: bool = True
    """False if the line says what nobody knows."""


def findings(config: Config, environ: Mapping[str, str] | None = None, *, start: bool = True) -> list[Finding]:
    """The findings of a valid configuration.

    Args:
        config: the configuration.
        environ: environment variables.
        start: whether to open the journal, to see how the next start would route.
    """
    environ = os.environ if environ is None else environ
    found = [Finding("models", ", ".join(model.name for model in config.models))]
    found += _missing_prices(config)
    found += [_provider(name, provider, environ) for name, provider in config.providers.items()]
    found += [_encoder("encoder", config.encoder), _encoder("scorer", config.scorer.encoder)]
    absent = (model for model in config.scorer.models if model.needs_torch and find_spec("torch") is None)
    found += [
        Finding("scorer", str(MissingExtra.of("torch", f"the model {model.name!r}")), ok=False) for model in absent
    ]
    found += [_metric(model) for model in config.scorer.models if model.kind in METRICS]
    found += [_server(config, environ), Finding("data", _where(config))]
    if find_spec("duckdb") is None:
        found.append(Finding("warehouse", f"none: {MissingExtra.of('duckdb', 'it')}"))
    if config.cold.place is not None:
        found.append(_cold(config.cold.place))
    if not (start and all(finding.ok for finding in found)):  # it would fail for the same reasons
        return [*found[:1], _routing(config, {}), *found[1:]]
    return [*found[:1], _standing_routing(config), *found[1:]]


def _metric(model: RewardModelConfig) -> Finding:
    """Describe a metric; a mistake if its function cannot be imported, or its endpoint lacks a key."""
    try:
        prepare(model)
    except Exception as error:  # noqa: BLE001 - what an import of others' code raises
        why = str(error) if isinstance(error, FitrouterError) else f"{type(error).__name__}: {for_log(error)}"
        return Finding("scorer", f"the metric {model.name!r} cannot be used: {why}", ok=False)
    return Finding("scorer", f"the metric {model.name!r}, {model.function or model.url}")


def _cold(place: str) -> Finding:
    """Describe where the cold store is; a mistake if the package that reads the place is not installed."""
    if "://" in place and find_spec("obstore") is None:
        return Finding("cold store", str(MissingExtra.of("obstore", f"the place {place!r}")), ok=False)
    return Finding("cold store", place)


def _where(config: Config) -> str:
    """Describe where the stores are. A database is named without its password."""
    if not config.database:
        return str(config.data)
    require("psycopg", "a journal on PostgreSQL")
    from fitrouter.stores.postgres import Database

    return f"{Database(config.database).name}, and {config.data}"


def _standing_routing(config: Config) -> Finding:
    """Describe the routing of the running gateway, or of the next start; a mistake if no router can be built."""
    offline = {
        name: provider.model_copy(update={"kind": "simulated", "options": {}})
        for name, provider in config.providers.items()
    }
    try:
        if config.database or (config.data / "journal.db").is_file():
            overrides, unasked = dict[str, Any](), ""
            if config.database or in_use(
                config.journal_file()
            ):  # a running gateway keeps overrides that its next start drops
                try:
                    overrides = call("GET", url_of(config), "/v1/policy", timeout_s=_ANSWER_S)["settings"]
                except FitrouterError as error:
                    unasked = f"; as the journal has it, since the running gateway does not tell: {error}"
            with Router.offline(config) as router:
                overrides = overrides or ({} if router.policy.outdated else router.policy.standing().settings)
            found = _routing(config, overrides)
            return msgspec.structs.replace(found, text=found.text + unasked)
        with TemporaryDirectory() as folder:
            parts = assemble(config.in_folder(Path(folder)).model_copy(update={"providers": offline}))
            parts["journal"].close()
            parts["identities"].close()
    except FitrouterError as error:
        return Finding("routing", str(error), ok=False)
    return _routing(config, {})


def _routing(config: Config, overrides: Mapping[str, Any]) -> Finding:
    """Describe the share in force, which `fitrouter policy` may have changed since the file was written."""
    share = overrides.get("share", config.share)
    algorithm = overrides.get("algorithm", config.policy.algorithm)
    text = f"{share:.3%} of the traffic, by {algorithm}; {config.default_model} takes the rest"
    if share in {0.0, 1.0}:
        shadow = f"no traffic (shadow mode): {config.default_model} answers everything, {algorithm} is only logged"
        text = f"all traffic, by {algorithm}" if share else shadow
    if share != config.share:
        text += (
            f" (set at run time; the file says {config.share:g}: `fitrouter config share {share:g}` makes them agree)"
        )
    return Finding("routing", text)


def _missing_prices(config: Config) -> list[Finding]:
    """List models and judges without a price: a mistake where a budget or a cost weight uses prices."""
    found = []
    if unpriced := config.unpriced():
        text = f"unknown for {', '.join(unpriced)}. {UNPRICED.rstrip('.')}"
        targets = {model.name: model.target or model.name for model in config.models}
        tabled = {name: _prices.usd_per_million(_prices.facts_of(targets[name], name)) for name in unpriced}
        if listed := [f"{name} {flow(prices)}" for name, prices in tabled.items() if prices]:
            text += f"; in {_prices.source()}: {', '.join(listed)}"
        if config.money_matters():
            where = "budget" if config.budget is not None else "objective.cost_weight"
            text += f"; {where} needs them: set `prices: {{input: …, output: …}}` in USD per million tokens"
        found.append(Finding("prices", text, ok=not config.money_matters(), known=False))
    for judge in config.scorer.models:
        if judge.kind == "judge" and not judge.prices.known:
            text = "no prices, so usd_per_day limits nothing; set `prices: {input: …, output: …}`"
            found.append(Finding(f"judge {judge.name}", text, ok=False))
    return found


def _provider(name: str, provider: ProviderConfig, environ: Mapping[str, str]) -> Finding:
    topic = f"provider {name}"
    if provider.api_key_env is not None and not environ.get(provider.api_key_env, "").strip():
        return Finding(topic, f"{provider.kind}: the environment variable {provider.api_key_env} is not set", ok=False)
    if provider.path is not None and not provider.path.is_file():
        return Finding(topic, f"{provider.kind}: the file {str(provider.path)!r} does not exist", ok=False)
    try:
        build_provider(name, provider.model_copy(update={"api_key_env": None}))
    except FitrouterError as error:
        return Finding(topic, str(error), ok=False)
    key = f", key from {provider.api_key_env} (set)" if provider.api_key_env else ""
    return Finding(topic, provider.kind + key)


def _encoder(topic: str, name: str) -> Finding:
    if name == "none":
        return Finding(topic, "none: answers are not scored")
    try:
        get_encoder(name)
    except Exception as error:  # noqa: BLE001 - any reason that keeps it from loading is a finding
        return Finding(topic, f"{name}: {error}", ok=False)
    return Finding(topic, name)


def _server(config: Config, environ: Mapping[str, str]) -> Finding:
    address = f"http://{config.server.host}:{config.server.port}"
    try:
        require_gateway()
        keys = Keys(config.server, environ, config.data / FILE)
        stored = read_keys(config.data / FILE)
    except ConfigError as error:
        return Finding("server", str(error), ok=False)
    access = f"{len(config.server.keys) + len(stored)} keys" if keys else "no keys, local clients only"
    return Finding("server", f"{address}, {access}")

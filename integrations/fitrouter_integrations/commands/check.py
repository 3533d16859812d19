"""Findings of `fitrouter config check`: what a configuration sets up, and what it lacks."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from fitrouter.config import Config, ProviderConfig
from fitrouter.context.encoders import get_encoder
from fitrouter.errors import ConfigError
from fitrouter_integrations.gateway._keys import Keys


class Finding(msgspec.Struct, frozen=True):
    """One line of the summary; `ok` is False if something is missing before the gateway can run."""

    topic: str
    text: str
    ok: bool = True


def findings(config: Config, environ: Mapping[str, str] | None = None) -> list[Finding]:
    """The findings of a valid configuration."""
    environ = os.environ if environ is None else environ
    found = [Finding("models", ", ".join(model.name for model in config.models)), _adoption(config)]
    found += [_provider(name, provider, environ) for name, provider in config.providers.items()]
    found += [_encoder("encoder", config.encoder), _encoder("scorer", config.scorer.encoder)]
    found += [_server(config, environ), Finding("data", str(config.data))]
    return found


def _adoption(config: Config) -> Finding:
    if config.share == 1.0:
        return Finding("routing", f"all traffic, by {config.policy.algorithm}")
    word = f"{config.share:.3%} of the traffic" if config.share else "no traffic (shadow mode)"
    return Finding("routing", f"{word}, by {config.policy.algorithm}; {config.default_model} takes the rest")


def _provider(name: str, provider: ProviderConfig, environ: Mapping[str, str]) -> Finding:
    topic = f"provider {name}"
    if provider.api_key_env is not None and not environ.get(provider.api_key_env, "").strip():
        return Finding(topic, f"{provider.kind}: the environment variable {provider.api_key_env} is not set", ok=False)
    if provider.path is not None and not provider.path.is_file():
        return Finding(topic, f"{provider.kind}: the file {str(provider.path)!r} does not exist", ok=False)
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
        keys = Keys(config.server, environ)
    except ConfigError as error:
        return Finding("server", str(error), ok=False)
    access = f"{len(config.server.keys)} keys" if keys else "no keys, local clients only"
    return Finding("server", f"{address}, {access}")

"""Providers: clients of model APIs, and simulated or recorded stand-ins."""

from __future__ import annotations

import os
import re
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from fitrouter.errors import ConfigError
from fitrouter.providers._addresses import is_public, without_addresses
from fitrouter.providers._base import Installed, Provider
from fitrouter.providers._further import LEFT_OUT, further_fields
from fitrouter.providers._json import decode_json
from fitrouter.providers._secret import Secret
from fitrouter.providers.failures import from_status

if TYPE_CHECKING:
    from fitrouter.config import Config, ProviderConfig
    from fitrouter.providers._faulty import Fault, Faulty
    from fitrouter.providers._litellm import LiteLLM
    from fitrouter.providers._openai_compatible import OpenAICompatible
    from fitrouter.providers._recorded import Recorded
    from fitrouter.providers._simulated import Persona, Simulated, topic_of

__all__ = [
    "LEFT_OUT",
    "Fault",
    "Faulty",
    "Installed",
    "LiteLLM",
    "OpenAICompatible",
    "Persona",
    "Provider",
    "Recorded",
    "Secret",
    "Simulated",
    "build_provider",
    "build_providers",
    "decode_json",
    "from_status",
    "further_fields",
    "is_public",
    "preload",
    "topic_of",
    "without_addresses",
]


_VARIABLE = re.compile(r"\$\{(\w+)\}")


_MODULES = {
    **dict.fromkeys(("Fault", "Faulty"), "_faulty"),
    **dict.fromkeys(("Persona", "Simulated", "topic_of"), "_simulated"),
    "LiteLLM": "_litellm",
    "OpenAICompatible": "_openai_compatible",
    "Recorded": "_recorded",
}
"""Name → its module: of the providers, few are used at a time, and some import much."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build_providers(config: Config) -> dict[str, Provider]:
    """Build the configured providers, by name. No connection is opened.

    Raises:
        ConfigError: a key's environment variable is not set, or a setting is missing or invalid.
    """
    return {name: build_provider(name, settings) for name, settings in config.providers.items()}


def preload(config: Config) -> None:
    """Import what the configured providers need, which takes seconds for litellm; otherwise their first calls do it."""
    if any(settings.kind == "litellm" for settings in config.providers.values()):
        from fitrouter.providers._litellm import load_litellm

        load_litellm()


def build_provider(
    name: str, settings: ProviderConfig, *, public: bool = False, max_bytes: int = 32_000_000
) -> Provider:
    """Build one provider.

    Args:
        name: of the provider.
        settings: its section of the configuration.
        public: whether a server is called at public addresses only.
        max_bytes: of a server's answer.

    Raises:
        ConfigError: as `build_providers`.
    """
    key = _key(name, settings)
    match settings.kind:
        case "openai_compatible":
            from fitrouter.providers._openai_compatible import OpenAICompatible

            if settings.base_url is None:
                raise ConfigError(f"provider {name!r} needs 'base_url', the URL up to and including /v1")
            return OpenAICompatible(
                settings.base_url,
                key,
                headers=_headers(name, settings),
                proxy=settings.proxy,
                ca_file=settings.ca_file,
                public=public,
                max_bytes=max_bytes,
            )
        case "litellm":
            from fitrouter.providers._litellm import LiteLLM

            base = {} if settings.base_url is None else {"api_base": settings.base_url}
            headers = _headers(name, settings)
            return LiteLLM(key, {**base, **settings.options, **({"extra_headers": headers} if headers else {})})
        case "recorded":
            from fitrouter.providers._recorded import Recorded

            if settings.path is None:
                raise ConfigError(f"provider {name!r} needs 'path', a Parquet or JSONL file of recorded answers")
            return Recorded.from_options(settings.path, settings.options)
        case "simulated":
            from fitrouter.providers._simulated import Simulated

            return Simulated.from_options(settings.options)
        case further:
            return _installed(name, further).from_settings(settings, key, _headers(name, settings))


def _installed(name: str, kind: str) -> type[Installed]:
    """Load the class of an entry point."""
    from fitrouter.config import PROVIDERS_GROUP  # here, since the configuration imports pydantic

    (point,) = metadata.entry_points(group=PROVIDERS_GROUP, name=kind)
    try:
        found: type[Installed] = point.load()
    except Exception as error:
        raise ConfigError(f"provider {name!r} of kind {kind!r}: {point.value} cannot be loaded: {error!r}") from error
    return found


def _key(name: str, settings: ProviderConfig) -> Secret | None:
    return None if settings.api_key_env is None else _secret(name, settings.api_key_env, "its key", "api_key_env")


def _headers(name: str, settings: ProviderConfig) -> dict[str, str]:
    """Headers of every call, with the values of the environment variables that they name, which are masked."""
    found = {}
    for header, value in settings.headers.items():
        what = f"the header {header!r}"
        values = {each: _secret(name, each, what, "headers").reveal() for each in _VARIABLE.findall(value)}
        found[header] = _VARIABLE.sub(lambda match: values[match[1]], value)  # noqa: B023 - used at once
    return found


def _secret(name: str, variable: str, what: str, setting: str) -> Secret:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(
            f"provider {name!r} reads {what} from the environment variable {variable!r}, which is not set; set it, or "
            f"correct {setting!r}"
        )
    return Secret(value)

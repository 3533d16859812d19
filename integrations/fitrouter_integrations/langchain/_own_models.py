"""An agent's chat models as models of a router: their cards, and a provider that is never called."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel

from fitrouter.config import parse_config
from fitrouter.errors import ConfigError, ProviderRejected
from fitrouter.router import Router
from fitrouter.types import Call, Completion

PROVIDER = "langchain"
_MEDIA = {"images": "image_inputs", "audio": "audio_inputs", "video": "video_inputs", "files": "pdf_inputs"}
"""Capability → its name in a model profile."""

_log = logging.getLogger(__name__)


def model_of(model: BaseChatModel | str) -> BaseChatModel:
    """Return a chat model; text is passed to `init_chat_model`."""
    if isinstance(model, str):
        from langchain.chat_models import init_chat_model

        made: BaseChatModel = init_chat_model(model)
        return made
    return model


def named(models: Mapping[str, BaseChatModel], name: str, target: str) -> BaseChatModel | None:
    """Find the agent's model for a router's name or target; a variant is served by its base model.

    >>> models = {"m": 1, "vendor/x": 2}
    >>> named(models, "m#terse", "vendor/m"), named(models, "x", "vendor/x"), named(models, "y", "vendor/y")
    (1, 2, None)
    """
    return next((models[each] for each in (name, name.rpartition("#")[0], target) if each in models), None)


def compare(models: Mapping[str, BaseChatModel], known: Iterable[tuple[str, str]]) -> None:
    """Check that an agent has every model that its router may choose.

    Args:
        models: of the agent.
        known: (name, target) of the router's models.

    Raises:
        ConfigError: it lacks one.
    """
    known = list(known)
    if missing := sorted(name for name, target in known if named(models, name, target) is None):
        raise ConfigError(
            f"models: got {sorted(models)}, but the router has {sorted(name for name, _ in known)}; give "
            f"{', '.join(map(repr, missing))} too, by its name in the router or at its provider"
        )
    met = [named(models, name, target) for name, target in known]
    if idle := sorted(name for name, model in models.items() if not any(model is each for each in met)):
        _log.warning("models: %s will never be called: the router does not have them", ", ".join(idle))


# --- a router from settings ----------------------------------------------------------------------------------------


class Unasked:
    """Placeholder provider for models that the agent calls itself."""

    async def complete(self, call: Call) -> Completion:
        """Raise ProviderRejected: these models are called by their agent only."""
        raise ProviderRejected(
            f"{call.target!r} can only be called by its agent, through FitrouterMiddleware; other clients need a "
            "configuration with a provider"
        )

    async def aclose(self) -> None:
        """Nothing to close."""


def router_of(
    models: Mapping[str, BaseChatModel],
    data: str | os.PathLike[str],
    prices: Mapping[str, tuple[float, float]],
    settings: Mapping[str, Any],
) -> Router:
    """A router over an agent's models.

    Raises:
        ConfigError: a setting is invalid.
    """
    if unknown := sorted(prices.keys() - models.keys()):
        raise ConfigError(f"prices: unknown model {', '.join(map(repr, unknown))}; there are {sorted(models)}")
    listed = [
        {"name": name, "provider": PROVIDER, "prices": _prices(name, prices.get(name)), **_abilities(model)}
        for name, model in models.items()
    ]
    place = {PROVIDER: {"kind": "litellm"}}  # replaced by `Unasked`
    described = {"data": data, "providers": place, "models": listed, **settings}
    config = parse_config(described, "FitrouterMiddleware's settings")
    return Router.from_config(config, providers={PROVIDER: Unasked()})


def _prices(name: str, given: tuple[float, float] | None) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ConfigError(f"prices: {name!r} has {given!r}; give (input, output) in USD per million tokens")
    return {"input": given[0], "output": given[1]}


def _abilities(model: BaseChatModel) -> dict[str, Any]:
    """Return capabilities and limits from a model's profile; without a profile, all capabilities."""
    profile: Mapping[str, Any] = getattr(model, "profile", None) or {}
    can = ["streaming", "json"]
    if profile.get("tool_calling", True):
        can.append("tools")
    can += [name for name, key in _MEDIA.items() if profile.get(key, not profile)]
    found: dict[str, Any] = {"capabilities": can}
    if profile.get("max_input_tokens"):
        found["context_window"] = profile["max_input_tokens"]
    if profile.get("max_output_tokens"):
        found["max_output_tokens"] = profile["max_output_tokens"]
    return found

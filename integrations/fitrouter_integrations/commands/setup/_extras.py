"""Extras of the package that a configuration needs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fitrouter.config import Config
from fitrouter.errors import MissingExtra


def missing_extras(config: Config) -> list[MissingExtra]:
    """Extras that the configuration needs and that are not installed, except the gateway's own."""
    needs = [("litellm", f"the provider {name!r}") for name, each in config.providers.items() if each.kind == "litellm"]
    for encoder in dict.fromkeys((config.encoder, config.scorer.encoder)):
        if encoder == "minilm-int8":
            needs.append(("onnxruntime", f"the encoder {encoder!r}"))
        elif encoder == "minilm" or ("/" in encoder and not Path(encoder).is_dir()):
            needs.append(("sentence_transformers", f"the encoder {encoder!r}"))
    if "://" in (config.cold.place or ""):
        needs.append(("obstore", "the setting cold.place"))
    models = [model.name for model in config.scorer.models if model.needs_torch]
    needs += [(module, f"the reward model {name!r}") for name in models for module in ("torch", "transformers")]
    return [MissingExtra.of(module, user) for module, user in needs if find_spec(module) is None]

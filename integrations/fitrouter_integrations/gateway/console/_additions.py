"""A model to add: checked against the configuration, and written as the block that goes into its file.

A router's models are fixed when it starts. So the console writes the block, and the operator adds it and restarts.
"""

from __future__ import annotations

from typing import Any

import yaml

from fitrouter.config import Config, parse_config
from fitrouter.errors import ConfigError

FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "provider": str,
    "target": str,
    "revision": str,
    "input": (int, float),
    "output": (int, float),
}
"""Field → its type; the last two are USD per million tokens."""
LONGEST = 200
"""Characters of a text."""


def addition(config: Config, given: dict[str, Any]) -> dict[str, Any]:
    """The block of a model, or all `errors` in what was given: field → what is wrong.

    Args:
        config: that the block is for.
        given: `FIELDS`; all but `name` and `provider` may be missing.
    """
    errors = {name[:LONGEST]: f"unknown; fields are {', '.join(FIELDS)}" for name in given.keys() - FIELDS.keys()}
    for name, kind in FIELDS.items():
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            errors[name] = "give a text" if kind is str else "give a number of USD per million tokens"
        elif isinstance(value, str) and (len(value) > LONGEST or not value.isprintable()):
            errors[name] = f"give at most {LONGEST} printable characters"
    if errors:
        return {"errors": errors}
    name, provider = given.get("name") or "", given.get("provider") or ""
    prices = {key: given[key] for key in ("input", "output") if given.get(key) is not None}
    texts = {key: given[key] for key in ("target", "revision") if given.get(key)}
    model = {"name": name, "provider": provider, **texts, **({"prices": prices} if prices else {})}
    if not name.strip():
        errors["name"] = "give a name"
    elif name in {known.name for known in config.models}:
        errors["name"] = "there is a model of this name; a new revision of it is set in its own block"
    if provider not in config.providers:
        errors["provider"] = f"unknown; the configuration has {', '.join(config.providers)}"
    if len(prices) == 1:
        errors["output" if "input" in prices else "input"] = "give both prices, or neither"
    if not errors:
        try:
            before = config.model_dump(mode="json")
            parse_config({**before, "models": [*before["models"], model]}, "the model")
        except ConfigError as error:
            errors["model"] = str(error)
    if errors:
        return {"errors": errors}
    return {"block": yaml.safe_dump({"models": [model]}, sort_keys=False, allow_unicode=True)}

"""Reads and validates YAML settings: candidate.yaml and promote.yaml."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from fitrouter.config import load_yaml
from fitrouter.errors import ConfigError

Model = TypeVar("Model", bound=pydantic.BaseModel)


def read_yaml(path: str | os.PathLike[str], remedy: str, kind: str = "file") -> Any:
    """Read the content of a YAML file; a missing file is a ConfigError that ends with the remedy."""
    try:
        return load_yaml(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"there is no {kind} {str(path)!r}; {remedy}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid YAML: {error}") from None


def parse(
    model: type[Model], data: object, source: str, sections: Mapping[str, type[pydantic.BaseModel]] | None = None
) -> Model:
    """Validate the settings of a YAML file; `sections` maps keys of nested settings to their models.

    Raises:
        ConfigError: lists every invalid setting with what is allowed.
    """
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        lines = [f"{source} cannot be used:"]
        for item in error.errors():
            *inside, last = [str(part) for part in item["loc"]] or ["the file"]
            line = str(item["msg"]).removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                of = next((sections[name] for name in reversed(inside) if sections and name in sections), model)
                near = difflib.get_close_matches(last, of.model_fields, n=1)
                line = "there is no such setting" + (f"; did you mean {near[0]!r}?" if near else ".")
                line += f" Allowed here: {', '.join(sorted(of.model_fields))}."
            elif item["type"] not in {"missing", "value_error"}:
                line += f"; given was {item['input']!r}"
            lines.append(f"  {'.'.join((*inside, last))}: {line}")
        raise ConfigError("\n".join(lines)) from None

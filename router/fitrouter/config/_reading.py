"""Reads fitrouter.yaml, with messages that name the remedy."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, get_args

import pydantic
import yaml

from fitrouter.config._config import Config
from fitrouter.config._models import ModelAddition
from fitrouter.config._scoring import RewardModelConfig
from fitrouter.errors import ConfigError

_LONGEST_TEXT, _LONGEST_ADDITION = 200, 16_000
"""Characters of a text, and of all, of a model that is added at run time."""


def parse_addition(given: Mapping[str, Any]) -> ModelAddition:
    """Validate a model to add.

    Args:
        given: the fields of a model of the configuration file; `provider` is a name, or `kind`, `base_url` and
            `api_key_env` of a server of its own.

    Raises:
        ConfigError: lists every mistake.

    >>> parse_addition({"name": "m", "provider": {"kind": "openai_compatible", "base_url": "https://x.org/v1"}}).model
    ModelConfig(name='m', provider='added/m', ...)
    """
    own, name = given.get("provider"), given.get("name")
    data: dict[str, Any] = {"model": dict(given)}
    if isinstance(own, Mapping):
        data = {"model": {**given, "provider": f"added/{name}"}, "provider": dict(own)}
    return _addition(data)


def read_addition(record: object) -> ModelAddition:
    """Parse what `ModelAddition.record` returned.

    Raises:
        ConfigError: it is none.
    """
    return _addition(record)


def _addition(data: object) -> ModelAddition:
    if len(json.dumps(data)) > _LONGEST_ADDITION:  # before it is validated: each mistake takes 10 µs
        raise ConfigError(f"the model takes more than {_LONGEST_ADDITION} characters of JSON; shorten its variants")
    try:
        addition = ModelAddition.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(ModelAddition, error, "the model").replace("\n  model.", "\n  ")) from None
    for field in ("name", "target", "revision"):
        text = getattr(addition.model, field)
        if len(text) > _LONGEST_TEXT or not text.isprintable() or text != text.strip():
            raise ConfigError(f"{field}: give at most {_LONGEST_TEXT} printable characters, no space first or last")
    if {".", ".."} & set(addition.model.name.split("/")):
        raise ConfigError(f"name: got {addition.model.name!r}; '.' and '..' cannot be part of a path")
    return addition


_MOST_ERRORS = 50
"""Errors of a file that are explained."""


def _explain(root: type[pydantic.BaseModel], error: pydantic.ValidationError, source: str) -> str:
    lines = [f"{source} is invalid:"]
    errors = error.errors()
    for item in errors:
        if item["type"] == "too_short" and any(len(each["loc"]) > len(item["loc"]) for each in errors):
            continue  # it counts only entries that are valid
        if len(lines) > _MOST_ERRORS:
            return "\n".join([*lines, f"  and more: {len(errors)} errors in all"])
        where = ".".join(f"{part!s:.200}" for part in item["loc"]) or "the file"
        line = f"  {where}: {item['msg'].removeprefix('Value error, ')}"
        if item["type"] in {"model_type", "dict_type"}:
            line = f"  {where}: Input should be settings, each as `name: value`"
        if item["type"] == "extra_forbidden":
            allowed = _fields_at(root, item["loc"][:-1])
            near = difflib.get_close_matches(f"{item['loc'][-1]!s:.200}", allowed, n=1)
            line = f"  {where}: unknown setting" + (f"; did you mean {near[0]!r}?" if near else "")
            line += f" Allowed here: {', '.join(sorted(allowed))}."
        elif item["type"] not in {"missing", "value_error"}:
            line += f"; got {item['input']!r:.1000}"
            if item["type"] == "literal_error":
                allowed = re.findall("'([^']*)'", item["msg"])
                near = difflib.get_close_matches(f"{item['input']!s:.200}", allowed, n=1, cutoff=0.4)
                line += f"; did you mean {near[0]!r}?" if near else ""
        lines.append(line)
    return "\n".join(lines)


def section_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The section that a setting of this type holds, itself or in a list or map; None for a value."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_in(part))), None)


def _fields_at(root: type[pydantic.BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Names of the settings allowed at a place in the file."""
    for part in loc:
        field = root.model_fields.get(str(part))
        root = (field and section_in(field.annotation)) or root
    return [field.alias or name for name, field in root.model_fields.items()]


_MOST_VALUES, _DEEPEST, _BITS = 100_000, 64, 1_024
_TOO_MANY = (
    f"it has more than {_MOST_VALUES} values, or more than {_DEEPEST} levels, aliases counted as what they stand for"
)


class _Once(yaml.SafeLoader):
    """Loader that refuses a mapping with the same key twice: YAML would keep the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            if (first := seen.setdefault((key.tag, key.value), key)) is not key:
                raise yaml.constructor.ConstructorError(
                    f"{key.value!r} stands here", first.start_mark, "and again here; join both", key.start_mark
                )
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge what stands at `<<`, if it is not too much: merges of merges grow like aliases of aliases."""
        total = 0
        for given in [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]:
            for part in given.value if isinstance(given, yaml.SequenceNode) else [given]:
                if isinstance(part, yaml.MappingNode):
                    self.flatten_mapping(part)
                    total += len(part.value)
                    if total > _MOST_VALUES:
                        raise yaml.YAMLError(_TOO_MANY)
        super().flatten_mapping(node)


def load_yaml(text: str) -> Any:
    """Read a YAML file that a person wrote.

    Raises:
        yaml.YAMLError: it is not valid, or a mapping has a key twice.
    """
    try:
        found = yaml.load(text, _Once)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits, a date that does not exist
        raise yaml.YAMLError(f"a value cannot be read ({str(error)[:100]}); quote it if it is text") from None
    left, inside = _MOST_VALUES, [(found, 0)]
    while inside:
        item, depth = inside.pop()
        left -= 1
        if left < 0 or depth > _DEEPEST:
            raise yaml.YAMLError(_TOO_MANY)
        if isinstance(item, int) and item.bit_length() > _BITS:
            raise yaml.YAMLError(f"a value cannot be read (a number of more than {_BITS} bits); quote it if it is text")
        if isinstance(item, dict | list):
            inside += [(each, depth + 1) for each in (item.values() if isinstance(item, dict) else item)]
    return found


def parse_config(data: object, source: str = "the configuration") -> Config:
    """Validate settings.

    Raises:
        ConfigError: lists every mistake, its place, and what is allowed there.
    """
    try:
        return Config.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(Config, error, source)) from None


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read fitrouter.yaml. Relative paths in it are relative to its folder.

    Raises:
        ConfigError: the file is missing, is not YAML, or has an invalid setting.
    """
    file = Path(path)
    try:
        data = load_yaml(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise ConfigError(f"there is no file {str(path)!r}; `fitrouter init` writes one") from None
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid YAML: {error}") from None
    root = file.resolve().parent
    config: Config = _rooted(parse_config(data, f"{str(path)!r}"), root)
    scorer = config.scorer
    if scorer.prior not in {"shipped", "none"}:
        scorer = scorer.model_copy(update={"prior": str(root / scorer.prior)})
    scorer = scorer.model_copy(update={"models": tuple(_local(model, root) for model in scorer.models)})
    cold = config.cold
    if cold.place is not None and "://" not in cold.place:
        cold = cold.model_copy(update={"place": str(root / Path(cold.place).expanduser())})
    return config.model_copy(update={"scorer": scorer, "cold": cold})


def _rooted(value: Any, root: Path) -> Any:
    """Resolve all paths of a section against a folder."""
    match value:
        case Path():
            return root / value
        case pydantic.BaseModel():
            fields = {name: getattr(value, name) for name in type(value).model_fields}
            moved = {name: _rooted(each, root) for name, each in fields.items()}
            return value.model_copy(update={name: each for name, each in moved.items() if each != fields[name]})
        case dict():
            return {name: _rooted(each, root) for name, each in value.items()}
        case tuple():
            return tuple(_rooted(each, root) for each in value)
    return value


def _local(model: RewardModelConfig, root: Path) -> RewardModelConfig:
    """Resolve the folder of a reward model; a name that is no local folder stays a hub id."""
    if not model.needs_torch:
        return model
    path = root / Path(model.model).expanduser()
    local = model.model.startswith((".", "/", "~")) or path.is_dir()
    return model.model_copy(update={"model": str(path)}) if local else model

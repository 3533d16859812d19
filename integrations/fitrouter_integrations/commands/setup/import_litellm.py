"""Conversion of litellm proxy configurations, for `fitrouter config import`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from fitrouter.config import is_endpoint, load_yaml, parse_config
from fitrouter.errors import ConfigError
from fitrouter.types import UNPRICED
from fitrouter_integrations.commands._files import flow, write_new
from fitrouter_integrations.commands.setup._prices import PARTS, facts_of, number, usd_per_million
from fitrouter_integrations.commands.setup._prices import source as source_of_prices

_FROM_ENV = "os.environ/"
_COMPATIBLE = frozenset({"openai", "hosted_vllm", "openai_like", "custom_openai", "lm_studio", "llamafile"})
"""Model prefixes that speak OpenAI's protocol at their `api_base`."""
_OPTIONS = ("api_version", "organization", "vertex_project", "vertex_location", "aws_region_name")
"""Deployment parameters that are not secret and that litellm needs."""
_TAKEN = frozenset({"model", "api_base", "base_url", "api_key", *PARTS.values(), *_OPTIONS})
_NO_KEYS = frozenset({"", "none", "null", "empty", "dummy", "fake", "fake-key"})
_CAPABILITIES = {"images": "supports_vision", "audio": "supports_audio_input", "files": "supports_pdf_input"}
_NOTED: dict[str, dict[str, str]] = yaml.safe_load(
    resources.files(__package__ or __name__).joinpath("import_litellm.yaml").read_text(encoding="utf-8")
)
"""Section → setting → its replacement."""


class Imported(NamedTuple):
    """The text of a configuration, its number of models, and notes on what was not converted."""

    text: str
    models: int
    notes: tuple[str, ...]


class _Provider(NamedTuple):
    """Provider settings that several deployments share."""

    vendor: str
    kind: str
    base_url: str | None
    api_key_env: str | None
    options: tuple[tuple[str, str], ...]

    def entry(self) -> dict[str, Any]:
        """Return the provider's entry in fitrouter.yaml."""
        given = {"base_url": self.base_url, "api_key_env": self.api_key_env, "options": dict(self.options)}
        return {"kind": self.kind} | {name: value for name, value in given.items() if value}


def import_litellm(source: Path, out: Path) -> Imported:
    """Write fitrouter.yaml for a litellm configuration.

    Raises:
        ConfigError: the source cannot be read or used, or the target exists.
    """
    made = convert(_whole(source, set()), str(source))
    write_new(out, made.text, "--config", private=False)
    return made


def _whole(source: Path, read: set[Path]) -> object:
    """Read a YAML file merged with those that it includes, each once: lists are appended, other settings replaced.

    Raises:
        ConfigError: one of them cannot be read.
    """
    try:
        data = load_yaml(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError) as error:
        kind = error.strerror if isinstance(error, OSError) else type(error).__name__  # a YAML error quotes the file
        raise ConfigError(f"{str(source)!r} cannot be read as YAML: {kind}") from None
    read.add(source.resolve())
    if not isinstance(data, dict) or not isinstance(names := data.pop("include", []), list):
        return data
    for name in names:
        path = source.parent / str(name)
        more = None if path.resolve() in read else _whole(path, read)
        for section, value in _mapping(more).items():
            both = isinstance(value, list) and isinstance(data.get(section), list)
            data[section] = data[section] + value if both else value
    return data


def convert(data: object, source: str = "litellm.yaml") -> Imported:
    """Convert a litellm configuration to a fitrouter configuration, without secrets and values of dropped settings.

    Args:
        data: the parsed YAML.
        source: its name, for messages.

    Raises:
        ConfigError: it has no model that can be routed to.
    """
    listed = data.get("model_list") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(listed, list):
        raise ConfigError(f"{source!r} has no 'model_list'; give a configuration of litellm's proxy")
    made = _Import(data.get("credential_list"))
    for entry in listed:
        made.add(entry)
    if not made.models:
        raise ConfigError("\n  ".join([f"{source!r} has no chat model to route to:", *made.notes]))
    aliases = made.aliases(_mapping(data.get("router_settings")).get("model_group_alias"))
    made.notes += _unused(data)
    text = _render(made, aliases, Path(source).name)
    parse_config(yaml.safe_load(text), f"what was made of {source!r}")
    return Imported(text, len(made.models), tuple(made.notes))


_ROUTER = "auto_router/"
"""Prefix of litellm's routers among its models: adaptive, by complexity, semantic."""


_NO_CHAT = re.compile(
    r"dall-e|imagen|gpt-image|flux|stable-?diffusion|sora|\bveo|whisper|\btts|transcribe|realtime|embed|rerank|moderation"
)
"""Names of models that answer with no text, where the table of known models does not have them."""
_NO_DEFAULT = re.compile(r"image|audio|instruct$")
"""Names of models that can answer with a text, but for which another is the better default."""


class _Import:
    """Models and providers collected from a configuration."""

    def __init__(self, credentials: object = None) -> None:
        listed = credentials if isinstance(credentials, list) else []
        self._credentials = {
            str(_mapping(each).get("credential_name")): _mapping(_mapping(each).get("credential_values"))
            for each in listed
        }
        self._alike: dict[tuple[str, str], str] = {}
        self._keys: dict[str, str] = {}
        self.providers: dict[_Provider, str] = {}
        self.models: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._routers: list[str] = []
        """Names of litellm's own routers."""

    def add(self, entry: object) -> None:
        """Add a deployment, or note why it is left out."""
        given, info = _mapping(_mapping(entry).get("litellm_params")), _mapping(_mapping(entry).get("model_info"))
        credential = self._credentials.get(str(given.get("litellm_credential_name")), {})
        params = {**credential, **{each: value for each, value in given.items() if each != "litellm_credential_name"}}
        if not (target := _word(params.get("model") or "")):
            self.notes.append("an entry of model_list has no litellm_params.model; left out")
            return
        name = _word(_mapping(entry).get("model_name") or "") or target
        known = facts_of(info.get("base_model"), target)
        mode = info.get("mode") or known.get("mode") or ("that of no text" if _NO_CHAT.search(target) else "chat")
        if "*" in name + target:
            self.notes.append(f"{name}: wildcards are not supported; list the models")
        elif mode not in ("chat", "completion", "responses"):
            self.notes.append(f"{name}: its mode is {_word(mode)}, but only chat is routed; left out")
        elif name.startswith("fitrouter/") or target.startswith("fitrouter/"):
            self.notes.append(f"{name}: it is fitrouter itself; left out")
        elif target.startswith(_ROUTER):
            self._routers.append(name)
            self.notes.append(f"{name}: {target} is a router, not a model; the name is an alias of fitrouter/auto")
        elif target.startswith(_FROM_ENV) or target.endswith("/"):
            self.notes.append(f"{name}: its litellm_params.model does not say which model it is; left out")
        elif (name, target) in self._alike:
            self.notes.append(
                f"{name}: another deployment of {target}; fitrouter does not balance load, and two that answer alike "
                "would have to be learned separately; left out"
            )
        elif wrong := _wrong_base(params):
            self.notes.append(f"{name}: its api_base {wrong}, so its address is unknown; left out")
        else:
            self._alike[name, target] = name
            provider = self._provider(name, params)
            compatible = next(each.kind for each, key in self.providers.items() if key == provider) != "litellm"
            card = {"name": self._unique(name), "provider": provider}
            card["target"] = target.partition("/")[2] or target if compatible else target
            self.models.append(card | self._facts(name, params, info, known))
            dropped = sorted(_word(each) for each in params if each not in _TAKEN)
            if dropped:
                self.notes.append(f"{name}: {', '.join(dropped)} of its litellm_params")

    def aliases(self, given: object) -> dict[str, str]:
        """Return those entries of `model_group_alias` that lead to a model, and the names of litellm's routers."""
        names = {model["name"] for model in self.models}
        found = {name: "fitrouter/auto" for name in self._routers if name not in names}
        for alias, to in _mapping(given).items():
            leads = _word(_mapping(to).get("model") if isinstance(to, Mapping) else to)
            if "*" in _word(alias) or _word(alias).startswith("fitrouter/"):
                self.notes.append(f"the alias {_word(alias)}: it is a pattern, or a name of fitrouter's own")
            elif _word(alias) in names:
                self.notes.append(f"the alias {_word(alias)}: a model has that name")
            elif leads in names or leads in found:
                found[_word(alias)] = found.get(leads, leads)
            else:
                self.notes.append(f"the alias {_word(alias)}: it leads to no imported model")
        return found

    def _unique(self, name: str) -> str:
        names = {model["name"] for model in self.models}
        if name not in names:
            return name
        new = next(f"{name}-{i}" for i in range(2, len(names) + 3) if f"{name}-{i}" not in names)
        self.notes.append(
            f"{name}: another model of that name is the model {new} of its own; load is not balanced, so remove those "
            "that are equivalent"
        )
        return new

    def _provider(self, name: str, params: Mapping[str, Any]) -> str:
        """Return the key of a deployment's provider; deployments with the same settings share one."""
        vendor, _, rest = _word(params["model"]).partition("/")
        vendor = re.sub(r"[^A-Za-z0-9]+", "_", vendor).strip("_") or "provider" if rest else "openai"
        base = _base(params)
        options = tuple(
            (option, value)
            for option in _OPTIONS
            if (value := self._plain(name, option, params.get(option))) is not None
        )
        kind = "openai_compatible" if base and vendor in _COMPATIBLE else "litellm"
        own = kind == "openai_compatible"  # OpenAI's key must not be sent to another address
        key = self._key(name, name if own else vendor, params.get("api_key"))
        provider = _Provider(vendor, kind, base, key, options)
        if provider not in self.providers:
            taken = set(self.providers.values())
            keys = (vendor, *(f"{vendor}_{i}" for i in range(2, len(taken) + 3)))
            self.providers[provider] = next(key for key in keys if key not in taken)
        return self.providers[provider]

    def _plain(self, name: str, setting: str, value: object) -> str | None:
        """Return a value as text to write to the file; if litellm takes it from the environment, note so instead."""
        if value is None:
            return None
        if (text := _word(value)).startswith(_FROM_ENV):
            variable = text.removeprefix(_FROM_ENV)
            self.notes.append(f"{name}: {setting} came from the environment variable {variable}; write it here")
            return None
        return text or None

    def _key(self, name: str, owner: str, value: object) -> str | None:
        """Return the environment variable for a key; keys in the file are not copied, each gets its own variable.

        Args:
            name: of the model, for notes.
            owner: basis for the name of the variable.
            value: from the file.
        """
        if value is None or str(value).strip().lower() in _NO_KEYS:
            return None
        if (text := _word(value)).startswith(_FROM_ENV):
            return text.removeprefix(_FROM_ENV) or None
        if text not in self._keys:
            stem = re.sub(r"[^A-Za-z0-9]+", "_", owner).strip("_").upper()
            stem = stem if stem[:1].isalpha() else f"MODEL_{stem}".rstrip("_")
            taken = set(self._keys.values())
            free = (f"{stem}{'' if i == 1 else f'_{i}'}_API_KEY" for i in range(1, len(taken) + 2))
            self._keys[text] = next(variable for variable in free if variable not in taken)
        self.notes.append(f"{name}: its key was in the file; set the environment variable {self._keys[text]}")
        return self._keys[text]

    def _facts(self, name: str, params: Any, info: Any, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return prices, limits and capabilities from the file, else from the table of known models."""
        facts: dict[str, Any] = {}
        prices, info = usd_per_million(params, info, known), {**known, **info}
        if prices:
            facts["prices"] = prices
        else:
            self.notes.append(f"{name}: its price is unknown; add `prices`. {UNPRICED}")
        if window := _tokens(info.get("max_input_tokens")) or _tokens(info.get("max_tokens")):
            facts["context_window"] = window
        else:
            self.notes.append(f"{name}: its context window is unknown; 128000 tokens are assumed")
        if limit := _tokens(info.get("max_output_tokens")):
            facts["max_output_tokens"] = limit
        tools = ["tools"] if info.get("supports_function_calling", True) else []
        seen = [capability for capability, flag in _CAPABILITIES.items() if info.get(flag) is True]
        facts["capabilities"] = ["streaming", *tools, "json", *seen]
        return facts


def _unused(data: Mapping[str, Any]) -> list[str]:
    """Notes on settings that were not converted, with their replacements."""
    found: list[str] = []
    for section, value in data.items():
        if section in {"model_list", "credential_list"}:
            continue
        settings = [_word(name) for name in _mapping(value)]
        said = _NOTED.get(str(section), {})
        found += [f"{section}.{name}: {said[name]}" for name in settings if name in said]
        rest = [name for name in settings if name not in said and name != "model_group_alias"]
        if rest or not settings:
            found.append(f"{_word(section)}{': ' + ', '.join(rest) if rest else ''}")
    return found


def _render(made: _Import, aliases: Mapping[str, str], source: str) -> str:
    def lines() -> Iterator[str]:
        yield f"# fitrouter.yaml, made by `fitrouter config import {_word(source)}`."
        yield "#"
        yield "#   fitrouter config check    reports mistakes and missing keys"
        if made.notes:
            yield "#"
            yield "# Not converted, or to be reviewed:"
            yield from (f"#   - {note}" for note in made.notes)
        yield "\ndata: fitrouter-data"
        yield "\n# Keys stay in the environment; these are the names of their variables.\nproviders:"
        yield from (f"  {flow(key)}: {flow(provider.entry())}" for provider, key in made.providers.items())
        yield f"\n# Prices are USD per million tokens, from the file, else from {source_of_prices()}.\nmodels:"
        yield from (f"  - {flow(model)}" for model in made.models)
        yield "\n# Share of the traffic that is routed; the default model takes the rest. With 0 nothing changes for"
        yield "# your users, and every decision is logged; raise it with `fitrouter config share 0.05`, then 1."
        plain = [model for model in made.models if not _NO_DEFAULT.search(model["target"])]
        yield f"default_model: {flow((plain or made.models)[0]['name'])}\nshare: 0.0"
        if aliases:
            yield f"\naliases: {flow(dict(aliases))}"

    return "\n".join(lines()) + "\n"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _base(params: Mapping[str, Any]) -> str | None:
    """The URL of a deployment, read from the environment if litellm does so."""
    text = _word(params.get("api_base") or params.get("base_url") or "")
    if text.startswith(_FROM_ENV):
        text = _word(os.environ.get(text.removeprefix(_FROM_ENV), ""))
    return text or None


def _wrong_base(params: Mapping[str, Any]) -> str:
    """Reason why a URL cannot be written to a file; empty if it can."""
    given, base = _word(params.get("api_base") or params.get("base_url") or ""), _base(params)
    if given.startswith(_FROM_ENV) and (base is None or not _is_clean(base)):
        variable = given.removeprefix(_FROM_ENV)
        return f"came from the environment variable {variable}, which has no plain URL as its value (set it first)"
    if base is not None and not _is_clean(base):
        return "is not a plain URL, or contains credentials or a query"
    if base is not None and is_endpoint(base):
        return "is the URL of one endpoint, such as …/chat/completions"
    return ""


def _is_clean(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and not (parts.username or parts.password or parts.query or parts.fragment)


def _word(value: object) -> str:
    """Return text from the file on one line, without characters that YAML cannot hold."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in str(value)).split())[:200].strip()


def _tokens(value: object) -> int:
    return int(number(value) or 0)

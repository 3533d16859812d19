"""`fitrouter init`: write a configuration for a URL, a provider, or the provider keys in the environment."""

from __future__ import annotations

import importlib.util
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import typer

from fitrouter.errors import ConfigError, MissingExtra
from fitrouter.providers import Secret
from fitrouter.routing.parameters import reasons, takes
from fitrouter.stores.figures import many
from fitrouter.types import UNPRICED, ModelCard
from fitrouter_integrations.commands._files import flow, refuse_existing, write_new
from fitrouter_integrations.commands._options import DEFAULT, NewConfigFile
from fitrouter_integrations.commands.setup import _prices
from fitrouter_integrations.commands.setup.listing import Listed, Listing, NoList, ask, chosen

_BASE_URL_ENV = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
_CHATS = frozenset({None, "chat", "responses", "completion"})
"""Modes in the table of models that answer chats; None is a model that it does not have."""
_COST_WEIGHT = 0.05
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_SHOWN = 6
_WIDTH = 112


class Vendor(msgspec.Struct, frozen=True):
    """A provider, reached at its OpenAI-compatible URL, or through litellm without one; see `init.yaml`."""

    key_env: tuple[str, ...] = ()
    base_url: str | None = None
    base_url_env: tuple[str, ...] = ()
    path: str = ""
    prefix: str = ""
    models: dict[str, str] = {}
    """Name → the provider's name."""
    lists: bool = True
    keyless: bool = False
    free: bool = False

    @property
    def kind(self) -> str:
        """Kind of the provider in the configuration."""
        return "openai_compatible" if self.base_url or self.base_url_env else "litellm"


class _Texts(msgspec.Struct, frozen=True):
    """The content of `init.yaml`."""

    vendors: dict[str, Vendor]
    not_chat: frozenset[str]
    head: str
    simulated: str
    tail: str


_TEXTS = msgspec.yaml.decode(resources.files(__package__ or __name__).joinpath("init.yaml").read_bytes(), type=_Texts)
VENDORS = _TEXTS.vendors
"""Name → provider that `--provider` knows."""
KEYS = {key: name for name, vendor in VENDORS.items() for key in vendor.key_env}
"""Environment variable of a key → name of its provider."""


class KeySource(NamedTuple):
    """A provider to be written: its name, how it is reached, and its models' names and settings."""

    name: str
    kind: str
    models: Mapping[str, Mapping[str, Any]]
    base_url: str | None = None
    key_env: str | None = None
    asked: bool = False
    """Whether its models came from the provider or the user, rather than from `init.yaml`."""
    notes: tuple[str, ...] = ()


def found(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the providers whose keys the environment holds."""
    return tuple(name for name, vendor in VENDORS.items() if _first(environ, vendor.key_env))


def known(name: str, key_env: str | None = None) -> KeySource:
    """Return a provider with the models that `init.yaml` lists for it."""
    vendor = VENDORS[name]
    models = _written(name, vendor)
    return KeySource(name, vendor.kind, models, vendor.base_url, key_env or next(iter(vendor.key_env), None))


def sources(
    environ: Mapping[str, str],
    base_url: str | None = None,
    key_env: str | None = None,
    provider: str | None = None,
    models: Sequence[str] = (),
) -> tuple[list[KeySource], list[str]]:
    """The providers to write, and notes for the user; no provider without a URL, a name or a key.

    Args:
        environ: variables with keys and URLs.
        base_url: of an OpenAI-compatible server.
        key_env: name of the variable with the key.
        provider: one of `VENDORS`.
        models: those to route between; empty takes the known ones, or asks.

    Raises:
        ConfigError: an option is wrong, or the server does not list its models.
    """
    if provider is not None and provider not in VENDORS:
        raise ConfigError(
            f"--provider: {provider!r} is unknown; known are {', '.join(VENDORS)}; others are reached by --base-url"
        )
    if key_env is not None and not environ.get(key_env, "").strip():
        raise ConfigError(f"--key-env: the environment variable {key_env} is not set; set it to the key first")
    if provider is not None or base_url is not None:
        return [_source(environ, provider, base_url, key_env, models)], []
    present = found(environ)
    if (given := _first(environ, _BASE_URL_ENV)) and environ[given].rstrip("/") != VENDORS["openai"].base_url:
        key_env = key_env or _first(environ, VENDORS["openai"].key_env)
        ready = [_source(environ, None, environ[given], key_env, models)]
        present = tuple(name for name in present if name != "openai")
    elif models or key_env is not None:
        if len(present) != 1:
            option = "--model" if models else "--key-env"
            raise ConfigError(f"{option}: whose? Give --provider or --base-url with it")
        return [_source(environ, present[0], None, key_env, models)], []
    else:
        ready = []
    if present and not ready and not any(VENDORS[name].models for name in present):
        return [_source(environ, present[0], None, None, ())], []
    ready += [known(name, _first(environ, VENDORS[name].key_env)) for name in present if VENDORS[name].models]
    more = [name for name in present if not VENDORS[name].models]
    return ready, [f"there is a key of {name}, too: `fitrouter init --provider {name} --model …`" for name in more]


def _source(
    environ: Mapping[str, str], provider: str | None, url: str | None, key_env: str | None, models: Sequence[str]
) -> KeySource:
    """Resolve one provider: its models from `init.yaml` if only those are wanted, else those that the server lists."""
    vendor = VENDORS[provider] if provider else Vendor(keyless=True)
    if url is None and (variable := _first(environ, vendor.base_url_env)):
        url = environ[variable].strip().rstrip("/").removesuffix(vendor.path) + vendor.path
    url = url or vendor.base_url
    if url is None and vendor.base_url_env:
        raise ConfigError(f"{provider}: its URL is not known; set {vendor.base_url_env[0]}, or give --base-url")
    key_env = (
        key_env or _first(environ, vendor.key_env) or (None if vendor.keyless else next(iter(vendor.key_env), None))
    )
    name = provider or _name_of(url or "")
    written = _written(name, vendor)
    if written and url == vendor.base_url and set(models) <= set(written):
        return KeySource(name, vendor.kind, {each: written[each] for each in models or written}, url, key_env)
    if url is None:  # through litellm, which lists nothing
        entries = {each: {"target": each if "/" in each else f"{name}/{each}"} for each in models}
        facts = {each: _facts(Listed(each), vendor, f"{name}/{each}") for each in models}
        return KeySource(
            name, "litellm", {each: entries[each] | facts[each] for each in models}, None, key_env, asked=True
        )
    if not vendor.lists and not models:
        raise ConfigError(
            f"{provider} does not list what you deployed; name your deployments: --model NAME --model NAME"
        )
    if key_env is not None and not environ.get(key_env, "").strip():
        raise ConfigError(
            f"{name}: the environment variable {key_env} is not set; set it to the key, or give --key-env"
        )
    listing, notes = _listing(url, environ, key_env, models) if vendor.lists else (_named(url, models), [])
    unfit = _unfit(listing)
    taken = chosen(listing, models, unfit)
    if left := [name for name in unfit if not models]:
        notes.append(f"left out, since they answer no chats: {_shown(left)}")
    asked = {each.id: _facts(each, vendor, f"{vendor.prefix}/{each.id}") for each in taken}
    return KeySource(name, "openai_compatible", asked, listing.base_url, key_env, asked=True, notes=tuple(notes))


def _listing(
    url: str, environ: Mapping[str, str], key_env: str | None, models: Sequence[str]
) -> tuple[Listing, list[str]]:
    """Get the models that a server lists; if it has no list, the named ones and a note."""
    key = Secret(environ[key_env].strip()) if key_env else None
    try:
        return ask(url, key, key_env), []
    except NoList as error:
        if not models:
            raise ConfigError(str(error)) from None
        return _named(url, models), [f"the models were not checked: {error}"]


def _named(url: str, models: Sequence[str]) -> Listing:
    return Listing(url.rstrip("/"), tuple(Listed(model) for model in models))


def _unfit(listing: Listing) -> dict[str, str]:
    """Return the models that cannot be routed to, each with the reason."""
    found = {}
    for model in listing.models:
        words = set(re.split(r"[^a-z]+", model.id.lower()))
        if model.id.startswith("fitrouter/"):
            found[model.id] = "a router itself"
        elif _prices.facts_of(model.id).get("mode") not in _CHATS or words & _TEXTS.not_chat:
            found[model.id] = "answers no chats"
    return found


def _written(name: str, vendor: Vendor) -> dict[str, dict[str, Any]]:
    """Return the models that `init.yaml` lists for a provider, with what the table knows of them."""
    return {
        each: ({} if target == each else {"target": target}) | _facts(Listed(target), vendor, f"{name}/{target}")
        for each, target in vendor.models.items()
    }


def _facts(model: Listed, vendor: Vendor, *names: str) -> dict[str, Any]:
    """Return the known settings of a model, from the provider's list or the table."""
    table = _prices.facts_of(*names, model.id)
    prices = {"input": 0.0, "output": 0.0} if vendor.free else model.usd_per_million or _prices.usd_per_million(table)
    window = model.window or int(_prices.number(table.get("max_input_tokens")) or 0)
    entry: dict[str, Any] = {}
    if window:
        entry["context_window"] = window
    if prices:
        entry["prices"] = prices
    if table:
        tools = ["tools"] if table.get("supports_function_calling") else []
        images = ["images"] if table.get("supports_vision") else []
        entry["capabilities"] = ["streaming", *tools, "json", *images]
    return entry


def _name_of(url: str) -> str:
    """Derive a name for the provider at a URL."""
    host = urlsplit(url).hostname or "server"
    return "local" if host in _LOOPBACK else re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-") or "server"


def _first(environ: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the first of some environment variables that is set."""
    return next((name for name in names if environ.get(name, "").strip()), None)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


# --- the file ---


def render(given: Sequence[KeySource], path: Path = DEFAULT, share: float = 1.0) -> str:
    """The configuration as text; with simulated models if there is no provider."""
    head = _TEXTS.head
    if path != DEFAULT:
        head = head.replace("config check  ", f"config check -c {path}  ").replace("serve  ", f"serve -c {path}  ")
    if not given:
        return head + _TEXTS.simulated + _tail("thorough", share, priced=True)
    models = list(_models(given))
    lines = ["", "# Keys stay in the environment; these are the names of their variables.", "providers:"]
    for source in given:
        base = {"base_url": source.base_url} if source.base_url else {}
        key = {"api_key_env": source.key_env} if source.key_env else {}
        lines += [
            f"  {flow(source.name)}:",
            *(f"    {k}: {flow(v)}" for k, v in ({"kind": source.kind} | base | key).items()),
        ]
    lines += [
        "",
        *textwrap.wrap(
            f"Prices are USD per million tokens, from the provider's list, else from {_prices.source()}; check them "
            f"against your contract. {UNPRICED}",
            width=110,
            initial_indent="# ",
            subsequent_indent="# ",
        ),
    ]
    lines += ["models:", *(f"  - {_entry(model)}" for model in models)]
    priced = all("prices" in model for model in models) and any(any(model["prices"].values()) for model in models)
    return head + "\n".join(lines) + "\n" + _tail(models[0]["name"], share, priced=priced)


def _models(given: Sequence[KeySource]) -> Iterator[dict[str, Any]]:
    """Yield the entries of all models; a name that occurs again is prefixed with its provider's name."""
    names: set[str] = set()
    for source in given:
        for name, settings in source.models.items():
            further = {**settings, **_efforts(source.name, name, settings)}
            if name in names:
                yield {"name": f"{source.name}-{name}", "provider": source.name, "target": name, **further}
            else:
                yield {"name": name, "provider": source.name, **further}
            names.add(name)


def _efforts(provider: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The levels of effort of a model that is known to reason; its provider's own level is the model itself."""
    card = ModelCard(name=name, provider=provider, target=str(settings.get("target", name)))
    return {"effort": ["low", "high"]} if reasons(card) and not takes(card, "reasoning_effort", "low") else {}


def _entry(model: Mapping[str, Any]) -> str:
    """Format a model's settings as YAML, on more lines where one is too long."""
    if len(line := flow(dict(model))) <= _WIDTH:
        return line
    below = [name for name in ("prices", "capabilities") if name in model]
    above = {name: value for name, value in model.items() if name not in below}
    return ",\n     ".join([flow(above)[:-1], *(flow({name: model[name]})[1:-1] for name in below)]) + "}"


def _tail(default: str, share: float, *, priced: bool) -> str:
    note = "" if priced else "; set all prices first"
    weight = _COST_WEIGHT if priced else 0.0
    return _TEXTS.tail.format(default=flow(default), share=share, cost_weight=weight, cost_note=note)


# --- the command ---


def command(
    base_url: Annotated[
        str | None, typer.Option(help="URL of an OpenAI-compatible server, which is asked for its models.")
    ] = None,
    key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the key.")] = None,
    provider: Annotated[str | None, typer.Option(help=f"Known provider: {', '.join(VENDORS)}.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Model to route between, as the provider names it; repeat it for others.")
    ] = None,
    share: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Share of the traffic to route; 0: shadow mode, decisions are only logged."
        ),
    ] = 1.0,
    config: NewConfigFile = DEFAULT,
    path: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Write a configuration for your own models.

    They are those at a URL (--base-url, or the variable OPENAI_BASE_URL), those of a provider, or of all providers
    whose keys are in the environment. Without any of these the models are simulated.
    """
    config = path or config
    refuse_existing(config, "--config")
    given, notes = sources(os.environ, base_url, key_env, provider, model or ())
    text = render(given, config, share)
    write_new(config, text, "--config", private=False)
    option = "" if config == DEFAULT else f" --config {config}"
    if not given:
        typer.echo(f"wrote {config} with simulated models, since no provider key is set")
        typer.echo(f"next: fitrouter serve{option}")
        typer.echo(f"models of your own: remove {config}, then fitrouter init --base-url URL")
        return
    names = [entry["name"] for entry in _models(given)]
    of = ", ".join((source.asked and source.base_url) or source.name for source in given)
    typer.echo(f"wrote {config} with {many(len(names), 'model')} of {of}: {_shown(names)}")
    for note in [*(note for source in given for note in source.notes), *notes, *_lacking(given)]:
        typer.echo(note)
    rest = "every model may answer" if share == 1.0 else f"{names[0]} answers the rest"
    typer.echo(f"share is {share:g}: {rest}; change it with `fitrouter config share 0.05{option}` (0: shadow mode)")
    typer.echo(f"next: fitrouter serve{option}")


def _lacking(given: Sequence[KeySource]) -> Iterator[str]:
    """Notes on what the user must add before serving, and on unknown prices."""
    unpriced = [entry["name"] for entry in _models(given) if "prices" not in entry]
    if unpriced:
        yield f"prices are unknown for {_shown(unpriced)}: set them before you weigh costs or set a budget"
    for source in given:
        if source.key_env and not os.environ.get(source.key_env, "").strip():
            yield f"{source.name}: set the environment variable {source.key_env} before you serve"
    if any(source.kind == "litellm" for source in given) and importlib.util.find_spec("litellm") is None:
        yield str(MissingExtra.of("litellm", ", ".join(source.name for source in given if source.kind == "litellm")))

"""Settings of models and providers."""

from __future__ import annotations

import difflib
import re
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import pydantic
from pydantic import Field

from fitrouter.config._section import Fraction, _Section
from fitrouter.config.answer_schema import fault
from fitrouter.errors import require
from fitrouter.types import Check, ModelCard, Prices, Variant

Capability = Literal["streaming", "tools", "json", "images", "audio", "files", "video"]


LEAST_USD = 1e-4
"""A price below it, per million tokens, is that of a single one: the cheapest models cost ten times as much."""


class PricesConfig(_Section):
    """USD per million tokens."""

    input: float = Field(default=0.0, ge=0)
    """USD per million prompt tokens."""
    output: float = Field(default=0.0, ge=0)
    """USD per million completion tokens."""
    cache_read: float | None = Field(default=None, ge=0)
    """USD per million prompt tokens that were read from the provider's cache; by default the input price."""
    cache_write: float | None = Field(default=None, ge=0)
    """USD per million prompt tokens that were written to the provider's cache; by default the input price."""
    cache_write_1h: float | None = Field(default=None, ge=0)
    """USD per million prompt tokens that the provider's cache keeps for an hour; by default the price of writing."""
    reasoning: float | None = Field(default=None, ge=0)
    """USD per million tokens of hidden reasoning; by default the output price."""
    audio_input: float | None = Field(default=None, ge=0)
    """USD per million audio tokens of the prompt; by default the input price."""
    audio_output: float | None = Field(default=None, ge=0)
    """USD per million audio tokens of the answer; by default the output price."""
    request: float = Field(default=0.0, ge=0)
    """USD per call, besides its tokens."""
    long_above: int | None = Field(default=None, ge=0)
    """Tokens of a prompt above which a call is billed at `long_input` and `long_output`, other parts in proportion."""
    long_input: float | None = Field(default=None, ge=0)
    """USD per million tokens of so long a prompt; by default the input price."""
    long_output: float | None = Field(default=None, ge=0)
    """USD per million completion tokens after it; by default the output price."""

    @pydantic.model_validator(mode="after")
    def _per_million(self) -> PricesConfig:
        """Refuse prices of one token, as other gateways have them, and what would be ignored."""
        for name, price in self:
            if name not in {"request", "long_above"} and 0.0 < (price or 0.0) < LEAST_USD:
                raise ValueError(f"{name}: got {price:g}, a price of one token; give USD per million tokens")
        if self.long_above is None and not (self.long_input is None and self.long_output is None):
            raise ValueError("long_above: missing; 'long_input' and 'long_output' count above it")
        return self

    @pydantic.model_serializer(mode="wrap")
    def _given(self, dumped: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not given: a price that is unknown is not 0 in the process that reads the dump."""
        return {name: price for name, price in dumped(self).items() if name in self.model_fields_set}

    def prices(self) -> Prices:
        """The prices of these settings."""
        return Prices(**self.model_dump(), known=self.known)

    @property
    def known(self) -> bool:
        """Whether both prices are given; a model that costs nothing has `{input: 0, output: 0}`."""
        return {"input", "output"} <= self.model_fields_set


_ENDPOINT = re.compile(
    r".*(?:/completions|/responses|/embeddings|/messages|/rerank|/v1/chat|/v1/models|/api/chat|/api/generate"
    r"|:(?:stream)?generateContent)/*",
    re.IGNORECASE,
)
"""URLs of endpoints, as people copy them from examples of curl. Azure's base URLs end with /models, without /v1."""


_OUR_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding"}
)


_READ = {
    "openai_compatible": ("base_url", "api_key_env", "headers", "proxy", "ca_file"),
    "litellm": ("base_url", "api_key_env", "headers", "options"),
    "recorded": ("path", "options"),
    "simulated": ("options",),
}
"""Kind of a provider → the settings that it reads; those of other packages may read all."""


PROVIDERS_GROUP = "fitrouter.providers"
"""Group of entry points: kind → class of a provider with `from_settings`."""


def is_endpoint(url: str) -> bool:
    """Return whether a URL is that of one endpoint, where the base URL of all is meant."""
    return _ENDPOINT.fullmatch(url.split("?")[0]) is not None


def _base(url: str) -> str:
    if is_endpoint(url := url.strip()):
        raise ValueError(f"base_url: {url!r} is the URL of one endpoint; give the URL up to and including /v1")
    try:
        urlsplit(url).port  # noqa: B018 - raises for what is no port
    except ValueError:
        raise ValueError(f"base_url: {url!r} is no URL, or its port is none of 1 to 65535") from None
    return url


class ProviderConfig(_Section):
    """A provider of models, of one of four kinds, or of one that is installed as an entry point `fitrouter.providers`.

    - `openai_compatible`: any server of OpenAI's protocol, at its `base_url` (`fitrouter init --base-url` writes it);
    - `litellm`: any provider that litellm reaches, with litellm's names as `target` of the models; needs the extra
      `litellm`;
    - `recorded`: responses from a file, by prompt and model;
    - `simulated`: texts that differ in style, for tests and demonstrations.
    """

    kind: str
    """How the models are called: `litellm`, `openai_compatible`, `recorded`, `simulated`, or the name of an entry
    point."""
    base_url: str | None = None
    """openai_compatible: the URL up to and including /v1, required. litellm: `api_base`, where its own is not meant."""
    api_key_env: str | None = None
    """Name of the environment variable with the API key; keys never appear in the file. Without it no key is sent;
    litellm then looks for the provider's own variables."""
    path: Path | None = None
    """recorded: a Parquet or JSONL file with the columns prompt, model, response; required."""
    headers: dict[str, str] = Field(default={}, max_length=50)
    """openai_compatible, litellm: headers of every call, such as `X-Title: my app`. `${NAME}` in a value stands for an
    environment variable, so that no secret is in the file."""
    proxy: str | None = None
    """openai_compatible: URL of a proxy, or `none`. By default that of the environment (HTTP_PROXY, HTTPS_PROXY,
    NO_PROXY, whose entries are hosts, ends of names and, for hosts that are addresses, networks such as 10.0.0.0/8) but
    for loopback addresses; litellm uses the environment's in any case."""
    ca_file: Path | None = None
    """openai_compatible: PEM file of the certificate authorities to trust, beside those of the system."""
    concurrency: int = Field(default=256, ge=1)
    """Calls at a time, in each worker. Further ones wait up to `server.wait_s`, then another model is tried."""
    options: dict[str, Any] = Field(default={})
    """litellm: parameters of every call (api_version, organization, vertex_project, aws_region_name …). recorded:
    `match`, either `exact`, or `inside` when agents wrap prompts in instructions of their own. simulated: model name →
    the options of its texts, below."""

    @pydantic.field_validator("kind")
    @classmethod
    def _exists(cls, kind: str) -> str:
        if kind not in _READ and kind not in (further := metadata.entry_points(group=PROVIDERS_GROUP).names):
            allowed = sorted({*_READ, *further})
            near = difflib.get_close_matches(kind, allowed, n=1, cutoff=0.4)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"got {kind!r}; allowed are {', '.join(map(repr, allowed))}{meant}")
        return kind

    @pydantic.field_validator("headers")
    @classmethod
    def _can_be_sent(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", name) or name.lower() in _OUR_HEADERS:
                taken = ", ".join(sorted(_OUR_HEADERS))
                raise ValueError(f"{name!r} cannot be set; give the name of a header other than {taken}")
            if not re.fullmatch(r"[ -~]{0,4000}", value):
                raise ValueError(f"the value of {name!r} must be printable ASCII, at most 4,000 characters")
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("a name stands twice, in other capitals; leave one of both out")
        return headers

    @pydantic.field_validator("proxy")
    @classmethod
    def _a_proxy(cls, proxy: str | None) -> str | None:
        if proxy is not None and not re.fullmatch(r"none|https?://[^\s/@]+/?", proxy):
            raise ValueError(
                "give the URL of a proxy, http://HOST:PORT, or 'none'; with a password it belongs into HTTPS_PROXY"
            )
        return proxy

    @pydantic.model_validator(mode="after")
    def _read(self) -> ProviderConfig:
        """Refuse settings that a provider of this kind does not read, or cannot use."""
        given = {name for name in self.model_fields_set if getattr(self, name) not in (None, {})}
        read = _READ.get(self.kind, tuple(type(self).model_fields))
        if ignored := sorted(given - {"kind", "concurrency", *read}):
            raise ValueError(f"the kind {self.kind!r} does not read {ignored}; it reads {list(read)}")
        if self.kind == "openai_compatible" and self.base_url is not None:
            _base(self.base_url)
        if self.api_key_env is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("headers: 'Authorization' is made from 'api_key_env'; leave one of both out")
        return self


class VariantConfig(_Section):
    """A variant of a model: a separate arm that shares the model's correction, and what its answers cost and take."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")
    """Suffix of the arm's name: `MODEL#NAME`."""
    prefix: str = ""
    """Prepended to the caller's system prompt, which takes precedence."""
    params: dict[str, Any] = Field(default={})
    """Defaults for sampling options that the caller omits."""


class HostConfig(_Section):
    """A further host of a model: an arm that shares its quality, and has a price and a latency of its own."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,30}$")
    """Suffix of the arm's name: `MODEL#host-NAME`."""
    provider: str
    """Key of the provider under `providers`."""
    target: str = ""
    """The provider's name for the model; that of the model if empty."""
    prices: PricesConfig = PricesConfig()
    """Required as those of the model are, which they do not follow."""


class CheckConfig(_Section):
    """What checks the answers of a model, one of three; see [Cascades](routing.md#cascades)."""

    model_config = pydantic.ConfigDict(validate_by_name=True)  # as a dump of the settings has it

    command: tuple[str, ...] = ()
    """Program, with arguments: it reads `{"messages", "message"}` as JSON, and ends with 1 for an answer that fails."""
    json_schema: dict[str, Any] | Literal["request"] | None = Field(default=None, alias="schema")
    """JSON schema of the answer's content, or `request` for the one of the request's own `response_format`."""
    judge: str = ""
    """Name of a judge of `scorer.models`. It judges all of these answers, whatever its `sample`."""
    least: float = Field(default=0.0, ge=-1, le=1)
    """judge: lowest mean verdict that passes, from −1 (against all its principles) to 1 (follows all)."""

    @pydantic.model_validator(mode="after")
    def _one(self) -> CheckConfig:
        given = [bool(self.command), self.json_schema is not None, bool(self.judge)]
        if given.count(True) != 1:
            raise ValueError("a check is one of 'command', 'schema' and 'judge'")
        if self.least and not self.judge:
            raise ValueError("least: only a 'judge' gives verdicts")
        if self.json_schema is not None:
            require("jsonschema", "a check by a schema")
            if isinstance(self.json_schema, dict) and (wrong := fault(self.json_schema)):
                raise ValueError(f"schema: it is no JSON schema: {wrong}")
        return self

    @property
    def made(self) -> Check:
        """As the card of the model has it."""
        schema = self.json_schema
        return Check(
            command=self.command,
            schema=schema if isinstance(schema, dict) else {},
            of_request=schema == "request",
            judge=self.judge,
            least=self.least,
        )


class ModelConfig(_Section):
    """A model that can be chosen."""

    name: str = Field(min_length=1, max_length=200)
    """Name in requests, logs and reports."""
    provider: str
    """Key of the provider under `providers`."""
    target: str = ""
    """The provider's name for the model; `name` if empty."""
    prices: PricesConfig = PricesConfig()
    """A model without a price is weighed at the highest input and output prices that are configured, in decisions and
    budgets; where none is configured, its cost is not weighed. Hard limits exclude it. Sums of money leave it out and
    say so."""
    context_window: int = Field(default=128_000, gt=0)
    """Tokens of prompt and answer together."""
    capabilities: tuple[Capability, ...] = ("streaming", "tools", "json")
    """Features the model supports; requests that need others exclude it."""
    revision: str = ""
    """A new revision is a new arm that starts from the previous posterior with wider variances."""
    parameters: tuple[str, ...] | None = None
    """Supported request parameters, if they differ from those its provider is known to support."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Limit of an answer, if the model has one."""
    cache_discount: Fraction | None = None
    """Another way to give `prices.cache_read`: the fraction of the input price that it saves."""
    effort: tuple[Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"], ...] = ()
    """Levels of effort that are tried, each as an arm `MODEL#effort-LEVEL` with cost, latency and quality of its own. A
    request that names an effort excludes the others. With `variants` at most four."""
    hosts: tuple[HostConfig, ...] = Field(default=(), max_length=4)
    """Further hosts of the same model."""
    check: CheckConfig | None = None
    """What its answers have to pass, else they count as not given, so that another model is drawn; a list is a
    `command`. See [Cascades](routing.md#cascades)."""
    variants: tuple[VariantConfig, ...] = Field(default=(), max_length=4)

    @pydantic.field_validator("check", mode="before")
    @classmethod
    def _command(cls, check: Any) -> Any:
        return {"command": check} if isinstance(check, list | tuple) else check

    @pydantic.model_validator(mode="after")
    def _one_price_of_reads(self) -> ModelConfig:
        if self.cache_discount is not None and self.prices.cache_read is not None:
            raise ValueError("cache_discount: 'prices' have 'cache_read', which says the same; leave one of both out")
        return self

    def cards(self) -> list[tuple[ModelCard, bool]]:
        """The model's card, and those of its further hosts; each with whether its prices are known."""
        plain = self.card()
        found = [(plain, self.prices.known)]
        for host in self.hosts:
            card = msgspec.structs.replace(
                plain,
                provider=host.provider,
                target=host.target or plain.target,
                prices=host.prices.prices(),
                variants=(),
                effort=(),
                variant=Variant(name=f"host-{host.name}"),
            )
            found.append((card, host.prices.known))
        return found

    def card(self) -> ModelCard:
        """The model card of these settings."""
        prices = self.prices.prices()
        if self.cache_discount is not None:
            prices = msgspec.structs.replace(prices, cache_read=prices.input * (1.0 - self.cache_discount))
        return ModelCard(
            name=self.name,
            provider=self.provider,
            target=self.target or self.name,
            prices=prices,
            context_window=self.context_window,
            capabilities=tuple(sorted(self.capabilities)),
            revision=self.revision,
            parameters=self.parameters,
            max_output_tokens=self.max_output_tokens,
            effort=self.effort,
            check=self.check.made if self.check else None,
            variants=tuple(Variant(name=v.name, prefix=v.prefix, params=v.params) for v in self.variants),
        )


class AddedProviderConfig(_Section):
    """The server of a model that was added at run time, where none of `providers` is meant."""

    kind: Literal["openai_compatible"]
    """Other kinds are configured in the file: they read files, or send keys of the environment by themselves."""
    base_url: str = Field(min_length=1, max_length=2000)
    """The URL up to and including /v1."""
    api_key_env: str | None = Field(default=None, max_length=200)
    """Name of the environment variable with the API key, never the key."""
    concurrency: int = Field(default=256, ge=1, le=100_000)
    """Calls at a time, in each worker."""

    @pydantic.field_validator("base_url")
    @classmethod
    def _web(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            named = bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise ValueError(f"got {url!r}; it is no URL") from None
        if parts.scheme not in {"http", "https"} or not named or parts.query or parts.fragment:
            raise ValueError(f"got {url!r}; give an http or https URL up to and including /v1")
        if parts.username or parts.password:
            raise ValueError("it contains a user or password; name the key's environment variable as 'api_key_env'")
        return _base(url)


class ModelAddition(_Section):
    """A model that is added at run time (`POST /v1/models`)."""

    model: ModelConfig
    provider: AddedProviderConfig | None = None
    """Its own server; None for the provider of `providers` that the model names."""

    @pydantic.field_validator("model")
    @classmethod
    def _runs_nothing(cls, model: ModelConfig) -> ModelConfig:
        if model.check:
            raise ValueError("check: programs, schemas and judges are named in the configuration file only")
        return model

    @property
    def record(self) -> dict[str, Any]:
        """Return this addition as JSON values, which `read_addition` parses."""
        return self.model_dump(mode="json", exclude_unset=True)


class EmbeddingConfig(_Section):
    """A model for `/v1/embeddings`. It is never routed to, and nothing is learnt of it."""

    name: str = Field(min_length=1, max_length=200)
    """Name in requests and logs."""
    provider: str
    """Key of a provider of kind `openai_compatible`."""
    target: str = ""
    """The provider's name for the model; `name` if empty."""
    price: float = Field(ge=0)
    """USD per million tokens."""

"""Settings of fitrouter.yaml, validated with messages that name the remedy."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Hashable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
import pydantic
import yaml
from pydantic import Field
from pydantic_core import PydanticCustomError

from fitrouter import policies
from fitrouter.errors import ConfigError
from fitrouter.types import ModelCard, Prices, Variant

Capability = Literal["streaming", "tools", "json", "images", "audio", "files", "video"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
_LONGEST_TEXT, _LONGEST_ADDITION = 200, 16_000
"""Characters of a text, and of all, of a model that is added at run time."""


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
    """The same, where they are kept for an hour; by default the price of writing."""
    reasoning: float | None = Field(default=None, ge=0)
    """USD per million tokens of hidden reasoning; by default the output price."""
    audio_input: float | None = Field(default=None, ge=0)
    """USD per million audio tokens of the prompt; by default the input price."""
    audio_output: float | None = Field(default=None, ge=0)
    """USD per million audio tokens of the answer; by default the output price."""
    request: float = Field(default=0.0, ge=0)
    """USD per call, besides its tokens."""

    def prices(self) -> Prices:
        """The prices of these settings."""
        return Prices(**self.model_dump(), known=self.known)

    @property
    def known(self) -> bool:
        """Whether both prices are given; a model that costs nothing has `{input: 0, output: 0}`."""
        return {"input", "output"} <= self.model_fields_set


_ENDPOINT = re.compile(r".*(?:/completions|/responses|/embeddings|/messages|/v1/chat|/v1/models)/*")
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
_FURTHER_KINDS = "fitrouter.providers"
"""Group of entry points: kind → class of a provider with `from_settings`."""


def is_endpoint(url: str) -> bool:
    """Return whether a URL is that of one endpoint, where the base URL of all is meant."""
    return _ENDPOINT.fullmatch(url.split("?")[0]) is not None


def _base(url: str) -> str:
    if is_endpoint(url):
        raise ValueError(f"base_url: {url!r} is the URL of one endpoint; give the URL up to and including /v1")
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
    NO_PROXY) but for loopback addresses; litellm uses the environment's in any case."""
    ca_file: Path | None = None
    """openai_compatible: PEM file of the certificate authorities to trust, beside those of the system."""
    concurrency: int = Field(default=256, ge=1)
    """Calls at a time, in each worker. Further ones wait up to `server.wait_s`, then another model is tried."""
    options: dict[str, Any] = {}
    """litellm: parameters of every call (api_version, organization, vertex_project, aws_region_name …). recorded:
    `match`, either `exact`, or `inside` when agents wrap prompts in instructions of their own. simulated: model name →
    the options of its texts, below."""

    @pydantic.field_validator("kind")
    @classmethod
    def _exists(cls, kind: str) -> str:
        if kind not in _READ and kind not in (further := metadata.entry_points(group=_FURTHER_KINDS).names):
            allowed = ", ".join(repr(name) for name in sorted({*_READ, *further}))
            raise PydanticCustomError("literal_error", "Input should be one of {allowed}", {"allowed": allowed})
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
    """A variant of a model: a separate arm that shares the model's correction and cost."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")
    """Suffix of the arm's name: `MODEL#NAME`."""
    prefix: str = ""
    """Prepended to the caller's system prompt, which takes precedence."""
    params: dict[str, Any] = {}
    """Defaults for sampling options that the caller omits."""


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
    variants: tuple[VariantConfig, ...] = Field(default=(), max_length=4)

    @pydantic.model_validator(mode="after")
    def _one_price_of_reads(self) -> ModelConfig:
        if self.cache_discount is not None and self.prices.cache_read is not None:
            raise ValueError("cache_discount: 'prices' have 'cache_read', which says the same; leave one of both out")
        return self

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

    @property
    def record(self) -> dict[str, Any]:
        """Return this addition as JSON values, which `read_addition` parses."""
        return self.model_dump(mode="json", exclude_unset=True)


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
    if len(json.dumps(addition.record)) > _LONGEST_ADDITION:
        raise ConfigError(f"the model takes more than {_LONGEST_ADDITION} characters of JSON; shorten its variants")
    return addition


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


class _Algorithm(_Section):
    """Algorithm and parameters of a policy: the live one, or a shadow candidate whose pmf every decision logs."""

    algorithm: str = "squarecb"
    """squarecb, linear_thompson, softmax, epsilon_greedy, uniform or fixed; linucb in shadow only; or one that is
    installed as an entry point `fitrouter.policies`."""


if TYPE_CHECKING:
    CandidateConfig = _Algorithm
else:  # the parameters are those that the policies declare
    CandidateConfig = pydantic.create_model(
        "CandidateConfig",
        __base__=_Algorithm,
        __module__=__name__,
        __doc__=_Algorithm.__doc__,
        **policies.as_fields(),
    )


class PolicyConfig(CandidateConfig, _Section):
    """Policy settings: the algorithm and its exploration."""

    floor: Fraction = 0.05
    """Exploration floor: every eligible model keeps a probability of at least floor / K."""
    uniform_slice: Fraction = 0.0
    """Share of the traffic routed uniformly, for estimators that need it."""
    friction: Fraction = 0.0
    """Share of the traffic spread over the models that are good for everybody, whatever a person's taste: answers from
    outside the bubble. What it costs is in `fitrouter exposure`."""
    newcomer_floor: Fraction = 0.25
    """Exploration share of new models: on every eligible request until `newcomer_pulls` calls, then until
    `newcomer_labels` labels only where their mean + 1 sd exceeds the best mean."""
    newcomer_pulls: int = Field(default=20, ge=0)
    """Calls for which a new model has the raised floor on every eligible request."""
    newcomer_labels: int = Field(default=60, ge=0)
    """Labels until which it keeps the raised floor on requests where it may be the best."""
    personal: bool = True
    """False ignores user and role terms."""
    pooling: Literal["none", "shared"] = "none"
    """What tenants learn from each other. `none`: nothing; no request, vote or report of one changes a decision of
    another. `shared`: each other tenant's model places up to 2 % of a tenant's traffic, less with its own labels."""
    base_delta: float | None = Field(default=None, gt=0, lt=1)
    """Quality floor: models that fail labels of the dimension `base` more often are excluded; the best one never is."""
    impersonal_roles: tuple[str, ...] = ()
    """Roles whose requests are never personalised."""
    sensitive_roles: tuple[str, ...] = ()
    """Roles in which a user's own terms start with almost no weight, until labels in such roles show that they help."""
    high_stakes_roles: tuple[str, ...] = ()
    """Roles whose requests are personalised only after `fitrouter audit` has passed for them and the present models."""
    prior: Path | None = None
    """Prior of the models, a file made by `fitrouter train policy`."""
    candidates: dict[str, CandidateConfig] = {}
    """Shadow policies by name; `fitrouter policy promote NAME` makes one live."""


class TenantBudgetConfig(_Section):
    """Spending limits of a tenant. The dual variable λ, rating per USD, rises while spending is above the limit."""

    usd_per_request: float | None = Field(default=None, gt=0)
    """Limit of the mean cost per request."""
    usd_per_period: float | None = Field(default=None, gt=0)
    """Limit of the cost per period. With `hard`, every call reserves what it may cost at most first, also of a named
    model; a request that what is left does not cover is limited to it, waits for it, or gets a 402. See
    [Hard limits](deployment.md#hard-limits)."""
    min_answer_tokens: int = Field(default=256, ge=1)
    """Where a hard limit, also one of a key, does not cover an answer, `max_tokens` is lowered to this at the least."""
    period_s: float = Field(default=86_400.0, gt=0)
    """Length of a period in seconds."""
    usd_per_request_max: float | None = Field(default=None, gt=0)
    """Models with a higher expected cost are excluded, and refused by name; the cheapest never is."""
    hard: bool = True
    """False: only λ steers; no model is excluded and no request refused by the budget. A hard limit excludes models
    without a price."""


class BudgetConfig(TenantBudgetConfig):
    """The budget of every tenant, with overrides per tenant."""

    tenants: dict[str, TenantBudgetConfig] = {}


class SessionConfig(_Section):
    """Session settings: how long a session stays on its model."""

    redraw_every: int = Field(default=8, ge=0)
    """User turns between redraws; 0 redraws only when the model fails or is no longer eligible."""
    consistency: float = Field(default=0.02, ge=0)
    """Cost of switching models within a session, in rating, besides the lost prompt cache."""
    idle_s: float = Field(default=3600.0, gt=0)
    """Seconds of silence after which a session starts anew."""
    kept: int = Field(default=4096, ge=1, le=100_000)
    """Sessions that are remembered for each tenant, the last used; each takes up to 300 bytes of every snapshot.
    `fitrouter_session_memory_seconds` below `idle_s` means there are more: their next turn may change the model."""


class ObjectiveConfig(_Section):
    """Trade-off between predicted rating, cost and latency."""

    cost_weight: float = Field(default=0.0, ge=0)
    """Rating given up to save one `cost_unit_usd`."""
    cost_unit_usd: float = Field(default=0.01, gt=0)
    """USD that cost `cost_weight` of fit."""
    latency_weight: float = Field(default=0.0, ge=0)
    """Rating given up to save one `latency_unit_s`."""
    latency_unit_s: float = Field(default=10.0, gt=0)
    """Seconds that cost `latency_weight` of fit."""


class FeedbackConfig(_Section):
    """Feedback settings."""

    ask: float = Field(default=0.02, ge=0.0, le=0.05)
    """Share of the answers for which feedback is solicited."""
    votes_per_day: int = Field(default=3, ge=1)
    """Votes per user, model and day that count towards pooled terms; the user's own terms use all votes."""
    votes_per_tenant: int = Field(default=100, ge=1)
    """Without effect since `policy.pooling` bounds what tenants learn from each other."""
    require_token: bool = False
    """Whether feedback needs the token of the answer (`fitrouter.token`), except with admin keys. If not, it needs the
    token or the name of the user."""
    token_valid_s: float = Field(default=2_592_000.0, gt=0)
    """Seconds for which the token of an answer is valid."""
    scale: tuple[float, float] | None = None
    """Lowest and highest value of ratings that name no scale, such as `[1, 5]`. Without it such ratings are from 0 to
    1, and those of Python's `rate` from 1 to 5."""
    implicit: bool = True
    """Whether remarks in passing ("shorter, please") about the previous answer teach the user's own taste."""

    @pydantic.field_validator("scale")
    @classmethod
    def _ordered(cls, scale: tuple[float, float] | None) -> tuple[float, float] | None:
        if scale is not None and scale[0] >= scale[1]:
            raise ValueError(f"got {list(scale)}; give the lowest value, then the highest, such as [1, 5]")
        return scale


class RewardModelConfig(_Section):
    """A reward model that scores every answer; its outputs are response features `rm.NAME.DIMENSION`, never labels."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """Name in features, metrics and messages."""
    kind: Literal["sequence_classification", "embedding", "judge"]
    """A Hugging Face model with a reward head; a model's embedding times a learnt basis; or an LLM that judges
    principles."""
    model: str = Field(min_length=1)
    """Folder (with a leading `.`, `~` or `/`, or relative to this file) or hub id; judge: the provider's model name."""
    dimensions: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")], ...] = ()
    """sequence_classification: names of the outputs; by default those in the model's own configuration."""
    head: str = ""
    """sequence_classification: name of the linear reward layer in the checkpoint, where the architecture has another
    one; needs `dimensions`."""
    basis: Path | None = None
    """embedding: file made by `fitrouter train basis`."""
    max_tokens: int = Field(default=4096, ge=32)
    """Tokens of prompt and answer that the model reads; the middle of longer ones is left out."""
    batch_tokens: int = Field(default=16_384, ge=32)
    """Tokens per forward pass, padding included; halved when the device runs out of memory."""
    compile: bool | None = None
    """sequence_classification: compile the model with torch; by default on cuda only."""
    provider: str | None = None
    """judge: key of the provider under `providers`."""
    prices: PricesConfig = PricesConfig()
    """judge: USD per million tokens, for `usd_per_day`."""
    principles: dict[str, tuple[Annotated[str, Field(min_length=1, max_length=500)], ...]] = {}
    """judge: role → what its people want of answers, in words; `*` is everybody."""
    sample: Fraction = 0.05
    """judge: share of the answers that are judged."""
    usd_per_day: float = Field(default=1.0, ge=0)
    """judge: limit of the cost per day (UTC)."""
    timeout_s: float = Field(default=20.0, gt=0)
    """judge: seconds for a call."""
    send_text: bool = False
    """judge: must be true, since prompts and answers are sent to `provider`."""

    @pydantic.model_validator(mode="after")
    def _complete(self) -> RewardModelConfig:
        if self.kind == "embedding" and self.basis is None:
            raise ValueError(f"{self.name!r} has no 'basis'; `fitrouter train basis` makes the file")
        if self.head and not self.dimensions:
            raise ValueError(f"{self.name!r} has the head {self.head!r}; list the names of its outputs as 'dimensions'")
        if self.kind == "judge" and not (self.provider and self.principles):
            raise ValueError(f"{self.name!r} is a judge; give it a 'provider' and 'principles' by role")
        if self.kind == "judge" and not self.send_text:
            raise ValueError(
                f"{self.name!r} would send prompts and answers to the provider {self.provider!r}; "
                f"allow it with 'send_text: true', or remove the judge"
            )
        if len(set(self.dimensions)) < len(self.dimensions):
            raise ValueError(f"{self.name!r} has the dimensions {list(self.dimensions)}; names must be unique")
        return self


class ScorerConfig(_Section):
    """Scoring of answers. `encoder`: static, hashing, minilm, none, or any sentence-transformers name."""

    encoder: str = "static"
    """Encoder of answers: static, hashing, minilm, minilm-int8, or a sentence-transformers name."""
    prior: str = "shipped"
    """Prior of the tastes: shipped, none, or a file made by `fitrouter train prior`."""
    batch: int = Field(default=512, ge=1)
    """Maximum answers per scoring batch; batches are smaller when few answers wait or a step runs long."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the encoder and of reward models."""
    models: tuple[RewardModelConfig, ...] = ()
    """Reward models beside the built-in features; a change of the list starts new tastes."""


class QuizConfig(_Section):
    """The quiz that finds a person's model and style from a few comparisons (`fitrouter quiz`, `POST /v1/quiz`)."""

    answers: Path | None = None
    """Recorded answers, a Parquet or JSONL file with the columns prompt, model, response; by default those of
    `fitrouter quiz --ask` in `data`, else those of a `recorded` provider."""
    questions: int = Field(default=10, ge=1, le=50)
    """Maximum number of questions."""
    sure: float = Field(default=0.9, gt=0.5, lt=1.0)
    """Probability of the best model at which the quiz stops."""


class KeyConfig(_Section):
    """An API key (`Authorization: Bearer …`) and its tenant."""

    name: str
    """Name of the key in messages."""
    tenant: str = "default"
    """Tenant of requests with this key."""
    key_env: str
    """Name of the environment variable with the key."""
    admin: bool = False
    """Whether the key may change the policy (`POST /v1/policy`) and read `/metrics`, both of all tenants: with several
    tenants, only a key that names no `tenant` may."""
    metrics: bool = False
    """Whether the key may read `/metrics`, which cover all tenants."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Requests of the key in each worker, at most a minute's worth at once; beyond that 429 with Retry-After."""
    usd_per_day: float | None = Field(default=None, gt=0)
    """What the calls of the key may cost per day (UTC). Each reserves its expected cost first; beyond that 429."""
    trusted: bool = False
    """Whether the key speaks for all users of its tenant: its feedback may leave out the user, and the outcomes and
    observations that it reports teach what all its users share, such as availability and latency."""


class AdditionsConfig(_Section):
    """Addresses and variables that a model added at run time may use."""

    private_addresses: bool = False
    """Whether its `base_url` may be on this machine or in a private network."""
    key_envs: tuple[str, ...] = ()
    """Environment variables that its `api_key_env` may name."""


class ServerConfig(_Section):
    """Address, keys and limits of the gateway."""

    host: str = "127.0.0.1"
    """Address to listen on; other addresses than loopback need `keys`."""
    port: int = Field(default=8484, ge=0, le=65535)
    """Port; 0 takes a free one."""
    keys: tuple[KeyConfig, ...] = ()
    """API keys of the clients, beside those of `fitrouter keys`."""
    deadline_s: float = Field(default=120.0, gt=0)
    """Seconds for a whole answer, or until a stream begins, all attempts together; a stream that flows goes on."""
    first_token_s: float = Field(default=30.0, gt=0)
    """Seconds of silence that a model has until its first token; comments of its server begin them anew."""
    chunk_gap_s: float = Field(default=30.0, gt=0)
    """Seconds of silence between two chunks of a stream."""
    access_log: Literal["text", "json"] | None = None
    """Write a line for each request to standard output: method, path, status, time, and ids of request and decision."""
    max_requests: int = Field(default=2000, ge=1)
    """Requests in progress in each worker; fewer while its event loop falls behind. Others get 503 with Retry-After."""
    wait_s: float = Field(default=5.0, ge=0)
    """Seconds that a request waits for a provider that is at its `concurrency`; no timer of a model includes them."""
    tenant_share: float = Field(default=0.75, gt=0, le=1)
    """With keys of several tenants: share of a provider's `concurrency`, and of `max_requests`, that one may hold."""
    retry_share: float = Field(default=0.5, ge=0)
    """Retry budget: calls to a provider that has already failed the same request, for each other call of it."""
    max_body_bytes: int = Field(default=10_000_000, gt=0)
    """Largest request body."""
    people_in_memory: int = Field(default=20_000, ge=100)
    """Users whose learnt preferences a worker keeps in memory: those used last. Others are in a file in `data`."""
    max_inflight_bytes: int = Field(default=256_000_000, gt=0)
    """Memory that the bodies of all requests in flight may take in a worker; a tenant may use half of it."""
    cors: tuple[str, ...] = Field(default=(), max_length=100)
    """Origins of pages in browsers that may use the models and send feedback, such as `https://app.example.com`; none
    by default. Pages of other origins can read nothing, and without `keys` they are refused."""
    additions: AdditionsConfig = AdditionsConfig()
    """Limits of models that an administrator adds at run time."""

    @pydantic.field_validator("cors")
    @classmethod
    def _exact(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+", origin):
                raise ValueError(
                    f"{origin!r} is no origin; give scheme://host, in lower case, with a port if it has one"
                )
        return origins


class RayReplicasConfig(_Section):
    """Replicas of one kind; Ray starts more of them up to `max`, and fewer down to `min`."""

    min: int = Field(default=1, ge=1, le=1000)
    """Replicas that always run."""
    max: int | None = Field(default=None, ge=1, le=1000)
    """Most replicas; as many as `min` if it is left out."""
    cpus: float = Field(default=1.0, ge=0, le=1024)
    """CPUs that Ray reserves for each."""

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> RayReplicasConfig:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max is {self.max}, below min, which is {self.min}; give {self.min} or more")
        return self

    @property
    def most(self) -> int:
        """The largest number of replicas."""
        return self.min if self.max is None else self.max


class WarehouseConfig(_Section):
    """The tables of the log as Parquet files in a folder or a bucket, see [warehouse.md](warehouse.md#segments)."""

    segments: str | None = None
    """Place of the files: a folder, or `s3://BUCKET/PREFIX`, which needs the extra `s3`; none by default. Keys, region
    and endpoint come from the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
    `AWS_ENDPOINT_URL`."""
    every_s: float = Field(default=600.0, ge=1.0, le=86_400.0)
    """Age in seconds at which an event is written there."""
    days: float | None = Field(default=None, gt=0.0, le=36_500.0)
    """Days after which the rows of requests are deleted there, whole files at a time; all stay by default."""
    local_days: float | None = Field(default=None, gt=0.0, le=36_500.0)
    """Days after which the rows of requests leave `fitrouter.duckdb`, if they are in the files; all stay by default."""

    @pydantic.field_validator("segments")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        return None if value is None else segments_place(value)

    @pydantic.model_validator(mode="after")
    def _placed(self) -> WarehouseConfig:
        fields = type(self).model_fields
        given = sorted(name for name in self.model_fields_set if getattr(self, name) != fields[name].default)
        if self.segments is None and given:
            raise ValueError(f"{given} need 'segments', the place of the files")
        return self


_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9._-]{1,253}[a-z0-9](/[^?#@]*)?")


def segments_place(value: str) -> str:
    """Validate a place of segments: a folder or the URL of a bucket.

    Raises:
        ValueError: it is neither. The message does not have the value, which may have a password in it.
    """
    if not value.strip() or ("://" in value and not _BUCKET.fullmatch(value)):
        raise ValueError(
            "it must be a folder or s3://BUCKET/PREFIX; keys and endpoint are no part of it, but come from "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL in the environment"
        )
    return value.rstrip("/") or "/"


class RayGatewaysConfig(RayReplicasConfig):
    """Replicas of the gateway."""

    requests: float = Field(default=64.0, gt=0)
    """Requests in progress in each gateway that Ray aims at."""


class RayScorersConfig(RayReplicasConfig):
    """Replicas that compute response features for the scorer."""

    gpus: float = Field(default=0.0, ge=0, le=16)
    """GPUs that Ray reserves for each; 1 for reward models on a GPU."""
    lag_s: float = Field(default=5.0, gt=0)
    """Age of the oldest answer without a score, in seconds, that Ray aims at."""


class RayConfig(_Section):
    """Replicas under Ray Serve (`fitrouter deploy ray`); everything else is as on one machine."""

    gateways: RayGatewaysConfig = RayGatewaysConfig(min=2)
    scorers: RayScorersConfig = RayScorersConfig()
    up_s: float = Field(default=15.0, ge=0, le=3600)
    """Seconds for which more replicas must be wanted before Ray starts them."""
    down_s: float = Field(default=300.0, ge=0, le=86_400)
    """Seconds for which fewer must be wanted before Ray stops them."""


_DATABASES = ("postgresql://", "postgres://")
_DECIDES = ("policy", "objective", "budget", "session", "share", "default_model", "encoder", "droppable")


class Config(_Section):
    """All settings; every setting except `models` and `providers` has a default."""

    data: Path = Path("fitrouter-data")
    """Folder of the journal, the identities and the warehouse. Or the URL of a PostgreSQL database for the journal and
    the identities, `postgresql://USER@HOST/NAME`; everything else is in `folder` then."""
    identities: str | None = None
    """URL with which the identities are reached if `data` is a URL: with a role of its own, which alone can tell who
    the users are. `data` by default."""
    folder: Path | None = None
    """Folder of what stays on this machine if `data` is a URL; `fitrouter-data` by default."""
    content: Literal["none", "encrypted", "plain"] = "none"
    """Whether the last user message of a request and its answer are kept in `data`: not at all; encrypted under a key
    per user, which an erasure deletes; or as plain text."""
    content_days: float = Field(default=30.0, gt=0.0, le=36_500.0)
    """Days after which kept contents are deleted."""
    journal_days: float | None = Field(default=None, gt=0.0, le=36_500.0)
    """Days after which events leave the journal and the warehouse for Parquet files in `data`, from which learning and
    replay still read them; all stay by default."""
    providers: dict[str, ProviderConfig]
    models: tuple[ModelConfig, ...] = Field(min_length=1)
    embeddings: tuple[EmbeddingConfig, ...] = ()
    default_model: str | None = None
    """Model that receives the traffic outside of `share`; required if `share` is below 1."""
    share: Fraction = 1.0
    """Share of the traffic routed by the policy; the rest goes to `default_model`."""
    aliases: dict[str, str] = {}
    """Further names that a request may use, for a model or for `fitrouter/auto`."""
    encoder: str = "static"
    """Encoder of prompts."""
    droppable: tuple[str, ...] = ()
    """Request parameters that are dropped where unsupported; other unsupported parameters exclude the model."""
    policy: PolicyConfig = PolicyConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    budget: BudgetConfig | None = None
    session: SessionConfig = SessionConfig()
    feedback: FeedbackConfig = FeedbackConfig()
    scorer: ScorerConfig = ScorerConfig()
    quiz: QuizConfig = QuizConfig()
    server: ServerConfig = ServerConfig()
    warehouse: WarehouseConfig = WarehouseConfig()
    ray: RayConfig | None = None
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the draws."""

    _database: str = pydantic.PrivateAttr(default="")
    _identities: str = pydantic.PrivateAttr(default="")

    @property
    def database(self) -> str:
        """URL of the journal's database, which may contain a password; empty if the journal is a file.

        `data` is always a folder.
        """
        return self._database

    @property
    def identities_database(self) -> str:
        """URL given for the identities, which may contain a password; empty if none was given.

        `identities` is None then.
        """
        return self._identities

    def as_json(self) -> dict[str, Any]:
        """Return the settings as `parse_config` reads them, in another process too; they may contain a password."""
        found = self.model_dump(mode="json")
        if self._database:
            found |= {"data": self._database, "identities": self._identities or None, "folder": str(self.data)}
        return found

    def in_folder(self, folder: Path) -> Config:
        """Return a copy of the settings with all stores in another folder."""
        moved = self.model_copy(update={"data": folder, "warehouse": WarehouseConfig()})
        moved._database = moved._identities = ""
        return moved

    def journal_file(self) -> Path:
        """Path of the journal's file, which may not exist yet.

        Raises:
            ConfigError: it is in a database.
        """
        if self._database:
            raise ConfigError(
                "the journal is in a database, and this reads files only; copy it to one: "
                "`fitrouter journal copy postgresql://… FILE`"
            )
        return self.data / "journal.db"

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _located(cls, value: Any, handler: pydantic.ModelWrapValidatorHandler[Config]) -> Config:
        """Split a database URL in `data` from the folder, so that `data` is always a folder."""
        url = value.get("data") if isinstance(value, Mapping) else None
        who = value.get("identities") if isinstance(value, Mapping) else None
        if not (isinstance(url, str) and url.startswith(_DATABASES)):
            found = handler(value)
            if found.folder is not None and not found._database:
                raise ValueError("folder: only if 'data' is the URL of a database; else 'data' is the folder")
            if who is not None:
                raise ValueError("identities: only if 'data' is the URL of a database; else they are in its folder")
            return found
        if who is not None and not (isinstance(who, str) and who.startswith(_DATABASES)):
            raise ValueError("identities: give the URL of a database, postgresql://USER@HOST/NAME, or leave it out")
        given = {**value, "data": value.get("folder") or cls.model_fields["data"].default, "identities": None}
        found = handler(given)
        found._database, found._identities = url, who or ""
        return found

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Config:
        self._check()
        return self

    def _check(self) -> None:
        if self.journal_days is not None and self.folder is not None:
            raise ValueError("journal_days: events stay in a database; leave it out")
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models: {name!r} is listed {names.count(name)} times; names must be unique")
            if name.startswith("fitrouter/"):
                raise ValueError(f"models: the name {name!r} is reserved; names must not start with 'fitrouter/'")
        for model in self.models:
            ways = [variant.name for variant in model.variants]
            if len(set(ways)) < len(ways):
                raise ValueError(f"models: the variants of {model.name!r} are {ways}; names must be unique")
            if model.provider not in self.providers:
                raise ValueError(
                    f"models: {model.name!r} uses the unknown provider {model.provider!r}; "
                    f"configured are {sorted(self.providers)}. Add it under 'providers' or correct the name"
                )
        for embedding in self.embeddings:
            if [*names, *(other.name for other in self.embeddings)].count(embedding.name) > 1:
                raise ValueError(f"embeddings: the name {embedding.name!r} is taken; names must be unique")
            reached = self.providers.get(embedding.provider)
            if reached is None or reached.kind != "openai_compatible":
                able = sorted(name for name, it in self.providers.items() if it.kind == "openai_compatible")
                raise ValueError(
                    f"embeddings: {embedding.name!r} uses the provider {embedding.provider!r}; "
                    f"allowed are those of kind 'openai_compatible', which are {able}"
                )
        if self.default_model is not None and self.default_model not in names:
            raise ValueError(f"default_model: {self.default_model!r} is not a configured model; configured are {names}")
        if self.share < 1.0 and self.default_model is None:
            raise ValueError(
                f"share: {self.share} needs a 'default_model' for the other {1 - self.share:.0%} of the traffic"
            )
        scorers = [model.name for model in self.scorer.models]
        if len(set(scorers)) < len(scorers):
            raise ValueError(f"scorer.models: the names are {scorers}; they must be unique")
        for judge in self.scorer.models:
            if judge.kind == "judge" and judge.provider not in self.providers:
                raise ValueError(
                    f"scorer.models: {judge.name!r} uses the unknown provider {judge.provider!r}; "
                    f"configured are {sorted(self.providers)}"
                )
        for alias, target in self.aliases.items():
            if "*" in alias:
                raise ValueError(f"aliases: {alias!r} is no pattern but a name; list each name")
            if alias in names or alias.startswith("fitrouter/") or alias in {each.name for each in self.embeddings}:
                raise ValueError(f"aliases: {alias!r} is the name of a model already; a request would reach only one")
            if target != "fitrouter/auto" and target not in names:
                raise ValueError(f"aliases: {alias!r} points to {target!r}; allowed are 'fitrouter/auto' and {names}")

    def with_model(self, addition: ModelAddition) -> Config:
        """Return a copy of the settings with one more model, added at run time.

        Raises:
            ConfigError: its name is taken or reserved, or its provider is unknown.
        """
        model, providers = addition.model, dict(self.providers)
        taken = [*(known.name for known in self.models), *(known.name for known in self.embeddings), *self.aliases]
        if model.name in taken:
            raise ConfigError(
                f"name: {model.name!r} is taken; choose another one, or set a new revision where the model is defined"
            )
        if addition.provider is not None:
            if model.provider in providers:
                raise ConfigError(f"provider: {model.provider!r} is taken by the configuration; choose another name")
            providers[model.provider] = ProviderConfig(**addition.provider.model_dump())
        found = self.model_copy(update={"models": (*self.models, model), "providers": providers})
        try:
            found._check()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return found

    def unpriced(self) -> tuple[str, ...]:
        """Names of the models that cost money and have no price; simulated and recorded ones are free."""
        paid = {"litellm", "openai_compatible"}
        return tuple(m.name for m in self.models if self.providers[m.provider].kind in paid and not m.prices.known)

    def money_matters(self) -> bool:
        """Whether prices affect decisions, through a budget or a cost weight."""
        return self.budget is not None or self.objective.cost_weight > 0

    def cards(self) -> tuple[ModelCard, ...]:
        """Return the cards of all models; an unknown price counts as the highest known one, so that none seems free."""
        known = [model.prices for model in self.models if model.prices.known]
        most = [max((getattr(price, way) for price in known), default=0.0) for way in ("input", "output")]
        assumed, unpriced = Prices(input=most[0], output=most[1], known=False), self.unpriced()
        cards = [(model.card(), model.name in unpriced) for model in self.models]
        return tuple(
            msgspec.structs.replace(
                card, prices=assumed if missing else msgspec.structs.replace(card.prices, known=True)
            )
            for card, missing in cards
        )

    def hash(self) -> str:
        """Hash of the settings that decisions depend on, as sixteen hex digits."""
        relevant = self.model_dump(mode="json", include={*_DECIDES})
        return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:16]


def _explain(root: type[pydantic.BaseModel], error: pydantic.ValidationError, source: str) -> str:
    lines = [f"{source} is invalid:"]
    errors = error.errors()
    for item in errors:
        if item["type"] == "too_short" and any(len(each["loc"]) > len(item["loc"]) for each in errors):
            continue  # it counts only entries that are valid
        where = ".".join(str(part) for part in item["loc"]) or "the file"
        line = f"  {where}: {item['msg'].removeprefix('Value error, ')}"
        if item["type"] in {"model_type", "dict_type"}:
            line = f"  {where}: Input should be settings, each as `name: value`"
        if item["type"] == "extra_forbidden":
            allowed = _fields_at(root, item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), allowed, n=1)
            line = f"  {where}: unknown setting" + (f"; did you mean {near[0]!r}?" if near else "")
            line += f" Allowed here: {', '.join(sorted(allowed))}."
        elif item["type"] not in {"missing", "value_error"}:
            line += f"; got {item['input']!r}"
            if item["type"] == "literal_error":
                allowed = re.findall("'([^']*)'", item["msg"])
                near = difflib.get_close_matches(str(item["input"]), allowed, n=1, cutoff=0.4)
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
    return list(root.model_fields)


_MOST_VALUES, _DEEPEST = 100_000, 64


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


def load_yaml(text: str) -> Any:
    """Read a YAML file that a person wrote.

    Raises:
        yaml.YAMLError: it is not valid, or a mapping has a key twice.
    """
    try:
        found = yaml.load(text, _Once)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    left, inside = _MOST_VALUES, [(found, 0)]
    while inside:
        item, depth = inside.pop()
        left -= 1
        if left < 0 or depth > _DEEPEST:
            text = f"it has more than {_MOST_VALUES} values, or more than {_DEEPEST} levels"
            raise yaml.YAMLError(f"{text}; an alias counts as all that it stands for")
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
    warehouse = config.warehouse
    if warehouse.segments is not None and "://" not in warehouse.segments:
        warehouse = warehouse.model_copy(update={"segments": str(root / Path(warehouse.segments).expanduser())})
    return config.model_copy(update={"scorer": scorer, "warehouse": warehouse})


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
    if model.kind == "judge":
        return model
    path = root / Path(model.model).expanduser()
    local = model.model.startswith((".", "/", "~")) or path.is_dir()
    return model.model_copy(update={"model": str(path)}) if local else model

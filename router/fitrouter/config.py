"""fitrouter.yaml: what can be set, and messages that explain mistakes."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import Field

from fitrouter.errors import ConfigError
from fitrouter.types import ModelCard, Prices, Variant

Capability = Literal["streaming", "tools", "json", "images", "audio", "files", "video"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class PricesConfig(_Section):
    """USD per million tokens."""

    input: float = Field(default=0.0, ge=0)
    output: float = Field(default=0.0, ge=0)


class ProviderConfig(_Section):
    """Who answers. `litellm` reaches any provider; `openai_compatible` speaks HTTP itself and is lighter."""

    kind: Literal["litellm", "openai_compatible", "recorded", "simulated"]
    base_url: str | None = None
    """openai_compatible: the URL up to and including /v1."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; keys themselves never stand in the file."""
    path: Path | None = None
    """recorded: a Parquet or JSONL file with the columns prompt, model, response."""
    options: dict[str, Any] = {}
    """simulated: name → knobs of a `Persona`: length, bullets, warmth, latency_s, failure, skill …; recorded: `match`,
    `exact` or, where agents wrap prompts into instructions of their own, `inside`."""


class VariantConfig(_Section):
    """A further way of asking a model: an arm of its own that shares how right the model is and what it costs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")
    prefix: str = ""
    """Goes in front of the caller's system text, which has the last word."""
    params: dict[str, Any] = {}
    """Sampling options where the caller gives none."""


class ModelConfig(_Section):
    """One model that can be chosen."""

    name: str = Field(min_length=1, max_length=200)
    provider: str
    target: str = ""
    prices: PricesConfig = PricesConfig()
    context_window: int = Field(default=128_000, gt=0)
    capabilities: tuple[Capability, ...] = ("streaming", "tools", "json")
    revision: str = ""
    """A new revision is a new arm: it starts from what was known of the last one, held less firmly."""
    parameters: tuple[str, ...] | None = None
    """Request parameters that it takes, where that is not what its provider is known to take."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    cache_discount: Fraction = 0.5
    """Share of the input price that a cached prompt saves."""
    variants: tuple[VariantConfig, ...] = Field(default=(), max_length=4)

    def card(self) -> ModelCard:
        """The value that the router works with."""
        return ModelCard(
            name=self.name,
            provider=self.provider,
            target=self.target or self.name,
            prices=Prices(input=self.prices.input, output=self.prices.output),
            context_window=self.context_window,
            capabilities=tuple(sorted(self.capabilities)),
            revision=self.revision,
            parameters=self.parameters,
            max_output_tokens=self.max_output_tokens,
            cache_discount=self.cache_discount,
            variants=tuple(Variant(name=v.name, prefix=v.prefix, params=v.params) for v in self.variants),
        )


class CandidateConfig(_Section):
    """A policy that decides (`policy`), or one in shadow whose pmf every decision logs beside the live one."""

    algorithm: str = "squarecb"
    gamma: float = Field(default=2560.0, gt=0)
    """squarecb: how fast probability falls with a gap."""
    scale: float = Field(default=0.3, gt=0)
    """linear_thompson: of every standard deviation."""
    temperature: float = Field(default=0.02, gt=0)
    """softmax: in fit."""
    epsilon: Fraction = 0.05
    """epsilon_greedy: share of the traffic that is spread evenly."""
    alpha: float = Field(default=1.0, gt=0)
    """linucb, in shadow only: standard deviations above the mean."""


class PolicyConfig(CandidateConfig):
    """How beliefs become probabilities."""

    floor: Fraction = 0.05
    """Every eligible model keeps floor / K."""
    uniform_slice: Fraction = 0.0
    """Share of the traffic that is routed uniformly, for estimators that need it."""
    newcomer_floor: Fraction = 0.25
    """Share of the traffic of models that join others: for `newcomer_pulls` requests, then until `newcomer_labels`
    labels wherever they may be the best."""
    newcomer_pulls: int = Field(default=20, ge=0)
    newcomer_labels: int = Field(default=60, ge=0)
    personal: bool = True
    """False leaves out the terms of the user and the role."""
    base_delta: float | None = Field(default=None, gt=0, lt=1)
    """Models whose answers fail labels of the dimension `base` more often are excluded; the safest never is."""
    impersonal_roles: tuple[str, ...] = ()
    """Roles in whose service nobody's taste counts."""
    sensitive_roles: tuple[str, ...] = ()
    """Roles in whose service a taste counts only as far as labels show that it belongs there."""
    prior: Path | None = None
    """A file that `fitrouter train policy` made: what is believed of models before the first label."""
    candidates: dict[str, CandidateConfig] = {}
    """Policies in shadow, by name; `fitrouter policy promote NAME` makes one live."""


class TenantBudgetConfig(_Section):
    """What a tenant may spend. λ, the price of cost in fit, rises while more is spent and falls while less is."""

    usd_per_request: float | None = Field(default=None, gt=0)
    """Ceiling of the mean cost of a request."""
    usd_per_period: float | None = Field(default=None, gt=0)
    """Ceiling of what a period costs."""
    period_s: float = Field(default=86_400.0, gt=0)
    usd_per_request_max: float | None = Field(default=None, gt=0)
    """Models whose answer is expected to cost more are excluded; the cheapest never is."""
    hard: bool = True
    """False: λ alone steers, and nothing is excluded."""


class BudgetConfig(TenantBudgetConfig):
    """The budget of every tenant, and those of some."""

    tenants: dict[str, TenantBudgetConfig] = {}


class SessionConfig(_Section):
    """How long a conversation stays on its model."""

    redraw_every: int = Field(default=8, ge=0)
    """A session is drawn again after so many user turns; 0: only where its model fails or can no longer take it."""
    consistency: float = Field(default=0.02, ge=0)
    """Fit that it costs to hear another model in the middle of a conversation, beside the lost prompt cache."""
    idle_s: float = Field(default=3600.0, gt=0)
    """A session that was silent for longer begins anew."""


class ObjectiveConfig(_Section):
    """What a point of fit is worth against money and time."""

    cost_weight: float = Field(default=0.0, ge=0)
    """Fit that one `cost_unit_usd` costs."""
    cost_unit_usd: float = Field(default=0.01, gt=0)
    latency_weight: float = Field(default=0.0, ge=0)
    """Fit that one `latency_unit_s` costs."""
    latency_unit_s: float = Field(default=10.0, gt=0)


class FeedbackConfig(_Section):
    """How people are heard."""

    ask: float = Field(default=0.02, ge=0.0, le=0.05)
    """Share of the answers for which feedback is solicited."""
    votes_per_day: int = Field(default=3, ge=1)
    """Votes of one user on one model and day that count for others; the user's own taste takes all."""


class ScorerConfig(_Section):
    """How answers are read. `encoder`: static, hashing, minilm, or any sentence-transformers name."""

    encoder: str = "static"
    prior: str = "shipped"
    """What is believed of tastes before the first label: shipped, none, or a file that `fitrouter train prior` made."""
    batch: int = Field(default=512, ge=1)
    """Answers that a step takes at most; it takes fewer while it waits for little or runs long."""
    device: Literal["auto", "cpu", "cuda"] = "auto"


class KeyConfig(_Section):
    """A key that clients send as `Authorization: Bearer …`, and the tenant it stands for."""

    name: str
    tenant: str = "default"
    key_env: str
    """Name of the environment variable that holds the key."""
    admin: bool = False
    """Whether it may change the policy (`POST /v1/policy`)."""


class ServerConfig(_Section):
    """Where the gateway listens, and its limits."""

    host: str = "127.0.0.1"
    port: int = Field(default=8484, ge=0, le=65535)
    keys: tuple[KeyConfig, ...] = ()
    deadline_s: float = Field(default=120.0, gt=0)
    first_token_s: float = Field(default=30.0, gt=0)
    chunk_gap_s: float = Field(default=30.0, gt=0)
    max_body_bytes: int = Field(default=10_000_000, gt=0)


_DECIDES = ("policy", "objective", "budget", "session", "share", "default_model", "encoder", "droppable")


class Config(_Section):
    """All settings; every one but `models` and `providers` has a default."""

    data: Path = Path("fitrouter-data")
    """Folder of the journal, the identities and the warehouse."""
    providers: dict[str, ProviderConfig]
    models: tuple[ModelConfig, ...] = Field(min_length=1)
    default_model: str | None = None
    share: Fraction = 1.0
    """Share of the traffic that the policy routes; the rest goes to `default_model`."""
    aliases: dict[str, str] = {}
    encoder: str = "static"
    """Encoder of prompts."""
    droppable: tuple[str, ...] = ()
    """Request parameters that are left out for models that do not take them; others exclude the model."""
    policy: PolicyConfig = PolicyConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    budget: BudgetConfig | None = None
    session: SessionConfig = SessionConfig()
    feedback: FeedbackConfig = FeedbackConfig()
    scorer: ScorerConfig = ScorerConfig()
    server: ServerConfig = ServerConfig()
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Installation seed of the draws."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Config:
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models: {name!r} is listed {names.count(name)} times; names must differ")
            if name.startswith("fitrouter/"):
                raise ValueError(f"models: the name {name!r} is reserved; names must not begin with 'fitrouter/'")
        for model in self.models:
            ways = [variant.name for variant in model.variants]
            if len(set(ways)) < len(ways):
                raise ValueError(f"models: the variants of {model.name!r} are {ways}; their names must differ")
            if model.provider not in self.providers:
                raise ValueError(
                    f"models: {model.name!r} names the provider {model.provider!r}; "
                    f"known are {sorted(self.providers)}. Add it under 'providers' or correct the name"
                )
        if self.default_model is not None and self.default_model not in names:
            raise ValueError(f"default_model: {self.default_model!r} is no model; models are {names}")
        if self.share < 1.0 and self.default_model is None:
            raise ValueError(
                f"share: {self.share} needs a 'default_model' that takes the other {1 - self.share:.0%} of the traffic"
            )
        for alias, target in self.aliases.items():
            if target != "fitrouter/auto" and target not in names:
                raise ValueError(f"aliases: {alias!r} leads to {target!r}; allowed are 'fitrouter/auto' and {names}")
        return self

    def hash(self) -> str:
        """Sixteen hex digits that change with any setting that a decision depends on."""
        relevant = self.model_dump(mode="json", include={*_DECIDES})
        return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:16]


def _explain(error: pydantic.ValidationError, source: str) -> str:
    lines = [f"{source} cannot be used:"]
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "the file"
        line = f"  {where}: {item['msg'].removeprefix('Value error, ')}"
        if item["type"] == "extra_forbidden":
            allowed = _fields_at(item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), allowed, n=1)
            line = f"  {where}: there is no such setting" + (f"; did you mean {near[0]!r}?" if near else "")
            line += f" Allowed here: {', '.join(sorted(allowed))}."
        elif item["type"] not in {"missing", "value_error"}:
            line += f"; given was {item['input']!r}"
        lines.append(line)
    return "\n".join(lines)


def _fields_at(loc: tuple[int | str, ...]) -> list[str]:
    """Names of the settings that exist at a place in the file."""
    sections: dict[str, type[_Section]] = {
        "providers": ProviderConfig,
        "models": ModelConfig,
        "prices": PricesConfig,
        "variants": VariantConfig,
        "policy": PolicyConfig,
        "candidates": CandidateConfig,
        "budget": BudgetConfig,
        "tenants": TenantBudgetConfig,
        "session": SessionConfig,
        "objective": ObjectiveConfig,
        "feedback": FeedbackConfig,
        "scorer": ScorerConfig,
        "server": ServerConfig,
        "keys": KeyConfig,
    }
    names = [part for part in loc if isinstance(part, str) and part in sections]
    return list((sections[names[-1]] if names else Config).model_fields)


def parse_config(data: object, source: str = "the configuration") -> Config:
    """Validate settings that were read from anywhere.

    Raises:
        ConfigError: with every mistake, its place, and what is allowed there.
    """
    try:
        return Config.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(error, source)) from None


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read fitrouter.yaml. Relative paths inside it are relative to its folder.

    Raises:
        ConfigError: the file is missing, is no YAML, or holds a setting that cannot be used.
    """
    file = Path(path)
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"there is no file {str(path)!r}; `fitrouter init` writes one") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid YAML: {error}") from None
    config = parse_config(data, f"{str(path)!r}")
    root = file.resolve().parent
    if config.policy.prior is not None:
        policy = config.policy.model_copy(update={"prior": root / config.policy.prior})
        config = config.model_copy(update={"policy": policy})
    if config.scorer.prior not in {"shipped", "none"}:
        scorer = config.scorer.model_copy(update={"prior": str(root / config.scorer.prior)})
        config = config.model_copy(update={"scorer": scorer})
    providers = {
        name: provider.model_copy(update={"path": root / provider.path}) if provider.path else provider
        for name, provider in config.providers.items()
    }
    return config.model_copy(update={"data": root / config.data, "providers": providers})

"""All settings together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import pydantic
from pydantic import Field

from fitrouter.config._models import EmbeddingConfig, ModelAddition, ModelConfig, ProviderConfig
from fitrouter.config._policy import BudgetConfig, FeedbackConfig, ObjectiveConfig, PolicyConfig, SessionConfig
from fitrouter.config._scoring import QuizConfig, ScorerConfig
from fitrouter.config._section import Fraction, _Section
from fitrouter.config._server import ColdConfig, RayConfig, ServerConfig
from fitrouter.errors import ConfigError
from fitrouter.types import ModelCard, Prices

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
    providers: dict[str, ProviderConfig]
    models: tuple[ModelConfig, ...] = Field(min_length=1)
    embeddings: tuple[EmbeddingConfig, ...] = ()
    default_model: str | None = None
    """Model that receives the traffic outside of `share`; required if `share` is below 1."""
    share: Fraction = 1.0
    """Share of the traffic routed by the policy; the rest goes to `default_model`."""
    aliases: dict[str, str] = Field(default={})
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
    cold: ColdConfig = ColdConfig()
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
        moved = self.model_copy(update={"data": folder, "cold": ColdConfig()})
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
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models: {name!r} is listed {names.count(name)} times; names must be unique")
            if "*" in name:
                raise ValueError(f"models: {name!r} is no pattern but a name; list each model")
            if name.startswith("fitrouter/"):
                raise ValueError(f"models: the name {name!r} is reserved; names must not start with 'fitrouter/'")
        for model in self.models:
            ways = [variant.name for variant in model.variants]
            if len(set(ways)) < len(ways):
                raise ValueError(f"models: the variants of {model.name!r} are {ways}; names must be unique")
            hosts = [host.name for host in model.hosts]
            if len(set(hosts)) < len(hosts):
                raise ValueError(f"models: the hosts of {model.name!r} are {hosts}; names must be unique")
            for host in model.hosts:
                if host.provider not in self.providers:
                    raise ValueError(
                        f"models: the host {host.name!r} of {model.name!r} uses the unknown provider "
                        f"{host.provider!r}; configured are {sorted(self.providers)}"
                    )
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
        judges = [model.name for model in self.scorer.models if model.kind == "judge"]
        for model in self.models:
            if model.check is not None and model.check.judge and model.check.judge not in judges:
                raise ValueError(
                    f"models: the check of {model.name!r} names the judge {model.check.judge!r}; "
                    f"those of 'scorer.models' are {judges}"
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
        """Names of the models without prices; one that costs nothing, whatever its provider, has prices of 0."""
        return tuple(model.name for model in self.models if not all(known for _, known in model.cards()))

    def money_matters(self) -> bool:
        """Whether prices affect decisions, through a budget or a cost weight."""
        return self.budget is not None or self.objective.cost_weight > 0

    def cards(self) -> tuple[ModelCard, ...]:
        """Return the cards of all models; an unknown price counts as the highest known one, so that none seems free."""
        known = [model.prices for model in self.models if model.prices.known]
        most = [max((getattr(price, way) for price in known), default=0.0) for way in ("input", "output")]
        assumed, unpriced = Prices(input=most[0], output=most[1], known=False), self.unpriced()
        cards = [
            (card, model.name in unpriced and not priced) for model in self.models for card, priced in model.cards()
        ]
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

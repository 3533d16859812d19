"""Settings of the reward models and the quiz."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from fitrouter.config._models import PricesConfig
from fitrouter.config._section import Fraction, _Section


class RewardModelConfig(_Section):
    """A reward model that scores every answer; its outputs are response features `rm.NAME.DIMENSION`, never labels."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """Name in features, metrics and messages."""
    kind: Literal["sequence_classification", "embedding", "judge", "function", "http"]
    """A Hugging Face model with a reward head; a model's embedding times a learnt basis; an LLM that judges
    principles; or a metric of your own: a Python function or an HTTP endpoint."""
    model: str = ""
    """Folder (with a leading `.`, `~` or `/`, or relative to this file) or hub id; judge: the provider's model name."""
    function: str = ""
    """function: `MODULE:FUNCTION`, called with prompt and answer; it returns a number."""
    url: str = ""
    """http: where prompts and answers are posted as JSON."""
    api_key_env: str | None = None
    """http: environment variable with the key, sent as a bearer token."""
    private_addresses: bool = False
    """http: whether `url` may be on this machine or in a private network."""
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
    principles: dict[str, tuple[Annotated[str, Field(min_length=1, max_length=500)], ...]] = Field(default={})
    """judge: role → what its people want of answers, in words; `*` is everybody."""
    weights: dict[str, Annotated[float, Field(ge=0, le=100)]] = Field(default={})
    """judge, function, http: role → weight in the mean of these that its people are assumed to want before they vote;
    `*` is everybody. A change starts new tastes from it."""
    sample: Fraction = 0.05
    """judge: share of the answers that are judged."""
    usd_per_day: float = Field(default=1.0, ge=0)
    """judge: limit of the cost per day (UTC)."""
    timeout_s: float = Field(default=20.0, gt=0)
    """judge, function, http: seconds for a call, or for a batch of answers."""
    send_text: bool = False
    """judge, http: must be true, since prompts and answers are sent to `provider` or `url`."""

    @property
    def needs_torch(self) -> bool:
        """Whether it is a model whose weights are loaded."""
        return self.kind in {"sequence_classification", "embedding"}

    @pydantic.model_validator(mode="after")
    def _complete(self) -> RewardModelConfig:
        needed = {"function": "function", "http": "url"}.get(self.kind, "model")
        if not getattr(self, needed):
            raise ValueError(f"{self.name!r} is of kind {self.kind!r}; give it {needed!r}")
        if self.kind == "function" and not re.fullmatch(r"[\w.]+:\w+", self.function):
            raise ValueError(f"{self.name!r} has the function {self.function!r}; write MODULE:FUNCTION")
        if self.kind == "http" and not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", self.url):
            raise ValueError(f"{self.name!r} has the url {self.url!r}; give an http or https URL without a password")
        if self.kind == "embedding" and self.basis is None:
            raise ValueError(f"{self.name!r} has no 'basis'; `fitrouter train basis` makes the file")
        if self.head and not self.dimensions:
            raise ValueError(f"{self.name!r} has the head {self.head!r}; list the names of its outputs as 'dimensions'")
        if self.kind == "judge" and not (self.provider and self.principles):
            raise ValueError(f"{self.name!r} is a judge; give it a 'provider' and 'principles' by role")
        if self.kind in {"judge", "http"} and not self.send_text:
            where = f"the provider {self.provider!r}" if self.kind == "judge" else repr(self.url)
            raise ValueError(
                f"{self.name!r} would send prompts and answers to {where}; allow it with 'send_text: true', or "
                "remove it"
            )
        if self.weights and self.needs_torch:
            raise ValueError(f"{self.name!r} has 'weights', which only judges and metrics have; votes weigh models")
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
    """The quiz on a person's model and style (`fitrouter personal quiz`, `POST /v1/quiz`)."""

    answers: Path | None = None
    """Recorded answers, a Parquet or JSONL file with the columns prompt, model, response; by default those of
    `fitrouter personal quiz --ask` in `data`, else those of a `recorded` provider."""
    questions: int = Field(default=12, ge=1, le=50)
    """Maximum number of questions."""
    sure: float = Field(default=0.9, gt=0.5, lt=1.0)
    """Probability of the best model at which the quiz stops."""
    words: int = Field(default=900, ge=50, le=100_000)
    """Most words to read in all; 900 are four minutes."""

"""Settings of the gateway, its keys, the warehouse and Ray."""

from __future__ import annotations

import re
from typing import Literal

import pydantic
from pydantic import Field

from fitrouter.config._section import _Section


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
    tiers: tuple[Literal["quality", "economy"], ...] = ("quality", "economy")
    """Cost tiers that requests of the key may ask for, besides `balanced`."""
    trusted: bool = False
    """Whether the key speaks for all users of its tenant: its feedback may leave out the user, and the outcomes and
    observations that it reports teach what all its users share, such as availability and latency."""


class AdditionsConfig(_Section):
    """Addresses and variables that a model added at run time may use."""

    private_addresses: bool = False
    """Whether its `base_url` may be on this machine or in a private network; checked for each connection."""
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
            if not re.fullmatch(r"(?!https://.*:443$|http://.*:80$)[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+", origin):
                raise ValueError(
                    f"{origin!r} is no origin; give scheme://host, in lower case, with a port if it is not the usual"
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


class ColdConfig(_Section):
    """All events as Parquet files in a folder or a bucket, see [warehouse.md](warehouse.md#cold-store)."""

    place: str | None = None
    """Place of the files: a folder, or `s3://BUCKET/PREFIX`, which needs the extra `s3`; none by default. Keys, region
    and endpoint come from the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
    `AWS_ENDPOINT_URL`."""
    every_s: float = Field(default=600.0, ge=1.0, le=86_400.0)
    """Age in seconds at which an event is written there."""
    days: float | None = Field(default=None, gt=0.0, le=36_500.0)
    """Days after which events leave the journal and `fitrouter.duckdb`; learning and replay read them there. All stay
    by default; a database keeps its events."""
    keep_days: float | None = Field(default=None, gt=0.0, le=36_500.0)
    """Days after which requests, their scores and votes are deleted there; all stay by default."""

    @pydantic.field_validator("place")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        return None if value is None else cold_place(value)

    @pydantic.model_validator(mode="after")
    def _placed(self) -> ColdConfig:
        fields = type(self).model_fields
        given = sorted(name for name in self.model_fields_set if getattr(self, name) != fields[name].default)
        if self.place is None and given:
            raise ValueError(f"{given} need 'place', that of the files")
        return self


_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9._-]{1,253}[a-z0-9](/[^?#@]*)?")


def cold_place(value: str) -> str:
    """Validate a place of a cold store: a folder or the URL of a bucket.

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

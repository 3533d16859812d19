"""What adapters see of a router: whole and streamed answers with what was decided, and verdicts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from fitrouter.router import Router
from fitrouter.serving.external import Outcome, PlannedCall
from fitrouter.types import Chunk, Completion, FeedbackKind, Identity, Message, Request, Usage

Target: TypeAlias = Router | str | os.PathLike[str]
"""A `Router`, the path of a configuration, or the URL of a gateway."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided for a request."""

    decision_id: str
    model: str
    """Who answered."""
    chosen: str
    mode: str
    propensity: float
    logged: bool = True
    asked: bool = False
    """People are to be asked what they think of this answer: only such verdicts are a fair sample."""
    cost_usd: float | None = None
    """None before the end of a stream."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    message: Message
    """The assistant message in the OpenAI format."""
    finish_reason: str
    usage: Usage
    about: About


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may answer, and what it can do; see `fitrouter.ModelCard`."""

    name: str
    context_window: int
    capabilities: tuple[str, ...]
    max_output_tokens: int | None = None
    target: str = ""
    """What its provider calls it; empty where a gateway does not say."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask, in this order, each where the ones before failed; see `fitrouter.serving.external`."""

    about: About
    """What was decided; its model is the first."""
    order: tuple[PlannedCall, ...]
    deadline_s: float
    """Seconds for the whole request."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was decided elsewhere; see `Router.observe`."""

    request: Request
    completion: Completion | None
    """None where it failed."""
    model: str
    """The name of who was asked."""
    cost_usd: float | None = None
    latency_ms: float = 0.0
    error: str | None = None
    """Where it failed, the name of the exception."""


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict on an answer; see `Router.feedback`."""

    decision_id: str
    kind: FeedbackKind
    value: float
    scale: tuple[float, float] = (0.0, 1.0)
    dimension: str = "overall"
    other: str | None = None
    user: str | None = None
    """Who speaks; must be the one that was served, where given."""
    tenant: str = Identity().tenant
    """Of the decision; a gateway knows it by the key."""

    def of(self, tenant: str) -> Vote:
        """The vote as one of an adapter's tenant, where it names none itself."""
        return self if self.tenant != Identity().tenant else msgspec.structs.replace(self, tenant=tenant)


class Streaming(Protocol):
    """A streamed answer whose first piece is there. Iterate it once, or close it; both end the model's work."""

    @property
    def about(self) -> About:
        """What was decided; with its cost once the stream has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def aclose(self) -> None:
        """End it early."""
        ...


class Backend(Protocol):
    """A router, near or far. All methods run on the event loop that `start` ran on."""

    async def start(self) -> None:
        """Make it ready.

        Raises:
            ConfigError: it cannot be.
        """
        ...

    async def aclose(self) -> None:
        """Let go of everything."""
        ...

    async def models(self) -> tuple[Model, ...]:
        """The models that may answer."""
        ...

    async def complete(self, request: Request) -> Reply:
        """Answer a request whole. Raises what `Router.complete` raises."""
        ...

    async def stream(self, request: Request) -> Streaming:
        """Answer a request piece by piece; returns with the first piece."""
        ...

    async def decide(self, request: Request) -> Plan:
        """Decide and call nobody. Raises what `Router.decide` raises.

        Raises:
            ConfigError: the gateway is too old for it.
        """
        ...

    async def report(self, decision_id: str, request: Request, ended: Outcome) -> float:
        """Write down how a plan ended; returns what it cost in USD once that is durable.

        Raises what `Router.report` raises, and ConfigError where the gateway is too old for it.
        """
        ...

    async def observe(self, seen: Seen) -> About:
        """Write down a call that was decided elsewhere. Raises what `Router.observe` raises.

        Raises:
            ConfigError: the gateway is too old for it.
        """
        ...

    async def feedback(self, vote: Vote) -> str:
        """Take a verdict; returns its id once it is durable. Raises what `Router.feedback` raises."""
        ...


def key_of(target: Target) -> str | int:
    """What a target is remembered by."""
    if isinstance(target, Router):
        return id(target)
    text = os.fspath(target)
    return text.rstrip("/") if is_url(text) else str(Path(text).resolve())


def is_url(text: str) -> bool:
    """Whether a target is a gateway's address and no file."""
    return text.startswith(("http://", "https://"))

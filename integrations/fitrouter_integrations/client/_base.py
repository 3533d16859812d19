"""Values that adapters exchange with a router: replies, plans, observations and votes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from fitrouter.router import Router
from fitrouter.serving.external import PlannedCall
from fitrouter.types import Chunk, Completion, FeedbackKind, Identity, Message, Request, Usage

Target: TypeAlias = Router | str | os.PathLike[str]
"""A `Router`, the path of a configuration, or the URL of a gateway."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The decision behind an answer."""

    decision_id: str
    model: str
    """The model that answered."""
    chosen: str
    mode: str
    propensity: float
    logged: bool = True
    asked: bool = False
    """Whether to ask the user for feedback: only solicited votes are an unbiased sample."""
    cost_usd: float | None = None
    """None before the end of a stream, and where no price is known."""
    token: str | None = None
    """Proof for feedback on the answer; from gateways only."""
    dropped: tuple[str, ...] = ()
    """What the model did not get of the request, since it does not support it."""
    max_tokens: int | None = None
    """What the answer was limited to, as a hard limit of money covered no more; None where nothing was lowered."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer (not a stream)."""

    message: Message
    """The assistant message in OpenAI's format."""
    finish_reason: str
    usage: Usage
    about: About
    logprobs: dict[str, Any] | None = None
    """In OpenAI's format, if they were requested."""
    others: tuple[Completion, ...] = ()
    """The choices after the first."""
    further: dict[str, Any] = {}
    """Fields of the provider's that are not OpenAI's, such as citations."""
    beside: dict[str, Any] = {}
    """Those of the choice."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may answer, and its capabilities; see `fitrouter.ModelCard`."""

    name: str
    context_window: int
    capabilities: tuple[str, ...]
    max_output_tokens: int | None = None
    target: str = ""
    """Its name at the provider."""
    revision: str = ""
    input_usd: float | None = None
    """Price of a million prompt tokens; None, like the other, if it is not known."""
    output_usd: float | None = None


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a plan to be looked at can run, with what is expected of it; None where that is not known."""

    model: str
    probability: float | None
    """With which it was drawn, or would have been."""
    rating: float | None
    cost_usd: float | None
    latency_s: float | None


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The models to call, in order, each after the previous one failed; see `fitrouter.serving.external`."""

    about: About
    """The decision; its model is the first one."""
    order: tuple[PlannedCall, ...]
    deadline_s: float
    """Seconds for the whole request."""
    reason: str = ""
    """Of a plan to be looked at: why this model."""
    alternatives: tuple[Alternative, ...] = ()
    """All that it can run, the pick first."""
    expires: float | None = None
    """Seconds since the epoch until which it can be run."""


class ObservedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was decided elsewhere; see `Router.observe`."""

    request: Request
    completion: Completion | None
    """None if it failed."""
    model: str
    """Name of the called model."""
    cost_usd: float | None = None
    latency_ms: float = 0.0
    error: str | None = None
    """Name of the exception, if it failed."""


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """Feedback on an answer; see `Router.feedback`."""

    decision_id: str
    kind: FeedbackKind
    value: float | str
    """"up" and "down" are thumbs, also as ratings."""
    scale: tuple[float, float] | None = None
    """Lowest and highest value of a rating; None for the router's configured scale."""
    default_scale: tuple[float, float] | None = None
    """The same, if none is configured; None for 0 to 1."""
    dimension: str = "overall"
    other: str | None = None
    user: str | None = None
    """Author; must be the user who got the answer, if given."""
    tenant: str = Identity().tenant
    """Of the decision; a gateway takes it from the key."""
    token: str | None = None
    """Of the answer, see `About`. A client knows those of its own last answers."""
    other_token: str | None = None
    """Of the other answer of a pair."""

    def of(self, tenant: str) -> Vote:
        """Return the vote with an adapter's tenant, unless it has its own."""
        return self if self.tenant != Identity().tenant else msgspec.structs.replace(self, tenant=tenant)


class RunVote(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run of an agent; see `fitrouter.serving.runs.Runs.outcome`."""

    run: str
    value: float | bool
    kind: str = "success"
    scale: tuple[float, float] | None = None
    source: str = "check"
    user: str | None = None
    """Whose requests the run's were."""
    key: str = ""
    """Untrusted key that began the run, where another one reports."""
    tenant: str = Identity().tenant
    """Of the run; a gateway takes it from the key."""


class Comment(msgspec.Struct, frozen=True, kw_only=True):
    """A comment on an answer, or a correction of what was understood of one; see `Router.comment`."""

    decision_id: str
    text: str | None = None
    understood: dict[str, float] | None = None
    user: str | None = None
    """Author; must be the user who got the answer, if given."""
    tenant: str = Identity().tenant
    """Of the decision; a gateway takes it from the key."""
    token: str | None = None
    """Of the answer, see `About`."""


class Streaming(Protocol):
    """A streamed answer whose first chunk has arrived. Iterate it once, or close it; both end the model call."""

    @property
    def about(self) -> About:
        """The decision, with its cost once the stream has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def aclose(self) -> None:
        """End the stream early."""
        ...


def key_of(target: Target) -> str | int:
    """Return the key under which the client of a target is shared."""
    if isinstance(target, Router):
        return id(target)
    text = os.fspath(target)
    return text.rstrip("/") if is_url(text) else str(Path(text).resolve())


def is_url(text: str) -> bool:
    """Whether a target is a gateway's URL rather than a file."""
    return text.startswith(("http://", "https://"))

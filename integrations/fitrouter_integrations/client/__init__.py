"""Clients of a router: in process, from a `Router` or a configuration, or over HTTP by a gateway's URL.

`connect` returns a `Client` with blocking and async methods; both work from any thread and inside an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fitrouter_integrations.client._base import (
    About,
    Comment,
    Model,
    ObservedCall,
    Plan,
    Reply,
    RunVote,
    Streaming,
    Target,
    Vote,
)

if TYPE_CHECKING:
    from fitrouter_integrations.client._client import Backend, Client, connect

__all__ = [
    "About",
    "Backend",
    "Client",
    "Comment",
    "Model",
    "ObservedCall",
    "Plan",
    "Reply",
    "RunVote",
    "Streaming",
    "Target",
    "Vote",
    "connect",
]


def __getattr__(name: str) -> Any:
    if name in {"Backend", "Client", "connect"}:  # which the gateway, whose answers are these values, does without
        from fitrouter_integrations.client import _client

        return getattr(_client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Clients of a router: in process, from a `Router` or a configuration, or over HTTP by a gateway's URL.

`connect` returns a `Client` with blocking and async methods; both work from any thread and inside an event loop.
"""

from __future__ import annotations

from fitrouter_integrations.client._base import (
    About,
    Comment,
    Model,
    ObservedCall,
    Plan,
    Reply,
    Streaming,
    Target,
    Vote,
)
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
    "Streaming",
    "Target",
    "Vote",
    "connect",
]

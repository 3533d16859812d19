"""One way to a router for every adapter: in process from a `Router` or a configuration, or a gateway by its URL.

`connect` gives a `Client` with blocking and awaiting methods; both work from any thread and inside an event loop.
"""

from __future__ import annotations

from fitrouter_integrations.client._base import About, Backend, Model, Plan, Reply, Seen, Streaming, Target, Vote
from fitrouter_integrations.client._client import Client, connect

__all__ = ["About", "Backend", "Client", "Model", "Plan", "Reply", "Seen", "Streaming", "Target", "Vote", "connect"]

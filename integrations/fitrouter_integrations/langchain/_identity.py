"""Who asks, as far as LangChain and LangGraph can say it.

Every channel by which people hand identities down is read, the most explicit first: keyword arguments, the runtime
context of LangGraph, `config["metadata"]`, `config["configurable"]`, what the model was made with, and last the names
that frameworks give by themselves (an agent's name is a role, a thread is a session).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from fitrouter.errors import InvalidRequest
from fitrouter.types import Identity

__all__ = ["FIELDS", "KEY", "carried", "identity_of", "named"]

KEY = "fitrouter_identity"
"""Keyword under which an entry point hands down what only it can see."""
FIELDS: dict[str, tuple[str, ...]] = {
    "tenant": ("tenant",),
    "user": ("user", "user_id"),
    "role": ("role",),
    "task": ("task",),
    "session": ("session", "session_id", "thread_id", "conversation_id"),
}
"""Field of `Identity` → its names in every channel, the first that is there wins."""
_GIVEN = {"role": "lc_agent_name"}
"""Field → what LangChain itself puts into a run's metadata."""


def named(channel: object) -> dict[str, str]:
    """What a channel (a mapping, or an object with attributes) says of an identity.

    Raises:
        InvalidRequest: a value is no text.

    >>> named({"user_id": "ann", "thread_id": 7, "locale": "en"})
    {'user': 'ann', 'session': '7'}
    """
    found: dict[str, str] = {}
    for field, names in FIELDS.items():
        for name in names:
            value = channel.get(name) if isinstance(channel, Mapping) else getattr(channel, name, None)
            if value is None:
                continue
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise InvalidRequest(f"{name}: {type(value).__name__} was given as identity; give text")
            found[field] = str(value)
            break
    return found


def carried(config: RunnableConfig | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of an entry point with what its config says; `stream` would lose it.

    Raises:
        InvalidRequest: `metadata` was given as an argument of the call.
    """
    if "metadata" in kwargs:
        raise InvalidRequest(
            "metadata was given as an argument of the call, where LangChain keeps its own; give it in "
            "config={'metadata': {…}}, or name user=, role=, task= or session="
        )
    known = ensure_config(config)
    channels = (known.get("configurable") or {}, known.get("metadata") or {}, kwargs.get(KEY) or {})
    found: dict[str, str] = {}
    for channel in channels:
        found |= named(channel)
    return {**kwargs, KEY: found} if found else kwargs


def identity_of(own: Identity, metadata: Mapping[str, Any] | None, kwargs: Mapping[str, Any]) -> Identity:
    """The identity of one call.

    Args:
        own: what the model was made with.
        metadata: of the run, as callbacks see it.
        kwargs: of the call, with what `carried` put there.
    """
    metadata = metadata or {}
    given = {field: metadata[name] for field, name in _GIVEN.items() if metadata.get(name)}
    configurable = ensure_config().get("configurable") or {}
    made = {field: value for field in FIELDS if (value := getattr(own, field)) and (field, value) != _ANYBODY}
    found = named(given) | made | named(configurable) | named(metadata) | dict(kwargs.get(KEY) or {})
    found = found | named(_context()) | named(kwargs)
    thread = configurable.get("thread_id", metadata.get("thread_id"))
    if thread is not None and found.get("session") == str(thread) and "role" in found:
        found["session"] = f"{thread} {found['role']}"
    return Identity(**found)


_ANYBODY = ("tenant", Identity().tenant)


def _context() -> object:
    """The runtime context of the LangGraph run that this call is in; empty outside of one."""
    if "langgraph" not in sys.modules:
        return {}
    try:
        from langgraph.runtime import get_runtime

        runtime = get_runtime()
    except (ImportError, KeyError, RuntimeError):  # no run, or a LangGraph without contexts
        return {}
    return getattr(runtime, "context", None) or {}

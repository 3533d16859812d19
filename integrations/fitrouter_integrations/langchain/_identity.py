"""The identity of a call, from everything LangChain and LangGraph pass along.

Channels, the most explicit first: keyword arguments, the runtime context of LangGraph, `config["metadata"]`,
`config["configurable"]`, the model's own settings, and last an agent's name, which is a role.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from fitrouter.errors import InvalidRequest
from fitrouter.identity import RUN
from fitrouter.routing.tiers import TIERS
from fitrouter.types import Identity
from fitrouter_integrations._identity import TIER, channel_of, first_said, one_line

KEY = "fitrouter_identity"
"""Keyword under which an entry point passes on what only it can see."""
_AGENT = "lc_agent_name"
"""LangChain's metadata key for the name of an agent."""
_THREAD = "thread_id"


def carried(config: RunnableConfig | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Extend an entry point's keyword arguments by the identity from its config, which `stream` would lose.

    Raises:
        InvalidRequest: `metadata` was passed as an argument of the call.
    """
    if "metadata" in kwargs:
        raise InvalidRequest(
            "metadata was passed as an argument of the call, which LangChain uses itself; pass it in "
            "config={'metadata': {…}}, or pass user=, role=, task= or session="
        )
    # `ensure_config` replaces the metadata of the surrounding run by the call's own; here each field is kept.
    known, around = ensure_config(config), ensure_config()
    metadata, configurable = known.get("metadata") or {}, known.get("configurable") or {}
    outer = (around.get("metadata") or {}, around.get("configurable") or {})
    channels = [*_channels(metadata, configurable, kwargs), *_channels(*outer, {})]
    found: dict[str, Any] = dict(first_said(channels) | first_said(_of_tiers(channels), TIER))
    if (thread := _thread(configurable, metadata, *reversed(outer))) is not None:
        found[_THREAD] = thread
    return {**kwargs, KEY: found} if found else kwargs


def identity_of(own: Identity, metadata: Mapping[str, Any] | None, kwargs: Mapping[str, Any]) -> Identity:
    """Return the identity of one call, merged from all channels.

    Args:
        own: the model's own settings.
        metadata: of the run, as callbacks see it.
        kwargs: of the call, as extended by `carried`.

    Raises:
        InvalidRequest: a channel has an invalid name.
    """
    metadata = metadata or {}
    configurable = ensure_config().get("configurable") or {}
    agent = {"role": one_line(metadata.get(_AGENT) or "")}
    found = first_said([*_channels(metadata, configurable, kwargs), ("", channel_of(own)), ("", agent)])
    thread = _thread(kwargs.get(KEY) or {}, configurable, metadata)
    if thread is not None and found.get("session") == thread and "role" in found:
        # Agents that hand over within a thread each have a session of their own.
        found["session"] = hashlib.sha256(f"{thread}\0{found['role']}".encode()).hexdigest()[:32]
    if around := RUN.get() or thread:
        found.setdefault("run", around)
    return Identity(**found)


def tier_of(own: str, metadata: Mapping[str, Any] | None, kwargs: Mapping[str, Any]) -> str:
    """Return the cost tier of one call, from the same channels; `own` is the model's own setting."""
    configurable = ensure_config().get("configurable") or {}
    channels = [*_channels(metadata or {}, configurable, kwargs), ("", {"tier": own})]
    return first_said(_of_tiers(channels), TIER).get("tier", "")


def _of_tiers(channels: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
    """Leave out what a run's own metadata calls a tier and is none, such as a customer's plan."""
    return [
        (where, channel)
        for where, channel in channels
        if not (isinstance(channel, Mapping) and where.startswith("config.") and channel.get("tier") not in TIERS)
    ]


def _thread(*channels: Mapping[str, Any]) -> str | None:
    """Return the thread id of the first channel that has one."""
    return next((str(channel[_THREAD]) for channel in channels if channel.get(_THREAD) is not None), None)


def _channels(
    metadata: Mapping[str, Any], configurable: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, object]]:
    """List the channels of a call that may hold identity fields, the most explicit first."""
    if metadata.get(_THREAD) == configurable.get(_THREAD):  # LangGraph's own copy, not an explicit value
        metadata = {name: value for name, value in metadata.items() if name != _THREAD}
    return [
        ("", kwargs),
        ("context.", _context()),
        ("", kwargs.get(KEY)),
        ("config.metadata.", metadata),
        ("config.configurable.", configurable),
    ]


def _context() -> object:
    """Return the runtime context of the current LangGraph run, None outside of one."""
    if "langgraph" not in sys.modules:
        return None
    try:
        from langgraph.runtime import get_runtime

        runtime = get_runtime()
    except (ImportError, KeyError, RuntimeError):  # outside of a run, or a LangGraph without contexts
        return None
    return getattr(runtime, "context", None)

"""Who asks, as far as a crew can say it.

The most explicit first: the metadata of fingerprints (the agent's, then the crew's), the inputs of the kickoff, what
the model was made with; and last what a crew says by itself: the agent's role, the task's name, one session for each
run of a task by an agent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fitrouter.errors import InvalidRequest
from fitrouter.types import Identity

__all__ = ["identity_of"]

FIELDS: dict[str, tuple[str, ...]] = {
    "tenant": ("tenant",),
    "user": ("user", "user_id"),
    "role": ("role",),
    "task": ("task",),
    "session": ("session", "session_id", "thread_id", "conversation_id"),
}
"""Field of `Identity` → its names in metadata and inputs, the first that is there wins."""
LONGEST = 120
"""Characters of a task's description that stand for its name."""


def identity_of(own: Identity, task: Any, agent: Any) -> Identity:
    """The identity of one call.

    Args:
        own: what the model was made with.
        task: CrewAI's, or None.
        agent: CrewAI's, or None.

    Raises:
        InvalidRequest: a value in a fingerprint's metadata is no text.
    """
    crew = getattr(agent, "crew", None) or getattr(getattr(task, "agent", None), "crew", None)
    made = {field: value for field in FIELDS if (value := getattr(own, field)) and (field, value) != _ANYBODY}
    found = _by_itself(task, agent, crew) | made | _inputs(crew) | _fingerprint(crew) | _fingerprint(agent)
    return Identity(**found)


_ANYBODY = ("tenant", Identity().tenant)


def _by_itself(task: Any, agent: Any, crew: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    if role := getattr(agent, "role", None):
        found["role"] = str(role)
    if name := getattr(task, "name", None) or str(getattr(task, "description", "") or "")[:LONGEST]:
        found["task"] = str(name)
    # An agent's steps on one task are one conversation; its next task is another.
    parts = [str(getattr(each, "id", "")) for each in (crew, task, agent) if each is not None]
    started = getattr(task, "start_time", None)
    if task is not None and agent is not None:
        found["session"] = hashlib.sha256("\0".join([*parts, str(started)]).encode()).hexdigest()[:32]
    return found


def _fingerprint(holder: Any) -> dict[str, str]:
    fingerprint = getattr(getattr(holder, "security_config", None), "fingerprint", None)
    return _named(getattr(fingerprint, "metadata", None) or {}, "fingerprint")


def _inputs(crew: Any) -> dict[str, str]:
    """Who is named in the inputs of `kickoff`; a crew's own variables are often called role or task, and are left."""
    inputs = getattr(crew, "_inputs", None) or {}
    return _named({name: inputs[name] for name in (*FIELDS["user"], *FIELDS["session"]) if name in inputs}, "inputs")


def _named(channel: Mapping[str, Any], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, names in FIELDS.items():
        for name in names:
            value = channel.get(name)
            if value is None:
                continue
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise InvalidRequest(f"{name}: {type(value).__name__} was given in {where}; give text")
            found[field] = str(value)
            break
    return found

"""Who asks, as far as a crew can say it.

The most explicit first: the metadata of fingerprints (the task's, the agent's, the crew's), the inputs of the kickoff,
what the model was made with; and last what a crew says by itself: the agent's role, the task's name, one session for
each run of a task by an agent.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakValueDictionary

from crewai.events import crewai_event_bus
from crewai.events.event_context import _event_id_stack
from opentelemetry import baggage

from fitrouter.types import Identity
from fitrouter_integrations._identity import FIELDS, first_said, made, short


def identity_of(own: Identity, task: Any, agent: Any) -> Identity:
    """The identity of one call.

    Args:
        own: what the model was made with.
        task: CrewAI's, or None.
        agent: CrewAI's, or None.

    Raises:
        InvalidRequest: what a channel says is no name.
    """
    task, agent = _at_work(task, agent)
    crew = getattr(agent, "crew", None) or getattr(getattr(task, "agent", None), "crew", None) or _running()
    channels = [
        *(("fingerprint.", _fingerprint(holder)) for holder in (task, agent, crew)),
        ("inputs.", _inputs(crew)),
        ("", made(own)),
        ("", _by_itself(task, agent, crew)),
    ]
    return Identity(**first_said(channels))


_WORK = "agent_execution_started"
"""How the kinds of event end with which an agent begins to work."""
_agents: WeakValueDictionary[str, Any] = WeakValueDictionary()
_tasks: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Who has asked for what since such an event, by its id."""


def _at_work(task: Any, agent: Any) -> tuple[Any, Any]:
    """The task and the agent of a call. Last words and typed values of an agent are asked for without naming it."""
    began = next((event for event, kind in reversed(_event_id_stack.get()) if kind.endswith(_WORK)), None)
    if began is None:
        return task, agent
    if agent is not None:
        _agents[began] = agent
    if task is not None:
        _tasks[began] = task
    return _tasks.get(began), _agents.get(began)


def _running() -> Any:
    """The crew that is being kicked off here; its planner and its guardrails belong to none."""
    context, state = baggage.get_baggage("crew_context"), crewai_event_bus.runtime_state
    if context is None or state is None:
        return None
    crew_id = getattr(context, "id", None)
    return next((each for each in reversed(state.root) if str(getattr(each, "id", None)) == crew_id), None)


def _by_itself(task: Any, agent: Any, crew: Any) -> dict[str, str]:
    found = {
        "role": short(getattr(agent, "role", None) or ""),
        "task": short(getattr(task, "name", None) or getattr(task, "description", None) or ""),
    }
    # An agent's steps on one task are one conversation; its next task is another.
    parts = [str(getattr(each, "id", "")) for each in (crew, task, agent) if each is not None]
    started = getattr(task, "start_time", None)
    if task is not None and agent is not None:
        found["session"] = hashlib.sha256("\0".join([*parts, str(started)]).encode()).hexdigest()[:32]
    return found


def _fingerprint(holder: Any) -> Any:
    return getattr(getattr(getattr(holder, "security_config", None), "fingerprint", None), "metadata", None)


def _inputs(crew: Any) -> dict[str, Any]:
    """Who is named in the inputs of `kickoff`; a crew's own variables are often called role or task, and are left."""
    inputs = getattr(crew, "_inputs", None) or {}
    return {name: inputs[name] for name in (*FIELDS["user"], *FIELDS["session"]) if name in inputs}

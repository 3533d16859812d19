"""The identity of a call within a crew.

Channels, the most explicit first: metadata of fingerprints (the task's, the agent's, the crew's), inputs of the
kickoff, the LLM's own settings, and defaults from the crew itself: the agent's role, the task's name, one session for
each run of a task by an agent, and one run for each kickoff.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakValueDictionary

from crewai.events import crewai_event_bus
from crewai.events.event_context import _event_id_stack
from opentelemetry import baggage

from fitrouter.identity import RUN
from fitrouter.types import Identity
from fitrouter_integrations._identity import FIELDS, TIER, channel_of, first_said, one_line


def identity_of(own: Identity, task: Any, agent: Any) -> Identity:
    """Return the identity of one call.

    Args:
        own: the LLM's own settings.
        task: CrewAI's, or None.
        agent: CrewAI's, or None.

    Raises:
        InvalidRequest: a channel has an invalid name.
    """
    task, agent, crew = _of_call(task, agent)
    channels = [
        *(("fingerprint.", _fingerprint(holder)) for holder in (task, agent, crew)),
        ("inputs.", _inputs(crew)),
        ("", channel_of(own)),
        ("", _defaults(task, agent, crew)),
    ]
    return Identity(**first_said(channels))


def tier_of(own: str, task: Any, agent: Any) -> str:
    """Return the cost tier of one call: that of a fingerprint, else the LLM's own."""
    channels = [("fingerprint.", _fingerprint(holder)) for holder in _of_call(task, agent)]
    return first_said([*channels, ("", {"tier": own})], TIER).get("tier", "")


def _of_call(task: Any, agent: Any) -> tuple[Any, Any, Any]:
    """Return the task, agent and crew of a call."""
    task, agent = _at_work(task, agent)
    crew = getattr(agent, "crew", None) or getattr(getattr(task, "agent", None), "crew", None) or _running()
    return task, agent, crew


_WORK = "agent_execution_started"
"""Suffix of the event types with which an agent starts to work."""
_agents: WeakValueDictionary[str, Any] = WeakValueDictionary()
_tasks: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The agent and task of the calls since such an event, by its id."""


def _at_work(task: Any, agent: Any) -> tuple[Any, Any]:
    """Return the task and agent of a call, also where CrewAI does not name them (final answers, conversions)."""
    began = next((event for event, kind in reversed(_event_id_stack.get()) if kind.endswith(_WORK)), None)
    if began is None:
        return task, agent
    if agent is not None:
        _agents[began] = agent
    if task is not None:
        _tasks[began] = task
    return _tasks.get(began), _agents.get(began)


def kickoff_here() -> str | None:
    """Return the id of the event with which the crew that calls here began, None outside of one."""
    return next((event for event, kind in reversed(_event_id_stack.get()) if kind == "crew_kickoff_started"), None)


def _running() -> Any:
    """Return the crew that is running here; planners and guardrails do not belong to one themselves."""
    context, state = baggage.get_baggage("crew_context"), crewai_event_bus.runtime_state
    if context is None or state is None:
        return None
    crew_id = getattr(context, "id", None)
    return next((each for each in reversed(state.root) if str(getattr(each, "id", None)) == crew_id), None)


def _defaults(task: Any, agent: Any, crew: Any) -> dict[str, str]:
    found = {
        # Without the inputs of a kickoff, which are users' words; for the same reason no description is a name.
        "role": one_line(getattr(agent, "_original_role", None) or getattr(agent, "role", None) or ""),
        "task": one_line(getattr(task, "name", None) or ""),
    }
    # An agent's steps on one task are one session.
    parts = [str(getattr(each, "id", "")) for each in (crew, task, agent) if each is not None]
    started = getattr(task, "start_time", None)
    if run := RUN.get() or kickoff_here():
        found["run"] = run
    if task is not None and agent is not None:
        found["session"] = hashlib.sha256("\0".join([*parts, str(started)]).encode()).hexdigest()[:32]
    return found


def _fingerprint(holder: Any) -> Any:
    return getattr(getattr(getattr(holder, "security_config", None), "fingerprint", None), "metadata", None)


def _inputs(crew: Any) -> dict[str, Any]:
    """Return who and what run in the inputs of `kickoff`; a crew's own variables are often called role or task."""
    inputs = getattr(crew, "_inputs", None) or {}
    return {name: inputs[name] for name in (*FIELDS["user"], *FIELDS["session"], "run_id") if name in inputs}

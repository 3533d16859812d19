"""Feedback from the events of a crew: guardrails, tasks, tools, and people's answers.

CrewAI's event bus calls listeners later and in other threads, when an agent may already have made another call. So
every decision is noted with its time in the thread of its call, and an event concerns the last decision before it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from crewai.core.providers.human_input import get_provider, set_provider
from crewai.events import BaseEventListener, crewai_event_bus
from crewai.events.base_events import BaseEvent
from crewai.events.event_bus import CrewAIEventsBus, is_replaying
from crewai.events.types.crew_events import CrewKickoffCompletedEvent, CrewKickoffFailedEvent
from crewai.events.types.flow_events import HumanFeedbackRequestedEvent, MethodExecutionFinishedEvent
from crewai.events.types.llm_guardrail_events import LLMGuardrailCompletedEvent
from crewai.events.types.task_events import TaskCompletedEvent, TaskFailedEvent
from crewai.events.types.tool_usage_events import (
    ToolSelectionErrorEvent,
    ToolUsageErrorEvent,
    ToolUsageFinishedEvent,
    ToolValidateInputErrorEvent,
)

from fitrouter.errors import ConfigError, in_words
from fitrouter.posterior.tastes import OVERALL
from fitrouter.state.quality_floor import BASE
from fitrouter.types import FeedbackKind
from fitrouter_integrations.client import About, Vote
from fitrouter_integrations.crewai._human import ReportingProvider
from fitrouter_integrations.crewai._identity import kickoff_here
from fitrouter_integrations.crewai._llm import FitrouterLLM, watchers
from fitrouter_integrations.feedback import TOOLS, outcome, send

_KEPT = 64
"""Decisions kept per agent for later events."""
_AGENTS = 4096
"""Maximum number of agents and open human reviews; the oldest are dropped."""

_log = logging.getLogger(__name__)


class _Decided:
    """A decision with its time, task and model."""

    __slots__ = ("broken", "decision_id", "kickoff", "llm", "task", "when")

    def __init__(self, llm: FitrouterLLM, about: About, task: Any) -> None:
        self.when, self.llm, self.decision_id = datetime.now(UTC), llm, about.decision_id
        self.task = None if task is None else str(task.id)
        self.kickoff = kickoff_here()
        self.broken = False
        """One of its tool calls failed."""


class FitrouterSignals(BaseEventListener):
    """Turns guardrails, tasks, tools and people's answers into feedback, from its creation until `close`.

        signals = FitrouterSignals()

    - a guardrail rejects an answer: `accept` 0, and a `thumb` 0 in the dimension `base`; it passes: 1 and 1
    - a task fails: `accept` 0 and `base` 0 of its last answer; it is completed: `base` 1
    - a tool call of an answer fails: `thumb` 0 in the dimension `tools`; all succeed: 1
    - a person (`human_input=True`) requests changes: `regenerate` 1; accepts the answer: `accept` 1
    - a person answers in a flow (`@human_feedback(emit=…)`): `thumb` of the previous answer, by `outcomes`

    - a kickoff fails: the outcome of its run is a failure, as an adapter's report; it completes: what `check` says of
      its output, as a check's

    It covers every `FitrouterLLM` of this process and never fails a crew: votes that were not recorded are logged, and
    counted in `lost`.

    Args:
        outcomes: outcomes of `@human_feedback(emit=…)` as 0 (down) or 1 (up); others are ignored.
        check: judges the output of a kickoff: true or false, or a number from 0 to 1; None for no outcome.
        human: include people who are asked in this thread (context) and those that it starts.

    Raises:
        ConfigError: an outcome has another value.
    """

    def __init__(
        self,
        outcomes: Mapping[str, float] | None = None,
        *,
        check: Callable[[Any], bool | float | None] | None = None,
        human: bool = True,
    ) -> None:
        self._outcomes = dict(outcomes or {})
        if wrong := {name: value for name, value in self._outcomes.items() if value not in {0, 1}}:
            raise ConfigError(f"outcomes: got {wrong}; give 0 (down) or 1 (up), or leave the outcome out")
        self._check = check
        self._trail: dict[str, deque[_Decided]] = {}
        self._looked_at: dict[tuple[int, str], _Decided] = {}
        """(flow, its method) → the decision that its person judges."""
        self._mutex = threading.Lock()
        self.lost = 0
        """Votes that were not recorded."""
        self._handlers: dict[type[BaseEvent], Callable[[Any, Any], None]] = {
            LLMGuardrailCompletedEvent: self._guarded,
            TaskCompletedEvent: self._completed,
            TaskFailedEvent: self._failed,
            ToolUsageFinishedEvent: self._worked,
            ToolUsageErrorEvent: self._broke,
            ToolSelectionErrorEvent: self._broke,
            ToolValidateInputErrorEvent: self._broke,
            HumanFeedbackRequestedEvent: self._shown,
            MethodExecutionFinishedEvent: self._answered,
            CrewKickoffCompletedEvent: self._ended,
            CrewKickoffFailedEvent: self._ended,
        }
        self._provider = ReportingProvider(get_provider(), self._asked_again, self._content) if human else None
        super().__init__()
        watchers.append(self._note)
        if self._provider is not None:
            set_provider(self._provider)

    def setup_listeners(self, crewai_event_bus: CrewAIEventsBus) -> None:
        """Subscribe to events; CrewAI calls this."""
        for kind, handler in self._handlers.items():
            crewai_event_bus.on(kind)(handler)

    def close(self) -> None:
        """Unsubscribe, after pending events are handled."""
        crewai_event_bus.flush()
        for kind, handler in self._handlers.items():
            crewai_event_bus.off(kind, handler)
        if self._note in watchers:
            watchers.remove(self._note)
        if self._provider is not None and cast("object", get_provider()) is self._provider:
            set_provider(self._provider.inner)

    def __enter__(self) -> FitrouterSignals:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- the decision of an event ---

    def _note(self, llm: FitrouterLLM, about: About, task: Any, agent: Any) -> None:
        made = _Decided(llm, about, task)
        with self._mutex:
            for key in {"", str(getattr(agent, "id", ""))}:
                kept = self._trail.pop(key, None) or deque(maxlen=_KEPT)
                kept.append(made)
                self._trail[key] = kept  # keeps the latest last
            while len(self._trail) > _AGENTS:
                del self._trail[next(iter(self._trail))]

    def _before(self, event: Any, agent: Any = None) -> _Decided | None:
        """Return the last decision of the event's agent and task before the event."""
        agent_id = str(agent.id) if agent is not None else event.agent_id
        if agent_id is None:
            return None
        with self._mutex:
            for made in reversed(self._trail.get(agent_id, ())):
                if made.when <= event.timestamp and event.task_id in {None, made.task}:
                    return made
        return None

    def _latest(self, agent: Any) -> _Decided | None:
        with self._mutex:
            kept = self._trail.get(str(agent.id))
            return kept[-1] if kept else None

    def _say(self, made: _Decided | None, kind: FeedbackKind, value: float, dimension: str = OVERALL) -> None:
        if made is None or is_replaying():
            return
        vote = Vote(decision_id=made.decision_id, kind=kind, value=value, dimension=dimension)
        try:
            send(made.llm, vote)
        except Exception as error:  # noqa: BLE001 - feedback must not fail a crew
            with self._mutex:
                self.lost += 1
            _log.warning("%s of %s was not recorded: %s", kind.value, vote.decision_id, in_words(error))

    # --- events ---

    def _guarded(self, _source: Any, event: LLMGuardrailCompletedEvent) -> None:
        made = self._before(event)
        self._say(made, FeedbackKind.ACCEPT, float(event.success))
        self._say(made, FeedbackKind.THUMB, float(event.success), BASE)

    def _completed(self, _source: Any, event: TaskCompletedEvent) -> None:
        self._say(self._before(event, getattr(event.task, "agent", None)), FeedbackKind.THUMB, 1.0, BASE)

    def _failed(self, _source: Any, event: TaskFailedEvent) -> None:
        made = self._before(event, getattr(event.task, "agent", None))
        self._say(made, FeedbackKind.ACCEPT, 0.0)
        self._say(made, FeedbackKind.THUMB, 0.0, BASE)

    def _worked(self, source: Any, event: ToolUsageFinishedEvent) -> None:
        if event.failure is not None:
            self._broke(source, event)
        elif (made := self._before(event)) is not None and not made.broken:
            self._say(made, FeedbackKind.THUMB, 1.0, TOOLS)

    def _broke(self, _source: Any, event: Any) -> None:
        if (made := self._before(event, event.agent)) is not None:
            made.broken = True
            self._say(made, FeedbackKind.THUMB, 0.0, TOOLS)

    def _ended(self, _source: Any, event: CrewKickoffCompletedEvent | CrewKickoffFailedEvent) -> None:
        failed, made = isinstance(event, CrewKickoffFailedEvent), None
        with self._mutex:
            made = next((m for m in reversed(self._trail.get("", ())) if m.kickoff == event.started_event_id), None)
        if made is None or is_replaying() or (self._check is None and not failed):
            return
        try:
            said = False if failed or self._check is None else self._check(getattr(event, "output", None))
            if said is None:
                return
            kind, scale = ("success", None) if said in (0, 1) else ("rating", (0.0, 1.0))
            source = "adapter" if failed else "check"
            outcome(made.llm, made.decision_id, said, kind=kind, scale=scale, source=source)
        except Exception as error:  # noqa: BLE001 - feedback must not fail a crew
            with self._mutex:
                self.lost += 1
            _log.warning("the outcome of kickoff %s was not recorded: %s", made.kickoff, in_words(error))

    def _shown(self, source: Any, event: HumanFeedbackRequestedEvent) -> None:
        """Note what a person reviews in a flow: the last decision before the request."""
        with self._mutex:
            before = [made for made in self._trail.get("", ()) if made.when <= event.timestamp]
            if before:
                self._looked_at[id(source), event.method_name] = before[-1]
            while len(self._looked_at) > _AGENTS:  # methods that never finished
                del self._looked_at[next(iter(self._looked_at))]

    def _answered(self, source: Any, event: MethodExecutionFinishedEvent) -> None:
        """Record the outcome of a review, which CrewAI returns as the method's result."""
        with self._mutex:
            made = self._looked_at.pop((id(source), event.method_name), None)
        if isinstance(event.result, str) and event.result in self._outcomes:
            self._say(made, FeedbackKind.THUMB, self._outcomes[event.result])

    def _asked_again(self, agent: Any) -> None:
        self._say(self._latest(agent), FeedbackKind.REGENERATE, 1.0)

    def _content(self, agent: Any) -> None:
        self._say(self._latest(agent), FeedbackKind.ACCEPT, 1.0)

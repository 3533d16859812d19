"""One call of an agent's model: whom to ask next, how long, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core import exceptions
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.errors import GraphBubbleUp

from fitrouter.errors import (
    AllModelsFailed,
    ConfigError,
    ContextOverflow,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
)
from fitrouter.routing.variants import apply
from fitrouter.serving.external import AttemptReport, Outcome, PlannedCall
from fitrouter.types import Completion, Request, Usage
from fitrouter_integrations._errors import failure_name
from fitrouter_integrations.client import Plan
from fitrouter_integrations.langchain._history import messages_of
from fitrouter_integrations.langchain._own_models import named

Asked: TypeAlias = ModelRequest[Any]
Answer: TypeAlias = ModelResponse[Any]

SHARE = 0.6
"""Of the time that is left, what a model gets that others can stand in for."""
TOO_LITTLE_S = 0.01
"""No other model is asked with so little time left."""
_TOO_LONG: Any = (ContextOverflow, exceptions.ContextOverflowError)
_REJECTED: Any = (ProviderRejected, getattr(exceptions, "ModelInvalidRequestError", ()))


class Ask(NamedTuple):
    """What the agent is to ask next."""

    request: Asked
    patience_s: float


class Step:
    """Follows a plan: `next` says what to ask, and `answered`, `failed` or `late` is told what came of it.

    Args:
        plan: what the router decided.
        heard: what it decided about.
        request: the agent's.
        models: the agent's, by name.
        deadline: on the monotonic clock.
    """

    def __init__(
        self, plan: Plan, heard: Request, request: Asked, models: Mapping[str, BaseChatModel], deadline: float
    ) -> None:
        self.plan, self.heard, self.request, self.models, self.deadline = plan, heard, request, models, deadline
        self.answer: Answer | None = None
        self._left = list(plan.order)
        self._choice, self._begun = plan.order[0], time.monotonic()
        self._asked = False
        self._tried: list[AttemptReport] = []
        self._error: BaseException | None = None
        """What the last model raised; None where it was given up."""
        self._final = False
        """It comes out as it is: the request is at fault, or the agent is to stop."""
        self._status = "failed"

    @property
    def decision_id(self) -> str:
        """Of the plan."""
        return self.plan.about.decision_id

    @property
    def served_by(self) -> str:
        """The name of who was asked last."""
        return self._choice.model

    def next(self) -> Ask | None:
        """What to ask now; None at the end."""
        while self._left and not self._final:
            left = self.deadline - time.monotonic()
            if self._tried and left <= TOO_LITTLE_S:
                break
            self._choice, self._begun = self._left.pop(0), time.monotonic()
            model = named(self.models, self._choice.model, self._choice.target)
            if model is not None:
                self._asked = True
                return Ask(self._for(self._choice, model), SHARE * left if self._left else left)
            self._note(ProviderUnavailable.__name__)  # the gateway has other models than when they were compared
        return None

    def answered(self, answer: Answer) -> None:
        """The model answered."""
        if said_of(answer) is None:
            self.failed(ProviderUnavailable(f"{self._choice.model!r} gave no message"))
            return
        self._note(None)
        self.answer, self._status, self._left = answer, "ok", []

    def failed(self, error: BaseException) -> None:
        """The model raised."""
        self._error = error
        if isinstance(error, GraphBubbleUp) or not isinstance(error, Exception):
            self._status, self._final = "cancelled", True  # the agent stops: nothing is held against the model
            return
        name = _name_of(error)
        self._final = name == ProviderRejected.__name__
        self._note(name)

    def late(self) -> None:
        """The model did not answer in time."""
        self._error = None
        self._note(ProviderTimeout.__name__)

    def ended(self) -> Outcome:
        """What the router is told."""
        completion = None if self.answer is None else _completion(self.answer)
        return Outcome(tried=tuple(self._tried), status=self._status, completion=completion)

    def result(self) -> Answer:
        """The answer.

        Raises:
            AllModelsFailed: none came in time, and the last model raised nothing.
            ConfigError: the agent has none of the models that were to be asked.
            BaseException: what the last model raised, with a note of what was tried.
        """
        if self.answer is not None:
            return self.answer
        tried = ", ".join(f"{one.model} ({one.error})" for one in self._tried)
        if not self._asked:
            raise ConfigError(f"models: given were {sorted(self.models)}; the router would ask {tried}")
        message = f"no model answered; tried {tried}"
        if self._error is None:
            raise AllModelsFailed(message, self.decision_id, timed_out=True)
        if not self._final:
            self._error.add_note(f"fitrouter: {message} (decision {self.decision_id})")
        raise self._error

    def _for(self, choice: PlannedCall, model: BaseChatModel) -> Asked:
        """The agent's request to one model, in the way of its variant where it is one."""
        system = self.request.system_message
        lead = () if system is None else ({"role": "system", "content": system.content},)
        led, settings = apply(choice.variant, lead, self.request.model_settings)
        changed: dict[str, Any] = {"model": model, "model_settings": settings}
        if led != lead:
            told = {"content": led[0]["content"]}
            changed["system_message"] = SystemMessage(**told) if system is None else system.model_copy(update=told)
        return self.request.override(**changed)

    def _note(self, error: str | None) -> None:
        spent = (time.monotonic() - self._begun) * 1000.0
        choice = self._choice
        self._tried.append(AttemptReport(model=choice.model, ms=spent, error=error, probability=choice.probability))


def said_of(answer: Answer) -> AIMessage | None:
    """What the model said, of all that a response holds."""
    return next((message for message in reversed(answer.result) if isinstance(message, AIMessage)), None)


def _completion(answer: Answer) -> Completion:
    said = said_of(answer)
    assert said is not None
    usage = said.usage_metadata
    spent = usage and Usage(prompt_tokens=usage["input_tokens"], completion_tokens=usage["output_tokens"])
    return Completion(message=messages_of([said])[0], finish_reason=_finish_reason(said), usage=spent or Usage())


def _name_of(error: Exception) -> str:
    """What went wrong, as the router reads it: whether the request itself is at fault."""
    if isinstance(error, _TOO_LONG):
        return ContextOverflow.__name__  # another model's window may be larger
    if isinstance(error, _REJECTED):
        return ProviderRejected.__name__
    return failure_name(error)


def _finish_reason(said: AIMessage) -> str:
    told = said.response_metadata.get("finish_reason") or said.response_metadata.get("stop_reason")
    return str(told) if told else "tool_calls" if said.tool_calls else "stop"

"""One model call of an agent: the next model to try, its time limit, and the outcome."""

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
from fitrouter.providers.usage import read_usage
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
"""Share of the remaining time that a model gets while others are left to try."""
TOO_LITTLE_S = 0.01
"""No further model is tried with less time left."""
_TOO_LONG: Any = (ContextOverflow, exceptions.ContextOverflowError)
_REJECTED: Any = (ProviderRejected, getattr(exceptions, "ModelInvalidRequestError", ()))


class Ask(NamedTuple):
    """A request to a model, and the time limit for its answer."""

    request: Asked
    patience_s: float


class Step:
    """Follows a plan: `next` returns what to call, and `answered`, `failed` or `late` take the result.

    Args:
        plan: the router's.
        heard: the request that it was made for.
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
        self._called = False
        self._tried: list[AttemptReport] = []
        self._error: BaseException | None = None
        """The last model's exception; None if it timed out."""
        self._final = False
        """Do not try another model: the request is invalid, or the agent stops."""
        self._status = "failed"

    @property
    def decision_id(self) -> str:
        """The plan's decision id."""
        return self.plan.about.decision_id

    @property
    def served_by(self) -> str:
        """Name of the model that was tried last."""
        return self._choice.model

    def next(self) -> Ask | None:
        """Return the next request to make; None if no model is left or time is short."""
        while self._left and not self._final:
            left = self.deadline - time.monotonic()
            if self._tried and left <= TOO_LITTLE_S:
                break
            self._choice, self._begun = self._left.pop(0), time.monotonic()
            model = named(self.models, self._choice.model, self._choice.target)
            if model is not None:
                self._called = True
                return Ask(self._for(self._choice, model), SHARE * left if self._left else left)
            self._note(ProviderUnavailable.__name__)  # the gateway's models have changed since `compare`
        return None

    def answered(self, answer: Answer) -> None:
        """Take the model's answer."""
        if said_of(answer) is None:
            self.failed(ProviderUnavailable(f"{self._choice.model!r} returned no message"))
            return
        self._note(None)
        self.answer, self._status, self._left = answer, "ok", []

    def failed(self, error: BaseException) -> None:
        """Take the model's exception."""
        self._error = error
        if isinstance(error, GraphBubbleUp) or not isinstance(error, Exception):
            self._status, self._final = "cancelled", True  # the agent stops, which is not the model's failure
            return
        name = _name_of(error)
        self._final = name == ProviderRejected.__name__
        self._note(name)

    def late(self) -> None:
        """Note that the model timed out."""
        self._error = None
        self._note(ProviderTimeout.__name__)

    def ended(self) -> Outcome:
        """Return the outcome, to report to the router."""
        completion = None if self.answer is None else _completion(self.answer)
        return Outcome(tried=tuple(self._tried), status=self._status, completion=completion)

    def result(self) -> Answer:
        """Return the last model's answer.

        Raises:
            AllModelsFailed: the last model timed out.
            ConfigError: the agent has none of the planned models.
            BaseException: the last model's exception, with a note of the models that were tried.
        """
        if self.answer is not None:
            return self.answer
        tried = ", ".join(f"{one.model} ({one.error})" for one in self._tried)
        if not self._called:
            raise ConfigError(f"models: got {sorted(self.models)}; the router planned {tried}")
        message = f"no model answered; tried {tried}"
        if self._error is None:
            raise AllModelsFailed(message, self.decision_id, timed_out=True)
        if not self._final:
            self._error.add_note(f"fitrouter: {message} (decision {self.decision_id})")
        raise self._error

    def _for(self, choice: PlannedCall, model: BaseChatModel) -> Asked:
        """Return the agent's request adapted to one model and its variant."""
        system = self.request.system_message
        lead = () if system is None else ({"role": "system", "content": system.content},)
        led, settings = apply(choice.variant, lead, self.request.model_settings)
        changed: dict[str, Any] = {"model": model, "model_settings": settings}
        if led != lead:
            content = {"content": led[0]["content"]}
            changed["system_message"] = (
                SystemMessage(**content) if system is None else system.model_copy(update=content)
            )
        return self.request.override(**changed)

    def _note(self, error: str | None) -> None:
        spent = (time.monotonic() - self._begun) * 1000.0
        choice = self._choice
        self._tried.append(AttemptReport(model=choice.model, ms=spent, error=error, probability=choice.probability))


def said_of(answer: Answer) -> AIMessage | None:
    """Return the assistant message of a response."""
    return next((message for message in reversed(answer.result) if isinstance(message, AIMessage)), None)


def _completion(answer: Answer) -> Completion:
    said = said_of(answer)
    assert said is not None
    usage = read_usage(said.usage_metadata) or Usage()
    return Completion(message=messages_of([said])[0], finish_reason=_finish_reason(said), usage=usage)


def _name_of(error: Exception) -> str:
    """Return the router's name for an exception, which distinguishes invalid requests."""
    if isinstance(error, _TOO_LONG):
        return ContextOverflow.__name__  # another model's window may be larger
    if isinstance(error, _REJECTED):
        return ProviderRejected.__name__
    return failure_name(error)


def _finish_reason(said: AIMessage) -> str:
    reason = said.response_metadata.get("finish_reason") or said.response_metadata.get("stop_reason")
    return str(reason) if reason else "tool_calls" if said.tool_calls else "stop"

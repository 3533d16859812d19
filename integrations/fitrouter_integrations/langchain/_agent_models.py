"""An agent's own chat models as a provider: the router chooses, the agent asks.

A request carries its `Turn` in a private parameter. The provider hands each attempt back through it to the handler that
`create_agent` gave, in the caller's context: on the caller's own event loop, or in a thread where the agent is plain
code (an attempt that the router gives up cannot be stopped there, and must not hold up the next one).
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any, NamedTuple, TypeAlias

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core import exceptions
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.errors import GraphBubbleUp

from fitrouter.errors import ProviderError, ProviderRejected, ProviderUnavailable
from fitrouter.providers._failures import from_status
from fitrouter.types import Call, Completion, Message, Usage
from fitrouter_integrations.langchain._convert import messages_of

__all__ = ["PARAMETERS", "TURN", "AgentModels", "Turn"]

Asked: TypeAlias = ModelRequest[Any]
Answer: TypeAlias = ModelResponse[Any]
Handler: TypeAlias = Callable[[Asked], Any]

TURN = "fitrouter_turn"
"""The private parameter."""
PARAMETERS = (TURN, "tool_choice")
"""What the card of an agent's model lists: nothing else is asked of it through the router."""
_TOO_LONG: Any = exceptions.ContextOverflowError
_INVALID: Any = getattr(exceptions, "ModelInvalidRequestError", ())


class Outcome(NamedTuple):
    """How an attempt ended."""

    answer: Answer | None = None
    error: BaseException | None = None


class Turn:
    """One call of an agent's model: from its request to the answer of the model that gave it.

    Args:
        request: of the agent.
        handler: asks the model of a request; a coroutine function where `loop` is given.
        models: by name.
        messages: of the request, as the router was told.
        params: likewise.
        loop: the caller's.
    """

    def __init__(
        self,
        request: Asked,
        handler: Handler,
        models: Mapping[str, BaseChatModel],
        messages: tuple[Message, ...],
        params: Mapping[str, Any],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.request, self.handler, self.models = request, handler, models
        self.messages, self.params, self.loop = messages, params, loop
        self.outcome = Outcome()
        """Of the last attempt; nothing where the router gave it up."""
        self._context = contextvars.copy_context()

    async def ask(self, call: Call) -> Answer:
        """One attempt at a model.

        Raises:
            ProviderRejected: the request itself is at fault, or the agent is to stop.
            ProviderUnavailable: this model cannot answer now.
        """
        self.outcome = Outcome()
        request = self._for(call)
        promised: Future[Outcome] = Future()
        cancel = self._in_thread(request, promised) if self.loop is None else self._on_loop(request, promised)
        try:
            outcome = await asyncio.wrap_future(promised)
        except asyncio.CancelledError:
            cancel()
            raise
        self.outcome = outcome
        if outcome.error is not None:
            raise _failure(outcome.error) from outcome.error
        assert outcome.answer is not None
        return outcome.answer

    def _for(self, call: Call) -> Asked:
        """The agent's request to one model, in the way of its variant where it is one."""
        changed: dict[str, Any] = {"model": self.models[call.target]}
        if call.messages != self.messages:
            lead = next(message for message in call.messages if message["role"] == "system")
            changed["system_message"] = SystemMessage(content=lead["content"])
        if own := {name: value for name, value in call.params.items() if name not in self.params}:
            changed["model_settings"] = {**own, **self.request.model_settings}
        return self.request.override(**changed)

    def _in_thread(self, request: Asked, promised: Future[Outcome]) -> Callable[[], None]:
        context = self._context.copy()

        def work() -> None:
            try:
                outcome = Outcome(context.run(self.handler, request))
            except BaseException as error:  # noqa: BLE001 - told to the caller's thread, which raises it
                outcome = Outcome(error=error)
            _settle(promised, outcome)

        threading.Thread(target=work, name="fitrouter-attempt", daemon=True).start()
        return lambda: None

    def _on_loop(self, request: Asked, promised: Future[Outcome]) -> Callable[[], None]:
        loop, tasks = self.loop, list[asyncio.Task[None]]()
        assert loop is not None

        async def work() -> None:
            asked: Awaitable[Answer] = self.handler(request)
            try:
                outcome = Outcome(await asked)
            except BaseException as error:
                _settle(promised, Outcome(error=error))
                if not isinstance(error, Exception):
                    raise
                return
            _settle(promised, outcome)

        def begin() -> None:
            if not promised.cancelled():
                tasks.append(loop.create_task(work(), context=self._context.copy()))

        def cancel() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        loop.call_soon_threadsafe(begin)
        return cancel


class AgentModels:
    """A `Provider` whose models are an agent's; see `FitrouterMiddleware`."""

    async def complete(self, call: Call) -> Completion:
        """See `Provider`."""
        turn = call.params.get(TURN)
        if not isinstance(turn, Turn):
            raise ProviderRejected(f"{call.target!r} is a model of an agent: only FitrouterMiddleware can ask it")
        said = said_of(await turn.ask(call))
        if said is None:
            raise ProviderUnavailable(f"{call.target!r} gave no message")
        usage = said.usage_metadata
        return Completion(
            message=messages_of([said])[0],
            finish_reason=_finish_reason(said),
            usage=Usage()
            if usage is None
            else Usage(prompt_tokens=usage["input_tokens"], completion_tokens=usage["output_tokens"]),
        )

    async def aclose(self) -> None:
        """The models are their owner's."""


def said_of(answer: Answer) -> AIMessage | None:
    """What the model said, of all that a response holds."""
    return next((message for message in reversed(answer.result) if isinstance(message, AIMessage)), None)


def _settle(promised: Future[Outcome], outcome: Outcome) -> None:
    try:
        promised.set_result(outcome)
    except InvalidStateError:
        return  # the router gave this attempt up


def _failure(error: BaseException) -> ProviderError:
    """What went wrong, as the router reads it: whether another model is to be asked."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, GraphBubbleUp) or not isinstance(error, Exception) or isinstance(error, _INVALID):
        return ProviderRejected(message)
    status = getattr(error, "status_code", None)
    if isinstance(error, _TOO_LONG) or not isinstance(status, int):
        return ProviderUnavailable(message)  # another model's window may be larger
    return from_status(status, message)


def _finish_reason(said: AIMessage) -> str:
    told = said.response_metadata.get("finish_reason") or said.response_metadata.get("stop_reason")
    return str(told) if told else "tool_calls" if said.tool_calls else "stop"

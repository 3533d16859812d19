"""One call of an agent: CrewAI's arguments, events and return value."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from crewai.events.types.llm_events import LLMCallType
from crewai.hooks.dispatch import HookAborted
from crewai.llms.base_llm import BaseLLM, JsonResponseFormat, LLMCallBlockedError, llm_call_context
from crewai.utilities.exceptions.context_window_exceeding_exception import LLMContextLengthExceededError
from pydantic import BaseModel

from fitrouter.errors import FitrouterError, NoEligibleModel
from fitrouter.providers.usage import usage_body
from fitrouter.serving.attempts import Assembler
from fitrouter.types import Chunk, Identity, Message, Request, Usage
from fitrouter_integrations.client import About, Reply
from fitrouter_integrations.crewai._identity import identity_of, tier_of


class TooLong(NoEligibleModel, LLMContextLengthExceededError):
    """No context window is large enough; CrewAI then summarises the history (`respect_context_window`)."""

    def __init__(self, error: Exception) -> None:
        LLMContextLengthExceededError.__init__(self, str(error))
        self.excluded, self.too_long = getattr(error, "excluded", ()), True


class RoutedLLM(BaseLLM):
    """Base class with the settings of a routed LLM, and the methods that `Turn` needs."""

    tenant: str = Identity().tenant
    user: str | None = None
    role: str | None = None
    task: str | None = None
    session: str | None = None
    run: str | None = None
    tier: str = ""
    """Cost tier of its calls, if no fingerprint names one: quality, balanced or economy."""
    timeout: float | None = None
    """Seconds for a whole request; by default the router's deadline."""
    response_format: JsonResponseFormat | type[BaseModel] | None = None

    @property
    @abstractmethod
    def owner(self) -> Any:
        """The agent that this copy belongs to, or None."""

    @abstractmethod
    def _count(self, usage: dict[str, Any], agent: Any) -> None:
        """Add a call's tokens to its agent's account."""

    @abstractmethod
    def _remember(self, about: About, task: Any, agent: Any) -> None:
        """Keep the decision of an agent's latest call."""

    def _sampling(self) -> dict[str, Any]:
        """The sampling parameters that are set."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": None if self.max_tokens is None else int(self.max_tokens),
            "seed": self.seed,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "stop": self.stop_sequences or None,
            **self.additional_params,
        }
        return {name: value for name, value in given.items() if value is not None}


class Turn:
    """One call of an agent.

    Args:
        llm: the called LLM.
        available_functions: tools to run here, if CrewAI wants their result; else it runs them itself.
        from_task: CrewAI's, or None.
        from_agent: CrewAI's; the LLM's owner if None, since CrewAI converts and summarises without an agent.
        response_model: the type of the answer, or None.
    """

    def __init__(
        self,
        llm: RoutedLLM,
        available_functions: Mapping[str, Any] | None = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> None:
        self.llm, self.task, self.agent = llm, from_task, from_agent if from_agent is not None else llm.owner
        self.functions, self.wanted = available_functions, response_model or llm.response_format
        self.messages: list[Any] = []
        self.calls: dict[int, dict[str, Any]] = {}
        """Streamed tool calls, by their index, as far as they are there."""
        self._parts = Assembler()

    @contextmanager
    def reported(self, messages: Any, tools: Any, callbacks: Any) -> Iterator[None]:
        """Emit CrewAI's events for the start and failure of a call.

        Raises:
            TooLong: CrewAI summarises the history on it.
        """
        llm = self.llm
        with llm_call_context():
            llm._emit_call_started_event(
                messages=messages,
                tools=tools,
                callbacks=callbacks,
                available_functions=dict(self.functions or {}),
                from_task=self.task,
                from_agent=self.agent,
            )
            try:
                yield
            except (HookAborted, LLMCallBlockedError) as denied:
                llm._emit_call_denied_event(denied, self.task, self.agent)
                raise
            except Exception as error:
                llm._emit_call_failed_event(str(error), self.task, self.agent)
                if isinstance(error, FitrouterError) and error.too_long:
                    raise TooLong(error) from error
                raise

    def request(self, messages: Any, tools: Any) -> Request:
        """Build the request for the router."""
        llm = self.llm
        self.messages = llm._format_messages(messages)
        llm._invoke_before_llm_call_hooks(self.messages, self.agent)
        params = llm._sampling()
        if tools:
            params["tools"] = tools
        if isinstance(self.wanted, dict):
            params["response_format"] = self.wanted
        elif self.wanted is not None:
            schema = {"name": self.wanted.__name__, "schema": self.wanted.model_json_schema()}
            params["response_format"] = {"type": "json_schema", "json_schema": schema}
        own = Identity(**{name: getattr(llm, name) for name in Identity.__struct_fields__})
        return Request(
            messages=tuple(_message(message) for message in self.messages),
            model=llm.model,
            params=params,
            identity=identity_of(own, self.task, self.agent),
            tier=tier_of(llm.tier, self.task, self.agent),
            deadline_s=llm.timeout,
        )

    def stream(self, chunk: Chunk, about: About) -> None:
        """Take a chunk, and emit CrewAI's events for it: text, or a tool call accumulated so far."""
        self._parts.add(chunk)
        common: dict[str, Any] = {
            "from_task": self.task,
            "from_agent": self.agent,
            "response_id": about.decision_id,
        }
        if text := chunk.delta.get("content"):
            self.llm._emit_stream_chunk_event(chunk=text, **common)
        for piece in chunk.delta.get("tool_calls") or []:
            index, function = piece.get("index") or 0, piece.get("function") or {}
            call = self.calls.setdefault(index, {"id": None, "name": None, "arguments": ""})
            more = function.get("arguments") or ""
            call["id"], call["name"] = piece.get("id") or call["id"], function.get("name") or call["name"]
            call["arguments"] += more
            self.llm._emit_stream_chunk_event(
                chunk=more,
                tool_call={
                    "id": call["id"],
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                    "type": "function",
                    "index": index,
                },
                call_type=LLMCallType.TOOL_CALL,
                **common,
            )

    def streamed(self, about: About) -> Reply:
        """Return the complete answer, after the last chunk."""
        parts, reason = self._parts, self._parts.finish_reason or "stop"
        return Reply(message=parts.message(), finish_reason=reason, usage=parts.usage or Usage(), about=about)

    def finish(self, reply: Reply) -> Any:
        """Return the answer in CrewAI's form: tool calls, the result of a tool, a typed value, or text.

        Raises:
            ValueError: the answer does not have the requested type.
        """
        llm = self.llm
        # CrewAI expects reasoning tokens at the top level.
        usage = usage_body(reply.usage) | {"reasoning_tokens": reply.usage.reasoning_tokens}
        llm._remember(reply.about, self.task, self.agent)
        llm._count(usage, self.agent)
        if calls := reply.message.get("tool_calls"):
            if not self.functions:
                self._completed(calls, LLMCallType.TOOL_CALL, reply, usage)
                return _tool_calls(calls)
            function = calls[0]["function"]
            if function["name"] in self.functions:  # CrewAI emits the event of the tool, which ends the call
                return self._run(function) or ""
        text = llm._apply_stop_words(reply.message.get("content") or "")
        typed = self.wanted if isinstance(self.wanted, type) and issubclass(self.wanted, BaseModel) else None
        answer = llm._validate_structured_output(text, typed)
        self._completed(text, LLMCallType.LLM_CALL, reply, usage)
        return answer if typed else llm._invoke_after_llm_call_hooks(self.messages, text, self.agent)

    def _run(self, function: Mapping[str, Any]) -> str | None:
        """Run a tool and return its result; None if it failed."""
        arguments = json.loads(function.get("arguments") or "{}")
        return self.llm._handle_tool_execution(
            function["name"], arguments, dict(self.functions or {}), self.task, self.agent
        )

    def _completed(self, response: Any, kind: LLMCallType, reply: Reply, usage: dict[str, Any]) -> None:
        self.llm._emit_call_completed_event(
            response=response,
            call_type=kind,
            from_task=self.task,
            from_agent=self.agent,
            messages=self.messages,
            usage=usage,
            finish_reason=reply.finish_reason,
            response_id=reply.about.decision_id,
        )


def _message(message: Mapping[str, Any]) -> Message:
    """Return a message without the fields that only CrewAI reads."""
    return {name: value for name, value in message.items() if name not in {"files", "cache_breakpoint"}}


def _tool_calls(calls: list[dict[str, Any]]) -> list[Any]:
    """Tool calls as objects of the OpenAI SDK, which CrewAI's executor expects."""
    from openai.types.chat import ChatCompletionMessageToolCall

    return [ChatCompletionMessageToolCall.model_validate(call) for call in calls]

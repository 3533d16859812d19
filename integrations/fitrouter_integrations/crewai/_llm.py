"""The model of a crew: a router where CrewAI expects an LLM."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import BaseLLM, llm_call_context
from pydantic import BaseModel, Field, PrivateAttr, model_validator

from fitrouter.types import AUTO, Chunk, Identity, Message, Request, Usage
from fitrouter_integrations._identity import settled
from fitrouter_integrations.client import About, Client, Reply, Vote, connect
from fitrouter_integrations.client.assembled import Whole
from fitrouter_integrations.crewai._identity import identity_of

__all__ = ["FitrouterLLM", "watchers"]

USABLE = 0.85
"""Share of a context window that CrewAI fills before it summarises."""

watchers: list[Callable[[FitrouterLLM, About, Any, Any], None]] = []
"""Told of every decision, with the task and the agent of its call, in the thread of the call. They do not raise."""


class FitrouterLLM(BaseLLM):
    """An LLM that asks, for each call, the model that fits this user and this task.

    Args:
        router: a `Router` that was not started, the path of a configuration, or the URL of a gateway; the environment
            variable FITROUTER, else `fitrouter.yaml`.
        model: `fitrouter/auto`, or the name of a model, which is asked without routing.
        user: who asks, where no fingerprint and no input says it; `role`, `task`, `session` and `tenant` likewise.

    The agent's role, the task's name and the crew become the identity. One object may be shared: each agent's tokens
    are counted once. `last` says what was decided for an agent's latest call; `feedback` takes its decision id.
    """

    llm_type: str = "fitrouter"
    model: str = AUTO
    provider: str = "fitrouter"
    router: Any = Field(default_factory=lambda: os.environ.get("FITROUTER", "fitrouter.yaml"), exclude=True)
    tenant: str = Identity().tenant
    user: str | None = None
    role: str | None = None
    task: str | None = None
    session: str | None = None
    timeout: float | None = None
    """Seconds for a whole request; the router's own deadline where None."""

    _client: Client | None = PrivateAttr(default=None)
    _decided: dict[str, About] = PrivateAttr(default_factory=dict)
    _ledgers: dict[str, FitrouterLLM] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _routed(cls, data: Any) -> Any:
        """A model need not be named: routing is what it is for. Who asks may be said by any of its names."""
        if not isinstance(data, dict):
            return data
        return {"model": AUTO, "provider": "fitrouter", **settled(data, "additional_params")}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, "**********" if name == "api_key" and value else value

    # --- what CrewAI asks of an LLM ---

    @property
    def client(self) -> Client:
        """The router behind it, shared by all that name the same one."""
        if self._client is None:
            self._client = connect(self.router, self.api_key)
        return self._client

    def supports_function_calling(self) -> bool:
        """Whether every model that may answer calls tools."""
        return all("tools" in card.capabilities for card in self.client.models())

    def supports_stop_words(self) -> bool:
        """Stop words go to the model, and cut what it says beyond them."""
        return True

    def supports_multimodal(self) -> bool:
        """Whether every model that may answer sees images."""
        return all("images" in card.capabilities for card in self.client.models())

    def get_context_window_size(self) -> int:
        """Tokens that every model that may answer can be given."""
        return int(USABLE * min(card.context_window for card in self.client.models()))

    def get_input_tokens_count(self, messages: Any, tools: Any = None, response_model: Any = None) -> int:  # noqa: ARG002 - CrewAI's signature
        """About how many tokens messages have, as the router estimates them."""
        from fitrouter.features import estimate_tokens

        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return estimate_tokens(said, {"tools": tools} if tools else {})

    def to_config_dict(self) -> dict[str, Any]:
        """What makes another like it."""
        return {**super().to_config_dict(), "model": self.model}

    # --- calls ---

    def call(
        self,
        messages: Any,
        tools: list[dict[str, Any]] | None = None,
        callbacks: list[Any] | None = None,
        available_functions: dict[str, Any] | None = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: type[BaseModel] | None = None,
    ) -> Any:
        """Answer a crew's call, in the form that CrewAI expects; see `BaseLLM.call`."""
        turn = _Turn(self, from_task, from_agent, available_functions, response_model)
        with turn.reported(messages, tools, callbacks):
            request = turn.request(messages, tools)
            if not self._effective_stream():
                return turn.finish(self.client.complete(request))
            whole = Whole(stream := self.client.stream(request))
            for chunk in stream:
                turn.stream(whole.add(chunk), chunk, stream.about)
            return turn.finish(whole.reply())

    async def acall(
        self,
        messages: Any,
        tools: list[dict[str, Any]] | None = None,
        callbacks: list[Any] | None = None,
        available_functions: dict[str, Any] | None = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: type[BaseModel] | None = None,
    ) -> Any:
        """Answer a crew's call without holding up its event loop."""
        turn = _Turn(self, from_task, from_agent, available_functions, response_model)
        with turn.reported(messages, tools, callbacks):
            request = turn.request(messages, tools)
            if not self._effective_stream():
                return turn.finish(await self.client.acomplete(request))
            whole = Whole(stream := await self.client.astream(request))
            async for chunk in stream:
                turn.stream(whole.add(chunk), chunk, stream.about)
            return turn.finish(whole.reply())

    # --- what was decided, and what people say ---

    def last(self, agent: Any = None) -> About | None:
        """What was decided for the latest call of an agent, or of any; None before there was one."""
        return self._decided.get("" if agent is None else str(agent.id))

    def feedback(self, vote: Vote) -> str:
        """Take a verdict on an answer; returns its id once it is durable."""
        return self.client.feedback(vote.of(self.tenant))

    # --- accounts ---

    def _account(self, agent: Any) -> FitrouterLLM:
        """Where an agent's tokens are counted.

        A crew adds up what its agents' models have used; one that n agents share would count n times. So each agent
        gets an account of its own at its first call.
        """
        if agent is None or not hasattr(agent, "llm"):
            return self
        key = str(agent.id)
        if key not in self._ledgers:
            mine = self.model_copy()
            mine._token_usage = dict.fromkeys(self._token_usage, 0)
            mine._client, mine._decided, mine._ledgers = self.client, self._decided, self._ledgers
            self._ledgers[key] = mine
        if agent.llm is self:
            agent.llm = self._ledgers[key]
        return self._ledgers[key]

    def _remember(self, about: About, task: Any, agent: Any) -> None:
        self._decided[""] = about
        if agent is not None:
            self._decided[str(agent.id)] = about
        for watcher in tuple(watchers):
            watcher(self, about, task, agent)

    def _sampling(self) -> dict[str, Any]:
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


class _Turn:
    """One call of one agent."""

    def __init__(
        self, llm: FitrouterLLM, task: Any, agent: Any, functions: Mapping[str, Any] | None, wanted: Any
    ) -> None:
        self.llm, self.task, self.agent = llm, task, agent
        self.functions, self.wanted = functions, wanted
        self.messages: list[Any] = []
        self.calls: dict[int, dict[str, Any]] = {}
        """Streamed tool calls, by their index, as far as they are there."""

    @contextmanager
    def reported(self, messages: Any, tools: Any, callbacks: Any) -> Iterator[None]:
        """Tell CrewAI's events that it began, and whether it failed."""
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
            except Exception as error:
                llm._emit_call_failed_event(str(error), self.task, self.agent)
                raise

    def request(self, messages: Any, tools: Any) -> Request:
        """What is asked of the router."""
        llm = self.llm
        self.messages = llm._format_messages(messages)
        llm._invoke_before_llm_call_hooks(self.messages, self.agent)
        params = llm._sampling()
        if tools:
            params["tools"] = tools
        elif self.wanted is not None:
            schema = {"name": self.wanted.__name__, "schema": self.wanted.model_json_schema()}
            params["response_format"] = {"type": "json_schema", "json_schema": schema}
        own = Identity(tenant=llm.tenant, user=llm.user, role=llm.role, task=llm.task, session=llm.session)
        return Request(
            messages=tuple(_message(message) for message in self.messages),
            model=llm.model,
            params=params,
            identity=identity_of(own, self.task, self.agent),
            deadline_s=llm.timeout,
        )

    def stream(self, text: str, chunk: Chunk, about: About) -> None:
        """Tell CrewAI's events of a piece: of text, or of a tool call as far as it is there."""
        told: dict[str, Any] = {
            "from_task": self.task,
            "from_agent": self.agent,
            "response_id": about.decision_id,
        }
        if text:
            self.llm._emit_stream_chunk_event(chunk=text, **told)
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
                **told,
            )

    def finish(self, reply: Reply) -> Any:
        """The answer in CrewAI's form: tool calls, the result of a tool, a typed value, or text."""
        llm, usage = self.llm, _usage(reply.usage)
        llm._remember(reply.about, self.task, self.agent)
        llm._account(self.agent)._track_token_usage_internal(usage)
        if calls := reply.message.get("tool_calls"):
            if not self.functions:
                self._completed(calls, LLMCallType.TOOL_CALL, reply, usage)
                return _tool_calls(calls)
            ran, result = self._run(calls[0]["function"])
            if ran:
                return result
        text = llm._apply_stop_words(reply.message.get("content") or "")
        self._completed(text, LLMCallType.LLM_CALL, reply, usage)
        if self.wanted is not None:
            return self.wanted.model_validate_json(text)
        return llm._invoke_after_llm_call_hooks(self.messages, text, self.agent)

    def _run(self, function: Mapping[str, Any]) -> tuple[bool, Any]:
        arguments = json.loads(function.get("arguments") or "{}")
        result = self.llm._handle_tool_execution(
            function["name"], arguments, dict(self.functions or {}), self.task, self.agent
        )
        return result is not None, result

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
    """A message without what CrewAI alone reads."""
    return {name: value for name, value in message.items() if name not in {"files", "cache_breakpoint"}}


def _usage(usage: Usage) -> dict[str, Any]:
    asked, said = usage.prompt_tokens, usage.completion_tokens
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _tool_calls(calls: list[dict[str, Any]]) -> list[Any]:
    """Tool calls as CrewAI's executor reads them: objects of the OpenAI SDK."""
    from openai.types.chat import ChatCompletionMessageToolCall

    return [ChatCompletionMessageToolCall.model_validate(call) for call in calls]

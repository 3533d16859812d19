"""The model of a crew: a router where CrewAI expects an LLM."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self
from uuid import uuid4
from weakref import WeakValueDictionary, ref

from crewai.agents.agent_builder import base_agent
from crewai.llms.base_llm import BaseLLM
from pydantic import BaseModel, Field, PrivateAttr, field_serializer, model_validator

from fitrouter.router import Router
from fitrouter.types import AUTO
from fitrouter_integrations._identity import settled
from fitrouter_integrations.client import About, Client, Model, Vote, connect
from fitrouter_integrations.client.assembled import Whole
from fitrouter_integrations.crewai._turn import RoutedLLM, Turn

USABLE = 0.85
"""Share of a context window that CrewAI fills before it summarises."""

watchers: list[Callable[[FitrouterLLM, About, Any, Any], None]] = []
"""Told of every decision, with the task and the agent of its call, in the thread of the call. They do not raise."""

_REMEMBERED = 4096
"""Agents whose latest decision is remembered; the oldest are forgotten."""
_made: WeakValueDictionary[str, FitrouterLLM] = WeakValueDictionary()
"""Every one of this process, by its `base_url`; see `FitrouterLLM._known`."""
_MARK = "fitrouter:"
"""Such a `base_url` begins with it."""
_counting = threading.Lock()

# CrewAI makes an LLM again out of what was dumped by looking its type up here.
base_agent._LLM_TYPE_REGISTRY["fitrouter"] = f"{__package__}.FitrouterLLM"


class FitrouterLLM(RoutedLLM):
    """An LLM that asks, for each call, the model that fits this user and this task.

    Args:
        router: a `Router` that was not started, the path of a configuration, or the URL of a gateway; the environment
            variable FITROUTER, else `fitrouter.yaml`.
        model: `fitrouter/auto`, or the name of a model, which is asked without routing.
        user: who asks, where no fingerprint and no input says it; `role`, `task`, `session` and `tenant` likewise.
        response_format: the type of every answer, where a call names none.

    The agent's role, the task's name and the crew become the identity. One object may be shared: each agent of a crew
    has a copy of its own from the first call on, so that its tokens are counted once. `last` says what was decided for
    an agent's latest call; `feedback` takes its decision id.
    """

    llm_type: str = "fitrouter"
    model: str = AUTO
    provider: str = "fitrouter"
    router: Any = Field(default_factory=lambda: os.environ.get("FITROUTER", "fitrouter.yaml"))

    _client: Client | None = PrivateAttr(default=None)
    _cards: tuple[Model, ...] = PrivateAttr(default=())
    _decided: dict[str, About] = PrivateAttr(default_factory=dict)
    _owner: ref[Any] | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _routed(cls, data: Any) -> Any:
        """A model need not be named: routing is what it is for. Who asks may be said by any of its names."""
        if not isinstance(data, dict):
            return data
        return {"model": AUTO, "provider": "fitrouter", **settled(cls._known(data), "additional_params")}

    @classmethod
    def _known(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Settings without what nobody said, with what a dump left out.

        CrewAI copies crews by dumps of the fields that `BaseLLM` has. One of them, `base_url`, says which object of
        this process was dumped, and so what its other fields were. Elsewhere a `base_url` is where the router is.
        """
        given = {name: value for name, value in data.items() if value is not None}
        address = str(given.get("base_url", _MARK))
        if (dumped := _made.get(address)) is not None:
            own = set(cls.model_fields) - set(BaseLLM.model_fields)
            return {name: value for name in own if (value := getattr(dumped, name)) is not None} | given
        return given if address.startswith(_MARK) else {"router": address} | given

    def model_post_init(self, context: Any, /) -> None:
        """Make it known to dumps; pydantic calls this."""
        super().model_post_init(context)
        self._enter()

    def _enter(self) -> None:
        self.base_url = _MARK + uuid4().hex
        _made[self.base_url] = self

    def __copy__(self) -> Self:
        """Another one of the same router, which counts its own tokens."""
        made = super().__copy__()
        made._token_usage, made._owner = dict.fromkeys(self._token_usage, 0), None
        made._enter()
        return made

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """As `copy`: a router is shared."""
        made = copy.copy(self)
        made.additional_params, made.stop = copy.deepcopy(self.additional_params, memo), list(self.stop)
        return made

    def __getstate__(self) -> dict[Any, Any]:
        if isinstance(self.router, Router):
            raise TypeError(
                "a FitrouterLLM with a Router of this process cannot go to another one; make it with the path of a "
                "configuration or with the URL of a gateway"
            )
        state = super().__getstate__()
        private = state["__pydantic_private__"] | {"_client": None, "_decided": {}, "_cards": (), "_owner": None}
        return state | {"__pydantic_private__": private}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self._enter()

    @field_serializer("router")
    def _address(self, router: Any) -> str | None:
        """A `Router` has none that another process could use."""
        return None if isinstance(router, Router) else os.fspath(router)

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
        return all("tools" in card.capabilities for card in self._models())

    def supports_stop_words(self) -> bool:
        """Stop words go to the model, and cut what it says beyond them."""
        return True

    def supports_multimodal(self) -> bool:
        """Whether every model that may answer sees images."""
        return all("images" in card.capabilities for card in self._models())

    def get_context_window_size(self) -> int:
        """Tokens that every model that may answer can be given."""
        return int(USABLE * min(card.context_window for card in self._models()))

    def _models(self) -> tuple[Model, ...]:
        """The models that may answer, asked for once: CrewAI wants to know before each call."""
        if not self._cards:
            self._cards = self.client.models()
        return self._cards

    def get_input_tokens_count(self, messages: Any, tools: Any = None, response_model: Any = None) -> int:  # noqa: ARG002 - CrewAI's signature
        """About how many tokens messages have, as the router estimates them."""
        from fitrouter.context.features import estimate_tokens

        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return estimate_tokens(said, {"tools": tools} if tools else {})

    def to_config_dict(self) -> dict[str, Any]:
        """What makes another like it; a `Router` of this process is left out."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"api_key", "base_url"})
        return {name: value for name, value in given.items() if value is not None} | {"model": self.model}

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
        turn = Turn(self, from_task, from_agent, available_functions, response_model)
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
        turn = Turn(self, from_task, from_agent, available_functions, response_model)
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

    @property
    def owner(self) -> Any:
        """The agent that this one was copied for, or None."""
        return None if self._owner is None else self._owner()

    def _count(self, usage: dict[str, Any], agent: Any) -> None:
        """Count what a call used, once and for its agent.

        A crew adds up what its agents' models have used; one that n of them share would count n times. So with the
        first call of any of them each gets a copy of its own. Who works without a crew counts here.
        """
        with _counting:
            for one in _colleagues(agent):
                if one.llm is self and self.owner is not one:
                    one.llm = copy.copy(self)
                    one.llm._owner = ref(one)
                    if getattr(one.agent_executor, "llm", None) is self:
                        one.agent_executor.llm = one.llm
            theirs = getattr(agent, "llm", None)
            account = theirs if isinstance(theirs, FitrouterLLM) and theirs.owner is agent else self
            account._track_token_usage_internal(usage)

    def _remember(self, about: About, task: Any, agent: Any) -> None:
        with _counting:
            for key in {"", str(getattr(agent, "id", ""))}:
                self._decided.pop(key, None)
                self._decided[key] = about  # the latest at the end
            while len(self._decided) > _REMEMBERED:
                del self._decided[next(iter(self._decided))]
        for watcher in tuple(watchers):
            watcher(self, about, task, agent)


def _colleagues(agent: Any) -> list[Any]:
    """Who is added up with an agent: its crew, with its manager; nobody where it works alone."""
    crew = getattr(agent, "crew", None)
    if crew is None or not hasattr(crew, "agents"):
        return []
    others = [one for one in (*crew.agents, crew.manager_agent) if one is not None and one is not agent]
    return [agent, *others]

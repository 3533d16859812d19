"""CrewAI LLM over a router."""

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
from pydantic import Field, PrivateAttr, field_serializer, model_validator

from fitrouter.router import Router
from fitrouter.types import AUTO
from fitrouter_integrations._identity import canonical_settings
from fitrouter_integrations.client import About, Client, Model, Vote, connect
from fitrouter_integrations.crewai._turn import RoutedLLM, Turn

USABLE = 0.85
"""Share of a context window that CrewAI fills before it summarises."""

watchers: list[Callable[[FitrouterLLM, About, Any, Any], None]] = []
"""Called after every decision with the task and agent, in the thread of the call. They must not raise."""

_REMEMBERED = 4096
"""Agents whose latest decision is kept; the oldest are dropped."""
_made: WeakValueDictionary[str, FitrouterLLM] = WeakValueDictionary()
"""All instances in this process by `base_url`; see `FitrouterLLM._restored`."""
_MARK = "fitrouter:"
"""Prefix of such a `base_url`."""
_counting = threading.Lock()

# CrewAI looks up the class of a dumped LLM here.
base_agent._LLM_TYPE_REGISTRY["fitrouter"] = f"{__package__}.FitrouterLLM"


class FitrouterLLM(RoutedLLM):
    """An LLM that answers each call by the model that suits this user and this task.

    Args:
        router: a `Router` that is not started, the path of a configuration, or the URL of a gateway; by default the
            environment variable FITROUTER, else `fitrouter.yaml`.
        model: `fitrouter/auto` for routing, or the name of a model.
        user: default if no fingerprint and no input gives it; likewise `role`, `task`, `session` and `tenant`.
        response_format: the type of every answer, if a call gives none.

    The identity comes from the agent's role, the task's name and the crew. Agents may share an object: from the first
    call on each agent of a crew has its own copy, so that tokens are counted once. `last` returns the decision of an
    agent's latest call, whose id `feedback` takes.
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
    def _accept_settings(cls, data: Any) -> Any:
        """Default the model, and accept identity fields under any of their names; pydantic calls this."""
        if not isinstance(data, dict):
            return data
        return {
            "model": AUTO,
            "provider": "fitrouter",
            **canonical_settings(cls._restored(data), "additional_params"),
        }

    @classmethod
    def _restored(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return settings without null values, completed by the fields that a dump leaves out.

        CrewAI copies crews by dumps of the fields that `BaseLLM` has. The dumped `base_url` identifies the original
        object in this process, and thereby its other fields. A `base_url` from elsewhere is the router's URL.
        """
        given = {name: value for name, value in data.items() if value is not None}
        address = str(given.get("base_url", _MARK))
        if (dumped := _made.get(address)) is not None:
            own = set(cls.model_fields) - set(BaseLLM.model_fields)
            return {name: value for name in own if (value := getattr(dumped, name)) is not None} | given
        return given if address.startswith(_MARK) else {"router": address} | given

    def model_post_init(self, context: Any, /) -> None:
        """Register the object for dumps; pydantic calls this."""
        super().model_post_init(context)
        self._enter()

    def _enter(self) -> None:
        self.base_url = _MARK + uuid4().hex
        _made[self.base_url] = self

    def __copy__(self) -> Self:
        """Return a copy with the same router and its own token count."""
        made = super().__copy__()
        made._token_usage, made._owner = dict.fromkeys(self._token_usage, 0), None
        made._enter()
        return made

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Copy the settings deeply; the router is shared, as by `copy`."""
        made = copy.copy(self)
        made.additional_params, made.stop = copy.deepcopy(self.additional_params, memo), list(self.stop)
        return made

    def __getstate__(self) -> dict[Any, Any]:
        if isinstance(self.router, Router):
            raise TypeError(
                "a FitrouterLLM with a Router object cannot be pickled; create it with the path of a configuration or "
                "with the URL of a gateway"
            )
        state = super().__getstate__()
        private = state["__pydantic_private__"] | {"_client": None, "_decided": {}, "_cards": (), "_owner": None}
        return state | {"__pydantic_private__": private}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self._enter()

    @field_serializer("router")
    def _address(self, router: Any) -> str | None:
        """The router's path or URL; a `Router` object has none that another process could use."""
        return None if isinstance(router, Router) else os.fspath(router)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, "**********" if name == "api_key" and value else value

    # --- CrewAI's model interface ---

    @property
    def client(self) -> Client:
        """The client of the router, shared by all users of the same target."""
        if self._client is None:
            self._client = connect(self.router, self.api_key)
        return self._client

    def supports_function_calling(self) -> bool:
        """Whether all models support tools."""
        return all("tools" in card.capabilities for card in self._models())

    def supports_stop_words(self) -> bool:
        """Whether stop words are supported: always, sent to the model and enforced on its answer."""
        return True

    def supports_multimodal(self) -> bool:
        """Whether all models accept images."""
        return all("images" in card.capabilities for card in self._models())

    def get_context_window_size(self) -> int:
        """Usable tokens of the smallest context window."""
        return int(USABLE * min(card.context_window for card in self._models()))

    def _models(self) -> tuple[Model, ...]:
        """The models, fetched once, since CrewAI asks before each call."""
        if not self._cards:
            self._cards = self.client.models()
        return self._cards

    def get_input_tokens_count(self, messages: Any, tools: Any = None, response_model: Any = None) -> int:  # noqa: ARG002 - CrewAI's signature
        """Approximate number of tokens of messages, by the router's own estimate."""
        from fitrouter.context.features import estimate_tokens

        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return estimate_tokens(said, {"tools": tools} if tools else {})

    def to_config_dict(self) -> dict[str, Any]:
        """Settings from which an equal object can be made, without a `Router` object."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"api_key", "base_url"})
        return {name: value for name, value in given.items() if value is not None} | {"model": self.model}

    # --- calls ---

    def call(self, messages: Any, tools: Any = None, callbacks: Any = None, *more: Any, **named: Any) -> Any:
        """Answer a call in the form that CrewAI expects; see `BaseLLM.call`."""
        turn = Turn(self, *more, **named)
        with turn.reported(messages, tools, callbacks):
            request = turn.request(messages, tools)
            if not self._effective_stream():
                return turn.finish(self.client.complete(request))
            stream = self.client.stream(request)
            for chunk in stream:
                turn.stream(chunk, stream.about)
            return turn.finish(turn.streamed(stream.about))

    async def acall(self, messages: Any, tools: Any = None, callbacks: Any = None, *more: Any, **named: Any) -> Any:
        """Answer a call without blocking the event loop."""
        turn = Turn(self, *more, **named)
        with turn.reported(messages, tools, callbacks):
            request = turn.request(messages, tools)
            if not self._effective_stream():
                return turn.finish(await self.client.acomplete(request))
            stream = await self.client.astream(request)
            async for chunk in stream:
                turn.stream(chunk, stream.about)
            return turn.finish(turn.streamed(stream.about))

    # --- decisions and feedback ---

    def last(self, agent: Any = None) -> About | None:
        """Return the decision of the latest call of an agent, or of any; None before the first."""
        return self._decided.get("" if agent is None else str(agent.id))

    def feedback(self, vote: Vote) -> str:
        """Send feedback on an answer; returns its id once durable."""
        return self.client.feedback(vote.of(self.tenant))

    # --- token counts ---

    @property
    def owner(self) -> Any:
        """The agent that this copy belongs to, or None."""
        return None if self._owner is None else self._owner()

    def _count(self, usage: dict[str, Any], agent: Any) -> None:
        """Add a call's tokens to its agent's account.

        A crew sums the tokens of its agents' models, so a shared one would count several times. Therefore the first
        call of any agent gives each of them a copy of its own. An agent without a crew counts here.
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
    """Return the agents of an agent's crew and its manager, the agent itself first; empty without a crew."""
    crew = getattr(agent, "crew", None)
    if crew is None or not hasattr(crew, "agents"):
        return []
    others = [one for one in (*crew.agents, crew.manager_agent) if one is not None and one is not agent]
    return [agent, *others]

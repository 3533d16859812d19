"""Routing inside `create_agent`, between chat models that are there already."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from langchain.agents.middleware.types import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.runnables.config import ensure_config
from langchain_core.utils.function_calling import convert_to_openai_tool

from fitrouter.config import Config, load_config, parse_config
from fitrouter.errors import AllModelsFailed, ConfigError, ProviderRejected
from fitrouter.router import Router
from fitrouter.types import Identity, Request
from fitrouter_integrations.client import Client, Reply, Vote, connect
from fitrouter_integrations.langchain._agent_models import PARAMETERS, TURN, AgentModels, Turn, said_of
from fitrouter_integrations.langchain._convert import messages_of, metadata_of
from fitrouter_integrations.langchain._identity import FIELDS, identity_of

__all__ = ["FitrouterMiddleware"]

Models: TypeAlias = Mapping[str, BaseChatModel | str]
_PROVIDER = "langchain"
_MEDIA = {"images": "image_inputs", "audio": "audio_inputs", "video": "video_inputs", "files": "pdf_inputs"}
"""Capability → its name in a profile."""


class FitrouterMiddleware(AgentMiddleware[Any, Any, Any]):
    """Asks, for each step of an agent, the one of its chat models that fits this user and this task.

        agent = create_agent(fast, tools, middleware=[FitrouterMiddleware({"fast": fast, "deep": deep})])

    The models stay what they are: nothing but the choice goes through the router. Each answer says in
    `response_metadata` which model gave it, its decision id, propensity, mode and cost; `feedback` takes the decision
    id. A model that fails is replaced by another one; where all fail, what the last one raised is raised.

    Args:
        models: by the names that they are known by in the log; text is for `init_chat_model`.
        data: folder of the journal and of what is learnt.
        prices: name → (input, output) in USD per million tokens; without them answers cost nothing.
        config: a configuration, or its path, instead of `data`, `prices` and `settings`; its models must be `models`.
        router: a `Router` that was not started instead, with `AgentModels` as provider.
        user: who asks, where no channel of LangChain says it; `role`, `task`, `session` and `tenant` likewise.
        timeout: seconds for a step with all its attempts; the router's own deadline where None.
        settings: anything else that a configuration has: policy, objective, budget, session, scorer, encoder …

    Raises:
        ConfigError: the models are not those of the configuration, or it cannot be used.
    """

    def __init__(
        self,
        models: Models,
        *,
        data: str | os.PathLike[str] = "fitrouter-data",
        prices: Mapping[str, tuple[float, float]] | None = None,
        config: Config | str | os.PathLike[str] | None = None,
        router: Router | None = None,
        tenant: str = Identity().tenant,
        user: str | None = None,
        role: str | None = None,
        task: str | None = None,
        session: str | None = None,
        timeout: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.tools = []
        self.models = {name: _model(model) for name, model in models.items()}
        self.own = Identity(tenant=tenant, user=user, role=role, task=task, session=session)
        self.timeout = timeout
        if router is None:
            if config is None:
                found = _config(self.models, data, prices or {}, settings)
            elif prices or settings:
                raise ConfigError(f"config was given and so was {sorted([*settings, *(['prices'] if prices else [])])}")
            else:
                found = _with(self.models, config if isinstance(config, Config) else load_config(config))
            router = Router.from_config(found, providers={_PROVIDER: AgentModels()})
        _check(self.models, router)
        self.router = router
        self.client: Client = connect(router)

    # --- what LangChain calls ---

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Ask the model that the router chooses."""
        turn = self._turn(request, handler)
        try:
            reply = self.client.complete(self._request(turn, request))
        except (AllModelsFailed, ProviderRejected) as failure:
            error = _own_error(turn, failure)
        else:
            return _told(turn, reply)
        raise error

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Ask the model that the router chooses."""
        turn = self._turn(request, handler, asyncio.get_running_loop())
        try:
            reply = await self.client.acomplete(self._request(turn, request))
        except (AllModelsFailed, ProviderRejected) as failure:
            error = _own_error(turn, failure)
        else:
            return _told(turn, reply)
        raise error

    # --- what people say ---

    def feedback(self, vote: Vote) -> str:
        """Take a verdict on an answer, by the decision id in its `response_metadata`; returns its id once durable."""
        return self.client.feedback(vote)

    async def afeedback(self, vote: Vote) -> str:
        """Take a verdict on an answer."""
        return await self.client.afeedback(vote)

    def close(self) -> None:
        """Settle and close the router; without it that happens when the process ends."""
        self.client.close()

    # --- requests ---

    def _turn(
        self, request: ModelRequest[Any], handler: Callable[..., Any], loop: asyncio.AbstractEventLoop | None = None
    ) -> Turn:
        lead = [] if request.system_message is None else [request.system_message]
        params: dict[str, Any] = {}
        if request.tools:
            params["tools"] = [
                tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools
            ]
        if request.tool_choice is not None:
            params["tool_choice"] = request.tool_choice
        names = {name for group in FIELDS.values() for name in group}
        settings = {name: value for name, value in request.model_settings.items() if name not in names}
        bare = request.override(model_settings=settings)
        turn = Turn(bare, handler, self.models, messages_of([*lead, *request.messages]), params, loop)
        params[TURN] = turn
        return turn

    def _request(self, turn: Turn, request: ModelRequest[Any]) -> Request:
        return Request(
            messages=turn.messages,
            params=dict(turn.params),
            identity=identity_of(self.own, ensure_config().get("metadata"), request.model_settings),
            deadline_s=self.timeout,
        )


def _tool(tool: Any) -> dict[str, Any]:
    return tool if isinstance(tool, dict) else convert_to_openai_tool(tool)


def _own_error(turn: Turn, failure: Exception) -> BaseException:
    """What the last model raised, with what the router says of it; the router's own error where it gave that up."""
    error = turn.outcome.error
    if error is None:
        return failure
    if isinstance(failure, AllModelsFailed):
        error.add_note(f"fitrouter: {failure} (decision {failure.decision_id})")
    return error


def _told(turn: Turn, reply: Reply) -> ModelResponse[Any]:
    """The answer, which says what was decided."""
    answer = turn.outcome.answer
    assert answer is not None
    said = said_of(answer)
    assert said is not None
    before = said.response_metadata
    meta = before | metadata_of(reply.about)
    if "model_name" in before:
        meta["provider_model"] = before["model_name"]
    told = said.model_copy(update={"response_metadata": meta})
    return ModelResponse(
        result=[told if message is said else message for message in answer.result],
        structured_response=answer.structured_response,
    )


# --- configurations ------------------------------------------------------------------------------------------------


def _model(model: BaseChatModel | str) -> BaseChatModel:
    if isinstance(model, str):
        from langchain.chat_models import init_chat_model

        return init_chat_model(model)
    return model


def _config(
    models: Mapping[str, BaseChatModel],
    data: str | os.PathLike[str],
    prices: Mapping[str, tuple[float, float]],
    settings: Mapping[str, Any],
) -> Config:
    if unknown := sorted(prices.keys() - models.keys()):
        raise ConfigError(f"prices: there is no model {', '.join(map(repr, unknown))}; there are {sorted(models)}")
    listed = [
        {
            "name": name,
            "provider": _PROVIDER,
            "prices": _prices(name, prices.get(name, (0.0, 0.0))),
            "parameters": PARAMETERS,
            **_abilities(model),
        }
        for name, model in models.items()
    ]
    described = {"data": data, "providers": {_PROVIDER: _TAKEN}, "models": listed, **settings}
    return parse_config(described, "FitrouterMiddleware's settings")


def _prices(name: str, given: tuple[float, float]) -> dict[str, float]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ConfigError(f"prices: {name!r} has {given!r}; give (input, output) in USD per million tokens")
    return {"input": given[0], "output": given[1]}


_TAKEN = {"kind": "simulated"}
"""A place for the provider that is given."""


def _with(models: Mapping[str, BaseChatModel], config: Config) -> Config:
    """A configuration whose models are an agent's: their prices, windows and abilities are as they stand there."""
    if (named := {model.name for model in config.models}) != set(models):
        raise ConfigError(f"models: given were {sorted(models)}, the configuration names {sorted(named)}")
    plain = parse_config({"providers": {_PROVIDER: _TAKEN}, "models": [{"name": "m", "provider": _PROVIDER}]})
    update = {"provider": _PROVIDER, "target": "", "parameters": PARAMETERS}
    return config.model_copy(
        update={
            "providers": plain.providers,
            "models": tuple(model.model_copy(update=update) for model in config.models),
        }
    )


def _abilities(model: BaseChatModel) -> dict[str, Any]:
    """What a model's profile says it can do; one without a profile is believed to do anything."""
    profile: Mapping[str, Any] = getattr(model, "profile", None) or {}
    can = ["streaming", "json"]
    if profile.get("tool_calling", True):
        can.append("tools")
    can += [name for name, key in _MEDIA.items() if profile.get(key, not profile)]
    found: dict[str, Any] = {"capabilities": can}
    if profile.get("max_input_tokens"):
        found["context_window"] = profile["max_input_tokens"]
    if profile.get("max_output_tokens"):
        found["max_output_tokens"] = profile["max_output_tokens"]
    return found


def _check(models: Mapping[str, BaseChatModel], router: Router) -> None:
    for card in router.cards.values():
        if not isinstance(router.providers[card.provider], AgentModels):
            raise ConfigError(
                f"router: {card.name!r} is asked through {type(router.providers[card.provider]).__name__}; the models "
                "of an agent are asked through AgentModels, see Router.from_config(providers=…)"
            )
        if (card.target or card.name) not in models:
            raise ConfigError(f"models: {card.target or card.name!r} is missing; given were {sorted(models)}")

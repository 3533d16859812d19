"""LangChain chat model over a router."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

from langchain_core.language_models import LangSmithParams, LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, Generation
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langchain_core.utils import from_env, secret_from_env
from langchain_core.utils.function_calling import convert_to_openai_tool
from msgspec.structs import replace
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, field_validator, model_validator

from fitrouter.context.features import estimate_tokens
from fitrouter.errors import ConfigError, InvalidRequest
from fitrouter.router import Router
from fitrouter.types import AUTO, Identity, Request
from fitrouter_integrations._http import KEY_ENV
from fitrouter_integrations._identity import SETTINGS, canonical_settings
from fitrouter_integrations.client import Client, Vote, connect
from fitrouter_integrations.langchain._convert import Pieces, result_of, tool_choice_of
from fitrouter_integrations.langchain._errors import translated
from fitrouter_integrations.langchain._history import messages_of
from fitrouter_integrations.langchain._identity import KEY, carried, identity_of, tier_of
from fitrouter_integrations.langchain._structured import structured

Config: TypeAlias = RunnableConfig | None
Messages: TypeAlias = list[BaseMessage]
Stop: TypeAlias = list[str] | None
Schema: TypeAlias = dict[str, Any] | type
_NOT_PARAMS = frozenset({KEY, "stream", "ls_structured_output_format", "stream_usage"}) | SETTINGS
"""Keyword arguments of a call that are not sent to providers."""


class ChatFitrouter(BaseChatModel):
    """A chat model that answers each request by the model that suits this user and this task.

    Args:
        router: a `Router` that is not started, the path of a configuration, or the URL of a gateway; by default the
            environment variable FITROUTER, else `fitrouter.yaml`.
        model: `fitrouter/auto` for routing, or the name of a model.
        user: default if no channel of LangChain gives it; likewise `role`, `task`, `session` and `tenant`.

    A reply's `response_metadata` has the model, decision id, propensity and cost; pass the decision id to `feedback`.
    Copies share the router. Dumps and pickles leave the key out; where they are loaded it is read from the environment
    variable FITROUTER_API_KEY.
    """

    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True)

    router: Any = Field(default_factory=from_env("FITROUTER", default="fitrouter.yaml"), exclude=True)
    model_name: str = Field(default=AUTO, alias="model")
    api_key: SecretStr | None = Field(default_factory=secret_from_env(KEY_ENV, default=None))
    """Of a gateway."""
    tenant: str = Identity().tenant
    user: str | None = None
    role: str | None = None
    task: str | None = None
    session: str | None = None
    run: str | None = None
    tier: str = ""
    """Cost tier: quality, balanced or economy."""
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    """Seconds for the whole request; by default the router's deadline."""
    max_retries: int = 0
    """Ignored: the router tries another model if one fails."""
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    streaming: bool = False
    """Stream every answer, even if the caller wants it whole."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of every request."""

    _client: Client | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """Accept identity fields under any of their names, as integers, or in `model_kwargs`."""
        return canonical_settings(data, "model_kwargs") if isinstance(data, dict) else data

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        """Refuse unknown settings, such as a `base_url` that would silently do nothing."""
        allowed = {name for field, info in cls.model_fields.items() for name in (field, info.alias) if name}
        unknown = sorted(set(given) - allowed - SETTINGS) if isinstance(given, dict) else []
        if unknown:
            raise ConfigError(
                f"ChatFitrouter({unknown[0]}=…): unknown setting; allowed are {', '.join(sorted(allowed))}. "
                "Pass a gateway's URL as router, and further request parameters in model_kwargs"
            )
        return given

    @field_validator("router")
    @classmethod
    def _reachable(cls, router: Any) -> Any:
        if isinstance(router, Router) or (isinstance(router, str | os.PathLike) and os.fspath(router)):
            return router
        raise ConfigError(
            f"router: got {router!r}; give the path of a configuration, the URL of a gateway, or a Router that is "
            "not started"
        )

    # --- LangChain's model interface ---

    @property
    def _llm_type(self) -> str:
        return "fitrouter"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model": self.model_name, **self._sampling()}

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """Return the cache key, which includes the identity: what suits one user does not suit another."""
        metadata = ensure_config().get("metadata")
        who, tier = identity_of(self._own_identity(), metadata, kwargs), tier_of(self.tier, metadata, kwargs)
        asked = {name: value for name, value in kwargs.items() if name != KEY and name not in SETTINGS}
        return f"{super()._get_llm_string(stop, **asked)}---{replace(who, session=None, run=None)!r}{tier}"

    def _convert_cached_generations(self, cache_val: list[Generation]) -> list[ChatGeneration]:
        """Convert cached answers, which keep their decision for feedback, and cost nothing.

        They get no id: a message with the id of the first one would replace it in a graph's state.
        """
        found = super()._convert_cached_generations(cache_val)
        for each in found:
            meta = {**each.message.response_metadata, "cost_usd": 0.0, "cached": True}
            each.message = each.message.model_copy(update={"id": None, "response_metadata": meta})
        return found

    def get_token_ids(self, text: str) -> list[int]:
        """Tokenize by `custom_get_token_ids`, which must be given since every model has its own tokenizer.

        Raises:
            ConfigError: it is not.
        """
        if self.custom_get_token_ids is None:
            raise ConfigError(
                "a router has no tokenizer; pass ChatFitrouter(custom_get_token_ids=…), or use get_num_tokens"
            )
        return super().get_token_ids(text)

    def get_num_tokens(self, text: str) -> int:
        """Approximate number of tokens of a text, computed locally."""
        return super().get_num_tokens(text) if self.custom_get_token_ids else math.ceil(len(text.encode()) / 4)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Approximate number of tokens of messages and tools, by the router's own estimate."""
        if self.custom_get_token_ids:
            return super().get_num_tokens_from_messages(messages, tools)
        return estimate_tokens(messages_of(messages), {"tools": [convert_to_openai_tool(tool) for tool in tools or ()]})

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "fitrouter"
        return params

    def _resolve_model_profile(self) -> ModelProfile | None:
        """Return the capabilities that all candidates share."""
        cards = self.client.models()
        if self.model_name != AUTO:
            cards = tuple(card for card in cards if card.name == self.model_name) or cards
        shared = set.intersection(*(set(card.capabilities) for card in cards))
        profile: ModelProfile = {
            "max_input_tokens": min(card.context_window for card in cards),
            "text_inputs": True,
            "text_outputs": True,
            "image_inputs": "images" in shared,
            "image_url_inputs": "images" in shared,
            "audio_inputs": "audio" in shared,
            "video_inputs": "video" in shared,
            "pdf_inputs": "files" in shared,
            "tool_calling": "tools" in shared,
            "structured_output": "json" in shared,
        }
        limits = [card.max_output_tokens for card in cards if card.max_output_tokens is not None]
        if limits:
            profile["max_output_tokens"] = min(limits)
        return profile

    @property
    def client(self) -> Client:
        """The client of the router, shared by all users of the same target."""
        if self._client is None:
            self._client = connect(self.router, self.api_key.get_secret_value() if self.api_key else None)
        return self._client

    # --- copies, which share the router, and dumps, which leave the key out ---

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Whether LangChain may dump it: yes, without the key, and with the router's path or URL."""
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Return the namespace under which LangChain finds the class when it loads a dump."""
        return ["fitrouter_integrations", "langchain"]

    @property
    def lc_secrets(self) -> dict[str, str]:
        """Secrets that dumps name but do not contain."""
        return {"api_key": KEY_ENV}

    @property
    def lc_attributes(self) -> dict[str, Any]:
        """Attributes of dumps besides the fields; a `Router` object cannot be dumped."""
        return {} if isinstance(self.router, Router) else {"router": os.fspath(self.router)}

    def __copy__(self) -> Self:
        made = super().__copy__()
        made._client = None  # `model_copy` may set another router
        return made

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = {} if memo is None else memo
        memo.update({id(kept): kept for kept in (self.router, self._client) if kept is not None})
        made = super().__deepcopy__(memo)
        made._client = None
        return made

    def __getstate__(self) -> dict[Any, Any]:
        if isinstance(self.router, Router):
            raise ConfigError(
                "a Router object cannot be pickled; use the path of its configuration, or the URL of a gateway"
            )
        state = super().__getstate__()
        state["__dict__"] = {**state["__dict__"], "api_key": None}
        state["__pydantic_private__"] = {**(state["__pydantic_private__"] or {}), "_client": None}
        return state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self.api_key = secret_from_env(KEY_ENV, default=None)()

    # --- entry points, which pass the identity on: `stream` does not pass its config to `_stream` ---

    def invoke(self, input: LanguageModelInput, config: Config = None, **kwargs: Any) -> AIMessage:
        """Return a complete answer."""
        return super().invoke(input, config, **carried(config, kwargs))

    async def ainvoke(self, input: LanguageModelInput, config: Config = None, **kwargs: Any) -> AIMessage:
        """Return a complete answer."""
        return await super().ainvoke(input, config, **carried(config, kwargs))

    def stream(self, input: LanguageModelInput, config: Config = None, **kwargs: Any) -> Iterator[Any]:
        """Answer as a stream."""
        return super().stream(input, config, **carried(config, kwargs))

    def astream(self, input: LanguageModelInput, config: Config = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Answer as a stream."""
        return super().astream(input, config, **carried(config, kwargs))

    def stream_events(self, input: LanguageModelInput, config: Config = None, **kwargs: Any) -> Any:
        """Answer as a stream of events."""
        return super().stream_events(input, config, **carried(config, kwargs))

    def astream_events(self, input: LanguageModelInput, config: Config = None, **kwargs: Any) -> Any:
        """Answer as a stream of events."""
        return super().astream_events(input, config, **carried(config, kwargs))

    # --- requests ---

    def _generate(self, messages: Messages, stop: Stop = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with translated():
            return result_of(self.client.complete(self._request(messages, stop, run_manager, kwargs)))

    async def _agenerate(
        self, messages: Messages, stop: Stop = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        with translated():
            return result_of(await self.client.acomplete(self._request(messages, stop, run_manager, kwargs)))

    def _stream(
        self, messages: Messages, stop: Stop = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        def piece(made: ChatGenerationChunk) -> ChatGenerationChunk:
            if run_manager:
                run_manager.on_llm_new_token(made.text, chunk=made)
            return made

        with translated():
            stream = self.client.stream(self._request(messages, stop, run_manager, kwargs))
            pieces = Pieces(stream)
            for chunk in stream:
                yield piece(pieces.add(chunk))
        yield piece(pieces.end())

    async def _astream(
        self, messages: Messages, stop: Stop = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async def piece(made: ChatGenerationChunk) -> ChatGenerationChunk:
            if run_manager:
                await run_manager.on_llm_new_token(made.text, chunk=made)
            return made

        with translated():
            stream = await self.client.astream(self._request(messages, stop, run_manager, kwargs))
            pieces = Pieces(stream)
            async for chunk in stream:
                yield await piece(pieces.add(chunk))
        yield await piece(pieces.end())

    def _request(self, messages: Messages, stop: Stop, run_manager: Any, kwargs: Mapping[str, Any]) -> Request:
        params = {**self._sampling(), **self.model_kwargs}
        params |= {name: value for name, value in kwargs.items() if name not in _NOT_PARAMS}
        model = params.pop("model", None) or self.model_name
        timeout = params.pop("timeout", self.timeout)
        if stop:
            params["stop"] = stop
        if params.get("n") not in (None, 1):
            raise InvalidRequest(
                f"n: got {params['n']!r}; allowed is 1, since one decision gives one answer (use batch)"
            )
        if "tool_choice" in params:
            params["tool_choice"] = tool_choice_of(params["tool_choice"])
        return Request(
            messages=messages_of(messages),
            model=model,
            params={name: value for name, value in params.items() if value is not None},
            identity=identity_of(self._own_identity(), getattr(run_manager, "metadata", None), kwargs),
            tier=tier_of(self.tier, getattr(run_manager, "metadata", None), kwargs),
            deadline_s=timeout,
        )

    def _own_identity(self) -> Identity:
        return Identity(**{name: getattr(self, name) for name in Identity.__struct_fields__})

    def _sampling(self) -> dict[str, Any]:
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens, "stop": self.stop}
        return {name: value for name, value in given.items() if value is not None}

    # --- settings, tools and schemas ---

    def bind(self, **kwargs: Any) -> Bound:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the model with bound keyword arguments."""
        return Bound(bound=self, kwargs=kwargs, config={})

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Return the model with a bound config."""
        return self.bind().with_config(config, **kwargs)

    def bind_tools(
        self,
        tools: Sequence[Mapping[str, Any] | type | Any | BaseTool],
        *,
        tool_choice: str | bool | Mapping[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with tools bound to it.

        Args:
            tools: functions, classes, LangChain tools, or schemas in OpenAI's format.
            tool_choice: "auto", "none", "any" or True (some tool), or a tool's name.
            strict: require arguments to follow the schema, if the model supports it.
            kwargs: further parameters of the request.
        """
        if formatted := [_tool(tool, strict) for tool in tools]:
            kwargs["tools"] = formatted
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice_of(tool_choice)
        return self.bind(**kwargs)

    def with_structured_output(
        self,
        schema: Schema,
        *,
        include_raw: bool = False,
        method: Literal["function_calling", "json_schema", "json_mode"] = "function_calling",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return a runnable that calls the model and parses its answers by a schema.

        Args:
            schema: a pydantic class, a TypedDict, or a JSON schema.
            include_raw: return `raw`, `parsed` and `parsing_error` instead of raising.
            method: a tool call, a response format with the schema, or free JSON.
            strict: require answers to follow the schema, if the model supports it.
            kwargs: further parameters of the request.
        """
        return structured(self, schema, include_raw=include_raw, method=method, strict=strict, **kwargs)

    # --- feedback ---

    def feedback(self, vote: Vote) -> str:
        """Send feedback on an answer, by the decision id in its `response_metadata`; returns its id once durable."""
        return self.client.feedback(vote.of(self.tenant))

    async def afeedback(self, vote: Vote) -> str:
        """Send feedback on an answer."""
        return await self.client.afeedback(vote.of(self.tenant))


class Bound(RunnableBinding[LanguageModelInput, AIMessage]):
    """The result of `bind` and `with_config` of a `ChatFitrouter`.

    LangChain's class passes `bind_tools` and `with_structured_output` on to the bare model, losing the identity.
    """

    @classmethod
    def lc_id(cls) -> list[str]:
        """Return the id of LangChain's own class, under which it is dumped."""
        return [*cls.get_lc_namespace(), "RunnableBinding"]

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with tools; see `ChatFitrouter.bind_tools`."""
        return self._configured(self.bound.bind_tools(tools, **self._identity() | kwargs))  # type: ignore[attr-defined]

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[LanguageModelInput, Any]:
        """Return the model with answers parsed by a schema; see `ChatFitrouter.with_structured_output`."""
        return self._configured(self.bound.with_structured_output(schema, **self._identity() | kwargs))  # type: ignore[attr-defined]

    def _identity(self) -> dict[str, Any]:
        return {name: value for name, value in self.kwargs.items() if name in SETTINGS}

    def _configured(self, made: Runnable[LanguageModelInput, Any]) -> Runnable[LanguageModelInput, Any]:
        return made.with_config(self.config) if self.config else made


def _tool(tool: Any, strict: bool | None) -> dict[str, Any]:
    if isinstance(tool, dict) and "type" in tool and "function" in tool:
        return tool
    return convert_to_openai_tool(tool, strict=strict)

"""A custom litellm provider: `fitrouter/auto` as a model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import litellm
import msgspec
from litellm.llms.custom_llm import CustomLLM
from litellm.types.utils import Delta, ModelResponse, ModelResponseStream, StreamingChoices

from fitrouter.errors import FitrouterError, InvalidRequest
from fitrouter.providers.usage import usage_body
from fitrouter.types import AUTO, Chunk, Identity, Request, Usage
from fitrouter_integrations._identity import NAMES
from fitrouter_integrations.client import About, Client, Reply, Target, Vote, connect
from fitrouter_integrations.litellm._errors import translated
from fitrouter_integrations.litellm._identity import identity_of

PROVIDER = "fitrouter"
"""Prefix of model names."""
_NOT_PARAMS = NAMES | {"extra_body", "max_retries", "metadata", "stream", "stream_options"}
"""Optional parameters of litellm that are not sent to models."""
_DEFAULT_TIMEOUT_S = 600.0
"""The timeout that litellm fills in if a caller gives none; its router fills in more."""


class FitrouterProvider(CustomLLM):  # type: ignore[misc]
    """A litellm provider that answers each call by the model that suits this user and this task.

    `fitrouter/auto` is routed; `fitrouter/NAME` calls the model of that name. The identity comes from the call's
    `metadata` (user, role, task, session, tenant) or `user=`. Responses, and the first and last chunk of a stream, have
    the model, decision id and propensity in `fitrouter`; so does `_hidden_params`, with the cost.

    Args:
        target: a `Router` that is not started, the path of a configuration, or the URL of a gateway; by default the
            environment variable FITROUTER, else `fitrouter.yaml`. A call's `api_base` overrides it with a gateway's
            URL.
        key: of a gateway; a call's `api_key` overrides it.
        identity: defaults for fields that a call does not give.
    """

    def __init__(self, target: Target | None = None, key: str | None = None, identity: Identity | None = None) -> None:
        super().__init__()
        self._target, self._key, self._own = target, key, identity or Identity()

    def client(self, api_base: str | None = None, api_key: str | None = None) -> Client:
        """The client of the router, shared by all users of the same target."""
        target = api_base or self._target or os.environ.get("FITROUTER", "fitrouter.yaml")
        return connect(target, api_key or self._key)

    # --- litellm's provider interface, called by keyword ---

    def completion(self, *_: Any, **call: Any) -> Any:
        """Return a complete answer; see `litellm.CustomLLM`."""
        with _translating(call["model"]):
            return _answer(self._client_of(call).complete(self._request(call)), call)

    async def acompletion(self, *_: Any, **call: Any) -> Any:
        """Return a complete answer."""
        with _translating(call["model"]):
            return _answer(await self._client_of(call).acomplete(self._request(call)), call)

    def streaming(self, *_: Any, **call: Any) -> Iterator[Any]:
        """Answer as a stream; errors before the first chunk are raised at once."""
        with _translating(call["model"]):
            stream = self._client_of(call).stream(self._request(call))
        return _relay(stream, _Pieces(stream, call))

    # An async generator, because litellm iterates the result without awaiting it.
    async def astreaming(self, *_: Any, **call: Any) -> AsyncIterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Answer as a stream; errors before the first chunk are raised when that is awaited."""
        with _translating(call["model"]):
            stream = await self._client_of(call).astream(self._request(call))
            pieces = _Pieces(stream, call)
            async for chunk in stream:
                for piece in pieces.add(chunk):
                    yield piece
            yield pieces.end()

    def embedding(self, *_: Any, **call: Any) -> Any:
        """Refuse: embeddings are not routed."""
        with _translating(call["model"]):
            raise InvalidRequest("fitrouter routes chat completions; use another model for embeddings")

    async def aembedding(self, *_: Any, **call: Any) -> Any:
        """Refuse: embeddings are not routed."""
        return self.embedding(**call)

    # --- feedback ---

    def feedback(self, vote: Vote) -> str:
        """Send feedback on an answer, by its decision id; returns its id once durable."""
        return self.client().feedback(vote)

    async def afeedback(self, vote: Vote) -> str:
        """Send feedback on an answer."""
        return await self.client().afeedback(vote)

    # --- requests ---

    def _client_of(self, call: Mapping[str, Any]) -> Client:
        return self.client(call.get("api_base"), call.get("api_key"))

    def _request(self, call: Mapping[str, Any]) -> Request:
        given = {**call["optional_params"], **(call["optional_params"].get("extra_body") or {})}
        if given.get("n") not in {None, 1}:
            raise InvalidRequest(f"n: got {given['n']!r}; allowed is 1, since one decision gives one answer")
        # litellm does not pass `user=` on to custom providers, but its record of the call has it.
        user = call["logging_obj"].model_call_details.get("user")
        timeout = call["litellm_params"].get("timeout")
        return Request(
            messages=tuple(plain(message) for message in call["messages"]),
            model=AUTO if f"{PROVIDER}/{call['model']}" == AUTO else call["model"],
            params={name: value for name, value in given.items() if name not in _NOT_PARAMS and value is not None},
            identity=identity_of(self._own, call["litellm_params"], user, given),
            deadline_s=timeout if isinstance(timeout, int | float) and timeout < _DEFAULT_TIMEOUT_S else None,
        )


class _Pieces:
    """Converts a stream's chunks to litellm's, with the cost at the end."""

    def __init__(self, stream: Any, call: Mapping[str, Any]) -> None:
        self._stream, self._call, self.model = stream, call, call["model"]
        self._id = f"chatcmpl-{stream.about.decision_id}"
        self._reason, self._usage, self._first = "", Usage(), True

    def add(self, chunk: Chunk) -> Iterator[Any]:
        """Convert a chunk to litellm's chunks. Finish reason and usage are held back until the end."""
        self._reason = chunk.finish_reason or self._reason
        self._usage = chunk.usage or self._usage
        if not any(value for name, value in chunk.delta.items() if name != "role"):
            return
        delta = {"role": "assistant", **chunk.delta} if self._first else chunk.delta
        told: dict[str, Any] = {}
        if self._first:
            told["fitrouter"] = _publish_decision(self._stream.about, self._call)
            told["provider_specific_fields"] = dict(told)  # without it, litellm's proxy drops all but the text
        piece = ModelResponseStream(
            id=self._id,
            model=self._stream.about.model,
            choices=[StreamingChoices(index=0, delta=Delta(**delta))],
            **told,
        )
        self._first = False
        yield piece

    def end(self) -> dict[str, Any]:
        """Return the last chunk, in litellm's generic form, the only one whose usage litellm keeps."""
        about = self._stream.about
        usage = usage_body(self._usage) | ({} if about.cost_usd is None else {"cost": about.cost_usd})
        return {
            "text": "",
            "tool_use": None,
            "is_finished": True,
            "finish_reason": self._reason or "stop",
            "usage": usage,
            "index": 0,
            "provider_specific_fields": {"fitrouter": _publish_decision(about, self._call)},
        }


def _relay(stream: Iterable[Chunk], pieces: _Pieces) -> Iterator[Any]:
    with _translating(pieces.model):
        for chunk in stream:
            yield from pieces.add(chunk)
        yield pieces.end()


def _answer(reply: Reply, call: Mapping[str, Any]) -> Any:
    about, told = reply.about, _publish_decision(reply.about, call)
    choice = {"index": 0, "finish_reason": reply.finish_reason, "message": reply.message}
    response = ModelResponse(
        id=f"chatcmpl-{about.decision_id}",
        model=about.model,
        choices=[choice],
        usage=usage_body(reply.usage),
        fitrouter=told,
    )
    response._hidden_params |= {"response_cost": about.cost_usd, "fitrouter": told}
    return response


def _publish_decision(about: About, call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decision as a dict, also set as `kwargs["fitrouter"]` for litellm's callbacks, also after a stream."""
    found: dict[str, Any] = msgspec.to_builtins(about)
    call["logging_obj"].model_call_details["fitrouter"] = found
    return found


def plain(message: Any) -> dict[str, Any]:
    """Return a message as a dict; agents send litellm's own objects back."""
    dump = getattr(message, "model_dump", None)
    found: dict[str, Any] = dump(exclude_none=True) if dump is not None else dict(message)
    return found


@contextmanager
def _translating(model: str) -> Iterator[None]:
    try:
        yield
    except FitrouterError as error:
        raise translated(error, model) from error


handler = FitrouterProvider()
"""For the configuration of litellm's proxy; the environment variable FITROUTER gives the router."""


def register(
    target: Target | None = None, key: str | None = None, identity: Identity | None = None
) -> FitrouterProvider:
    """Register `fitrouter/…` with litellm, replacing an earlier registration.

    Args:
        target: see `FitrouterProvider`.
        key: of a gateway.
        identity: defaults for fields that a call does not give.
    """
    from litellm.utils import custom_llm_setup

    provider = FitrouterProvider(target, key, identity)
    others = [entry for entry in litellm.custom_provider_map if entry["provider"] != PROVIDER]
    litellm.custom_provider_map = [*others, {"provider": PROVIDER, "custom_handler": provider}]
    custom_llm_setup()
    return provider

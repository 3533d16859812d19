"""A litellm callback that records existing traffic, before anything is routed."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import litellm
from litellm.integrations.custom_logger import CustomLogger
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER
from litellm.litellm_core_utils.thread_pool_executor import executor
from msgspec.structs import replace

from fitrouter.errors import in_words
from fitrouter.providers.usage import read_usage
from fitrouter.router import Router
from fitrouter.types import Completion, Identity, Request, Usage
from fitrouter_integrations._outbox import Outbox
from fitrouter_integrations.client import Client, ObservedCall, Target, connect
from fitrouter_integrations.litellm._errors import named
from fitrouter_integrations.litellm._identity import identity_of
from fitrouter_integrations.litellm._provider import PROVIDER, plain

_log = logging.getLogger("fitrouter")
_CALLS = frozenset({"completion", "acompletion"})
_READ = ("tools", "response_format")
"""Parameters that the scorer reads."""
_REDACTED = "redacted-by-litellm"
"""Replaces messages in callbacks if litellm must not log them."""
REMEMBERED = 10_000
"""Answers whose decision ids are kept."""
_WARNED = 100
"""Maximum number of unknown models that are warned about; clients of a proxy may invent any number."""
_THREADS = 8
"""Calls that are recorded at a time."""


class _Noted(NamedTuple):
    """A call as litellm reported it."""

    names: tuple[str, ...]
    """litellm's names of the model, the most specific first."""
    answer: str | None
    """litellm's id of the response."""
    seen: ObservedCall
    """Without the router's name of the model."""


class FitrouterObserver(CustomLogger):  # type: ignore[misc]
    """A litellm callback that observes: calls are logged and scored like those of pinned models, and nothing else.

    `litellm.callbacks = [FitrouterObserver("fitrouter.yaml")]`. Calls wait in a bounded queue and are recorded by
    background threads, so the observed code never waits; failures are logged under `fitrouter` and never raised. Each
    attempt of litellm's retries and fallbacks is a call of its own, recorded with its error. Skipped are calls of
    `fitrouter/…`, which the router records itself, cached answers, calls with `no-log` or several answers, and calls
    whose messages litellm must not log.

    Args:
        target: a `Router` that is not started, the path of a configuration, or the URL of a gateway; by default the
            environment variable FITROUTER, else `fitrouter.yaml`. Its models have litellm's names or targets.
        names: litellm's name of a model → the router's, where they differ.
        identity: defaults for fields that a call does not give; see `FitrouterProvider`.
        key: of a gateway; by default from the environment variable FITROUTER_API_KEY.
        waiting: maximum number of waiting calls; more are dropped and counted.
    """

    def __init__(
        self,
        target: Target | None = None,
        *,
        names: Mapping[str, str] | None = None,
        identity: Identity | None = None,
        key: str | None = None,
        waiting: int = 1000,
    ) -> None:
        super().__init__()
        # litellm treats two callbacks of a class as one if their public str and number attributes are equal.
        self.target = target if target is None or isinstance(target, Router) else os.fspath(target)
        self._own, self._names, self._key = identity or Identity(), dict(names or {}), key
        self._known: dict[str, str] = {}
        self._unknown: set[str] = set()
        self._decisions: OrderedDict[str, str] = OrderedDict()
        self._outbox = Outbox("an observed call", self._write, size=waiting, threads=_THREADS)

    @property
    def client(self) -> Client:
        """The client of the router, shared by all users of the same target."""
        return connect(self.target or os.environ.get("FITROUTER", "fitrouter.yaml"), self._key)

    @property
    def lost(self) -> int:
        """Number of calls that could not be recorded."""
        return self._outbox.lost

    def decision_of(self, response_id: str) -> str | None:
        """Return the decision id for litellm's response id, for feedback; None if not (yet) recorded."""
        return self._decisions.get(response_id)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all reported calls are recorded; returns whether that happened in time."""
        return self._outbox.flush(timeout_s)

    # --- litellm's callback interface; of a failed call, `response_obj` is None ---

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Record the answer or failure of a blocking call."""
        try:
            if _is_observed(kwargs, response_obj):
                latency_ms = (end_time - start_time).total_seconds() * 1000.0
                self._outbox.put(self._noted(kwargs, response_obj, latency_ms))
        except Exception as error:  # noqa: BLE001 - observation must not fail the observed call
            self._outbox.lose(type(error).__name__, in_words(error))

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Record the answer or failure of an async call."""
        self.log_success_event(kwargs, response_obj, start_time, end_time)

    log_failure_event = log_success_event
    async_log_failure_event = async_log_success_event

    # --- recording ---

    def _noted(self, kwargs: Mapping[str, Any], response: Any, latency_ms: float) -> _Noted:
        params, optional = kwargs.get("litellm_params") or {}, kwargs.get("optional_params") or {}
        model, provider = str(kwargs.get("model")), kwargs.get("custom_llm_provider")
        group = (params.get("metadata") or {}).get("model_group")
        seen = ObservedCall(
            request=Request(
                messages=tuple(plain(message) for message in kwargs["messages"]),
                params={name: optional[name] for name in _READ if optional.get(name)},
                identity=identity_of(self._own, params, kwargs.get("user")),
            ),
            completion=None if response is None else _completion(response),
            model="",
            cost_usd=None if response is None else kwargs.get("response_cost"),
            latency_ms=latency_ms,
            error=named(kwargs.get("exception")) if response is None else None,
        )
        names = (f"{provider}/{model}", model, *([str(group)] if group else []))
        return _Noted(names, getattr(response, "id", None), seen)

    async def _write(self, noted: _Noted) -> None:
        model = self._model(noted.names)
        if model is None:
            return
        seen = replace(noted.seen, model=model)
        if seen.completion is not None and seen.completion.usage == Usage():
            # Streams without `include_usage` have no usage, which litellm reports as 0.
            counted = _counted(noted.names[0], seen.request, seen.completion)
            seen = replace(seen, completion=counted, cost_usd=None)
        about = await self.client.aobserve(seen)
        if noted.answer is not None:
            self._decisions[noted.answer] = about.decision_id
            while len(self._decisions) > REMEMBERED:
                self._decisions.popitem(last=False)

    def _model(self, names: tuple[str, ...]) -> str | None:
        """Return the router's name of the model; None, with one warning, if it has none."""
        if not self._known:
            cards = self.client.models()
            targets = {card.target: card.name for card in reversed(cards) if card.target}
            self._known = targets | {card.name: card.name for card in cards} | self._names
        for name in names:
            if name in self._known:
                return self._known[name]
        if names[0] not in self._unknown and len(self._unknown) < _WARNED:
            self._unknown.add(names[0])
            _log.warning(
                "calls of %s are not observed: no model has that name or target; add it to the configuration, or pass "
                "names={%r: …}",
                names[0],
                names[1],
            )
        return None


def _is_observed(kwargs: Mapping[str, Any], response: Any) -> bool:
    """Whether a call is a chat completion by a model that may be logged."""
    params, provider = kwargs.get("litellm_params") or {}, kwargs.get("custom_llm_provider")
    if kwargs.get("call_type") not in _CALLS or provider in {None, PROVIDER}:  # None: it was never sent
        return False
    messages = kwargs.get("messages") or []
    redacted = any(isinstance(each, dict) and each.get("content") == _REDACTED for each in messages)
    hidden = redacted or not messages or params.get("no-log") is True
    whole = response is None or len(response.choices) == 1
    return whole and not hidden and kwargs.get("cache_hit") is not True


def _completion(response: Any) -> Completion:
    choice = response.choices[0]
    message = plain(choice.message)
    return Completion(
        message={"role": "assistant", "content": None, **message},
        finish_reason=choice.finish_reason or "stop",
        usage=read_usage(getattr(response, "usage", None)) or Usage(),
    )


def _counted(model: str, request: Request, completion: Completion) -> Completion:
    """Return the completion with token counts by litellm."""
    asked = litellm.token_counter(model=model, messages=list(request.messages), tools=request.params.get("tools"))
    said = [completion.message.get("content") or ""]
    said += [str(call.get("function")) for call in completion.message.get("tool_calls") or ()]
    usage = Usage(prompt_tokens=asked, completion_tokens=litellm.token_counter(model=model, text="".join(said)))
    return replace(completion, usage=usage)


observer = FitrouterObserver()
"""For the configuration of litellm's proxy; the environment variable FITROUTER gives the router."""


def _drain_litellm() -> None:
    """Let litellm finish its logging at exit, so that its last calls reach the outbox before that is flushed."""
    if any(isinstance(each, FitrouterObserver) for each in litellm.callbacks):
        with contextlib.suppress(Exception):  # litellm ends these itself a moment later in any case
            GLOBAL_LOGGING_WORKER._flush_on_exit()
            executor.shutdown()


# Registered after the outbox's own callback, so that it runs before it.
getattr(threading, "_register_atexit", atexit.register)(_drain_litellm)

"""The observer: a callback that writes down what existing traffic asked and got, before anything is routed."""

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

from fitrouter.providers.usage import read_usage
from fitrouter.router import Router
from fitrouter.types import Completion, Identity, Request, Usage
from fitrouter_integrations._outbox import Outbox
from fitrouter_integrations.client import Client, Seen, Target, connect
from fitrouter_integrations.litellm._errors import named
from fitrouter_integrations.litellm._identity import identity_of
from fitrouter_integrations.litellm._provider import PROVIDER, plain

_log = logging.getLogger("fitrouter")
_CALLS = frozenset({"completion", "acompletion"})
_READ = ("tools", "response_format")
"""Parameters that say something of the answer."""
_REDACTED = "redacted-by-litellm"
"""What callbacks see instead of messages where litellm is not to log them."""
REMEMBERED = 10_000
"""Answers whose decision ids are kept."""
_TOLD = 100
"""Unknown models that are warned of; behind a proxy's wildcard, clients may think of any number."""
_THREADS = 8
"""Calls that are written at a time."""


class _Noted(NamedTuple):
    """A call as litellm told of it."""

    names: tuple[str, ...]
    """What litellm calls the model, the surest first."""
    answer: str | None
    """Litellm's id of the answer."""
    request: Request
    completion: Completion | None
    cost_usd: float | None
    latency_ms: float
    error: str | None


class FitrouterObserver(CustomLogger):  # type: ignore[misc]
    """A callback of litellm that observes: calls are logged and scored as those of pinned models, and nothing else.

    `litellm.callbacks = [FitrouterObserver("fitrouter.yaml")]`. Calls wait in a bounded queue, from which threads write
    them down: what is observed never waits, and what fails in here is told once to the log `fitrouter`, and never to
    the caller. Each attempt of litellm's retries and fallbacks is a call; failed ones are logged with their error.
    Calls of `fitrouter/…` are left out, since the router wrote them down itself; so are answers of a cache, calls with
    `no-log`, those that ask for several answers, and those whose messages litellm is not to log.

    Args:
        target: a `Router` that was not started, the path of a configuration, or the URL of a gateway, which names the
            models by the name or the target that litellm calls them; the environment variable FITROUTER, else
            `fitrouter.yaml`.
        names: litellm's name of a model → the router's, where they differ.
        identity: who asks, where no call says it; see `FitrouterProvider` for how one does.
        key: of a gateway; the environment variable FITROUTER_API_KEY where None.
        waiting: calls that may wait to be written; more are dropped and counted.
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
        # litellm takes two callbacks of a class for one where their public text and numbers are the same.
        self.target = target if target is None or isinstance(target, Router) else os.fspath(target)
        self._own, self._names, self._key = identity or Identity(), dict(names or {}), key
        self._known: dict[str, str] = {}
        self._unknown: set[str] = set()
        self._decisions: OrderedDict[str, str] = OrderedDict()
        self._outbox = Outbox("an observed call", self._write, size=waiting, threads=_THREADS)

    @property
    def client(self) -> Client:
        """The router that it tells, shared by all that name the same one."""
        return connect(self.target or os.environ.get("FITROUTER", "fitrouter.yaml"), self._key)

    @property
    def lost(self) -> int:
        """Calls that could not be written down, so far."""
        return self._outbox.lost

    def decision_of(self, response_id: str) -> str | None:
        """The decision id of an answer, by litellm's id of the response: what a verdict names. None: not (yet) seen."""
        return self._decisions.get(response_id)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until all calls that litellm told of are written down; whether that came true in time."""
        return self._outbox.flush(timeout_s)

    # --- what litellm calls, by keyword; of a call that failed, `response_obj` is None ---

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Take note of the answer of a blocking call."""
        self._note(kwargs, response_obj, start_time, end_time)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Take note of the answer of an awaited call."""
        self._note(kwargs, response_obj, start_time, end_time)

    def log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Take note of a blocking call that failed."""
        self._note(kwargs, response_obj, start_time, end_time)

    async def async_log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Take note of an awaited call that failed."""
        self._note(kwargs, response_obj, start_time, end_time)

    # --- within ---

    def _note(self, kwargs: Mapping[str, Any], response: Any, start_time: Any, end_time: Any) -> None:
        try:
            if _is_observed(kwargs, response):
                self._outbox.put(self._noted(kwargs, response, (end_time - start_time).total_seconds() * 1000.0))
        except Exception as error:  # noqa: BLE001 - an observer must not break what it observes
            self._outbox.lose(type(error).__name__, f"{type(error).__name__}: {error}")

    def _noted(self, kwargs: Mapping[str, Any], response: Any, latency_ms: float) -> _Noted:
        params, optional = kwargs.get("litellm_params") or {}, kwargs.get("optional_params") or {}
        model, provider = str(kwargs.get("model")), kwargs.get("custom_llm_provider")
        group = (params.get("metadata") or {}).get("model_group")
        return _Noted(
            names=(f"{provider}/{model}", model, *([str(group)] if group else [])),
            answer=getattr(response, "id", None),
            request=Request(
                messages=tuple(plain(message) for message in kwargs["messages"]),
                params={name: optional[name] for name in _READ if optional.get(name)},
                identity=identity_of(self._own, params, kwargs.get("user")),
            ),
            completion=None if response is None else _completion(response),
            cost_usd=None if response is None else kwargs.get("response_cost"),
            latency_ms=latency_ms,
            error=named(kwargs.get("exception")) if response is None else None,
        )

    async def _write(self, noted: _Noted) -> None:
        model = self._model(noted.names)
        if model is None:
            return
        completion, cost_usd = noted.completion, noted.cost_usd
        if completion is not None and completion.usage == Usage():
            # Streams without `include_usage` end without it; litellm takes that for none.
            completion, cost_usd = _counted(noted.names[0], noted.request, completion), None
        seen = Seen(
            request=noted.request,
            completion=completion,
            model=model,
            cost_usd=cost_usd,
            latency_ms=noted.latency_ms,
            error=noted.error,
        )
        about = await self.client.aobserve(seen)
        if noted.answer is not None:
            self._decisions[noted.answer] = about.decision_id
            while len(self._decisions) > REMEMBERED:
                self._decisions.popitem(last=False)

    def _model(self, names: tuple[str, ...]) -> str | None:
        """The router's name of who was asked; None, and one warning, where it has none."""
        if not self._known:
            cards = self.client.models()
            targets = {card.target: card.name for card in reversed(cards) if card.target}
            self._known = targets | {card.name: card.name for card in cards} | self._names
        for name in names:
            if name in self._known:
                return self._known[name]
        if names[0] not in self._unknown and len(self._unknown) < _TOLD:
            self._unknown.add(names[0])
            _log.warning(
                "calls of %s are not observed: no model has that name or target; add it to the configuration, or give "
                "names={%r: …}",
                names[0],
                names[1],
            )
        return None


def _is_observed(kwargs: Mapping[str, Any], response: Any) -> bool:
    """Whether a call is a chat that a model was asked for, and that may be logged."""
    params, provider = kwargs.get("litellm_params") or {}, kwargs.get("custom_llm_provider")
    if kwargs.get("call_type") not in _CALLS or provider in {None, PROVIDER}:  # None: it failed before it was sent
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
    """With the tokens that litellm counts."""
    asked = litellm.token_counter(model=model, messages=list(request.messages), tools=request.params.get("tools"))
    said = [completion.message.get("content") or ""]
    said += [str(call.get("function")) for call in completion.message.get("tool_calls") or ()]
    usage = Usage(prompt_tokens=asked, completion_tokens=litellm.token_counter(model=model, text="".join(said)))
    return Completion(message=completion.message, finish_reason=completion.finish_reason, usage=usage)


observer = FitrouterObserver()
"""For the configuration of litellm's proxy; the environment variable FITROUTER says which router it tells."""


def _drain_litellm() -> None:
    """Let litellm finish its logging at exit, so that its last calls reach the outbox before that is flushed."""
    if any(isinstance(each, FitrouterObserver) for each in litellm.callbacks):
        with contextlib.suppress(Exception):  # litellm ends these itself a moment later in any case
            GLOBAL_LOGGING_WORKER._flush_on_exit()
            executor.shutdown()


# Registered after the outbox's own callback, so that it runs before it.
getattr(threading, "_register_atexit", atexit.register)(_drain_litellm)

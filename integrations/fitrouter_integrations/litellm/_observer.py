"""The observer: a callback that writes down what existing traffic asked and got, before anything is routed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from fitrouter.router import Router
from fitrouter.types import Completion, Identity, Request, Usage
from fitrouter_integrations.client import Client, Seen, Target, connect
from fitrouter_integrations.litellm._identity import identity_of
from fitrouter_integrations.litellm._provider import PROVIDER, plain

__all__ = ["FitrouterObserver"]

_log = logging.getLogger("fitrouter")
_CALLS = frozenset({"completion", "acompletion"})
_READ = ("tools", "response_format")
"""Parameters that say something of the answer."""
REMEMBERED = 10_000
"""Answers whose decision ids are kept."""


class FitrouterObserver(CustomLogger):  # type: ignore[misc]
    """A callback of litellm that observes: answers are logged and scored as those of pinned models, and nothing else.

    `litellm.callbacks = [FitrouterObserver("fitrouter.yaml")]`. What fails in here is told to the log `fitrouter`, and
    never to the caller. Answers of `fitrouter/…` are left out, since the router wrote them down itself; so are those of
    a cache, and calls with `no-log`.

    Args:
        target: a `Router` that was not started, or the path of a configuration, which names the models by the name or
            the target that litellm calls them; the environment variable FITROUTER, else `fitrouter.yaml`.
        names: litellm's name of a model → the router's, where they differ.
        identity: who asks, where no call says it; see `FitrouterProvider` for how one does.
    """

    def __init__(
        self,
        target: Target | None = None,
        *,
        names: Mapping[str, str] | None = None,
        identity: Identity | None = None,
    ) -> None:
        super().__init__()
        # litellm takes two callbacks of a class for one where their public text and numbers are the same.
        self.target = target if target is None or isinstance(target, Router) else os.fspath(target)
        self._own, self._names = identity or Identity(), dict(names or {})
        self._known: dict[str, str] = {}
        self._unknown: set[str] = set()
        self._decisions: OrderedDict[str, str] = OrderedDict()

    @property
    def client(self) -> Client:
        """The router that it tells, shared by all that name the same one."""
        return connect(self.target or os.environ.get("FITROUTER", "fitrouter.yaml"))

    def decision_of(self, response_id: str) -> str | None:
        """The decision id of an answer, by litellm's id of the response: what a verdict names. None: not (yet) seen."""
        return self._decisions.get(response_id)

    # --- what litellm calls, by keyword ---

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Write down the answer of a blocking call; litellm calls it in a thread."""
        try:
            self._observe(kwargs, response_obj, (end_time - start_time).total_seconds() * 1000.0)
        except Exception as error:  # noqa: BLE001 - an observer must not break what it observes
            _log.warning("an answer was not observed: %s: %s", type(error).__name__, error)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Write down the answer of an awaited call; litellm calls it after the answer went out."""
        await asyncio.to_thread(self.log_success_event, kwargs, response_obj, start_time, end_time)

    # --- within ---

    def _observe(self, kwargs: Mapping[str, Any], response: Any, latency_ms: float) -> None:
        params = kwargs.get("litellm_params") or {}
        ours = kwargs.get("custom_llm_provider") == PROVIDER or params.get("no-log") is True
        if ours or kwargs.get("cache_hit") is True or kwargs.get("call_type") not in _CALLS:
            return
        model = self._model(kwargs)
        if model is None:
            return
        optional = kwargs.get("optional_params") or {}
        request = Request(
            messages=tuple(plain(message) for message in kwargs["messages"]),
            params={name: optional[name] for name in _READ if optional.get(name)},
            identity=identity_of(self._own, params, kwargs.get("user")),
        )
        cost = kwargs.get("response_cost")
        seen = Seen(
            request=request, completion=_completion(response), model=model, cost_usd=cost, latency_ms=latency_ms
        )
        self._decisions[response.id] = self.client.observe(seen).decision_id
        while len(self._decisions) > REMEMBERED:
            self._decisions.popitem(last=False)

    def _model(self, kwargs: Mapping[str, Any]) -> str | None:
        """The router's name of who answered; None, and one warning, where it has none."""
        if not self._known:
            cards = self.client.models()
            targets = {card.target: card.name for card in reversed(cards) if card.target}
            self._known = targets | {card.name: card.name for card in cards} | self._names
        group = ((kwargs.get("litellm_params") or {}).get("metadata") or {}).get("model_group")
        model, provider = str(kwargs.get("model")), kwargs.get("custom_llm_provider")
        for name in (f"{provider}/{model}", model, group):
            if name in self._known:
                return self._known[name]
        if model not in self._unknown:
            self._unknown.add(model)
            _log.warning(
                "answers of %s/%s are not observed: no model has that name or target; add it to the configuration, or "
                "give names={%r: …}",
                provider,
                model,
                model,
            )
        return None


def _completion(response: Any) -> Completion:
    choice, usage = response.choices[0], getattr(response, "usage", None)
    message = plain(choice.message)
    return Completion(
        message={"role": "assistant", "content": None, **message},
        finish_reason=choice.finish_reason or "stop",
        usage=Usage(
            prompt_tokens=getattr(usage, "prompt_tokens", 0) or 0,
            completion_tokens=getattr(usage, "completion_tokens", 0) or 0,
        ),
    )

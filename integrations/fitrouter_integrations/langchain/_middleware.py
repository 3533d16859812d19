"""Agent middleware that routes each step of `create_agent` between existing chat models."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.runnables.config import ensure_config
from langchain_core.utils.function_calling import convert_to_openai_tool

from fitrouter.config import Config
from fitrouter.errors import ConfigError, NoEligibleModel, NotAuthorized, Unreachable, in_words
from fitrouter.router import Router
from fitrouter.types import Identity, Request
from fitrouter_integrations._identity import SETTINGS
from fitrouter_integrations.client import Client, Model, Plan, Target, Vote, connect
from fitrouter_integrations.client._base import is_url
from fitrouter_integrations.langchain._convert import metadata_of
from fitrouter_integrations.langchain._errors import translated
from fitrouter_integrations.langchain._history import messages_of
from fitrouter_integrations.langchain._identity import identity_of, tier_of
from fitrouter_integrations.langchain._own_models import compare, model_of, router_of
from fitrouter_integrations.langchain._patience import TooLate, await_in_time, call_in_time, in_thread
from fitrouter_integrations.langchain._step import Answer, Asked, Step, said_of

Models: TypeAlias = Mapping[str, BaseChatModel | str]

REPORT_S = 2.0
"""How long an answer waits until the router has recorded it."""
UNLOGGED_S = 0.05
"""The same, if the decision itself is not in the log yet."""
REST = 10.0
"""After a timeout the gateway is skipped for this multiple of the time that it cost."""

_log = logging.getLogger(__name__)


class _Call(NamedTuple):
    """One model call of the agent."""

    bare: Asked
    """The request without identity settings, as models see it."""
    identity: Identity
    tier: str
    began: float


class FitrouterMiddleware(AgentMiddleware[Any, Any, Any]):
    """Calls, for each step of an agent, the one of its chat models that suits this user and this task.

        agent = create_agent(fast, tools, middleware=[FitrouterMiddleware({"fast": fast, "deep": deep})])

    The agent calls the models itself; the router only chooses. Each answer's `response_metadata` has the model,
    decision id, propensity, mode and cost; pass the decision id to `feedback`. If a model fails, another one is tried;
    if all fail, the last exception is raised. If the router fails, the agent's own model is called.

    Args:
        models: by their names in the log; text is for `init_chat_model`.
        router: a `Router` that is not started, a configuration, its path, or the URL of a gateway, whose models are
            `models`, by name or by target. None for a router built from the settings below.
        api_key: of the gateway; by default from the environment variable FITROUTER_API_KEY.
        data: folder of the journal and the learned state; `fitrouter-data` by default.
        prices: name → (input, output) in USD per million tokens; 0 by default.
        user: default if no channel of LangChain gives it; likewise `role`, `task`, `session`, `tier` and `tenant`.
        timeout: seconds for a step with all its attempts; by default the router's deadline.
        settings: any other setting of a configuration: policy, objective, budget, session, scorer, encoder …

    Raises:
        ConfigError: the router has models that were not given, or a setting is invalid. The models of a gateway are
            checked at the first step.
    """

    def __init__(
        self,
        models: Models,
        *,
        router: Target | Config | None = None,
        api_key: str | None = None,
        data: str | os.PathLike[str] | None = None,
        prices: Mapping[str, tuple[float, float]] | None = None,
        tenant: str = Identity().tenant,
        user: str | None = None,
        role: str | None = None,
        task: str | None = None,
        session: str | None = None,
        tier: str = "",
        timeout: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.tools = []
        self.models = {name: model_of(model) for name, model in models.items()}
        self.own = Identity(tenant=tenant, user=user, role=role, task=task, session=session)
        self.timeout, self.tier = timeout, tier
        given = {"data": data, "prices": prices, **settings}
        if router is None:
            router = router_of(self.models, data or "fitrouter-data", prices or {}, settings)
        elif beside := sorted(name for name, value in given.items() if value is not None):
            raise ConfigError(f"router and {', '.join(beside)} were both given; the router has its own settings")
        if isinstance(router, Config):
            router = Router.from_config(router)
        remote = not isinstance(router, Router) and is_url(os.fspath(router))
        self.client: Client = connect(router, api_key if remote else None)
        self._compared = not remote
        if not remote:
            compare(self.models, ((name, card.target or card.name) for name, card in self.router.models.items()))
        self._silent = False
        self._rests_until = 0.0

    @property
    def router(self) -> Router:
        """The router in this process.

        Raises:
            AttributeError: it is behind a gateway.
        """
        found: Router = self.client.backend.router  # type: ignore[union-attr]
        return found

    # --- what LangChain calls ---

    def wrap_model_call(self, request: Asked, handler: Callable[[Asked], Answer]) -> Answer:
        """Call the model that the router chooses."""
        call = self._call(request)
        step = self._decide(call)
        if step is None:
            return handler(call.bare)
        while (ask := step.next()) is not None:
            try:
                answer = call_in_time(partial(handler, ask.request), ask.patience_s)
            except TooLate:
                step.late()
            except BaseException as error:  # noqa: BLE001 - raised by `result` if it is the last
                step.failed(error)
            else:
                step.answered(answer)
        reporting = self._report(step)
        wait([reporting], _patience(step))
        return _answer(step, reporting)

    async def awrap_model_call(self, request: Asked, handler: Callable[[Asked], Awaitable[Answer]]) -> Answer:
        """Call the model that the router chooses."""
        call = self._call(request)
        step = await self._adecide(call)
        if step is None:
            return await handler(call.bare)
        while (ask := step.next()) is not None:
            try:
                answer = await await_in_time(handler(ask.request), ask.patience_s)
            except TooLate:
                step.late()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - see above
                step.failed(error)
            else:
                step.answered(answer)
        reporting = self._report(step)
        reported = asyncio.wrap_future(reporting)
        try:
            await asyncio.wait([reported], timeout=_patience(step))
        finally:
            reported.cancel()  # ends the wait, not the report, and keeps asyncio from logging an error a second time
        return _answer(step, reporting)

    # --- feedback ---

    def feedback(self, vote: Vote) -> str:
        """Send feedback on an answer, by the decision id in its `response_metadata`; returns its id once durable."""
        return self.client.feedback(vote.of(self.own.tenant))

    async def afeedback(self, vote: Vote) -> str:
        """Send feedback on an answer."""
        return await self.client.afeedback(vote.of(self.own.tenant))

    def close(self) -> None:
        """Close the router for all who share it; otherwise it is closed when the process exits."""
        self.client.close()

    # --- the router ---

    def _call(self, request: Asked) -> _Call:
        settings = {name: value for name, value in request.model_settings.items() if name not in SETTINGS}
        metadata, given = ensure_config().get("metadata"), request.model_settings
        who, tier = identity_of(self.own, metadata, given), tier_of(self.tier, metadata, given)
        return _Call(request.override(model_settings=settings), who, tier, time.monotonic())

    def _decide(self, call: _Call) -> Step | None:
        """Plan a step; None if the router cannot, or rests after a failure."""
        if time.monotonic() >= self._rests_until:
            with self._unrouted(call):
                heard = _request_of(call, self.timeout)
                if not self._compared:
                    self._compare(self.client.models())
                return self._step(call, heard, self.client.decide(heard))
        return None

    async def _adecide(self, call: _Call) -> Step | None:
        if time.monotonic() >= self._rests_until:
            with self._unrouted(call):
                heard = _request_of(call, self.timeout)
                if not self._compared:
                    self._compare(await asyncio.to_thread(self.client.models))
                return self._step(call, heard, await self.client.adecide(heard))
        return None

    def _compare(self, known: Iterable[Model]) -> None:
        compare(self.models, ((model.name, model.target) for model in known))
        self._compared = True

    def _step(self, call: _Call, heard: Request, plan: Plan) -> Step:
        self._silent = False
        return Step(plan, heard, call.bare, self.models, call.began + (self.timeout or plan.deadline_s))

    @contextmanager
    def _unrouted(self, call: _Call) -> Iterator[None]:
        """Ignore failures of the router in a block, so that they do not fail the agent.

        Raises:
            FitrouterError: it is a configuration error, or no model can take the request.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, ConfigError | NoEligibleModel | NotAuthorized) and not isinstance(error, Unreachable):
                with translated():
                    raise
            if isinstance(error, Unreachable):
                now = time.monotonic()
                self._rests_until = now + REST * (now - call.began)
            if not self._silent:
                _log.warning(
                    "the router failed to decide (%s); until it recovers, the agent's own model is called",
                    in_words(error),
                )
            self._silent = True

    def _report(self, step: Step) -> Future[float | None]:
        """Record the outcome of a step in a thread, since an event loop that closes would cancel a task."""
        reporting = in_thread(lambda: self.client.report(step.decision_id, step.heard, step.ended()))
        reporting.add_done_callback(partial(_log_failed_report, step))
        return reporting


def _request_of(call: _Call, timeout: float | None) -> Request:
    """Build the request to decide on. Only tools matter for eligibility; model settings are left to LangChain."""
    lead = [] if call.bare.system_message is None else [call.bare.system_message]
    tools = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in call.bare.tools]
    return Request(
        messages=messages_of([*lead, *call.bare.messages]),
        params={"tools": tools} if tools else {},
        identity=call.identity,
        tier=call.tier,
        deadline_s=timeout,
    )


def _patience(step: Step) -> float:
    return REPORT_S if step.plan.about.logged else UNLOGGED_S


def _log_failed_report(step: Step, reporting: Future[float | None]) -> None:
    """Log it if reporting an outcome failed."""
    if (error := reporting.exception()) is not None:
        _log.warning("the outcome of %s was not recorded: %s", step.decision_id, in_words(error))


def _answer(step: Step, reporting: Future[float | None]) -> Answer:
    """Return the answer with its decision in `response_metadata`. Raises what `Step.result` raises."""
    with translated():
        answer = step.result()
    said = said_of(answer)
    assert said is not None
    taken = reporting.done() and reporting.exception() is None
    cost_usd = reporting.result() if taken else None
    about = msgspec.structs.replace(step.plan.about, model=step.served_by, cost_usd=cost_usd)
    before = said.response_metadata
    meta = before | metadata_of(about)
    if "model_name" in before:
        meta["provider_model"] = before["model_name"]
    marked = said.model_copy(update={"response_metadata": meta})
    return replace(answer, result=[marked if message is said else message for message in answer.result])

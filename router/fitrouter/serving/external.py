"""Decide here, answer elsewhere: the router chooses, its caller asks the models and tells how it ended.

What the caller asks, in which order, and with what probability is what `attempts.first_answer` would have done; what is
written down is the same, too. Nothing is kept between a plan and its report: any router over the journal takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from fitrouter.draw import renormalise
from fitrouter.errors import InvalidRequest, StoreError
from fitrouter.routing.pipeline import Pipeline
from fitrouter.routing.variants import called
from fitrouter.serving.attempts import Timers
from fitrouter.serving.recorder import STORE_WAIT_S, Recorder, execution_of
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import Journal
from fitrouter.types import (
    AUTO,
    Attempt,
    Completion,
    Decision,
    Execution,
    Mode,
    ModelCard,
    Prices,
    Request,
    Usage,
    Variant,
)

STATUSES = ("ok", "partial", "cancelled", "failed")
_LONGEST_NAME = 100
_LONGEST_MS = 86_400_000.0
_MOST_TOKENS = 2**31
_MOST_USD = 1e6


class PlannedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model to ask, and how."""

    model: str
    """Its name, as a request pins it."""
    target: str
    """What its provider calls it."""
    probability: float
    """That it is the next, given that those before it failed; 1 for the first."""
    variant: Variant | None = None
    """The way of asking it; `fitrouter.routing.variants.apply` puts it into messages and parameters."""
    dropped: tuple[str, ...] = ()
    """Parameters of the request that it does not take: leave them out."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask. `logged` is False where the decision did not become durable in time."""

    decision: Decision
    order: tuple[PlannedCall, ...]
    """The chosen model, then those to ask where the ones before failed."""
    deadline_s: float
    """Seconds for the whole request. A plan counts as lost half a minute after the router's own deadline."""
    logged: bool


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one model, as its caller saw it."""

    model: str
    """The choice's."""
    ms: float
    """From the question until the answer had ended, or the call failed."""
    error: str | None = None
    """Name of the exception. ProviderRejected (the request itself was at fault) and ContextOverflow (too long for this
    model) are not held against it."""
    probability: float = 0.0
    """The choice's; read only for fallbacks of a sticky or forced turn, whose pmf is not logged."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended. Whoever answered is the last that was tried, without an error."""

    tried: tuple[AttemptReport, ...]
    status: str = "ok"
    """ok; partial (it broke off); cancelled (nobody waited any more); failed (nobody answered)."""
    completion: Completion | None = None
    """The answer; there is one where the status is ok, none where nobody answered."""
    cost_usd: float | None = None
    """By the card's prices where None."""
    ttft_ms: float | None = None
    """Until the first piece of a stream."""


class ExternalExecution:
    """Makes plans, and writes down how they ended."""

    def __init__(
        self,
        cards: Mapping[str, ModelCard],
        aliases: Mapping[str, str],
        timers: Timers,
        proposer: Pipeline,
        journal: Journal,
        recorder: Recorder,
        learner: Learner,
        clock: Callable[[], float],
    ) -> None:
        self.cards, self.aliases, self.timers, self.proposer = cards, aliases, timers, proposer
        self.journal, self.recorder, self.learner, self.clock = journal, recorder, learner, clock

    async def decide(self, request: Request) -> Plan:
        """See `Router.decide`."""
        plan, _ = await self._decide(request)
        return plan

    async def report(self, decision_id: str, request: Request, ended: Outcome) -> Execution:
        """See `Router.report`."""
        _check(ended)
        tenant = request.identity.tenant
        decision, standing = await self._known(decision_id, tenant)
        if standing is None:
            self._append(request, decision, _DURABLE, self._attempts(decision, ended.tried), ended)
            _, standing = await self._known(decision_id, tenant)
        if standing is None:
            raise StoreError(f"the end of {decision_id!r} could not be made durable; report it again")
        return standing

    async def observe(
        self,
        request: Request,
        completion: Completion | None,
        model: str,
        *,
        cost_usd: float | None,
        latency_ms: float,
        error: str | None,
    ) -> Plan:
        """See `Router.observe`."""
        if self.aliases.get(model, model) == AUTO:
            raise InvalidRequest(f"model: {model!r} was given; name the model that answered")
        if (completion is None) is (error is None):
            raise InvalidRequest(f"error: {error!r} was given; name one where there is no answer, and only there")
        tried = (AttemptReport(model=model, ms=latency_ms, error=error),)
        status = "failed" if completion is None else "ok"
        ended = Outcome(tried=tried, status=status, completion=completion, cost_usd=cost_usd)
        _check(ended)
        plan, stored = await self._decide(msgspec.structs.replace(request, model=model, stream=False))
        attempt = Attempt(model=plan.decision.chosen, probability=1.0, error=error, ms=latency_ms)
        self._append(request, plan.decision, stored, (attempt,), ended)
        return plan

    # --- within ---

    async def _decide(self, request: Request) -> tuple[Plan, Future[int] | None]:
        """The plan, and when its decision becomes durable."""
        proposal = await self.proposer.decide(request)
        decision = proposal.decision
        stored = self.recorder.append_event(decision)
        logged = await self.recorder.durable(decision, stored)
        if logged:
            self.proposer.goes_on(decision)
        plan = Plan(
            decision=decision,
            order=tuple(
                self._choice(arm, probability, proposal.dropped.get(arm, ()))
                for arm, probability in _drawn(decision, proposal.fallback, self.timers.attempts)
            ),
            deadline_s=request.deadline_s or self.timers.deadline_s,
            logged=logged,
        )
        return plan, stored

    def _choice(self, arm: str, probability: float, dropped: tuple[str, ...]) -> PlannedCall:
        card = self.cards[arm]
        return PlannedCall(
            model=called(card),
            target=card.target or card.name,
            probability=probability,
            variant=card.variant,
            dropped=dropped,
        )

    async def _known(self, decision_id: str, tenant: str) -> tuple[Decision, Execution | None]:
        """A decision and how it ended, also where that is just on its way to the journal.

        Raises:
            UnknownDecision: there is no such logged decision for the tenant.
            StoreError: the journal cannot be read now.
        """
        await self.recorder.settle()
        with contextlib.suppress(Exception):  # a journal that takes nothing may be read all the same
            async with asyncio.timeout(STORE_WAIT_S):
                await asyncio.wrap_future(self.journal.append())  # a barrier
        decision, *others = await self.recorder.events(decision_id, tenant)
        assert isinstance(decision, Decision)
        return decision, next((event for event in others if isinstance(event, Execution)), None)

    def _attempts(self, decision: Decision, tried: Sequence[AttemptReport]) -> tuple[Attempt, ...]:
        """What was tried, with the probabilities that it had.

        Raises:
            InvalidRequest: it is not what the decision leads to.
        """
        arms = {called(self.cards[arm]): arm for arm in decision.eligible if arm in self.cards}
        given = [(arms.get(one.model), one.probability) for one in tried]
        if decision.probs or decision.mode is Mode.PINNED:
            order = _drawn(decision, decision if decision.probs else None, len(tried))[: len(tried)]
        else:  # a sticky or forced turn falls back by a pmf that is not logged
            order = _told(decision, given)
        if [arm for arm, _ in given] != [arm for arm, _ in order]:
            raise InvalidRequest(
                f"tried: given are {[one.model for one in tried]}; decision {decision.id!r} leads to "
                f"{', '.join(repr(arm) for arm, _ in order)}: tell of all that were asked, in that order, once each"
            )
        return tuple(
            Attempt(model=arm, probability=probability, error=one.error, ms=one.ms)
            for (arm, probability), one in zip(order, tried, strict=True)
        )

    def _append(
        self,
        request: Request,
        decision: Decision,
        stored: Future[int] | None,
        attempts: tuple[Attempt, ...],
        ended: Outcome,
    ) -> None:
        """Queue how it ended behind its decision; a whole answer is kept for the scorer."""
        completion, last = ended.completion, attempts[-1] if attempts else None
        usage = Usage() if completion is None else completion.usage
        served_by, latency_ms, cost_usd = None, 0.0, 0.0
        if last is not None and last.error is None:
            served_by = last.model
            latency_ms = last.ms if ended.ttft_ms is None else sum(attempt.ms for attempt in attempts)
            cost_usd = spent(self.cards[served_by].prices, usage)
        execution = execution_of(
            decision,
            self.clock(),
            status=ended.status,
            served_by=served_by,
            attempts=attempts,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cost_usd=cost_usd if ended.cost_usd is None else ended.cost_usd,
            ttft_ms=ended.ttft_ms,
            latency_ms=latency_ms,
            finish_reason=None if completion is None else completion.finish_reason,
        )
        scored = ended.status == "ok" and self.learner.expects_scores
        message = completion.message if completion is not None and scored else None
        self.recorder.append_outcome(request, stored, execution, message)


def spent(prices: Prices, usage: Usage) -> float:
    """What tokens cost in USD."""
    return (prices.input * usage.prompt_tokens + prices.output * usage.completion_tokens) / 1e6


_DURABLE: Future[int] = Future()
_DURABLE.set_result(0)


def _drawn(decision: Decision, fallback: Decision | None, attempts: int) -> tuple[tuple[str, float], ...]:
    """(arm, probability given that those before it failed): the chosen one and its fallbacks, at most `attempts`."""
    order = [(decision.chosen, 1.0)]
    while fallback is not None and len(order) < attempts:
        following = renormalise(fallback, [arm for arm, _ in order], len(order))
        if following is None:
            break
        order.append(following)
    return tuple(order)


def _told(decision: Decision, given: Sequence[tuple[str | None, float]]) -> tuple[tuple[str, float], ...]:
    """(arm, probability) where only the caller knows: the chosen one, then eligible others, each once.

    Raises:
        InvalidRequest: a probability cannot be one.
    """
    order = {decision.chosen: 1.0}
    for arm, probability in given[1:]:
        if arm is not None and arm not in order:
            if not 0.0 < probability <= 1.0:
                raise InvalidRequest(
                    f"tried: fallback {arm!r} has the probability {probability!r}; give the one that the plan names"
                )
            order[arm] = probability
    return tuple(order.items())[: len(given)]


def _check(ended: Outcome) -> None:
    """Raise InvalidRequest where a request cannot have ended like this."""
    tried, status = ended.tried, ended.status
    if status not in STATUSES:
        raise InvalidRequest(f"status: {status!r} was given; allowed are {', '.join(STATUSES)}")
    for one in tried:
        if one.error is not None and not _names(one.error):
            raise InvalidRequest(f"error: {one.error[:40]!r} was given; give the name of an exception, and no more")
        _amount("ms", one.ms, _LONGEST_MS)
    answered = bool(tried) and tried[-1].error is None
    if any(one.error is None for one in tried[:-1]):
        raise InvalidRequest("tried: only the last model can have answered; the others need an 'error'")
    if answered is not (status in {"ok", "partial"}) and status != "cancelled":
        raise InvalidRequest(
            f"status: {status!r} was given and the last model tried {'answered' if answered else 'did not answer'}"
        )
    if status == "failed" and not tried:
        raise InvalidRequest("tried: nobody was asked; give 'cancelled' as status")
    if (ended.completion is None and status == "ok") or (ended.completion is not None and not answered):
        raise InvalidRequest(f"message: {'is missing' if answered else 'was given'} with the status {status!r}")
    usage = Usage() if ended.completion is None else ended.completion.usage
    for name in ("prompt_tokens", "completion_tokens"):
        _amount(f"usage.{name}", getattr(usage, name), _MOST_TOKENS)
    _amount("cost_usd", ended.cost_usd or 0.0, _MOST_USD)
    _amount("ttft_ms", ended.ttft_ms or 0.0, _LONGEST_MS)


def _names(error: str) -> bool:
    """Whether it is an exception's name: what it says may be anybody's words, which the log does not hold."""
    return len(error) <= _LONGEST_NAME and all(part.isidentifier() for part in error.split("."))


def _amount(name: str, value: float, most: float) -> None:
    if not 0.0 <= value <= most:
        raise InvalidRequest(f"{name}: {value!r} was given; allowed are 0 to {most:g}")

"""External execution: the router decides, the caller calls the models and reports the outcome.

A plan orders the models, with the probabilities, as `attempts.Caller` would have called them, and the report is
logged in the same form. `decide` and `report` are stateless: any process on the same journal accepts the report.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from fitrouter.context.features import read_prompt
from fitrouter.draw import renormalise, uuid7
from fitrouter.errors import (
    BudgetExhausted,
    InvalidRequest,
    NoEligibleModel,
    StoreError,
    UnknownDecision,
    in_words,
)
from fitrouter.identity import decision_id_of
from fitrouter.routing.decider import exhausted
from fitrouter.routing.eligibility import Roster, Wants, wants
from fitrouter.routing.pipeline import Pipeline, Proposal
from fitrouter.routing.variants import called
from fitrouter.serving.attempts import Timers, said_tokens, unanswered
from fitrouter.serving.feedback import RemarkListener
from fitrouter.serving.recorder import (
    LOOK_S,
    STORE_WAIT_S,
    Recorder,
    declined,
    execution_of,
    read_in_time,
    step_of,
)
from fitrouter.serving.spending import PLAN_S, Charge, Cover, Spending, charge, checked_usage, counted
from fitrouter.state.learner import Learner
from fitrouter.stores.journal import LONGEST_MS, MOST_TOKENS, MOST_USD, Journal
from fitrouter.types import (
    AUTO,
    PREFERRED,
    RECORDED,
    Attempt,
    Completion,
    Decision,
    Event,
    Execution,
    Feedback,
    FeedbackKind,
    Mode,
    ModelCard,
    PlanRun,
    Request,
    Usage,
    Variant,
)

STATUSES = ("ok", "partial", "cancelled", "failed")
_LONGEST_NAME = 100


class PlannedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model that the caller should call, with its parameters."""

    model: str
    """Its name, as a request pins it."""
    target: str
    """The provider's name for it."""
    probability: float
    """Probability of being next, given that the earlier ones failed; 1 for the first."""
    variant: Variant | None = None
    """Its variant; `fitrouter.routing.variants.apply` applies it to messages and parameters."""
    dropped: tuple[str, ...] = ()
    """Unsupported parameters of the request: omit them; `history: …` is reasoning that the model cannot read."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The models that the caller should call; `logged` is False if the decision did not become durable in time."""

    decision: Decision
    order: tuple[PlannedCall, ...]
    """The chosen model, then the fallbacks in order."""
    deadline_s: float
    """Seconds for the whole request. A plan is marked lost half a minute after the router's own deadline."""
    logged: bool
    max_tokens: int | None = None
    """What the answer has to be limited to, as a hard limit covers no more; None where nothing is lowered."""


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one model, as its caller observed it."""

    model: str
    """`PlannedCall.model`."""
    ms: float
    """Time from the call to the end of the answer or the failure."""
    error: str | None = None
    """Name of the exception. ProviderRejected (invalid request) and ContextOverflow (too long for this model) do not
    lower the model's availability."""
    probability: float = 0.0
    """`PlannedCall.probability`; read only for fallbacks of sticky and forced turns, whose pmf is not logged."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a request. The last call tried is the one that answered, if it has no error."""

    tried: tuple[AttemptReport, ...]
    status: str = "ok"
    """ok; partial (the answer broke off); cancelled (the caller left); failed (no model answered)."""
    completion: Completion | None = None
    """The answer; required for ok, absent if no model answered."""
    cost_usd: float | None = None
    """None for tokens × the card's prices."""
    ttft_ms: float | None = None
    """Time to the first chunk of a stream."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A plan to be looked at, and run by its id if it pleases."""

    decision: Decision
    expires: float
    """Seconds since the epoch until which it can be run."""


class ExternalExecution:
    """Makes plans and logs their outcomes."""

    def __init__(
        self,
        *,
        cards: Mapping[str, ModelCard],
        aliases: Mapping[str, str],
        timers: Timers,
        pipeline: Pipeline,
        journal: Journal,
        recorder: Recorder,
        learner: Learner,
        remarks: RemarkListener,
        spending: Spending,
        clock: Callable[[], float],
    ) -> None:
        self.cards, self.aliases, self.timers, self.pipeline = cards, aliases, timers, pipeline
        self.journal, self.recorder, self.learner, self.clock = journal, recorder, learner, clock
        self.remarks = remarks
        self.spending = spending

    async def decide(self, request: Request) -> Plan:
        """Make a plan for a request; see `Router.decide`."""
        plan, _, _ = await self._decide(request)
        return plan

    async def report(self, decision_id: str, request: Request, outcome: Outcome, *, trusted: bool = True) -> Execution:
        """Log the outcome of a plan; see `Router.report`."""
        _check(outcome)
        tenant = request.identity.tenant
        decision, standing = await self._decision_of(decision_id, tenant)
        if decision.look:
            raise InvalidRequest(f"{decision_id!r} is a plan to be looked at; a request with x-fitrouter-plan runs it")
        if standing is None:
            prompt = read_prompt(request).text
            attempts = self._attempts(decision, outcome.tried)
            self._append(prompt, request, decision, _DURABLE, attempts, outcome, trusted=trusted)
            _, standing = await self._decision_of(decision_id, tenant)
        if standing is None:
            raise StoreError(f"the outcome of {decision_id!r} could not be made durable; report it again")
        return standing

    async def observe(
        self,
        request: Request,
        completion: Completion | None,
        model: str,
        *,
        cost_usd: float | None,
        latency_ms: float | None,
        error: str | None,
        trusted: bool = True,
    ) -> Plan:
        """Log a call that was decided elsewhere; see `Router.observe`."""
        if self.aliases.get(model, model) == AUTO:
            raise InvalidRequest(f"model: got {model!r}; name the model that answered")
        if (completion is None) is (error is None):
            raise InvalidRequest(f"error: got {error!r}; give an error if and only if there is no completion")
        recorded = latency_ms is None
        if recorded and (completion is None or cost_usd):
            raise InvalidRequest("latency_ms: only an answer without cost that was recorded earlier has none")
        tried = (AttemptReport(model=model, ms=latency_ms or 0.0, error=error),)
        status = "failed" if completion is None else "ok"
        outcome = Outcome(tried=tried, status=status, completion=completion, cost_usd=cost_usd)
        _check(outcome)
        pinned = msgspec.structs.replace(request, model=model, stream=False)
        plan, prompt, stored = await self._decide(pinned, observed=True, recorded=recorded)
        attempts: tuple[Attempt, ...] = (
            Attempt(model=plan.decision.chosen, probability=1.0, error=error, ms=latency_ms or 0.0),
        )
        if recorded:
            attempts, outcome = (), msgspec.structs.replace(outcome, status=RECORDED, cost_usd=0.0)
        self._append(prompt, request, plan.decision, stored, attempts, outcome, trusted=trusted)
        return plan

    # --- plans that are looked at, then run ---

    async def look(self, request: Request) -> Look:
        """Make a plan to be looked at, or return the one that the same request has; see `Router.look`."""
        bound = self._bound(request)
        now = self.clock()
        start = now // LOOK_S * LOOK_S
        for begin in (start - LOOK_S, start):
            number, plan = await read_in_time(self._last_look, bound, begin)
            if plan is not None and now - plan.ts < LOOK_S:
                return Look(decision=plan, expires=plan.ts + LOOK_S)
        decision_id = _look_id(bound, start, number)
        proposal = await self.pipeline.decide(request, decision_id=decision_id)
        decision = msgspec.structs.replace(proposal.decision, look=bound, asked=False, asked_probability=0.0)
        self.remarks.listen(proposal)
        await self.recorder.keep(decision)
        # Of several processes that were asked at once, the first one's plan is everybody's.
        made, _ = await self._events_of(decision_id, request.identity.tenant)
        return Look(decision=made, expires=made.ts + LOOK_S)

    async def run(self, request: Request, worker: int = 0) -> tuple[Proposal, Future[int] | None]:
        """Claim a plan that was looked at, and return what is to be executed, with the append of its decision.

        Raises:
            InvalidRequest: it is another request's, expired or run already, or the model is no alternative of it.
            UnknownDecision: the tenant and the key have no such plan.
            StoreError: the claim cannot be made durable now.
        """
        plan = await self._plan_of(request)
        name = self.aliases.get(request.model, request.model)
        arm = plan.chosen if name == AUTO else self.pipeline.models.arms.get(name)
        if arm is None or arm not in plan.eligible or arm not in self.cards:
            known = ", ".join(called(self.cards[each]) for each in plan.eligible if each in self.cards)
            raise InvalidRequest(f"model: got {request.model!r}; the plan's pick and its alternatives are {known}")
        asked = wants(request)
        can = Roster([self.cards[arm]]).eligible(asked, droppable=self.pipeline.droppable)
        if not can.cards:
            raise NoEligibleModel(f"{arm!r} cannot take this request any more: {can.excluded[0][1]}", can.excluded)
        decision, now, preferred = plan, self.clock(), arm != plan.chosen
        if preferred:
            named = msgspec.structs.replace(request, model=called(self.cards[arm]))
            decision = (await self.pipeline.decide(named)).decision
            decision = msgspec.structs.replace(decision, plan=plan.id, worker=worker)
        claim = PlanRun(
            id=f"{plan.id}:run",
            ts=now,
            decision_id=plan.id,
            identity=plan.identity,
            by=decision.id,
            nonce=uuid7(now),
            arm=arm,
            worker=worker,
        )
        await self.recorder.keep(claim)
        _, events = await self._events_of(plan.id, plan.identity.tenant)
        if next(event for event in events if isinstance(event, PlanRun)).nonce != claim.nonce:
            raise InvalidRequest(_USED)
        stored: Future[int] | None = _DURABLE
        if preferred:
            self.recorder.append_event(unused := declined(plan, now))
            self.spending.settle(unused, request.payer)
            stored = self.recorder.append_event(decision)
            if request.person:
                self.recorder.append_event(_preference(decision, plan, now))
        text = read_prompt(request, asked.history_tokens).text
        served = decision if preferred else msgspec.structs.replace(plan, ts=now, look="")
        if served.identity.run and not preferred:  # it was no step when it was looked at
            stored = self.recorder.append_event(step_of(served))
        return Proposal(served, None, can.dropped, text, asked), stored

    async def _plan_of(self, request: Request) -> Decision:
        """Return the plan that a request may run; see `run` for what is raised."""
        plan, events = await self._events_of(decision_id_of(request.plan), request.identity.tenant)
        if not plan.look or plan.key != request.key:
            raise UnknownDecision(f"there is no plan {request.plan[:40]!r} to be run; `POST /v1/plans` makes one")
        if not hmac.compare_digest(plan.look, self._bound(request)):
            raise InvalidRequest(
                "plan: it is for another request; send what it was made for: messages, parameters, tier and identity"
            )
        if any(isinstance(event, PlanRun) for event in events):
            raise InvalidRequest(_USED)
        if self.clock() - plan.ts >= LOOK_S or _is_over(events):
            raise InvalidRequest(f"plan: it has expired, after {LOOK_S / 60.0:g} minutes; make another one")
        return plan

    async def _events_of(self, decision_id: str, tenant: str) -> tuple[Decision, list[Event]]:
        decision, *others = await self.recorder.events(decision_id, tenant)
        assert isinstance(decision, Decision)
        return decision, others

    def _bound(self, request: Request) -> str:
        """Keyed hash of all that a plan is for; the model, and whether the answer is streamed, are chosen later."""
        whose = request.identity, request.key, request.tier, request.n
        what = json.dumps(msgspec.to_builtins([whose, request.messages, request.params]), sort_keys=True)
        return hmac.new(self.pipeline.identities.salt, what.encode(), hashlib.sha256).hexdigest()

    def _last_look(self, bound: str, start: float) -> tuple[int, Decision | None]:
        """Return how many plans a request has had since a time, and the last one if it can still be run. Blocks."""

        def events(number: int) -> list[Event]:
            return [row.event for row in self.journal.of(_look_id(bound, start, number))]

        count, step, rising, last = 0, 1, True, list[Event]()
        while step:  # every plan but the last is used, so that the first missing number is found by bisection
            if found := events(count + step - 1):
                count, last = count + step, found
            rising = rising and bool(found)
            step = 2 * step if rising else step // 2
        plan = next((event for event in last if isinstance(event, Decision)), None)
        return count, None if _is_over(last) else plan

    async def _covered(self, decision: Decision, asked: Wants, request: Request, valid_s: float) -> Cover:
        """Reserve what the call of a decision may cost; raises BudgetExhausted if no hard limit covers it."""
        card, payer = self.cards[decision.chosen], request.payer
        cover = await self.spending.reserve(decision, card, asked, payer, valid_s=valid_s)
        if cover.refusal:
            self.recorder.refuse(decision.identity, BudgetExhausted.reason, "", request.key)
            wait_s = self.pipeline.decider.wait_s(decision.identity.tenant, self.clock(), payer)
            raise exhausted([(decision.chosen, cover.refusal)], wait_s)
        return cover

    async def _decide(
        self, request: Request, *, observed: bool = False, recorded: bool = False
    ) -> tuple[Plan, str, Future[int] | None]:
        """Make a plan; also return its prompt and the pending append of its decision.

        A recorded answer has no cost, and nobody is asked.
        """
        proposal = await self.pipeline.decide(request, observed=observed)
        decision = proposal.decision
        if recorded:
            decision = msgspec.structs.replace(decision, cost=(), asked=False, asked_probability=0.0)
        deadline_s = request.deadline_s or self.timers.deadline_s
        cover = Cover()
        if not observed:
            cover = await self._covered(decision, proposal.asked, request, deadline_s + PLAN_S)
        stored = self.recorder.append_event(decision)
        self.remarks.listen(proposal)
        logged = await self.recorder.durable(decision, stored)
        if logged:
            self.pipeline.continue_session(decision)
        plan = Plan(
            decision=decision,
            order=tuple(
                self._choice(arm, probability, proposal.dropped.get(arm, ()))
                for arm, probability in _drawn(decision, proposal.fallback, self.timers.attempts)
            ),
            deadline_s=deadline_s,
            logged=logged,
            max_tokens=cover.max_tokens,
        )
        return plan, proposal.prompt, stored

    def _choice(self, arm: str, probability: float, dropped: tuple[str, ...]) -> PlannedCall:
        card = self.cards[arm]
        return PlannedCall(
            model=called(card),
            target=card.target or card.name,
            probability=probability,
            variant=card.variant,
            dropped=dropped,
        )

    async def _decision_of(self, decision_id: str, tenant: str) -> tuple[Decision, Execution | None]:
        """A decision and its execution, pending appends included.

        Raises:
            UnknownDecision: the tenant has no such logged decision.
            StoreError: the journal cannot be read now.
        """
        await self.recorder.settle()
        unwritten: StoreError | TimeoutError | None = None
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await asyncio.wrap_future(self.journal.append())  # barrier: earlier appends are durable
        except (StoreError, TimeoutError) as error:  # a journal that cannot be written may still be read
            unwritten = error
        try:
            decision, *others = await self.recorder.events(decision_id, tenant)
        except UnknownDecision:
            if unwritten is None:
                raise
            raise StoreError(f"the decision may be waiting to be written: {in_words(unwritten)}; try again") from None
        assert isinstance(decision, Decision)
        return decision, next((event for event in others if isinstance(event, Execution)), None)

    def _attempts(self, decision: Decision, tried: Sequence[AttemptReport]) -> tuple[Attempt, ...]:
        """Convert the calls of a report to attempts with their probabilities.

        Raises:
            InvalidRequest: the calls differ from the decision's order.
        """
        arms = {called(self.cards[arm]): arm for arm in decision.eligible if arm in self.cards}
        given = [(arms.get(one.model), one.probability) for one in tried]
        if decision.probs or decision.mode is Mode.PINNED:
            order = _drawn(decision, decision if decision.probs else None, len(tried))[: len(tried)]
        else:  # a sticky or forced turn falls back by a pmf that is not logged
            order = _reported(decision, given)
        if [arm for arm, _ in given] != [arm for arm, _ in order]:
            raise InvalidRequest(
                f"tried: got {[one.model for one in tried]}; decision {decision.id!r} plans "
                f"{', '.join(repr(arm) for arm, _ in order)}: report every call, in that order, once each"
            )
        return tuple(
            Attempt(model=arm, probability=probability, error=one.error, ms=one.ms)
            for (arm, probability), one in zip(order, tried, strict=True)
        )

    def _append(
        self,
        prompt: str,
        request: Request,
        decision: Decision,
        stored: Future[int] | None,
        attempts: tuple[Attempt, ...],
        outcome: Outcome,
        *,
        trusted: bool,
    ) -> None:
        """Queue the execution behind its decision; a complete answer is queued for the scorer."""
        completion, last = outcome.completion, attempts[-1] if attempts else None
        usage = Usage() if completion is None else completion.usage
        served_by, latency_ms, charged = None, 0.0, Charge(outcome.cost_usd or 0.0, assumed=False, estimated=False)
        if last is not None and last.error is None:
            served_by = last.model
            card = self.cards[served_by]
            said = 0 if completion is None else said_tokens(completion.message)
            usage = checked_usage(usage, card, wants(request), said, whole=False)
            latency_ms = last.ms if outcome.ttft_ms is None else sum(attempt.ms for attempt in attempts)
            if outcome.cost_usd is not None:
                usage = msgspec.structs.replace(usage, cost_usd=outcome.cost_usd)
            charged = charge(card, usage)
            usd = None if charged.assumed else charged.usd
            attempts = (*attempts[:-1], msgspec.structs.replace(last, cost_usd=usd))
        elif outcome.status == RECORDED:
            served_by = decision.chosen
        status = outcome.status
        execution = execution_of(
            decision,
            self.clock(),
            status=unanswered([each.error for each in attempts]) if status == "failed" else status,
            served_by=served_by,
            attempts=attempts,
            **counted(usage),
            cost_usd=charged.usd,
            cost_assumed=charged.assumed,
            estimated=usage.estimated or charged.estimated,
            ttft_ms=outcome.ttft_ms,
            latency_ms=latency_ms,
            finish_reason=None if completion is None else completion.finish_reason,
            believed=trusted,
        )
        if outcome.status != RECORDED:  # nothing was reserved
            self.spending.settle(execution, request.payer)
        message = completion.message if completion is not None and outcome.status in {"ok", RECORDED} else None
        self.recorder.append_outcome(prompt, request, stored, execution, message)


_DURABLE: Future[int] = Future()
_DURABLE.set_result(0)
_USED = "plan: it was run already; make another one"


def _is_over(events: Sequence[Event]) -> bool:
    """Whether a plan was run or declined; votes on it, for one, leave it as it is."""
    return any(isinstance(event, PlanRun | Execution) for event in events)


def _look_id(bound: str, start: float, number: int) -> str:
    """Id of a request's plan by its number: every process knows it, and nobody else can."""
    digest = hashlib.sha256(f"{bound} {start:.0f} {number}".encode()).digest()
    return uuid7(start, lambda n: digest[:n])


def _preference(decision: Decision, plan: Decision, ts: float) -> Feedback:
    """Make the comparison of an alternative that a person chose with the pick of a plan."""
    return Feedback(
        id=f"{plan.id}:preferred",
        ts=ts,
        decision_id=decision.id,
        identity=plan.identity,
        kind=FeedbackKind.PAIR,
        value=1.0,
        other=plan.id,
        source=PREFERRED,
    )


def _drawn(decision: Decision, fallback: Decision | None, attempts: int) -> tuple[tuple[str, float], ...]:
    """Draw the chosen model and its fallbacks, at most `attempts`, as (arm, probability given earlier failures)."""
    order = [(decision.chosen, 1.0)]
    while fallback is not None and len(order) < attempts:
        following = renormalise(fallback, [arm for arm, _ in order], len(order))
        if following is None:
            break
        order.append(following)
    return tuple(order)


def _reported(decision: Decision, given: Sequence[tuple[str | None, float]]) -> tuple[tuple[str, float], ...]:
    """Return (arm, probability) as reported: the chosen model, then other eligible ones, each once.

    Raises:
        InvalidRequest: a probability is out of range.
    """
    order = {decision.chosen: 1.0}
    for arm, probability in given[1:]:
        if arm is not None and arm not in order:
            if not 0.0 < probability <= 1.0:
                raise InvalidRequest(f"tried: fallback {arm!r} has the probability {probability!r}; give the plan's")
            order[arm] = probability
    return tuple(order.items())[: len(given)]


def _check(outcome: Outcome) -> None:
    """Raise InvalidRequest if an outcome is inconsistent."""
    tried, status = outcome.tried, outcome.status
    if status not in STATUSES:
        raise InvalidRequest(f"status: {status!r} is invalid; allowed are {', '.join(STATUSES)}")
    for one in tried:
        if one.error is not None and not _is_exception_name(one.error):
            raise InvalidRequest(f"error: got {one.error[:40]!r}; give only the name of an exception")
        _amount("ms", one.ms, LONGEST_MS)
    answered = bool(tried) and tried[-1].error is None
    if any(one.error is None for one in tried[:-1]):
        raise InvalidRequest("tried: only the last model can have answered; the others need an 'error'")
    if answered is not (status in {"ok", "partial"}) and status != "cancelled":
        raise InvalidRequest(
            f"status: {status!r} contradicts the last call, which {'answered' if answered else 'did not answer'}"
        )
    if status == "failed" and not tried:
        raise InvalidRequest("tried: no model was called; use the status 'cancelled'")
    if (outcome.completion is None and status == "ok") or (outcome.completion is not None and not answered):
        raise InvalidRequest(f"message: {'required' if answered else 'not allowed'} with the status {status!r}")
    usage = Usage() if outcome.completion is None else outcome.completion.usage
    for name in ("prompt_tokens", "completion_tokens"):
        _amount(f"usage.{name}", getattr(usage, name), MOST_TOKENS)
    _amount("cost_usd", outcome.cost_usd or 0.0, MOST_USD)
    _amount("ttft_ms", outcome.ttft_ms or 0.0, LONGEST_MS)


def _is_exception_name(error: str) -> bool:
    """Whether a text is the name of an exception; messages may hold private text and are not logged."""
    return len(error) <= _LONGEST_NAME and all(part.isidentifier() for part in error.split("."))


def _amount(name: str, value: float, most: float) -> None:
    if not 0.0 <= value <= most:
        raise InvalidRequest(f"{name}: {value!r} is invalid; allowed are 0 to {most:g}")

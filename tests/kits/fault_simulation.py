"""Simulation of a router under faults: everything is drawn from a seed, time is virtual, laws are checked at the end.

    result = faults.simulate(seed=7, identities=identities)
    assert not result.violations
    assert faults.simulate(seed=7, identities=identities).digest == result.digest

A seed draws the models and providers, timers, budgets, concurrency limits, the faults of each provider over time, those
of the journal, and clients that ask, stream, plan, vote, and leave. The router is the real one over a memory journal;
models, disk and clients are simulated. No thread runs (`VirtualTimeLoop(threads=False)`), so that a seed always replays
the same events.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import math
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from tests.kits.virtual_time import VirtualTimeLoop

from fitrouter.context.encoders import Hashing
from fitrouter.context.features import context_names
from fitrouter.draw import draw_next, replay, uuid7
from fitrouter.errors import (
    ContextOverflow,
    FitrouterError,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    StoreError,
)
from fitrouter.hooks import Happened, Hooks, Notice
from fitrouter.policies import SquareCB
from fitrouter.router import Router
from fitrouter.routing.breakers import LONGEST_S, RETRIES
from fitrouter.routing.decider import Decider, Rules
from fitrouter.serving.attempts import Timers
from fitrouter.serving.external import AttemptReport, Outcome
from fitrouter.serving.recorder import DURABLE_WAIT_S
from fitrouter.serving.slots import SlotParams
from fitrouter.serving.sweeper import LOST_AFTER_S
from fitrouter.state import follower
from fitrouter.state.budgets import BudgetParams
from fitrouter.state.follower import catch_up
from fitrouter.state.learner import Learner
from fitrouter.state.projections import ProjectionParams
from fitrouter.stores.identities import Identities, SqliteIdentities
from fitrouter.stores.journal import Entry, MemoryJournal
from fitrouter.types import (
    AUTO,
    NOT_CALLED,
    Call,
    Chunk,
    Completion,
    Decision,
    Execution,
    FeedbackKind,
    Identity,
    ModelCard,
    Payer,
    Prices,
    Request,
    Usage,
)

EPOCH = 1_700_000_000.0
"""Time of the simulation's beginning; a multiple of no period."""
PEOPLE = tuple((tenant, user) for tenant in ("one", "two") for user in ("ann", "bob", "eve"))
WHOLE_FAULTS = (
    *("500", "503 later", "429", "429 later", "401", "402", "403", "400", "too long", "reset", "malformed", "empty"),
    *("wrong shape", "hang", "slow", "greedy", "uncounted", "429 storm"),
)
STREAM_FAULTS = (*WHOLE_FAULTS, "late first", "stall", "broken", "unfinished", "only a role")
FREE = 256
"""Calls of a provider at a time that no script reaches."""
SLACK_S = DURABLE_WAIT_S + 1e-6


class Identified(SqliteIdentities):
    """Identities that many simulations share."""

    def __init__(self, path: Path) -> None:
        chance = random.Random(0)
        with (
            mock.patch("secrets.token_hex", lambda n: chance.randbytes(n).hex()),
            mock.patch("secrets.token_bytes", chance.randbytes),
        ):
            super().__init__(path)
            for tenant, user in PEOPLE:
                self.subject(tenant, user)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Stay open for the next seed; the process's end closes the file."""


class Weather(NamedTuple):
    """The faults of a provider until a time."""

    until: float
    share: float
    """Of the calls that fail."""
    kinds: tuple[str, ...] = ()
    """Drawn from; empty for all."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation does.

    `calm_s` is when the last request comes; `weather` has the faults of each provider, by number.
    """

    models: tuple[int, ...]
    """The provider of each model."""
    weather: tuple[tuple[Weather, ...], ...]
    requests: int
    rate: float
    """Requests a second."""
    timers: Timers
    usd: float | None = None
    """Of each tenant in the period."""
    key_usd: float | None = None
    """Of the API key that half of the requests are made with."""
    concurrency: int = FREE
    disk: tuple[tuple[float, float, bool], ...] = ()
    """Until a time: seconds that an append takes, and whether it fails."""
    jump: tuple[float, float] | None = None
    """When the wall clock jumps, and by how many seconds."""
    leave: float = 0.15
    """Share of the clients that leave."""
    plain: bool = False
    """Only whole answers, of clients that stay: for figures."""
    answer_s: tuple[float, float] = (0.05, 1.5)


def script_of(seed: int, requests: int = 12) -> Script:
    """The script that a seed draws."""
    rng = random.Random(f"script {seed}")
    rate = rng.choice([0.5, 3.0, 20.0])
    ends = requests / rate
    providers = rng.randint(1, 3)

    def weather() -> tuple[Weather, ...]:
        now, phases = 0.0, []
        while now < ends:
            now += ends * rng.uniform(0.15, 0.7)
            one = (rng.choice(STREAM_FAULTS),)
            few = tuple(rng.sample(STREAM_FAULTS, 4))
            phases.append(Weather(now, rng.choice([0.0, 0.1, 0.5, 0.9, 1.0]), rng.choice([(), one, few])))
        return tuple(phases)

    blown = [weather() for _ in range(providers)]
    if rng.random() < 0.2:  # an outage of everything
        at, until = sorted(rng.uniform(0.0, ends) for _ in range(2))
        kinds = tuple(rng.sample(["500", "reset", "hang", "401", "429 later", "empty"], 2))
        blown = [
            (*(w for w in each if w.until < at), Weather(at, 0.2), Weather(until, 1.0, kinds), Weather(math.inf, 0.1))
            for each in blown
        ]
    disk: list[tuple[float, float, bool]] = []
    while rng.random() < 0.4:
        disk.append((ends * rng.random() * 1.2, rng.choice([0.0, 0.01, 0.2, 3.0]), rng.random() < 0.4))
    key_usd = rng.choice([None, None, 0.005])
    jump = None
    if key_usd is None and rng.random() < 0.2:  # a jump over midnight would give a key another day's limit
        jump = (ends * rng.random(), rng.choice([86_400.0, -3_600.0]))
    return Script(
        models=tuple(rng.randrange(providers) for _ in range(rng.randint(1, 4))),
        weather=tuple(blown),
        requests=requests,
        rate=rate,
        timers=Timers(
            deadline_s=rng.choice([4.0, 10.0]),
            first_token_s=rng.choice([1.0, 3.0]),
            chunk_gap_s=rng.choice([0.5, 2.0]),
            attempts=rng.choice([1, 2, 3, 6]),
            retry_share=rng.choice([0.0, 0.1, 0.5]),
        ),
        usd=rng.choice([None, 0.004, 0.02]),
        key_usd=key_usd,
        jump=jump,
        concurrency=rng.choice([1, 2, FREE]),
        disk=tuple(sorted(disk)),
    )


class Result(NamedTuple):
    """How a simulation ended."""

    digest: str
    """Of all events, and of what each client got."""
    violations: list[str]
    outcomes: Counter[str]
    calls: int
    """Of providers."""
    virtual_s: float
    waits: list[float]
    """Seconds of each request."""
    moments: list[float]
    """When each call began."""


class _Disk(MemoryJournal):
    """A memory journal whose appends take time, and fail for a while."""

    def __init__(self, script: Script, loop: VirtualTimeLoop) -> None:
        super().__init__(fault=self._fails)
        self._script, self._loop = script, loop
        self._queue: list[tuple[tuple[Entry, ...], Future[int]]] = []
        self._last = 0.0

    def _phase(self) -> tuple[float, float, bool]:
        return next((each for each in self._script.disk if self._loop.now < each[0]), (math.inf, 0.0, False))

    def _fails(self, step: str) -> None:
        if step == "insert" and self._phase()[2]:
            raise OSError("no space left on device")

    def append(self, *entries: Entry) -> Future[int]:
        """Append after the delay of the moment, in order."""
        self._last = max(self._last, self._loop.now + self._phase()[1])
        if self._last <= self._loop.now and not self._queue:
            return super().append(*entries)
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        self._queue.append((entries, future))
        self._loop.call_at(self._last, self._next)
        return future

    def _next(self) -> None:
        if self._queue:
            entries, future = self._queue.pop(0)
            done = super().append(*entries)
            if error := done.exception():
                future.set_exception(error)
            else:
                future.set_result(done.result())

    def close(self) -> None:
        """Write what waits."""
        while self._queue:
            self._next()
        super().close()


class _Chunks(AsyncIterator[Chunk]):
    """A stream of a simulated provider; tells when it ended or was closed, even if nobody began it."""

    def __init__(self, chunks: AsyncIterator[Chunk], ended: Callable[[], None]) -> None:
        self._chunks, self._ended = chunks, ended

    async def __anext__(self) -> Chunk:
        try:
            return await anext(self._chunks)
        except BaseException:
            self._ended()
            raise

    async def aclose(self) -> None:
        """End it."""
        self._ended()
        await self._chunks.aclose()  # type: ignore[attr-defined]


class Simulation:
    """A run of a script; see `simulate`."""

    def __init__(self, script: Script, seed: int, identities: Identities, loop: VirtualTimeLoop) -> None:
        self.script, self.loop = script, loop
        self.rng = random.Random(f"chance {seed}")
        self.violations: list[str] = []
        self.outcomes: list[str] = []
        self.waits: list[float] = []
        self.moments: list[float] = []
        self.open: Counter[str] = Counter()
        """Model → calls under way."""
        self.barred: dict[tuple[str, str], float] = {}
        """(tenant, model) → end of the time for which it asked to be left alone."""
        self.probes: Counter[Any] = Counter()
        """Open breaker → calls that probe it."""
        self.asked: dict[str, Request] = {}
        """Word that each prompt begins with → its request."""
        self.tried: Counter[int] = Counter()
        """Request → calls."""
        self.settled: defaultdict[str, float] = defaultdict(float)
        """Tenant or key → USD of the executions so far."""
        self.votes: list[str] = []
        self.logged: dict[str, str] = {}
        """Decisions that clients were told to be durable → the model that answered; empty for none yet."""
        self.cards = [
            ModelCard(
                name=f"m{i}",
                provider=f"p{provider}",
                target=f"m{i}",
                prices=Prices(input=0.5 + i, output=1.0 + i),
                parameters=("n", "max_tokens") if i % 2 else None,
            )
            for i, provider in enumerate(script.models)
        ]
        budget = None if script.usd is None else BudgetParams(usd_per_period=script.usd, period_s=1e9)
        self.projections = ProjectionParams(budget=budget)
        self.learner = self.blank()
        self.journal = _Disk(script, loop)
        self.router = Router(
            cards=self.cards,
            providers={f"p{i}": _Provider(self, i) for i in set(script.models)},
            decider=Decider(SquareCB(20.0), self.learner, Rules(registry="r1", seed=seed)),
            learner=self.learner,
            journal=self.journal,
            identities=identities,
            encoder=Hashing(),
            timers=script.timers,
            hooks=Hooks(self.notice),
            slots=SlotParams(concurrency={f"p{i}": script.concurrency for i in set(script.models)}, wait_s=1.0),
            clock=self.clock,
        )

    def clock(self) -> float:
        """Seconds since the epoch."""
        at, by = self.script.jump or (0.0, 0.0)
        return EPOCH + self.loop.now + (by if self.loop.now >= at else 0.0)

    def blank(self) -> Learner:
        """A learner that knows nothing."""
        return Learner(len(context_names()), 1, expects_scores=False, projections=self.projections)

    def require(self, holds: bool, law: str) -> None:
        """Note a law that does not hold."""
        if not holds:
            self.violations.append(f"at {self.loop.now:.3f} s: {law}")

    def notice(self, notice: Notice) -> None:
        """Count what executions cost."""
        if isinstance(notice, Happened) and isinstance(notice.event, Execution):
            execution = notice.event
            self.require(math.isfinite(execution.cost_usd) and execution.cost_usd >= 0.0, "a cost is not a number")
            for account in {execution.identity.tenant, f"key {execution.payer}"}:
                self.settled[account] += execution.cost_usd

    # --- providers ---

    def called(self, call: Call) -> tuple[str, Callable[[], None]]:
        """A call of a model begins: check that it may. Returns the tenant, and what to do at its end."""
        now, model = self.loop.now, call.target
        request = self.asked[str(call.messages[-1]["content"]).split()[0]]
        tenant = request.identity.tenant
        self.moments.append(now)
        late = self.barred.get((tenant, model), 0.0) - now
        self.require(late <= 1e-9, f"{model} is called {late:.3f} s before the end of its Retry-After")
        # Further choices, fallbacks and calls that waited for a slot have reserved their money before.
        fresh = request.n == 1 and self.script.concurrency == FREE and not self.tried[id(request)]
        self.tried[id(request)] += 1
        if self.script.usd is not None and fresh:
            self.require(self.settled[tenant] < self.script.usd, f"{tenant} calls {model} beyond its budget")
        if request.payer is not None and fresh:
            spent = self.settled[f"key {request.payer.name}"]
            self.require(spent < request.payer.usd_per_day, f"a key calls {model} beyond its limit")
        probed = [b for b in self.router._breakers.of(tenant)._of[model] if b.until is not None]
        for breaker in probed:
            self.require(
                breaker.probing and (breaker.until or 0.0) <= now, f"{model} is called though its breaker is open"
            )
            self.require(not self.probes[id(breaker)], f"two calls probe {breaker.name} of {tenant} at once")
            self.probes[id(breaker)] += 1
        self.open[model] += 1
        done = False

        def ended() -> None:
            nonlocal done
            if not done:
                self.open[model] -= 1
                self.probes.subtract(id(breaker) for breaker in probed)
            done = True

        self.require(self.open[model] <= self.script.concurrency, f"{model} gets more calls than its provider's limit")
        return tenant, ended

    def fault(self, provider: int, stream: bool) -> str:
        """The fault of a call, drawn from the weather; empty for none."""
        now = self.loop.now
        weather = next((each for each in self.script.weather[provider] if now < each.until), Weather(math.inf, 0.0))
        kinds = STREAM_FAULTS if stream else WHOLE_FAULTS
        kind = self.rng.choice(weather.kinds or kinds)
        return kind if self.rng.random() < weather.share and kind in kinds else ""

    # --- clients ---

    async def client(self, number: int) -> None:
        """One client: asks, perhaps leaves, perhaps votes. Its outcome is a line of `outcomes`."""
        rng, word = random.Random(self.rng.random()), f"q{number}"
        tenant, user = rng.choice(PEOPLE)
        keyed = self.script.key_usd is not None and rng.random() < 0.5
        plain = self.script.plain
        request = Request(
            messages=({"role": "user", "content": f"{word} {'please ' * rng.choice([1, 5, 20, 100])}"},),
            model=AUTO if plain or rng.random() < 0.8 else rng.choice(self.cards).name,
            params={"max_tokens": rng.choice([50, 4000])} if rng.random() < 0.5 else {},
            identity=Identity(tenant=tenant, user=user, session=rng.choice([None, "s"])),
            n=1 if plain or rng.random() < 0.9 else 3,
            deadline_s=None if plain or rng.random() < 0.8 else rng.choice([0.2, 2.0]),
            payer=Payer(name="k", usd_per_day=self.script.key_usd or 0.0) if keyed else None,
        )
        self.asked[word] = request
        patience = math.inf if plain or rng.random() > self.script.leave else rng.expovariate(0.7)
        how = 0.0 if plain else rng.random()
        began = self.loop.now
        try:
            async with asyncio.timeout(None if patience == math.inf else patience):
                decision_id, said = await (self.plan if how > 0.85 else self.ask)(request, rng, how > 0.4)
        except TimeoutError:
            self.require(patience < math.inf, f"{word} got a bare TimeoutError")
            decision_id, said = "", "left"
        except FitrouterError as error:
            self.require(not isinstance(error, StoreError), f"{word}: the store's {error!r} reached the client")
            decision_id, said = "", type(error).__name__
        waited = self.loop.now - began
        deadline = request.deadline_s or self.script.timers.deadline_s
        flowed = said.startswith("streamed") and not request.deadline_s  # only the caller's own deadline ends a stream
        late = waited > deadline + SLACK_S and not flowed
        self.require(not late or how > 0.85, f"{word} took {waited:.3f} s of {deadline} ({said})")
        self.waits.append(waited)
        self.outcomes.append(f"{word} {said}")
        if decision_id and rng.random() < 0.5:
            with contextlib.suppress(StoreError):
                identity = msgspec.structs.replace(request.identity, session=None)
                vote = await self.router.feedback(decision_id, FeedbackKind.THUMB, 1.0, identity=identity)
                self.votes.append(vote)

    async def ask(self, request: Request, rng: random.Random, stream: bool) -> tuple[str, str]:
        """A routed call, whole or streamed, perhaps closed early."""
        if not stream:
            answer = await self.router.complete(request)
            self.require(bool(answer.completion.message.get("content")), "an answer is empty")
            if answer.logged:
                self.logged[answer.decision.id] = answer.served_by
            return answer.decision.id if answer.logged else "", f"ok {answer.served_by}"
        streamed = await self.router.stream(request)
        leaves, said, chunks = rng.random() < self.script.leave, "", 0
        id_ = streamed.decision.id if streamed.logged else ""
        if id_:
            self.logged[id_] = ""
        async for chunk in streamed:
            said = chunk.finish_reason or said
            chunks += 1
            if leaves and chunks > 1:
                await streamed.aclose()
                return id_, f"closed {streamed.served_by}"
        self.require(bool(said), "a stream ended without a reason")
        if id_:
            self.logged[id_] = streamed.served_by
        return id_, f"streamed {streamed.served_by} {chunks}"

    async def plan(self, request: Request, rng: random.Random, reports: bool) -> tuple[str, str]:
        """A call that the client makes itself, and reports, perhaps twice or never."""
        plan = await self.router.decide(request)
        if not plan.logged:
            return "", "planned"
        self.logged[plan.decision.id] = ""
        times = rng.choice([0, 1, 1, 2])
        usage = Usage(prompt_tokens=100, completion_tokens=100)
        answer = Completion(message={"role": "assistant", "content": "Yes."}, usage=usage)
        outcome = Outcome(tried=(AttemptReport(model=plan.order[0].model, ms=5.0),), completion=answer)
        for _ in range(times):
            with contextlib.suppress(StoreError):
                await self.router.report(plan.decision.id, request, outcome)
        return plan.decision.id, f"planned {plan.decision.chosen} {times}"

    # --- the run ---

    async def run(self) -> None:
        """Start the router, send all requests, wait until everything is settled, check the laws."""
        self.loop.set_exception_handler(lambda _, context: self.require(False, f"the loop reports {context}"))
        async with self.router:
            clients = []
            for number in range(self.script.requests):
                clients.append(asyncio.create_task(self.client(number)))
                await asyncio.sleep(self.rng.expovariate(self.script.rate))
            for found in await asyncio.gather(*clients, return_exceptions=True):
                self.require(found is None, f"a client got {found!r}")
            if self.script.disk:
                await asyncio.sleep(max(0.0, self.script.disk[-1][0] - self.loop.now))
            await self.router.settled()
            while any(part.open for part in self.learner.parts()) and self.loop.now < 10_000.0:
                await asyncio.sleep(LOST_AFTER_S)
                await self.router.settled()
            self.check()
        left = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        self.require(not left, f"tasks are left: {left}")

    def check(self) -> None:
        """The laws of what was logged."""
        rows = [row.event for row in self.journal.tail(0, 1_000_000)]
        ids = Counter(event.id for event in rows)
        decisions = {event.id: event for event in rows if isinstance(event, Decision)}
        executions = {event.decision_id: event for event in rows if isinstance(event, Execution)}
        self.require(max(ids.values(), default=1) == 1, "an event is doubled")
        self.require(self.logged.keys() <= decisions.keys(), "an acknowledged decision is lost")
        self.require(set(self.votes) <= ids.keys(), "an acknowledged vote is lost")
        self.require(decisions.keys() == executions.keys(), "a decision has no execution, or the reverse")
        for id_, model in self.logged.items():
            found = executions.get(id_)
            known = found is not None and (found.status, found.served_by) == ("ok", model)
            # After a jump by a day the sweeper takes requests under way for lost.
            exempt = bool(self.script.disk) or self.script.jump is not None
            self.require(not model or known or exempt, f"the log does not know that {model} answered")
        self.require(len(self.outcomes) == self.script.requests, "a request got no outcome")
        for model, count in self.open.items():
            self.require(not count, f"{count} calls of {model} are still open")
        for name, slots in self.router._caller.slots.items():
            self.require(not slots.used and not slots._held, f"slots of {name} are not given back")
        held = [each for purse in self.router._ledger._purses.values() for each in purse.holds.values()]
        self.require(all(ends < math.inf for _, ends in held), "money stays reserved")  # that of plans ends by itself
        for tenant, _ in PEOPLE:
            for breaker in itertools.chain(*self.router._breakers.of(tenant)._of.values()):
                self.require(not breaker.probing, f"{breaker.name} waits for a probe for ever")
        for decision in decisions.values():
            self.check_decision(decision, executions[decision.id])
        self.check_money(decisions, list(executions.values()))
        self.check_retries(list(executions.values()))
        self.require(self.learner.seq == self.journal.head(), "events are not folded")

    def check_decision(self, decision: Decision, execution: Execution) -> None:
        """Probabilities are those that were drawn from, at each attempt."""
        attempts = [attempt for attempt in execution.attempts if attempt.probability]
        if decision.mode.drawn:
            self.require(abs(math.fsum(decision.probs) - 1.0) < 1e-9, "a pmf does not sum to 1")
            self.require(replay(decision) == decision.chosen, "a draw does not replay")
            at = decision.eligible.index(decision.chosen)
            self.require(decision.probs[at] == decision.propensity, "a propensity is not that of the pmf")
            for i, attempt in enumerate(attempts[1:], 1):
                expected = draw_next(decision, attempts[:i])
                self.require((attempt.model, attempt.probability) == expected, f"fallback {i} does not replay")
        if attempts:
            self.require(attempts[0].model == decision.chosen, "the first model called is not the one drawn")
            self.require(attempts[0].probability == 1.0, "the first model's conditional probability is not 1")
        self.require(all(each.ms >= 0.0 for each in attempts) and execution.latency_ms >= 0.0, "a latency is negative")
        called = [attempt for attempt in attempts if attempt.error not in NOT_CALLED]
        self.require(len(called) <= self.script.timers.attempts, f"{len(called)} calls were made")
        if execution.status == "ok":
            self.require(execution.served_by is not None and not called[-1].error, "an answer without a model")

    def check_money(self, decisions: Mapping[str, Decision], executions: Sequence[Execution]) -> None:
        """A budget is exceeded by no more than what the estimates of single answers missed."""
        paid: defaultdict[str, float] = defaultdict(float)
        missed: defaultdict[str, float] = defaultdict(float)
        for execution in executions:
            decision = decisions[execution.decision_id]
            last = execution.attempts[-1].model if execution.attempts else decision.chosen
            estimate = decision.cost[decision.eligible.index(last)]
            for account in {execution.identity.tenant, f"key {execution.payer}"}:
                paid[account] += execution.cost_usd
                missed[account] += max(execution.cost_usd - estimate, 0.0)
        for account, usd in paid.items():
            limit = self.script.key_usd if account == "key k" else self.script.usd
            if account != "key " and limit is not None and not self.script.disk:
                allowed = limit + missed[account]
                self.require(usd <= allowed + 1e-9, f"{account} paid {usd:.4f} USD of {limit}, allowed {allowed:.4f}")

    def check_retries(self, executions: Sequence[Execution]) -> None:
        """Calls of a provider that has failed the same request stay within the retry budget."""
        provider = {card.arm: card.provider for card in self.cards}
        first: Counter[tuple[str, str]] = Counter()
        again: Counter[tuple[str, str]] = Counter()
        for execution in executions:
            failed: set[str] = set()
            for attempt in execution.attempts:
                if attempt.error in NOT_CALLED:
                    continue
                name = provider[attempt.model]
                (again if name in failed else first)[execution.identity.tenant, name] += 1
                if attempt.error not in {None, "ProviderRejected", "ContextOverflow"}:
                    failed.add(name)
        for account, count in again.items():
            most = RETRIES + self.script.timers.retry_share * self.script.requests * 3
            self.require(count <= min(most, RETRIES + self.script.timers.retry_share * len(self.moments)), f"{account}")

    def digest(self) -> str:
        """Of all events, and of what each client got."""
        digest = hashlib.sha256("\n".join(self.outcomes).encode())
        for record in self.journal._records:
            digest.update(b"" if record is None else record.payload)
        return digest.hexdigest()


class _Provider:
    """A simulated provider with faults."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self._simulation, self._number = simulation, number

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Answer, or fail by the weather."""
        world = self._simulation
        tenant, ended = world.called(call)
        kind = world.fault(self._number, call.stream)
        takes = world.rng.uniform(*world.script.answer_s)
        tokens = world.rng.choice([20, 200, 2000])
        if "max_tokens" in call.params:
            tokens = min(tokens, call.params["max_tokens"])
        usage = {
            "greedy": Usage(prompt_tokens=10**300, completion_tokens=10**18),
            "uncounted": Usage(),
        }.get(kind, Usage(prompt_tokens=len(str(call.messages[-1]["content"])) // 4, completion_tokens=tokens))
        keep = False
        try:
            if not call.stream or kind in WHOLE_FAULTS:
                await asyncio.sleep(0.3 * takes if kind in WHOLE_FAULTS and kind != "slow" else takes)
            await self._fail(kind, tenant, call.target)
            if call.stream is not (kind == "wrong shape"):
                keep = True
                return _Chunks(self._stream(kind, takes, tokens, usage), ended)
            return Completion(message={"role": "assistant", "content": "so " * tokens}, usage=usage)
        finally:
            if not keep:
                ended()

    async def _fail(self, kind: str, tenant: str, model: str) -> None:
        world = self._simulation
        if kind == "hang":
            await asyncio.Event().wait()
        if kind == "slow":
            await asyncio.sleep(world.rng.choice([2.0, 20.0]))
        wait_s = world.rng.choice([1.0, 7.0, 1e9]) if kind.endswith("later") else None
        wait_s = 7.0 if kind == "429 storm" else wait_s
        if wait_s is not None:
            world.barred[tenant, model] = max(
                world.barred.get((tenant, model), 0.0), world.loop.now + min(wait_s, LONGEST_S)
            )
        errors: dict[str, Exception] = {
            "400": ProviderRejected("no such parameter", 400),
            "too long": ContextOverflow("the history is too long", 400),
            "402": ProviderUnavailable("insufficient_quota", 402),
            "reset": ConnectionResetError("peer"),
            "malformed": KeyError("choices"),
            "empty": ProviderUnavailable("empty answer"),
        }
        if kind in errors:
            raise errors[kind]
        if kind[:3].isdigit():
            raise ProviderUnavailable(f"status {kind}", int(kind[:3]), wait_s)

    async def _stream(self, kind: str, takes: float, tokens: int, usage: Usage) -> AsyncIterator[Chunk]:
        yield Chunk(delta={"role": "assistant"})
        if kind == "only a role":
            return
        await asyncio.sleep(takes + (5.0 if kind == "late first" else 0.0))
        for i in range(3):
            yield Chunk(delta={"content": "so " * (tokens // 3 + (i < tokens % 3))})
            await asyncio.sleep(takes / 10.0)
            if kind == "stall" and i == 1:
                await asyncio.Event().wait()
            if kind == "broken" and i == 1:
                raise self._simulation.rng.choice([ConnectionResetError("peer"), ProviderError("reset")])
        if kind != "unfinished":
            yield Chunk(finish_reason="stop")
        yield Chunk(usage=usage)

    async def aclose(self) -> None:
        """Nothing is open."""


@contextlib.contextmanager
def _simulated(loop: VirtualTimeLoop, seed: int) -> Iterator[None]:
    """Clock, ids and polling of a simulation; the log says nothing."""
    names = random.Random(f"ids {seed}")
    log = logging.getLogger("fitrouter")
    before, log.disabled = log.disabled, True
    models = logging.getLogger("fitrouter.models")
    models_before, models.disabled = models.disabled, True
    try:
        with (
            mock.patch("time.monotonic", loop.time),
            mock.patch.object(uuid7, "__defaults__", (names.randbytes,)),
            mock.patch.object(follower, "POLL_S", 10.0),
            mock.patch("fitrouter.router.WATCH_S", 60.0),
        ):
            yield
    finally:
        log.disabled, models.disabled = before, models_before


def simulate(seed: int, identities: Identities, script: Script | None = None, *, refold: bool = False) -> Result:
    """Run a script, by default the seed's own, and check the laws.

    Args:
        seed: of all that happens by chance.
        identities: of `Identified`.
        script: instead of the seed's own.
        refold: whether to compare the state with a second fold of the journal.
    """
    loop = VirtualTimeLoop(seed, threads=False)
    with asyncio.Runner(loop_factory=lambda: loop) as runner, _simulated(loop, seed):
        runner.get_loop()
        world = Simulation(script or script_of(seed), seed, identities, loop)
        runner.run(world.run())
        if refold:
            again = world.blank()
            # A write that was given up may become durable while the router closes; the next start closes its decision.
            catch_up(again, world.journal, world.learner.seq)
            world.require(again.digest() == world.learner.digest(), "the state is not the fold of the journal")
    outcomes = Counter(line.split()[1] for line in world.outcomes)
    return Result(world.digest(), world.violations, outcomes, len(world.moments), loop.now, world.waits, world.moments)


async def nothing() -> None:
    """Do nothing, for tests that break a part."""

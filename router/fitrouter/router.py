"""The one orchestrator. Read `complete` from top to bottom and you have followed a request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec

from fitrouter.context.encoders import Encoder
from fitrouter.errors import ProviderError, ProviderTimeout, StoreError
from fitrouter.hooks import Hooks
from fitrouter.providers import Provider
from fitrouter.routing.decider import Decider
from fitrouter.routing.pipeline import Pipeline
from fitrouter.routing.variants import called, expand
from fitrouter.serving.answers import Answer, Stream
from fitrouter.serving.attempts import Answering, Assembler, Timers, Unanswered, close, first_answer
from fitrouter.serving.external import ExternalExecution, Outcome, Plan, spent
from fitrouter.serving.feedback import Declared, FeedbackIntake
from fitrouter.serving.recorder import Recorder, execution_of
from fitrouter.serving.services import ScorerPlugin, Service
from fitrouter.serving.steering import Steering
from fitrouter.serving.sweeper import close_lost
from fitrouter.state.follower import Follower
from fitrouter.state.learner import Learner
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Journal
from fitrouter.types import (
    ArtifactChange,
    Attempt,
    Chunk,
    Completion,
    Decision,
    Event,
    Execution,
    FeedbackKind,
    Identity,
    Message,
    ModelCard,
    ModelChange,
    Request,
    Usage,
)

if TYPE_CHECKING:
    from fitrouter.config import Config
    from fitrouter.stores.warehouse import WarehouseFeed


START_WAIT_S = 2.0
"""How long a start waits for its own first event."""


class _Turn(msgspec.Struct, kw_only=True):
    """One request under way."""

    request: Request
    decision: Decision
    fallback: Decision | None
    dropped: Mapping[str, tuple[str, ...]]
    durable: Future[int] | None
    started: float
    deadline: float
    cost_usd: float | None = None
    """Once it has ended."""


class Router:
    """Decides, calls, answers and logs. Use it as an async context manager.

    `Router.from_config` wires one up; the constructor takes the parts.
    """

    def __init__(
        self,
        *,
        cards: Sequence[ModelCard],
        providers: Mapping[str, Provider],
        decider: Decider,
        learner: Learner,
        journal: Journal,
        identities: Identities,
        encoder: Encoder,
        timers: Timers | None = None,
        aliases: Mapping[str, str] | None = None,
        hooks: Hooks | None = None,
        services: Sequence[Service] = (),
        feed: WarehouseFeed | None = None,
        scorer: ScorerPlugin | None = None,
        droppable: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cards = {card.arm: card for card in sorted(expand(cards), key=lambda card: card.arm)}
        self.names = {called(card): card.arm for card in self.cards.values()}
        self.providers, self.decider, self.learner = providers, decider, learner
        self.journal, self.identities, self.encoder = journal, identities, encoder
        self.timers, self.aliases = timers or Timers(), dict(aliases or {})
        self.hooks, self.clock = hooks or Hooks(), clock
        self.services, self.feed, self.scorer = list(services), feed, scorer
        self.follower = Follower(journal, learner, self.hooks)
        self.recorder = Recorder(journal, identities, self.hooks, self.follower.wake)
        self.verdicts = FeedbackIntake(
            journal, identities, self.recorder, self.hooks, scorer, self.clock, self.follower.wake
        )
        told = self.recorder.append_event
        self.proposer = Pipeline(
            self.cards, self.aliases, decider, learner, identities, encoder, self.hooks, self.clock, droppable, told
        )
        self.outside = ExternalExecution(
            self.cards, self.aliases, self.timers, self.proposer, journal, self.recorder, learner, self.clock
        )
        identities.on_orphan = lambda subject: self.recorder.erase(subject, self.clock())
        self.steering = Steering(decider, journal, self.hooks, self.clock, self._folded, self.names)
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        hooks: Hooks | None = None,
        clock: Callable[[], float] = time.time,
        providers: Mapping[str, Provider] | None = None,
    ) -> Router:
        """A router with the parts that the configuration names.

        Args:
            config: all settings.
            hooks: who listens.
            clock: seconds since the epoch, for every event; simulations have their own.
            providers: by their names in the configuration; each takes the place of what is described there.

        Raises:
            ConfigError: a part cannot be made.
        """
        from fitrouter.assemble import assemble

        return cls(**assemble(config, hooks=hooks, clock=clock, providers=providers))

    # --- life ---

    @property
    def started(self) -> bool:
        """Whether it lives on an event loop already."""
        return self._sweeper is not None

    async def __aenter__(self) -> Router:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Restore what is known, catch up with the journal, and close what a crash left open."""
        await self._warm()
        await self.follower.start()
        with contextlib.suppress(StoreError):  # told to the hooks; what was in force stays
            await self.steering.heed_the_file()
        registry = self.decider.rules.registry
        changed = self.recorder.append_event(
            ModelChange(id=f"registry:{registry}", ts=self.clock(), cards=tuple(self.cards.values()), registry=registry)
        )
        for name, prior in (("prior", self.learner.prior), ("arm-prior", self.learner.arm_prior)):
            if prior is not None:
                self.recorder.append_event(
                    ArtifactChange(id=f"{name}:{prior.id}", ts=self.clock(), name=name, sha256=prior.id)
                )
        await self._begin_with(changed)
        sweeping = close_lost(self.journal, self.recorder, self.learner, self.hooks, self.timers.deadline_s, self.clock)
        self._sweeper = asyncio.create_task(sweeping, name="fitrouter-sweep")
        for service in self.services:
            service.start()

    async def _begin_with(self, change: Future[int] | None) -> None:
        """Wait a moment until models are known to the fold: what a warm start knows of them counts from the start."""
        try:
            async with asyncio.timeout(START_WAIT_S):
                if change is not None:
                    await asyncio.wrap_future(change)
                    await self._folded()
        except Exception:  # noqa: BLE001, S110 - told by the recorder; routing begins without
            pass

    async def _warm(self) -> None:
        """Load the encoder's files now, so that the first request does not wait for them."""
        try:
            await asyncio.to_thread(self.encoder.encode, ["Hello"])
        except Exception as error:  # noqa: BLE001 - requests are routed without it
            self.hooks.trouble("encoder", error)

    async def aclose(self) -> None:
        """Stop services and learning, close providers and the journal."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for service in self.services:
            await asyncio.to_thread(service.stop)
        await self.recorder.settle()
        await self.follower.aclose()
        for name, provider in self.providers.items():
            try:
                await provider.aclose()
            except Exception as error:  # noqa: BLE001 - one provider's trouble must not keep the journal open
                self.hooks.trouble(f"provider {name}", error)
        for finish in (self.identities.flush, self.journal.close, self.identities.close):
            await asyncio.to_thread(finish)

    async def _folded(self) -> None:
        """Wait until what is durable now is folded."""
        self.follower.wake()
        await self.follower.caught_up()

    async def settled(self) -> None:
        """Wait until all that happened so far is durable and folded."""
        await self.recorder.settle()
        await self.follower.caught_up()

    # --- requests ---

    async def complete(self, request: Request) -> Answer:
        """Answer a request whole.

        Raises:
            InvalidRequest: the model's name is unknown.
            NoEligibleModel: no model can take it.
            ProviderRejected: a model refused the request itself.
            AllModelsFailed: nobody answered before the deadline.
        """
        turn = await self._begin(msgspec.structs.replace(request, stream=False))
        answering = await self._first_answer(turn)
        completion = answering.completion
        assert completion is not None
        status = "cancelled"
        try:
            logged = await self._logged(turn)
            status = "ok"
        finally:
            execution = self._finish(
                turn, answering, completion.message, completion.usage, completion.finish_reason, status=status
            )
        return Answer(
            decision=turn.decision,
            served_by=answering.arm,
            completion=completion,
            cost_usd=execution.cost_usd,
            logged=logged,
        )

    async def stream(self, request: Request) -> Stream:
        """Answer a request piece by piece; returns once the first piece is there. Raises as `complete` does."""
        turn = await self._begin(msgspec.structs.replace(request, stream=True))
        answering = await self._first_answer(turn)
        ttft_ms = (time.monotonic() - turn.started) * 1000.0
        relay = self._relay(turn, answering, ttft_ms)
        stream = Stream(turn.decision, answering.arm, False, relay, lambda: turn.cost_usd)
        try:
            stream.logged = await self._logged(turn)
        except BaseException:
            await stream.aclose()
            raise
        return stream

    # --- answered elsewhere ---

    async def decide(self, request: Request) -> Plan:
        """Decide and call nobody: the caller asks the models in the plan's order, and tells `report` how it ended.

        Raises:
            InvalidRequest: the model's name is unknown.
            NoEligibleModel: no model can take it.
        """
        return await self.outside.decide(request)

    async def report(self, decision_id: str, request: Request, ended: Outcome) -> Execution:
        """Write down how a plan ended; returns once it is durable. Of several reports the first counts.

        Args:
            decision_id: of the plan; its decision may have been made by any router over this journal.
            request: as it was decided for; its messages and tools are what the answer is scored by.
            ended: who was asked, and what came of it.

        Raises:
            InvalidRequest: it cannot have ended like this.
            UnknownDecision: there is no such logged decision for the request's tenant.
            StoreError: it cannot be made durable now; report it again.
        """
        return await self.outside.report(decision_id, request, ended)

    async def observe(
        self,
        request: Request,
        completion: Completion | None,
        model: str,
        *,
        cost_usd: float | None,
        latency_ms: float,
        error: str | None = None,
    ) -> Plan:
        """Write down a call that was decided elsewhere, as one of a pinned model; its answer is scored and judged.

        Args:
            request: what was asked, by whom.
            completion: what was answered; None where the call failed.
            model: the name of who was asked.
            cost_usd: what it cost; by the card's prices where None.
            latency_ms: from the question to the end.
            error: where it failed, the name of the exception; see `AttemptReport`.

        Raises:
            InvalidRequest: the model's name is unknown or asks for routing, or it cannot have ended like this.
            NoEligibleModel: by its card, the model could not have taken the request.
        """
        return await self.outside.observe(
            request, completion, model, cost_usd=cost_usd, latency_ms=latency_ms, error=error
        )

    # --- within ---

    async def _begin(self, request: Request) -> _Turn:
        """Features, proposal, draw; the decision is on its way to the journal when this returns."""
        started = time.monotonic()
        deadline = started + (request.deadline_s or self.timers.deadline_s)
        proposal = await self.proposer.decide(request)
        durable = self.recorder.append_event(proposal.decision)
        return _Turn(
            request=request,
            decision=proposal.decision,
            fallback=proposal.fallback,
            dropped=proposal.dropped,
            durable=durable,
            started=started,
            deadline=deadline,
        )

    async def _logged(self, turn: _Turn) -> bool:
        """Whether the decision is durable; the next turn of its session goes on from it then."""
        if logged := await self.recorder.durable(turn.decision, turn.durable):
            self.proposer.goes_on(turn.decision)
        return logged

    async def _first_answer(self, turn: _Turn) -> Answering:
        """Call models until one begins to answer; a request that nobody answers is logged as such."""
        try:
            return await first_answer(
                turn.request,
                turn.decision,
                turn.fallback,
                self.cards,
                self.providers,
                self.timers,
                turn.deadline,
                dropped=turn.dropped,
            )
        except Unanswered as failure:
            self._log_end(turn, failure.attempts, status="failed", served_by=None)
            raise failure.error from failure.error.__cause__
        except asyncio.CancelledError:
            self._log_end(turn, (), status="cancelled", served_by=None)
            raise

    async def _relay(self, turn: _Turn, answering: Answering, ttft_ms: float) -> AsyncIterator[Chunk]:
        """The chunks as they come, and the execution at their end however it comes."""
        assembler = Assembler()
        status = "cancelled"
        rest = answering.rest
        assert rest is not None
        try:
            for chunk in answering.head:
                assembler.add(chunk)
                yield chunk
            while (following := await self._next(rest, turn.deadline)) is not None:
                assembler.add(following)
                yield following
            assembler.require_end(answering.arm)
            status = "ok"
        except ProviderError:
            status = "partial"
            raise
        finally:
            message, usage = assembler.message(), assembler.usage
            self._finish(turn, answering, message, usage, assembler.finish_reason, status=status, ttft_ms=ttft_ms)
            await close(rest)

    async def _next(self, rest: AsyncIterator[Chunk], deadline: float) -> Chunk | None:
        """The next chunk before the gap timer and the deadline, None at the end."""
        patience = min(self.timers.chunk_gap_s, deadline - time.monotonic())
        try:
            async with asyncio.timeout(max(patience, 0.0)):
                return await anext(rest)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise ProviderTimeout(f"the stream stood still for {patience:.1f} s") from None
        except ProviderError:
            raise
        except Exception as error:  # whatever a provider raises is its failure
            raise ProviderError(f"{type(error).__name__}: {error}") from error

    # --- logging ---

    def _finish(
        self,
        turn: _Turn,
        answering: Answering,
        message: Message,
        usage: Usage,
        finish_reason: str | None,
        *,
        status: str = "ok",
        ttft_ms: float | None = None,
    ) -> Execution:
        """Log how the answer ended; a whole one is kept for the scorer."""
        turn.cost_usd = spent(self.cards[answering.arm].prices, usage)
        total = time.monotonic() - turn.started
        return self._log_end(
            turn,
            answering.attempts,
            status=status,
            served_by=answering.arm,
            message=message if status == "ok" and self.learner.expects_scores else None,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cost_usd=turn.cost_usd,
            ttft_ms=ttft_ms,
            latency_ms=answering.attempts[-1].ms if ttft_ms is None else total * 1000.0,
            finish_reason=finish_reason,
            overhead_ms=((total if ttft_ms is None else ttft_ms / 1000.0) - answering.provider_s) * 1000.0,
        )

    def _log_end(
        self,
        turn: _Turn,
        attempts: tuple[Attempt, ...],
        *,
        status: str,
        served_by: str | None,
        message: Message | None = None,
        **measured: Any,
    ) -> Execution:
        execution = execution_of(
            turn.decision, self.clock(), status=status, served_by=served_by, attempts=attempts, **measured
        )
        self.recorder.append_outcome(turn.request, turn.durable, execution, message)
        return execution

    # --- what people say, and why ---

    async def feedback(
        self,
        decision_id: str,
        kind: FeedbackKind,
        value: float,
        *,
        scale: tuple[float, float] = (0.0, 1.0),
        dimension: str = "overall",
        other: str | None = None,
        identity: Identity | None = None,
    ) -> str:
        """Take a verdict on an answer; returns the feedback's id once it is durable.

        Args:
            decision_id: of the answer.
            kind: what sort of verdict; see `FeedbackKind` for the values of each.
            value: of the verdict.
            scale: lowest and highest value of a rating.
            dimension: what is judged.
            other: a pair's other answer, by its decision id; both must be the same user's.
            identity: who speaks; the tenant must be the one that was served, the user too where given.

        Raises:
            InvalidRequest: the value is not on its scale, or a pair is none.
            UnknownDecision: there is no such logged decision for the tenant.
            NotAuthorized: the user is not the one that was served.
            StoreError: it cannot be made durable now; try again (it may have become so all the same).
        """
        return await self.verdicts.feedback(
            decision_id, kind, value, scale=scale, dimension=dimension, other=other, identity=identity
        )

    async def declare(
        self, identity: Identity, values: Mapping[str, float] | None = None, words: Sequence[str] = ()
    ) -> Declared:
        """Take what a user says of themselves; it replaces what they said before, and their votes can overrule it.

        Args:
            identity: the tenant and the user.
            values: dimension → −1 (wants less of it) … 1 (wants more).
            words: statements such as "I dislike bullet points"; a value given for the same dimension goes before.

        Raises:
            InvalidRequest: no user, no such dimension, or a value out of range.
            StoreError: it cannot be made durable now; try again.
        """
        return await self.verdicts.declare(identity, values, words)

    async def explain(self, decision_id: str, tenant: str = "default") -> list[Event]:
        """All events of a decision, the decision first.

        Raises:
            UnknownDecision: there is no such logged decision for the tenant.
        """
        return await self.recorder.events(decision_id, tenant)

"""The router: decides, calls models, logs and learns. Read `complete` from top to bottom to follow a request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec

from fitrouter.context.encoders import Encoder
from fitrouter.errors import ConfigError, ProviderError, ProviderTimeout, StoreError, UnknownDecision
from fitrouter.hooks import Hooks
from fitrouter.providers import Provider
from fitrouter.routing.decider import Decider
from fitrouter.routing.explain import explain
from fitrouter.routing.explanation import Explanation
from fitrouter.routing.pipeline import Pipeline
from fitrouter.routing.variants import called, expand
from fitrouter.serving.answers import Answer, Stream
from fitrouter.serving.attempts import Answering, Assembler, Timers, Unanswered, close, first_answer
from fitrouter.serving.external import ExternalExecution, Outcome, Plan, spent
from fitrouter.serving.feedback import Declared, FeedbackIntake
from fitrouter.serving.policy_control import PolicyControl
from fitrouter.serving.recorder import Recorder, execution_of
from fitrouter.serving.services import ScorerPlugin, Service
from fitrouter.serving.status import RouterStatus, status_of
from fitrouter.serving.sweeper import close_lost
from fitrouter.state.digest import StateDigest
from fitrouter.state.follower import Follower, catch_up
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
    from fitrouter.stores.warehouse import Warehouse, WarehouseFeed


START_WAIT_S = 2.0
"""How long `start` waits for its own first event to be folded."""


class _Turn(msgspec.Struct, kw_only=True):
    """A request in progress."""

    request: Request
    decision: Decision
    fallback: Decision | None
    dropped: Mapping[str, tuple[str, ...]]
    prompt: str
    durable: Future[int] | None
    started: float
    deadline: float
    cost_usd: float | None = None
    """Set at the end."""


class Router:
    """Decides, calls models, answers and logs. Use it as an async context manager.

    `Router.from_config` builds one from a configuration; the constructor takes the parts.

    Attributes:
        models: name, as a request pins it → card.
        aliases: other names → model names.
        policy: run-time control of the policy.
        hooks: listeners to events and failures.
        clock: seconds since the epoch, for every event.
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
        self._cards = {card.arm: card for card in sorted(expand(cards), key=lambda card: card.arm)}
        self.models: Mapping[str, ModelCard] = {called(card): card for card in self._cards.values()}
        self._providers, self._decider, self._learner = providers, decider, learner
        self._journal, self._identities, self._encoder = journal, identities, encoder
        self._timers, self.aliases = timers or Timers(), dict(aliases or {})
        self.hooks, self.clock = hooks or Hooks(), clock
        self._services, self._feed, self._scorer = list(services), feed, scorer
        self._follower = Follower(journal, learner, self.hooks)
        self._recorder = Recorder(journal, identities, self.hooks, self._follower.wake)
        self._intake = FeedbackIntake(identities, self._recorder, scorer, self.clock)
        self._pipeline = Pipeline(
            cards=self._cards,
            aliases=self.aliases,
            decider=decider,
            learner=learner,
            identities=identities,
            encoder=encoder,
            hooks=self.hooks,
            clock=self.clock,
            droppable=droppable,
        )
        self._external = ExternalExecution(
            cards=self._cards,
            aliases=self.aliases,
            timers=self._timers,
            pipeline=self._pipeline,
            journal=journal,
            recorder=self._recorder,
            learner=learner,
            clock=self.clock,
        )
        identities.on_orphan = lambda subject: self._recorder.erase(subject, self.clock())
        self.policy = PolicyControl(decider, self._recorder, self.clock, self._folded, self.models)
        self._digests = StateDigest(learner)
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.contextmanager
    def offline(cls, config: Config) -> Iterator[Router]:
        """A router with the state folded from a journal, which calls no model: for `policy` and `explain`.

        No provider key is needed, and a gateway may be running beside it.

        Args:
            config: all settings.

        Raises:
            ConfigError: there is no journal yet, or a part cannot be built.
        """
        if not (path := config.data / "journal.db").is_file():
            raise ConfigError(f"there is no journal {str(path)!r}; a gateway writes one")
        idle = {
            name: provider.model_copy(update={"kind": "simulated", "options": {}})
            for name, provider in config.providers.items()
        }
        router = cls.from_config(config.model_copy(update={"providers": idle}))
        try:
            router._learner.restore(router._journal.snapshot())
            catch_up(router._learner, router._journal, router._journal.head())
            yield router
        finally:
            router._journal.close()
            router._identities.close()

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        hooks: Hooks | None = None,
        clock: Callable[[], float] = time.time,
        providers: Mapping[str, Provider] | None = None,
    ) -> Router:
        """Build a router from a configuration.

        Args:
            config: all settings.
            hooks: listeners to events and failures.
            clock: seconds since the epoch, for every event.
            providers: replacements for configured providers, by name.

        Raises:
            ConfigError: a part cannot be built.
        """
        from fitrouter.assemble import assemble

        return cls(**assemble(config, hooks=hooks, clock=clock, providers=providers))

    # --- life ---

    @property
    def started(self) -> bool:
        """Whether `start` has run."""
        return self._sweeper is not None

    async def __aenter__(self) -> Router:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Restore the state, catch up with the journal, and close decisions that a crash left open."""
        await self._warm()
        await self._follower.start()
        with contextlib.suppress(StoreError):  # reported to the hooks; the current settings stay
            await self.policy.apply_configuration()
        registry = self._decider.rules.registry
        changed = self._recorder.append_event(
            ModelChange(
                id=f"registry:{registry}", ts=self.clock(), cards=tuple(self._cards.values()), registry=registry
            )
        )
        for name, prior in (("prior", self._learner.prior), ("arm-prior", self._learner.arm_prior)):
            if prior is not None:
                self._recorder.append_event(
                    ArtifactChange(id=f"{name}:{prior.id}", ts=self.clock(), name=name, sha256=prior.id)
                )
        await self._begin_with(changed)
        sweeping = close_lost(
            self._journal, self._recorder, self._learner, self.hooks, self._timers.deadline_s, self.clock
        )
        self._sweeper = asyncio.create_task(sweeping, name="fitrouter-sweep")
        for service in self._services:
            service.start()

    async def _begin_with(self, change: Future[int] | None) -> None:
        """Wait briefly until the fold knows the models, so that arm priors count from the first request."""
        try:
            async with asyncio.timeout(START_WAIT_S):
                if change is not None:
                    await asyncio.wrap_future(change)
                    await self._folded()
        except Exception:  # noqa: BLE001, S110 - reported by the recorder; routing starts without
            pass

    async def _warm(self) -> None:
        """Load the encoder's files before the first request."""
        try:
            await asyncio.to_thread(self._encoder.encode, ["Hello"])
        except Exception as error:  # noqa: BLE001 - requests are routed without it
            self.hooks.trouble("encoder", error)

    async def aclose(self) -> None:
        """Stop services and learning; close providers and stores."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for service in self._services:
            await asyncio.to_thread(service.stop)
        await self._recorder.settle()
        await self._follower.aclose()
        for name, provider in self._providers.items():
            try:
                await provider.aclose()
            except Exception as error:  # noqa: BLE001 - one provider's trouble must not keep the journal open
                self.hooks.trouble(f"provider {name}", error)
        for finish in (self._identities.flush, self._journal.close, self._identities.close):
            await asyncio.to_thread(finish)

    async def _folded(self) -> None:
        """Wait until all durable events are folded; offline, fold them now."""
        if not self.started:
            await asyncio.to_thread(catch_up, self._learner, self._journal, self._journal.head())
            return
        self._follower.wake()
        await self._follower.caught_up()

    async def settled(self) -> None:
        """Wait until all events so far are durable and folded."""
        await self._recorder.settle()
        await self._follower.caught_up()

    # --- requests ---

    async def complete(self, request: Request) -> Answer:
        """Answer a request.

        Raises:
            InvalidRequest: the model name is unknown.
            NoEligibleModel: no model is eligible.
            ProviderRejected: a provider refused the request itself.
            AllModelsFailed: no model answered before the deadline.
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
        """Answer a request as a stream; returns once the first chunk is there. Raises the same errors as `complete`."""
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

    # --- external execution ---

    async def decide(self, request: Request) -> Plan:
        """Decide only: the caller calls the models in the plan's order and passes the outcome to `report`.

        Raises:
            InvalidRequest: the model name is unknown.
            NoEligibleModel: no model is eligible.
        """
        return await self._external.decide(request)

    async def report(self, decision_id: str, request: Request, outcome: Outcome) -> Execution:
        """Log the outcome of a plan; returns once it is durable. Only the first report counts.

        Args:
            decision_id: of the plan; any router over the same journal may have made it.
            request: the request of the plan; the scorer reads its messages and tools.
            outcome: the calls made and their result.

        Raises:
            InvalidRequest: the outcome is inconsistent with the plan.
            UnknownDecision: the request's tenant has no such logged decision.
            StoreError: it cannot be made durable now; report it again.
        """
        return await self._external.report(decision_id, request, outcome)

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
        """Log a call that was decided elsewhere as a pinned request; its answer is scored and can receive feedback.

        Args:
            request: the request and its identity.
            completion: the answer; None if the call failed.
            model: name of the called model.
            cost_usd: cost of the call; None for tokens × the card's prices.
            latency_ms: time from request to end of the answer.
            error: name of the exception of a failed call; see `AttemptReport`.

        Raises:
            InvalidRequest: the model name is unknown or requests routing, or the outcome is inconsistent.
            NoEligibleModel: the model's card excludes the request.
        """
        return await self._external.observe(
            request, completion, model, cost_usd=cost_usd, latency_ms=latency_ms, error=error
        )

    # --- steps of a request ---

    async def _begin(self, request: Request) -> _Turn:
        """Decide, and queue the decision for the journal."""
        started = time.monotonic()
        deadline = started + (request.deadline_s or self._timers.deadline_s)
        proposal = await self._pipeline.decide(request)
        durable = self._recorder.append_event(proposal.decision)
        return _Turn(
            request=request,
            decision=proposal.decision,
            fallback=proposal.fallback,
            dropped=proposal.dropped,
            prompt=proposal.prompt,
            durable=durable,
            started=started,
            deadline=deadline,
        )

    async def _logged(self, turn: _Turn) -> bool:
        """Whether the decision is durable; if so, the next turn of its session continues from it."""
        if logged := await self._recorder.durable(turn.decision, turn.durable):
            self._pipeline.continue_session(turn.decision)
        return logged

    async def _first_answer(self, turn: _Turn) -> Answering:
        """Call models until one starts to answer; a request without an answer is logged as failed."""
        try:
            return await first_answer(
                turn.request,
                turn.decision,
                turn.fallback,
                self._cards,
                self._providers,
                self._timers,
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
        """Relay the chunks; log the execution at the end, whatever ends the stream."""
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
        """The next chunk within the gap timer and the deadline; None at the end."""
        patience = min(self._timers.chunk_gap_s, deadline - time.monotonic())
        try:
            async with asyncio.timeout(max(patience, 0.0)):
                return await anext(rest)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise ProviderTimeout(f"the stream sent nothing for {patience:.1f} s") from None
        except ProviderError:
            raise
        except Exception as error:  # any exception of a provider counts as its failure
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
        """Log the execution; a complete answer is queued for the scorer."""
        turn.cost_usd = spent(self._cards[answering.arm].prices, usage)
        total = time.monotonic() - turn.started
        return self._log_end(
            turn,
            answering.attempts,
            status=status,
            served_by=answering.arm,
            message=message if status == "ok" and self._learner.expects_scores else None,
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
        self._recorder.append_outcome(turn.prompt, turn.request, turn.durable, execution, message)
        return execution

    # --- feedback and explanations ---

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
        """Log feedback on an answer; returns its id once it is durable.

        Args:
            decision_id: decision that the answer belongs to.
            kind: kind of feedback; see `FeedbackKind` for its values.
            value: the rating, thumb, or other value.
            scale: lowest and highest value of a rating.
            dimension: rated dimension.
            other: decision id of a pair's other answer, of the same user.
            identity: the sender; its tenant, and its user if given, must be those of the decision.

        Raises:
            InvalidRequest: the value is off its scale, or `other` does not fit the kind.
            UnknownDecision: the tenant has no such logged decision.
            NotAuthorized: the decision belongs to another user.
            StoreError: it cannot be made durable now; try again (it may have been stored nevertheless).
        """
        return await self._intake.feedback(
            decision_id, kind, value, scale=scale, dimension=dimension, other=other, identity=identity
        )

    async def declare(
        self, identity: Identity, values: Mapping[str, float] | None = None, words: Sequence[str] = ()
    ) -> Declared:
        """Declare a user's preferences; they replace earlier ones, and feedback can override them.

        Args:
            identity: tenant and user.
            values: dimension → −1 (wants less) … 1 (wants more).
            words: statements such as "I dislike bullet points"; `values` take precedence.

        Raises:
            InvalidRequest: no user, an unknown dimension, or a value out of range.
            StoreError: it cannot be made durable now; try again.
        """
        return await self._intake.declare(identity, values, words)

    async def events(self, decision_id: str, tenant: str | None = "default") -> list[Event]:
        """All events of a decision, the decision first.

        Args:
            decision_id: of the decision.
            tenant: owner of the decision; None for any.

        Raises:
            UnknownDecision: the tenant has no such logged decision.
            StoreError: the journal cannot be read now.
        """
        return await self._recorder.events(decision_id, tenant)

    async def explain(
        self, decision_id: str, tenant: str | None = "default", *, as_decided: bool = False
    ) -> Explanation:
        """Explain why a decision chose its model.

        Args:
            decision_id: of the decision.
            tenant: owner of the decision; None for any.
            as_decided: split the prediction with the model as it stood at the decision, which folds the journal again,
                instead of the current one.

        Raises:
            UnknownDecision: the tenant has no such logged decision.
            StoreError: the journal cannot be read now.
        """
        events = await self.events(decision_id, tenant)
        decision = events[0]
        assert isinstance(decision, Decision)
        if decision.draw_id != decision.id:
            with contextlib.suppress(UnknownDecision):  # the draw may be erased, or never became durable
                events += [e for e in await self.events(decision.draw_id, tenant) if isinstance(e, Decision)]
        learner = self._learner
        if as_decided:
            learner = learner.blank()
            await asyncio.to_thread(catch_up, learner, self._journal, decision.policy.seq)
        rules = self._decider.rules
        units = {"cost_unit_usd": rules.cost_unit_usd, "latency_unit_s": rules.latency_unit_s}
        return explain(events, learner.fit, **units)

    # --- status ---

    @property
    def warehouse(self) -> Warehouse | None:
        """The DuckDB tables of the journal, if they are kept."""
        return None if self._feed is None else self._feed.warehouse

    def name_of(self, arm: str) -> str:
        """The name that a request pins an arm by: without its revision."""
        return called(self._cards[arm])

    def status(self) -> RouterStatus:
        """Position, lag, leases and monitors. Reads the journal: call it off the event loop."""
        return status_of(self._learner, self._journal, self._scorer, self._feed, self.clock())

    async def state_digest(self) -> tuple[int, str | None]:
        """Sequence number and sha256 of the folded state; the digest is None while events keep coming in."""
        return await self._digests.digest()

"""The router: decides, calls models, logs and learns. Follow a request from `complete` into its `Turn`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from fitrouter.context.encoders import Encoder
from fitrouter.errors import ConfigError, InvalidRequest, StoreError, UnknownDecision
from fitrouter.hooks import Hooks
from fitrouter.monitors.service import ServiceHealth, ServiceStatus, service_status
from fitrouter.providers import Provider, tracing
from fitrouter.providers.checks import Checks
from fitrouter.routing.breakers import TenantBreakers
from fitrouter.routing.decider import Decider
from fitrouter.routing.explain import contrasted, explain
from fitrouter.routing.explanation import Explanation
from fitrouter.routing.pipeline import Pipeline, Proposal
from fitrouter.routing.variants import called, expand
from fitrouter.serving.answers import Answer, Stream
from fitrouter.serving.attempts import Caller, Timers
from fitrouter.serving.embeddings import Embedded, Embedder
from fitrouter.serving.external import ExternalExecution, Look, Outcome, Plan
from fitrouter.serving.feedback import UNIT, Declared, FeedbackIntake, RemarkListener, Understood
from fitrouter.serving.ledger import Ledger
from fitrouter.serving.model_registry import Extend, ModelRegistry
from fitrouter.serving.people import People
from fitrouter.serving.policy_control import PolicyControl
from fitrouter.serving.recorder import Recorder, read_in_time
from fitrouter.serving.runs import Runs
from fitrouter.serving.services import ScorerPlugin, Service
from fitrouter.serving.slots import SlotParams
from fitrouter.serving.spending import Spending
from fitrouter.serving.status import RouterStatus, completed, session_memory_s, status_of
from fitrouter.serving.sweeper import Workers, close_lost
from fitrouter.serving.tokens import OutcomeTokens
from fitrouter.serving.turn import Tools, Turn
from fitrouter.state.digest import StateDigest
from fitrouter.state.follower import Follower, catch_up, restore
from fitrouter.state.learner import Learner
from fitrouter.stores.content import Content
from fitrouter.stores.contents import ContentStore
from fitrouter.stores.erasure import Erased, Eraser
from fitrouter.stores.identities import Identities, TemporaryIdentities
from fitrouter.stores.journal import Journal, UnloggedJournal
from fitrouter.stores.listing import Lists
from fitrouter.types import (
    ArtifactChange,
    Completion,
    Decision,
    Event,
    Execution,
    FeedbackKind,
    Identity,
    ModelCard,
    ModelChange,
    Request,
)

if TYPE_CHECKING:
    from fitrouter.config import Config
    from fitrouter.stores.warehouse import Warehouse, WarehouseFeed


_log = logging.getLogger("fitrouter")
WATCH_S = 0.5
"""Seconds between looks for new faults."""
DRAIN_S = 5.0
"""Seconds that closing waits for the warehouse to be complete; 0 for not at all."""
START_WAIT_S = 2.0
"""How long `start` waits for its own first event to be folded."""


class Router:
    """Decides, calls models, answers and logs. Use it as an async context manager.

    `Router.from_config` builds one from a configuration; the constructor takes the parts.

    Attributes:
        registry: the models in use; adds and removes them at run time.
        aliases: other names → model names.
        embeddings: name → card of a model for `embed`.
        policy: run-time control of the policy.
        runs: outcomes of runs of agents; `with router.run() as run:` makes calls steps of one (`Runs.begin`).
        hooks: listeners to events and failures.
        clock: seconds since the epoch, for every event.
        people: what is known of people, for reports and profiles.
        tokens: proofs that their bearer was given an answer.
        health: whether requests are answered.
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
        embeddings: Sequence[ModelCard] = (),
        droppable: Collection[str] = (),
        implicit: bool = True,
        token_valid_s: float = 2_592_000.0,
        rating_scale: tuple[float, float] | None = None,
        slots: SlotParams | None = None,
        saves: bool = True,
        eraser: Eraser | None = None,
        contents: ContentStore | None = None,
        extend: Extend | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._decider, self._learner = decider, learner
        self._journal, self._identities, self._encoder = journal, identities, encoder
        self._timers, self.aliases = timers or Timers(), dict(aliases or {})
        self.hooks, self.clock = hooks or Hooks(), clock
        self._services, self._feed, self._scorer = list(services), feed, scorer
        self.health = ServiceHealth(clock)
        self.hooks.add(self.health)
        self._follower = Follower(journal, learner, self.hooks, saves=saves, seen=self.health.follow)
        self._recorder = Recorder(
            journal, identities, self.hooks, self._follower.wake, scored=learner.expects_scores, contents=contents
        )
        self._cards = {card.arm: card for card in sorted(expand(cards), key=lambda card: card.arm)}
        self._breakers = TenantBreakers(self._cards, self._timers.retry_share)
        checks = Checks(scorer.judge if scorer else None, self.hooks)
        self._caller = Caller(self._cards, providers, self._timers, self._breakers, slots or SlotParams(), checks)
        self.registry = ModelRegistry(
            self._cards,
            extend=extend,
            caller=self._caller,
            breakers=self._breakers,
            decider=decider,
            recorder=self._recorder,
            folded=self._folded,
            clock=self.clock,
            hooks=self.hooks,
        )
        self._ledger = Ledger(journal, self.clock)
        self._spending = Spending(self._cards, learner, self.clock, self._ledger)
        self._contents = contents
        self._intake = FeedbackIntake(identities, self._recorder, scorer, self.clock, rating_scale)
        self.lists, self.runs = Lists(journal, identities), Runs(identities, self._recorder, clock, rating_scale)
        self.run = self.runs.begin
        self.tokens, self._token_valid_s = OutcomeTokens(identities.salt, self.clock, token_valid_s), token_valid_s
        self._remarks = RemarkListener(self._recorder, scorer, enabled=implicit)
        self._pipeline = Pipeline(
            models=self.registry.current,
            aliases=self.aliases,
            decider=decider,
            learner=learner,
            identities=identities,
            encoder=encoder,
            hooks=self.hooks,
            clock=self.clock,
            breakers=self._breakers,
            droppable=droppable,
            refused=self.refuse,
            uncovered=self._spending.uncovered,
        )
        self.people = People(learner, identities, journal, scorer, contents, self.registry, encoder)
        self._embedder = Embedder(
            {card.name: card for card in embeddings},
            providers=self._caller.providers,
            slots=self._caller.slots,
            recorder=self._recorder,
            spending=self._spending,
            deadline_s=self._timers.deadline_s,
            clock=self.clock,
        )
        self.embeddings: Mapping[str, ModelCard] = self._embedder.cards
        self._external = ExternalExecution(
            cards=self._cards,
            aliases=self.aliases,
            timers=self._timers,
            pipeline=self._pipeline,
            journal=journal,
            recorder=self._recorder,
            learner=learner,
            remarks=self._remarks,
            spending=self._spending,
            clock=self.clock,
        )
        self._eraser = eraser or Eraser(journal, identities, clock=clock)
        identities.on_orphan = self._orphaned
        self.policy = PolicyControl(decider, self._recorder, self.clock, self._folded, lambda: self.models)
        self._digests = StateDigest(learner)
        self._workers = Workers(journal)
        self._streaming: set[str] = set()  # decisions of streams in progress, which may outlive the deadline
        self._tools = Tools(
            cards=self._cards,
            caller=self._caller,
            breakers=self._breakers,
            spending=self._spending,
            recorder=self._recorder,
            timers=self._timers,
            clock=clock,
            wait_s=decider.wait_s,
            continue_session=self._pipeline.continue_session,
            streaming=self._streaming,
        )
        self._sweeper: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.contextmanager
    def offline(cls, config: Config) -> Iterator[Router]:
        """Build a router from a journal's state that calls no model, for `policy` and `explain`.

        No provider key is needed, and a gateway may be running beside it.

        Args:
            config: all settings.

        Raises:
            ConfigError: there is no journal yet, or a part cannot be built.
        """
        if not config.database and not (path := config.journal_file()).is_file():
            raise ConfigError(f"there is no journal {str(path)!r}; a gateway writes one")
        from fitrouter.assemble import extender
        from fitrouter.providers import Simulated

        router = cls.from_config(config, providers={name: Simulated({}) for name in config.providers})
        router.registry.extend = extender(config, connect=False)
        try:
            restore(router._learner, router._journal)
            catch_up(router._learner, router._journal, router._journal.head())
            router.registry.current()
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
        services: bool = True,
        scorer: ScorerPlugin | None = None,
    ) -> Router:
        """Build a router from a configuration.

        Args:
            config: all settings.
            hooks: listeners to events and failures.
            clock: seconds since the epoch, for every event.
            providers: replacements for configured providers, by name.
            services: whether it scores, feeds the warehouse and saves snapshots; another process does it otherwise.
            scorer: to use instead of the installed one.

        Raises:
            ConfigError: a part cannot be built.
        """
        from fitrouter.assemble import assemble

        parts = assemble(config, hooks=hooks, clock=clock, providers=providers, services=services, scorer=scorer)
        return cls(**parts)

    # --- life ---

    @property
    def models(self) -> Mapping[str, ModelCard]:
        """Cards of the models in use, by the names that requests pin; the mapping is replaced when they change."""
        return self.registry.models.names

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
        await asyncio.to_thread(self._identities.hand_in)
        await self._follower.start()
        with contextlib.suppress(StoreError):  # reported to the hooks; the current settings stay
            await self.policy.apply_configuration()
        self.registry.current()
        await self._begin_with(self._announce())
        deadline_s = self._timers.deadline_s
        here, learner, hooks = self._workers, self._learner, self.hooks
        sweeping = close_lost(
            self._journal, here, self._recorder, learner, hooks, deadline_s, self.clock, self._streaming
        )
        self._sweeper = asyncio.create_task(sweeping, name="fitrouter-sweep")
        self._watcher = asyncio.create_task(self._watch(), name="fitrouter-watch")
        for service in self._services:
            service.start()

    def _announce(self) -> Future[int] | None:
        """Append which models and priors are in use, unless the journal has it; returns the append of the models."""
        registry, cards = self._decider.rules.registry, self.registry.models.roster.cards
        changed = self._recorder.append_event(
            ModelChange(id=f"registry:{registry}", ts=self.clock(), cards=cards, registry=registry)
        )
        for name, prior in (("prior", self._learner.prior), ("arm-prior", self._learner.arm_prior)):
            if prior is not None:
                self._recorder.append_event(
                    ArtifactChange(id=f"{name}:{prior.id}", ts=self.clock(), name=name, sha256=prior.id)
                )
        return changed

    def _reopen(self) -> None:
        """Use stores that could not be written at the start, if they can be now. Blocks on the disk.

        The journal follows the identities half a second later, so that no event has a subject that is not kept.
        """
        if isinstance(self._identities, TemporaryIdentities) and self._identities.fault():
            if self._identities.reopen():
                self.tokens = OutcomeTokens(self._identities.salt, self.clock, self._token_valid_s)
        elif isinstance(self._journal, UnloggedJournal) and self._journal.fault():
            self._journal.reopen()

    async def _begin_with(self, change: Future[int] | None) -> None:
        """Wait briefly until the models are folded, so that arm priors count from the first request."""
        try:
            async with asyncio.timeout(START_WAIT_S):
                if change is not None:
                    await asyncio.wrap_future(change)
                    await self._folded()
        except Exception:  # noqa: BLE001, S110 - reported by the recorder; routing starts without
            pass

    async def _watch(self) -> None:
        """Report incidents, and faults when they begin, to the hooks. Runs until cancelled."""
        known, told_of = dict[str, str](), dict[str, str]()
        idle_s, told = self._decider.rules.idle_s, False
        while True:
            self._recorder.log_refusals(self.clock())
            self._ledger.tick()
            self.registry.current()
            if not told and (memory_s := session_memory_s(self._learner)) < idle_s:
                told = True
                _log.warning(
                    "a session was forgotten after %.0f s of silence, before session.idle_s (%.0f s), to make room for "
                    "another; raise session.kept",
                    memory_s,
                    idle_s,
                )
            for part, text in self.incidents().items():
                if told_of.get(part) != text:
                    self.hooks.trouble(part, StoreError(text))
                    told_of[part] = text
            faults = self.faults()
            for part in faults.keys() - known.keys():
                if faults[part] == self._follower.behind:
                    _log.warning("%s", faults[part])
                else:
                    self.hooks.trouble(part, StoreError(faults[part]))
            if faults:
                await asyncio.to_thread(self._reopen)
            elif "journal" in known:
                self._announce()
            known = faults
            await asyncio.sleep(WATCH_S)

    async def _warm(self) -> None:
        """Load the encoder's files before the first request."""
        try:
            await asyncio.to_thread(self._encoder.encode, ["Hello"])
        except Exception as error:  # noqa: BLE001 - requests are routed without it
            self.hooks.trouble("encoder", error)

    async def aclose(self) -> None:
        """Stop services and learning; close providers and stores."""
        for task in (self._sweeper, self._watcher):
            if task is not None:
                task.cancel()
        for service in self._services:
            await asyncio.to_thread(service.stop)
        await self._ledger.aclose()
        await asyncio.to_thread(self._workers.leave)
        self._recorder.log_refusals(self.clock())
        await self._recorder.settle()
        await self._follower.aclose()
        if self._feed is not None and DRAIN_S:
            await self._drain(self._feed)
        for name, provider in self._caller.providers.items():
            try:
                await provider.aclose()
            except Exception as error:  # noqa: BLE001 - one provider's trouble must not keep the journal open
                self.hooks.trouble(f"provider {name}", error)
        await self.registry.aclose()
        warehouse = () if self._feed is None else (self._feed.warehouse.close,)
        for finish in (*warehouse, self._identities.flush, self._journal.close, self._identities.close):
            await asyncio.to_thread(finish)

    async def _drain(self, feed: WarehouseFeed) -> None:
        """Copy what the warehouse still lacks, or log how much is missing."""
        try:
            missing = await asyncio.to_thread(feed.drain, DRAIN_S)
        except Exception as error:  # noqa: BLE001 - stores must be closed
            self.hooks.trouble("warehouse", error)
            return
        if missing:
            _log.warning("the warehouse lacks the last %d events of the journal; the next start adds them", missing)

    async def _folded(self) -> None:
        """Wait until all durable events are folded, their facts at least; an offline router folds them now."""
        if not self._follower.follows:
            await asyncio.to_thread(catch_up, self._learner, self._journal, self._journal.head())
            return
        self._follower.wake()
        try:
            await self._follower.caught_up(learnt=False)
        except StoreError as error:
            raise StoreError(f"it is recorded, and takes effect once the journal can be read: {error}") from error

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
            Unavailable: no model can be called now.
            BudgetExhausted: the tenant's budget does not cover the request.
            AllModelsFailed: no model answered before the deadline.
        """
        turn = await self._begin(msgspec.structs.replace(request, stream=False))
        return await turn.complete()

    async def stream(self, request: Request) -> Stream:
        """Answer a request as a stream; returns once the first chunk is there. Raises the same errors as `complete`."""
        turn = await self._begin(msgspec.structs.replace(request, stream=True))
        return await turn.stream()

    def addresses(self) -> dict[str, str]:
        """Addresses of the providers' servers, which callers need not know, the longest first → what to say instead."""
        given = {getattr(each, "address", ""): name for name, each in self._caller.providers.items()}
        parts = [(url, urlsplit(url), name) for url, name in given.items() if url]
        found = {text: f"provider {name}" for url, at, name in parts for text in (url, at.netloc, at.hostname or url)}
        return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))

    def refuse(self, identity: Identity, reason: str, model: str = "", key: str = "") -> None:
        """Count a request that is refused before a decision, such as by a gateway that is overloaded.

        Args:
            identity: as events hold it.
            reason: see `fitrouter.Refusal`.
            model: arm that it names; empty for routing.
            key: name of the API key that sent it.
        """
        self._recorder.refuse(identity, reason, model, key)

    async def embed(self, request: Request) -> Embedded:
        """Call a model for embeddings; nothing is routed or learnt.

        Args:
            request: names one of `embeddings`; its params hold `input` and options.

        Raises:
            InvalidRequest: the model name is unknown.
            ProviderError: the provider gave no answer, or rejected the request.
            Unavailable: the provider has no free slot.
            BudgetExhausted: the tenant's budget does not cover the request.
        """
        if request.model not in self.embeddings:
            raise InvalidRequest(f"unknown model {request.model!r}; allowed are {', '.join(self.embeddings) or 'none'}")
        return await self._embedder.embed(request)

    # --- external execution ---

    async def decide(self, request: Request) -> Plan:
        """Decide only: the caller calls the models in the plan's order and passes the outcome to `report`.

        Raises:
            InvalidRequest: the model name is unknown.
            NoEligibleModel: no model is eligible.
            Unavailable: no model can be called now.
            BudgetExhausted: the tenant's budget does not cover the request.
        """
        return await self._external.decide(request)

    async def look(self, request: Request) -> Look:
        """Decide, and let the caller look: a request with `plan`, its id, runs the pick or a named alternative.

        The same request gets the same plan until that is run or expires, after 15 minutes.

        Raises:
            InvalidRequest, NoEligibleModel, Unavailable, BudgetExhausted: as `decide`.
            StoreError: the plan cannot be made durable now.
        """
        return await self._external.look(request)

    async def report(self, decision_id: str, request: Request, outcome: Outcome, *, trusted: bool = True) -> Execution:
        """Log the outcome of a plan; returns once it is durable. Only the first report counts.

        Args:
            decision_id: of the plan; any router over the same journal may have made it.
            request: the request of the plan; the scorer reads its messages and tools.
            outcome: the calls made and their result.
            trusted: whether the report teaches what all users share, such as availability and latency.

        Raises:
            InvalidRequest: the outcome is inconsistent with the plan.
            UnknownDecision: the request's tenant has no such logged decision.
            StoreError: it cannot be made durable now; report it again.
        """
        return await self._external.report(decision_id, request, outcome, trusted=trusted)

    async def observe(
        self,
        request: Request,
        completion: Completion | None,
        model: str,
        *,
        cost_usd: float | None,
        latency_ms: float | None,
        error: str | None = None,
        trusted: bool = True,
    ) -> Plan:
        """Log a call that was decided elsewhere as a pinned request; its answer is scored and can receive feedback.

        Args:
            request: the request and its identity.
            completion: the answer; None if the call failed.
            model: name of the called model.
            cost_usd: cost of the call; None for tokens × the card's prices.
            latency_ms: time from request to end of the answer; None for an answer that was recorded earlier, which
                is scored and can be compared, but costs nothing and tells nothing of the model's latency.
            error: name of the exception of a failed call; see `AttemptReport`.
            trusted: whether it teaches what all users share, such as availability and latency.

        Raises:
            InvalidRequest: the model name is unknown or requests routing, or the outcome is inconsistent.
            NoEligibleModel: the model's card excludes the request.
        """
        return await self._external.observe(
            request, completion, model, cost_usd=cost_usd, latency_ms=latency_ms, error=error, trusted=trusted
        )

    # --- steps of a request ---

    async def _begin(self, request: Request) -> Turn:
        """Decide, and queue the decision for the journal."""
        started = time.monotonic()
        deadline = started + (request.deadline_s or self._timers.deadline_s)
        span = tracing.start("chat", gen_ai__operation__name="chat", gen_ai__provider__name="fitrouter")
        own, durable = self._workers.own if request.stream else 0, None
        with span.trying():
            if request.plan:
                proposal, durable = await self._external.run(request, own)
            else:
                proposal = await self._decided(request)
        if own:
            proposal = proposal._replace(decision=msgspec.structs.replace(proposal.decision, worker=own))
        decision = proposal.decision
        span.name(f"chat {request.model}")  # which is known to be one of the configured names
        span.note(gen_ai__request__model=request.model, gen_ai__request__stream=request.stream)
        span.note(fitrouter__decision__id=decision.id, fitrouter__tenant=decision.identity.tenant)
        if not request.plan:
            durable = self._recorder.append_event(proposal.decision)
        self._remarks.listen(proposal)
        return Turn(self._tools, request, proposal, durable, span, started=started, deadline=deadline)

    async def _decided(self, request: Request) -> Proposal:
        """Make the decision on a request, in a trace span."""
        span = tracing.start("decide")
        with span.trying():
            proposal = await self._pipeline.decide(request)
        decision = proposal.decision
        span.note(fitrouter__decision__id=decision.id, fitrouter__mode=decision.mode.value)
        span.note(fitrouter__model=decision.chosen, fitrouter__propensity=decision.propensity)
        span.note(fitrouter__eligible=len(decision.eligible))
        span.end()
        return proposal

    # --- feedback and explanations ---

    async def feedback(
        self,
        decision_id: str,
        kind: FeedbackKind,
        value: float | str,
        *,
        scale: tuple[float, float] | None = None,
        default_scale: tuple[float, float] = UNIT,
        dimension: str = "overall",
        other: str | None = None,
        identity: Identity | None = None,
        trusted: bool = True,
        vouched: str = "",
        first: str = "",
    ) -> str:
        """Log feedback on an answer; returns its id once it is durable.

        Args:
            decision_id: decision that the answer belongs to.
            kind: kind of feedback; see `FeedbackKind` for its values.
            value: the rating, thumb, or other value; "up" and "down" are thumbs, also as ratings.
            scale: lowest and highest value of a rating; None for the configured one (`feedback.scale`).
            default_scale: the same, if none is configured.
            dimension: rated dimension.
            other: decision id of a pair's other answer, of the same user.
            identity: the sender; its tenant, and its user if given, must be those of the decision.
            trusted: whether the sender may leave out the user of a decision that was made for one.
            vouched: name of the untrusted key that says who votes, whose users count for others up to a limit.
            first: of two answers that were picked to be compared blind, the decision of that which was shown first.

        Raises:
            InvalidRequest: the value is off its scale, or `other` does not fit the kind.
            UnknownDecision: the tenant has no such logged decision.
            NotAuthorized: the decision belongs to another user.
            StoreError: it cannot be made durable now; try again (it may have been stored nevertheless).
        """
        return await self._intake.feedback(
            decision_id,
            kind,
            value,
            scale=scale,
            default_scale=default_scale,
            dimension=dimension,
            other=other,
            identity=identity,
            trusted=trusted,
            vouched=vouched,
            first=first,
        )

    async def comment(
        self,
        decision_id: str,
        text: str | None = None,
        *,
        understood: Mapping[str, float] | None = None,
        identity: Identity | None = None,
        trusted: bool = True,
    ) -> Understood:
        """Log what a comment on an answer asks for; replaces what an earlier one asked for. The text is not kept.

        Args:
            decision_id: decision that the answer belongs to.
            text: the comment, such as "too long, and stop the bullet points".
            understood: instead of a text, a correction of what was understood: dimension → −1 (less) … 1 (more);
                empty withdraws it.
            identity: the sender; its tenant, and its user if given, must be those of the decision.
            trusted: whether the sender may leave out the user.

        Raises:
            InvalidRequest: neither or both are given, the text is empty or too long, or a dimension is unknown.
            UnknownDecision: the tenant has no such logged decision.
            NotAuthorized: the decision belongs to another user.
            StoreError: it cannot be made durable now; try again.
        """
        return await self._intake.comment(decision_id, text, understood=understood, identity=identity, trusted=trusted)

    async def understand(self, values: Mapping[str, float] | None = None, words: Sequence[str] = ()) -> Declared:
        """Preview what `declare` would take: values and statements; nothing is logged.

        Args:
            values: dimension → −1 (wants less) … 1 (wants more).
            words: statements such as "I dislike bullet points"; `values` take precedence.

        Raises:
            InvalidRequest: an unknown dimension, or a value out of range.
        """
        return await self._intake.understand(values, words)

    async def declare(
        self,
        identity: Identity,
        values: Mapping[str, float] | None = None,
        words: Sequence[str] = (),
        *,
        stated: str = "",
    ) -> Declared:
        """Declare a user's preferences; they replace earlier ones, and feedback can override them.

        Args:
            identity: tenant and user.
            values: dimension → −1 (wants less) … 1 (wants more).
            words: statements such as "I dislike bullet points"; `values` take precedence.
            stated: what the values were worked out from, kept encrypted under the user's key.

        Raises:
            InvalidRequest: no user, an unknown dimension, or a value out of range.
            StoreError: it cannot be made durable now; try again.
        """
        return await self._intake.declare(identity, values, words, stated)

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

    async def content(self, decision_id: str, tenant: str | None = "default") -> Content | None:
        """The last user message and the answer of a decision; None where the setting `content` does not keep them.

        Args:
            decision_id: of the decision.
            tenant: owner of the decision; None for any.

        Raises:
            UnknownDecision: the tenant has no such logged decision.
            StoreError: the journal or the contents cannot be read now.
        """
        decision = (await self.events(decision_id, tenant))[0]
        if self._contents is None:
            return None
        kept = await asyncio.to_thread(self._contents.of, [decision.id])
        return kept[0].content if kept else None

    async def prompts(self, decision_ids: Sequence[str]) -> dict[str, str]:
        """The last user messages of those decisions of which they are kept and can be read.

        Raises:
            StoreError: the contents cannot be read now.
        """
        if self._contents is None:
            return {}
        return {kept.decision_id: kept.content.prompt for kept in await read_in_time(self._contents.of, decision_ids)}

    async def explain(self, decision_id: str, tenant: str | None = "default", *, now: bool = False) -> Explanation:
        """Explain why a decision chose its model, from the predictions logged with it; the result never changes.

        Args:
            decision_id: of the decision.
            tenant: owner of the decision; None for any.
            now: contrast with the estimates of now (`Explanation.today`).

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
        user = decision.identity.user or ""
        history = await read_in_time(self._journal.of, user) if user else ()
        rules = self._decider.rules
        part = functools.partial(
            explain, events, history=history, cost_unit_usd=rules.cost_unit_usd, latency_unit_s=rules.latency_unit_s
        )
        if not now:
            return part()
        learner = self._learner.of(decision.identity.tenant)
        await asyncio.to_thread(learner.users.load, user)
        return contrasted(part(), part(learner.fit, counts=learner.projections.arm_counts))

    async def leaders(self, decision_ids: Sequence[str], tenant: str | None = "default") -> dict[str, str]:
        """Return, for each decision with logged utilities, the model whose utility is the highest by today's estimates.

        Args:
            decision_ids: of logged decisions; those that the tenant does not have are left out.
            tenant: owner of the decisions; None for any.

        Raises:
            StoreError: the journal cannot be read now.
        """
        logged: list[Decision] = []
        for decision_id in decision_ids:
            with contextlib.suppress(UnknownDecision):
                logged += [e for e in (await self.events(decision_id, tenant))[:1] if isinstance(e, Decision)]
        return await asyncio.to_thread(self._leaders, logged)

    def _leaders(self, logged: Sequence[Decision]) -> dict[str, str]:
        found = {}
        for decision in logged:
            learner = self._learner.of(decision.identity.tenant)
            learner.users.load(decision.identity.user or "")
            if leader := explain([decision], learner.fit).leader:
                found[decision.id] = leader
        return found

    # --- people ---

    async def erase(self, tenant: str, user: str, patience_s: float = 30.0, *, by: str = "") -> Erased:
        """Erase a user from all stores; what was learnt is rebuilt in the background as if they had never been there.

        Args:
            tenant: of the user.
            user: as requests name it.
            patience_s: how long to wait for other processes; what is not finished then is tried again later.
            by: who wants it, for the audit log.

        Raises:
            StoreError: the journal or the identities cannot be written now.
        """
        found = await asyncio.to_thread(self._eraser.erase, tenant, user, patience_s, by)
        self._follower.wake()
        return found

    def _orphaned(self, subject: str) -> None:
        """Erase a subject whose user was erased before the subject was written."""
        try:
            self._eraser.orphan(subject)
        except StoreError as error:
            self.hooks.trouble("identities", error)
        self._follower.wake()

    # --- status ---

    @property
    def warehouse(self) -> Warehouse | None:
        """The DuckDB tables of the journal, if they are kept."""
        return None if self._feed is None else self._feed.warehouse

    def name_of(self, arm: str) -> str:
        """Return the name by which a request pins an arm, without its revision."""
        return called(self._cards[arm])

    def faults(self) -> dict[str, str]:
        """Why parts cannot work now, by part; requests are then answered, but not logged or learnt from."""
        found = {
            "journal": self._journal.fault(),
            "identities": self._identities.fault(),
            "learner": self._follower.fault or self._follower.behind,
        }
        return {part: text for part, text in found.items() if text}

    def service(self, tenant: str | None = None) -> ServiceStatus:
        """Whether users are served: `ok`, `degraded` or `down`, with the reasons.

        Args:
            tenant: who asks, and reads nothing of other tenants; None for all.
        """
        return service_status(self.faults(), self.health.outages(tenant))

    def incidents(self) -> dict[str, str]:
        """What was damaged and what became of it, by part, since this process started."""
        found = {"journal": self._journal.incident, "identities": self._identities.incident}
        found |= {"warehouse": self.warehouse.incident} if self.warehouse is not None else {}
        return {part: text for part, text in found.items() if text}

    def status(self) -> RouterStatus:
        """Position, lag, leases and monitors. Reads the journal: call it off the event loop."""
        return status_of(
            self._learner,
            self._journal,
            self._scorer,
            self._feed,
            self._breakers,
            self._identities,
            self.health,
            tuple(self.registry.models.cards),
            self.clock(),
            {each.part: each.failing for each in self._services if each.failing is not None},
        )

    def completed(self, status: RouterStatus) -> RouterStatus:
        """Fill a status with what the services process reports, if another process runs the services."""
        return status if self._services else completed(status, self._identities.folder, time.time())

    async def state_digest(self) -> tuple[int, str | None]:
        """Sequence number and sha256 of the folded state; the digest is None if an event comes in meanwhile."""
        return await self._digests.digest()

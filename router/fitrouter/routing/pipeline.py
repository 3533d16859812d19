"""The pipeline from a request to a decision: eligibility, identity, features, and one draw."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.context.features import Reading, context_features, is_followup, read_prompt, session_key
from fitrouter.context.impasse import impasse
from fitrouter.draw import uuid7
from fitrouter.errors import InvalidRequest, NoEligibleModel, Unavailable
from fitrouter.hooks import Hooks
from fitrouter.identity import RUN, run_key
from fitrouter.policies import Uniform
from fitrouter.routing.breakers import TenantBreakers
from fitrouter.routing.decider import CurrentModel, Decider, exhausted
from fitrouter.routing.eligibility import DROPPABLE, Eligible, Models, Roster, Wants, wants
from fitrouter.routing.tiers import checked_tier
from fitrouter.state.learner import Learner
from fitrouter.state.sessions import (
    EDITS,
    Session,
    advance,
    begins_turn,
    previous_decision,
    redraw_reason,
    switch_cost,
)
from fitrouter.state.settings import names_of
from fitrouter.stores.futures import result_within
from fitrouter.stores.identities import Identities
from fitrouter.types import AUTO, Decision, Floats, Identity, Mode, ModelCard, Payer, PolicyVersion, Request

PERSON_WAIT_S = 0.05
"""How long a request waits for what was learnt of its user; later ones find it in memory."""
IDENTITY_WAIT_S = 0.5
"""How long a request waits for its user's subject before one is minted."""


class Proposal(NamedTuple):
    """A decision with what is needed to carry it out."""

    decision: Decision
    fallback: Decision | None
    """The decision whose pmf fallbacks are drawn from; None for pinned requests."""
    dropped: Mapping[str, tuple[str, ...]]
    """Arm → parameters omitted from its call."""
    prompt: str
    """Text of the last user turn, as the features read it."""
    asked: Wants
    previous: str = ""
    """Decision whose answer that text may be about; empty if there is none."""


Uncovered: TypeAlias = Callable[[Sequence[ModelCard], Wants, str, Payer | None], Sequence[tuple[str, str]]]


class Pipeline:
    """Turns a request into a decision: eligibility, identity, features and draw.

    Failures degrade the decision (fewer features, anonymous user, uniform policy); they never fail the request.

    Args:
        models: returns the models in use, before each decision.
        aliases: other names → model names.
        decider: draws the model.
        learner: the folded state.
        identities: users → subjects.
        encoder: of prompts.
        hooks: listeners to failures.
        clock: seconds since the epoch.
        breakers: of the models; one whose breaker is open is excluded.
        droppable: request parameters that may be omitted.
        refused: told of each sound request that gets no decision: its identity as events hold it, why, the arm that it
            names, and its key.
        uncovered: (arm, reason) for the models that no hard limit of a tenant and a key can cover a call of.
    """

    def __init__(
        self,
        *,
        models: Callable[[], Models],
        aliases: Mapping[str, str],
        decider: Decider,
        learner: Learner,
        identities: Identities,
        encoder: Encoder,
        hooks: Hooks,
        clock: Callable[[], float],
        breakers: TenantBreakers,
        droppable: Collection[str] = (),
        refused: Callable[[Identity, str, str, str], None] = lambda identity, reason, model, key: None,  # noqa: ARG005
        uncovered: Uncovered = lambda cards, asked, tenant, payer: (),  # noqa: ARG005
    ) -> None:
        self._uncovered = uncovered
        self.breakers, self._refused = breakers, refused
        self._in_use, self.models, self.aliases = models, models(), aliases
        self.decider, self.learner = decider, learner
        self.identities, self.encoder = identities, encoder
        self.hooks, self.clock = hooks, clock
        self._ahead: dict[str, OrderedDict[str, Session]] = {}
        """Tenant → sessions whose last decision is not folded yet."""
        self.droppable = frozenset({*DROPPABLE, *droppable})

    async def decide(self, request: Request, *, observed: bool = False, decision_id: str = "") -> Proposal:
        """Decide which model answers a request.

        Args:
            request: the request.
            observed: whether the model that it names has been called already, so that nothing can prevent the call.
            decision_id: a UUIDv7; a new one by default.

        Raises:
            InvalidRequest: the model name or the tier is unknown.
            NoEligibleModel: no model is eligible.
            Unavailable: the breakers of all eligible models are open.
            BudgetExhausted: the tenant's budget does not cover the request.
        """
        self.models = self._in_use()
        try:
            return await self._decide(request, observed, decision_id)
        except Unavailable as error:
            given, pinned = request.identity, self._pinned(request.model)
            subject = self.identities.known(given.tenant, given.user) if given.user else None
            self._refused(msgspec.structs.replace(given, user=subject), error.reason, pinned or "", request.key)
            raise

    async def _decide(self, request: Request, observed: bool, decision_id: str) -> Proposal:
        pinned, tier = self._pinned(request.model), checked_tier(request.tier)
        asked = wants(request)
        roster = Roster([self.models.cards[pinned]]) if pinned else self.models.roster
        can = roster.eligible(asked, droppable=self.droppable)
        if not can.cards:
            reasons = "; ".join(f"{arm}: {reason}" for arm, reason in can.excluded)
            raise NoEligibleModel(f"no model is eligible for this request: {reasons}", can.excluded)
        identity, session = await self._identity(request)
        await self.load(identity)
        reading = read_prompt(request, asked.history_tokens)
        x = await self._features(reading)
        if not observed:  # from here to the first call nothing waits, so that one request at a time is the probe
            can = self._payable(self._callable(can, request.identity.tenant), asked, request)
        now = self.clock()
        user_turn = begins_turn(request.messages)
        redraw, current, stuck = "", None, ""
        if session is not None:
            sign = ""
            if self.decider.rules.redraw_stuck and not pinned:
                sign = impasse(request.messages) or ("edited" if user_turn and len(session.edits) >= EDITS else "")
            tokens, task = asked.prompt_tokens, identity.task
            redraw, current = self._redraw(session, can, tokens, now, user_turn, tier, task, sign)
            stuck = sign if redraw == "stuck" else "" if redraw or pinned else session.stuck
            if redraw == "stuck":
                can, current = _without(can, (*session.tried, session.arm)), None
        previous = ""
        if request.implicit and session is not None and redraw != "idle":
            previous = previous_decision(session, request.messages, reading.turn)
        decision_id = decision_id or uuid7(now)
        if pinned and not observed:
            self._check_budget(pinned, now, identity, x, asked)
        try:
            drawn = self.decider.decide(
                decision_id,
                now,
                identity,
                x,
                can.cards,
                excluded=can.excluded,
                prompt_tokens=asked.prompt_tokens,
                seq=self.learner.seq,
                current=current,
                capped=not observed,
                tier=tier,
                stuck=bool(stuck),
            )
        except Exception as error:  # noqa: BLE001 - routing never fails because learning did
            self.hooks.trouble("policy", error)
            drawn = self._uniform(decision_id, now, identity, can.cards, can.excluded)
        if session is not None and not redraw and session.arm not in drawn.eligible:
            redraw = "ineligible"  # the decider excluded it: budget or quality floor
        drawn = msgspec.structs.replace(
            drawn,
            user_turn=user_turn,
            turn=reading.turn,
            tier=tier,
            stuck=stuck,
            redraw="" if redraw == "idle" else redraw,
            deadline_s=request.deadline_s or 0.0,
            payer="" if request.payer is None else request.payer.name,
            key=request.key,
        )
        found, fallback = drawn, None if pinned else drawn
        forced = self.models.arms.get(self.decider.live()[1].force)
        if pinned:
            found = _steered(drawn, Mode.PINNED, pinned, decision_id)
        elif forced is not None and forced in drawn.eligible:
            found = _steered(drawn, Mode.FORCED, forced, decision_id)
        elif session is not None and not redraw:
            found = _steered(drawn, Mode.STICKY, session.arm, session.draw_id)
        return Proposal(found, fallback, can.dropped, reading.text, asked, previous)

    def _check_budget(self, pinned: str, ts: float, identity: Identity, x: Floats, asked: Wants) -> None:
        """Refuse a named model that the budget would exclude from routing.

        Raises:
            BudgetExhausted: it does.
        """
        cards = self.models.roster.eligible(asked, droppable=self.droppable).cards
        barred = dict(self.decider.over_budget(ts, identity, x, cards, asked.prompt_tokens))
        if pinned in barred:
            raise exhausted([(pinned, barred[pinned])], self.decider.wait_s(identity.tenant, ts, None))

    def _payable(self, can: Eligible, asked: Wants, request: Request) -> Eligible:
        """Exclude models whose calls no hard limit can cover.

        Raises:
            BudgetExhausted: that are all.
        """
        tenant, payer = request.identity.tenant, request.payer
        barred = {arm: f"budget: {why}" for arm, why in self._uncovered(can.cards, asked, tenant, payer)}
        if len(barred) == len(can.cards):
            raise exhausted([*barred.items()], self.decider.wait_s(tenant, self.clock(), payer))
        cards = tuple(card for card in can.cards if card.arm not in barred)
        return msgspec.structs.replace(can, cards=cards, excluded=(*can.excluded, *barred.items())) if barred else can

    def _callable(self, can: Eligible, tenant: str) -> Eligible:
        """Exclude models that are paused, and those whose breaker is open."""
        breakers = self.breakers.of(tenant)
        barred = breakers.excluded(card.arm for card in can.cards)
        if paused := self.decider.live()[1].paused:
            stopped = set(map(self.models.arms.get, names_of(paused)))
            broken = {arm for arm, _ in barred}
            barred += [(card.arm, "paused") for card in can.cards if card.arm in stopped - broken]
        if not barred:
            return can
        out = {arm for arm, _ in barred}
        cards = tuple(card for card in can.cards if card.arm not in out)
        if not cards:
            reasons = "; ".join(f"{arm}: {reason}" for arm, reason in (*can.excluded, *barred))
            error = Unavailable(f"no model can be called now: {reasons}", breakers.retry_after_s(out))
            error.reason = "paused" if all(reason == "paused" for _, reason in barred) else error.reason
            raise error
        return msgspec.structs.replace(can, cards=cards, excluded=(*can.excluded, *barred))

    def _redraw(
        self,
        session: Session,
        can: Eligible,
        prompt_tokens: int,
        now: float,
        user_turn: bool,
        tier: str,
        task: str | None,
        stuck: str,
    ) -> tuple[str, CurrentModel | None]:
        """Return why a session's model is drawn again (empty: it stays), and its present model if still eligible."""
        rules = self.decider.rules
        arms = [card.arm for card in can.cards]
        reason = redraw_reason(
            session,
            eligible=arms,
            excluded=can.excluded,
            now=now,
            user_turn=user_turn,
            every=rules.redraw_every,
            idle_s=rules.idle_s,
            tier=tier,
            task=task,
            stuck=stuck if len(arms) > 1 else "",
            most_stuck=rules.redraw_stuck,
        )
        if not reason or reason == "idle" or session.arm not in arms:
            return reason, None
        usd = switch_cost(can.cards, session, prompt_tokens, now)
        return reason, CurrentModel(session.arm, dict(zip(arms, usd.tolist(), strict=True)))

    def _pinned(self, model: str) -> str | None:
        """Return the arm that a request pins by name; None if it asks for routing."""
        model = self.aliases.get(model, model)
        if model == AUTO:
            return None
        if model not in self.models.arms:
            known = ", ".join(repr(name) for name in [AUTO, *self.models.arms, *self.aliases])
            raise InvalidRequest(f"unknown model {model!r}; allowed are {known}")
        return self.models.arms[model]

    async def _identity(self, request: Request) -> tuple[Identity, Session | None]:
        """The identity with the user's subject, and the session that the request continues."""
        given = request.identity
        subject = None if given.user is None else await self._subject(given.tenant, given.user)
        key, implicit = session_key(request, self.identities.salt)
        named = given.run or RUN.get()
        run = run_key(given.tenant, subject, named) if named else None
        identity = msgspec.structs.replace(given, user=subject, session=key, run=run)
        session = self._session(given.tenant, key)
        # A conversation that starts again with the same words is a new session.
        if session is None or (implicit and not is_followup(request)):
            return identity, None
        return identity, session

    def continue_session(self, decision: Decision) -> None:
        """Continue a session from a durable decision before it is folded: agents send the next step at once."""
        key, tenant = decision.identity.session, decision.identity.tenant
        if key is None or decision.mode in {Mode.PINNED, Mode.FORCED}:
            return
        before = self._session(tenant, key)
        if before is None or before.ts < decision.ts:
            waiting = self._ahead.setdefault(tenant, OrderedDict())
            waiting[key] = advance(before, decision, decision.user_turn)
            if len(waiting) > self.learner.projections.params.sessions:
                waiting.popitem(last=False)

    def _session(self, tenant: str, key: str) -> Session | None:
        """A session, including a decision that is not folded yet."""
        folded = self.learner.facts(tenant).sessions.get(key)
        waiting = self._ahead.get(tenant) or OrderedDict[str, Session]()
        ahead = waiting.get(key)
        if ahead is None or (folded is not None and folded.ts >= ahead.ts):
            waiting.pop(key, None)
            if not waiting:
                self._ahead.pop(tenant, None)
            return folded
        return ahead

    async def _subject(self, tenant: str, user: str) -> str | None:
        """The subject of a user: minted if the store is slow, None if it cannot be written."""
        error: Exception
        try:
            if (known := self.identities.known(tenant, user)) is not None:
                return known
            met = self.identities.meet(tenant, user)
            with suppress(TimeoutError):
                return await result_within(met, IDENTITY_WAIT_S)
            if met.done():  # the store was in time, the busy loop was not
                return met.result()
            error = TimeoutError(f"identity store timed out after {IDENTITY_WAIT_S} s; the subject is written behind")
        except Exception as failure:  # noqa: BLE001 - another process may keep the file busy
            error = failure
        self.hooks.trouble("identities", error)
        try:
            return self.identities.mint(tenant, user)
        except Exception:  # noqa: BLE001 - reported above; the user is anonymous, the request is answered
            return None

    async def load(self, identity: Identity) -> None:
        """Bring a user's terms into memory; if that fails, decisions are made as for a person without labels."""
        users, user = self.learner.of(identity.tenant).users, identity.user or ""
        if not users.cold(user):
            return
        try:
            async with asyncio.timeout(PERSON_WAIT_S):
                await asyncio.to_thread(users.load, user)
        except Exception as error:  # noqa: BLE001 - routing never fails because learning did
            self.hooks.trouble("learner", error)

    async def _features(self, reading: Reading) -> Floats:
        """The context x; if the encoder fails, only the intercept."""
        d = self.learner.fit.d
        try:
            if getattr(self.encoder, "slow", False):
                return await asyncio.to_thread(context_features, reading, self.encoder)
            return context_features(reading, self.encoder)
        except Exception as error:  # noqa: BLE001 - routing never fails because learning did
            self.hooks.trouble("encoder", error)
            x = np.zeros(d)
            x[0] = 1.0
            return x

    def _uniform(
        self,
        decision_id: str,
        now: float,
        identity: Identity,
        eligible: Sequence[ModelCard],
        excluded: tuple[tuple[str, str], ...],
    ) -> Decision:
        """Make a uniform decision without learned state, with exact propensities."""
        rules = msgspec.structs.replace(self.decider.rules, share=1.0, cost_weight=0.0, latency_weight=0.0)
        decision = Decider(Uniform(), Learner(1, 1), rules).decide(
            decision_id, now, identity, np.ones(1), eligible, excluded=excluded
        )
        version = PolicyVersion(algorithm="uniform", config_hash=rules.config_hash)
        # No part of the pmf depends on a policy.
        return msgspec.structs.replace(decision, features=b"", rest=decision.probs, policy=version)


def _without(can: Eligible, tried: Collection[str]) -> Eligible:
    """Exclude the models that an agent is stuck with, unless no other is left."""
    cards = tuple(card for card in can.cards if card.arm not in tried)
    if not cards:
        return can
    out = [(card.arm, "stuck: it was tried in this impasse") for card in can.cards if card.arm in tried]
    return msgspec.structs.replace(can, cards=cards, excluded=(*can.excluded, *out))


def _steered(drawn: Decision, mode: Mode, arm: str, draw_id: str) -> Decision:
    """Make a decision whose model was set rather than drawn, and which has no pmf."""
    pmfs: dict[str, Any] = {"probs": (), "twin": (), "personal": (), "candidates": {}, "rest": ()}
    bare = msgspec.structs.replace(drawn, **pmfs, new=(), switch=(), redraw="")
    return msgspec.structs.replace(bare, mode=mode, chosen=arm, draw_id=draw_id, propensity=1.0)

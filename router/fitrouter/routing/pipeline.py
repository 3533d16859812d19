"""From a request to a decision: who asks, what is read, which models can take it, and one draw."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.context.features import context_features, is_followup, read_prompt, session_key
from fitrouter.draw import uuid7
from fitrouter.errors import InvalidRequest, NoEligibleModel
from fitrouter.hooks import Hooks
from fitrouter.identity import canonical_role, role_key
from fitrouter.policies import Uniform
from fitrouter.posterior.role_similarity import ROLES
from fitrouter.routing.decider import Decider, Stay
from fitrouter.routing.eligibility import DROPPABLE, Eligible, Roster, wants
from fitrouter.routing.variants import called
from fitrouter.state.learner import Learner
from fitrouter.state.sessions import LIMIT, Session, begins_turn, moved, switch_cost, why_redraw
from fitrouter.stores.identities import Identities
from fitrouter.types import (
    AUTO,
    Decision,
    Event,
    Floats,
    Identity,
    Mode,
    ModelCard,
    PolicyVersion,
    Request,
    RoleText,
    pack,
)

IDENTITY_WAIT_S = 0.5
"""How long a request waits to learn its user's subject; one is minted for it then."""


class Proposal(NamedTuple):
    """What was decided for a request."""

    decision: Decision
    fallback: Decision | None
    """The decision whose pmf fallbacks are drawn from; None for a pinned model, which has none."""
    dropped: Mapping[str, tuple[str, ...]]
    """Arm → parameters that its call leaves out."""


class Pipeline:
    """Decides. Whatever fails in here costs the decision some knowledge, and never the request its answer."""

    def __init__(
        self,
        cards: Mapping[str, ModelCard],
        aliases: Mapping[str, str],
        decider: Decider,
        learner: Learner,
        identities: Identities,
        encoder: Encoder,
        hooks: Hooks,
        clock: Callable[[], float],
        droppable: Collection[str] = (),
        told: Callable[[Event], object] | None = None,
    ) -> None:
        self.cards, self.aliases = cards, aliases
        self.roster = Roster(cards.values())
        self.names = {called(card): arm for arm, card in cards.items()}
        self.decider, self.learner = decider, learner
        self.identities, self.encoder = identities, encoder
        self.hooks, self.clock = hooks, clock
        self.told = told
        """Writes an event down; without it, roles start unknown."""
        self._met: set[str] = set()
        """Roles whose text was told."""
        self._ahead: OrderedDict[str, Session] = OrderedDict()
        """Sessions of which the fold has not heard the last decision."""
        self.droppable = frozenset({*DROPPABLE, *droppable})

    async def decide(self, request: Request) -> Proposal:
        """Decide for a request.

        Raises:
            InvalidRequest: the model's name is unknown.
            NoEligibleModel: no model can take it.
        """
        pinned = self._pinned(request.model)
        asked = wants(request)
        roster = Roster([self.cards[pinned]]) if pinned else self.roster
        can = roster.eligible(asked, droppable=self.droppable)
        if not can.cards:
            reasons = "; ".join(f"{arm}: {reason}" for arm, reason in can.excluded)
            raise NoEligibleModel(f"no model can take this request: {reasons}", can.excluded)
        identity, session = await self._identity(request)
        await self._meet_role(identity)
        x = await self._features(request, asked.history_tokens)
        now = self.clock()
        user_turn = begins_turn(request.messages)
        redraw, stay = "", None
        if session is not None:
            redraw, stay = self._redraw(session, can, asked.prompt_tokens, now, user_turn)
        decision_id = uuid7(now)
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
                stay=stay,
            )
        except Exception as error:  # noqa: BLE001 - routing never fails because learning did
            self.hooks.trouble("policy", error)
            drawn = self._uniform(decision_id, now, identity, can.cards, can.excluded)
        if session is not None and not redraw and session.arm not in drawn.eligible:
            redraw = "ineligible"  # the decider bars what a budget cannot pay and what is not safe
        drawn = msgspec.structs.replace(
            drawn,
            user_turn=user_turn,
            redraw="" if redraw == "idle" else redraw,
            deadline_s=request.deadline_s or 0.0,
        )
        if pinned:
            return Proposal(_steered(drawn, Mode.PINNED, pinned, decision_id), None, can.dropped)
        forced = self.names.get(self.decider.live()[1].force)
        if forced is not None and forced in drawn.eligible:
            return Proposal(_steered(drawn, Mode.FORCED, forced, decision_id), drawn, can.dropped)
        if session is not None and not redraw:
            return Proposal(_steered(drawn, Mode.STICKY, session.arm, session.draw_id), drawn, can.dropped)
        return Proposal(drawn, drawn, can.dropped)

    def _redraw(
        self, session: Session, can: Eligible, prompt_tokens: int, now: float, user_turn: bool
    ) -> tuple[str, Stay | None]:
        """Why the session is drawn again, empty where it is not; and what it lives on, where that can go on."""
        rules = self.decider.rules
        arms = [card.arm for card in can.cards]
        reason = why_redraw(
            session,
            eligible=arms,
            excluded=can.excluded,
            now=now,
            user_turn=user_turn,
            every=rules.redraw_every,
            idle_s=rules.idle_s,
        )
        if not reason or reason == "idle" or session.arm not in arms:
            return reason, None
        usd = switch_cost(can.cards, session, prompt_tokens, now)
        return reason, Stay(session.arm, dict(zip(arms, usd.tolist(), strict=True)))

    def _pinned(self, model: str) -> str | None:
        """The arm that a request names, None for routing."""
        model = self.aliases.get(model, model)
        if model == AUTO:
            return None
        if model not in self.names:
            known = ", ".join(repr(name) for name in [AUTO, *self.names, *self.aliases])
            raise InvalidRequest(f"there is no model {model!r}; allowed are {known}")
        return self.names[model]

    async def _identity(self, request: Request) -> tuple[Identity, Session | None]:
        """The identity with its subject instead of the user, and the session that it goes on with."""
        given = request.identity
        subject = None if given.user is None else await self._subject(given.tenant, given.user)
        key, implicit = session_key(request)
        identity = msgspec.structs.replace(given, user=subject, session=key)
        session = self._session(key)
        # A conversation that begins again with the same words is another one.
        if session is None or (implicit and not is_followup(request)):
            return identity, None
        return identity, session

    def goes_on(self, decision: Decision) -> None:
        """Let a session go on from a decision that is durable, and perhaps not folded yet: agents are quick."""
        key = decision.identity.session
        if key is None or decision.mode in {Mode.PINNED, Mode.FORCED}:
            return
        before = self._session(key)
        if before is None or before.ts < decision.ts:
            self._ahead[key] = moved(before, decision, decision.user_turn)
            if len(self._ahead) > LIMIT:
                self._ahead.popitem(last=False)

    def _session(self, key: str) -> Session | None:
        """A session as it is folded, or as it will be."""
        folded, ahead = self.learner.projections.sessions.get(key), self._ahead.get(key)
        if ahead is None or (folded is not None and folded.ts >= ahead.ts):
            self._ahead.pop(key, None)
            return folded
        return ahead

    async def _subject(self, tenant: str, user: str) -> str | None:
        """The subject of a user; a new one where its store is slow, and None where the store cannot be written."""
        error: Exception
        try:
            if (known := self.identities.known(tenant, user)) is not None:
                return known
            met = self.identities.meet(tenant, user)
            with suppress(TimeoutError):
                async with asyncio.timeout(IDENTITY_WAIT_S):
                    return await asyncio.shield(asyncio.wrap_future(met))
            if met.done():  # the store was in time, and a busy loop was not
                return met.result()
            error = TimeoutError(f"the identities did not tell a subject in {IDENTITY_WAIT_S} s; one is written behind")
        except Exception as failure:  # noqa: BLE001 - another process may just keep the file busy
            error = failure
        self.hooks.trouble("identities", error)
        try:
            return self.identities.mint(tenant, user)
        except Exception:  # noqa: BLE001 - told above; without its store a user is anonymous, not refused
            return None

    async def _features(self, request: Request, history: int) -> Floats:
        """X of the request; an encoder that fails leaves the intercept alone."""
        d = self.learner.fit.d
        try:
            reading = read_prompt(request, history)
            if getattr(self.encoder, "slow", False):
                return await asyncio.to_thread(context_features, reading, self.encoder)
            return context_features(reading, self.encoder)
        except Exception as error:  # noqa: BLE001 - routing never fails because learning did
            self.hooks.trouble("encoder", error)
            x = np.zeros(d)
            x[0] = 1.0
            return x

    async def _meet_role(self, identity: Identity) -> None:
        """Tell the fold of a role's text when it is first heard, so that the role starts near its kin."""
        key = role_key(identity)
        if self.told is None or not key or key in self._met or len(self._met) >= ROLES:
            return
        if key in self.learner.fit.tastes.role_similarity.vectors:
            return
        self._met.add(key)
        try:
            vectors = await asyncio.to_thread(self.encoder.encode, [canonical_role(identity.role) or ""])
        except Exception as error:  # noqa: BLE001 - a role without a text starts like any other
            self.hooks.trouble("encoder", error)
            return
        self.told(
            RoleText(
                id=f"role:{key}:{self.encoder.id}",
                ts=self.clock(),
                tenant=identity.tenant,
                role=key,
                vector=pack(np.asarray(vectors)[0]),
            )
        )

    def _uniform(
        self,
        decision_id: str,
        now: float,
        identity: Identity,
        eligible: Sequence[ModelCard],
        excluded: tuple[tuple[str, str], ...],
    ) -> Decision:
        """A decision of a router that knows nothing: uniform, with exact propensities like any other."""
        rules = msgspec.structs.replace(self.decider.rules, share=1.0, cost_weight=0.0, latency_weight=0.0)
        decision = Decider(Uniform(), Learner(1, 1), rules).decide(
            decision_id, now, identity, np.ones(1), eligible, excluded=excluded
        )
        version = PolicyVersion(algorithm="uniform", config_hash=rules.config_hash)
        # Where every policy would have failed, none has a say.
        return msgspec.structs.replace(decision, features=b"", rest=decision.probs, policy=version)


def _steered(drawn: Decision, mode: Mode, arm: str, draw_id: str) -> Decision:
    """A decision that was not drawn: it has no pmf of its own."""
    pmfs: dict[str, Any] = {"probs": (), "twin": (), "personal": (), "candidates": {}, "rest": ()}
    bare = msgspec.structs.replace(drawn, **pmfs, new=(), switch=(), redraw="")
    return msgspec.structs.replace(bare, mode=mode, chosen=arm, draw_id=draw_id, propensity=1.0)

"""From a request to a decision: who asks, what is read, which models can take it, and one draw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from fitrouter.decide import Decider
from fitrouter.eligibility import partition
from fitrouter.encoders import Encoder
from fitrouter.errors import InvalidRequest, NoEligibleModel
from fitrouter.features import context_features, estimate_tokens, is_followup, needs, read_prompt, session_key
from fitrouter.hooks import Hooks
from fitrouter.identities import Identities
from fitrouter.ids import uuid7
from fitrouter.learner import Learner
from fitrouter.policies import Uniform
from fitrouter.types import AUTO, Decision, Floats, Identity, Mode, ModelCard, PolicyVersion, Request

__all__ = ["Proposer"]

SESSION_IDLE_S = 3600.0
"""A session that was silent for longer begins anew with a draw."""
IDENTITY_WAIT_S = 0.5
"""How long a request waits to learn its user's subject; it is anonymous then."""


class Proposer:
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
    ) -> None:
        self.cards, self.aliases = cards, aliases
        self.names = {card.name: arm for arm, card in cards.items()}
        self.decider, self.learner = decider, learner
        self.identities, self.encoder = identities, encoder
        self.hooks, self.clock = hooks, clock

    async def decide(self, request: Request) -> tuple[Decision, Decision | None]:
        """The decision, and the one whose pmf fallbacks are drawn from (None for a pinned model: it has no fallback).

        Raises:
            InvalidRequest: the model's name is unknown.
            NoEligibleModel: no model can take it.
        """
        pinned = self._pinned(request.model)
        cards = [self.cards[pinned]] if pinned else list(self.cards.values())
        prompt_tokens = estimate_tokens(request.messages, request.params)
        wanted = prompt_tokens + int(
            request.params.get("max_tokens") or request.params.get("max_completion_tokens") or 0
        )
        eligible, excluded = partition(cards, needs=needs(request), tokens=wanted)
        if not eligible:
            reasons = "; ".join(f"{arm}: {reason}" for arm, reason in excluded)
            raise NoEligibleModel(f"no model can take this request: {reasons}", excluded)
        identity, session = await self._identity(request)
        x = await self._features(request)
        now = self.clock()
        decision_id = uuid7(now)
        try:
            drawn = self.decider.decide(
                decision_id,
                now,
                identity,
                x,
                eligible,
                excluded=excluded,
                prompt_tokens=prompt_tokens,
                seq=self.learner.seq,
            )
        except Exception as error:  # noqa: BLE001 - routing never fails because learning did
            self.hooks.trouble("policy", error)
            drawn = self._uniform(decision_id, now, identity, eligible, excluded)
        if pinned:
            return _steered(drawn, Mode.PINNED, pinned, decision_id), None
        if session is not None and session[1] in drawn.eligible:
            return _steered(drawn, Mode.STICKY, session[1], session[0]), drawn
        return drawn, drawn

    def _pinned(self, model: str) -> str | None:
        """The arm that a request names, None for routing."""
        model = self.aliases.get(model, model)
        if model == AUTO:
            return None
        if model not in self.names:
            known = ", ".join(repr(name) for name in [AUTO, *self.names, *self.aliases])
            raise InvalidRequest(f"there is no model {model!r}; allowed are {known}")
        return self.names[model]

    async def _identity(self, request: Request) -> tuple[Identity, tuple[str, str] | None]:
        """The identity with its subject instead of the user, and the (draw, arm) that its session lives on."""
        given = request.identity
        subject: str | None = None
        if given.user is not None:
            try:
                async with asyncio.timeout(IDENTITY_WAIT_S):
                    subject = await asyncio.to_thread(self.identities.subject, given.tenant, given.user)
            except Exception as error:  # noqa: BLE001 - without its store a user is anonymous, not refused
                self.hooks.trouble("identities", error)
        key, implicit = session_key(request)
        identity = msgspec.structs.replace(given, user=subject, session=key)
        session = self.learner.sessions.get(key)
        # A conversation that begins again with the same words is another one.
        if session is None or (implicit and not is_followup(request)):
            return identity, None
        if self.clock() - session.ts > SESSION_IDLE_S:
            return identity, None
        return identity, (session.draw_id, session.arm)

    async def _features(self, request: Request) -> Floats:
        """X of the request; an encoder that fails leaves the intercept alone."""
        d = self.learner.fit.d
        try:
            reading = read_prompt(request)
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
        """A decision of a router that knows nothing: uniform, with exact propensities like any other."""
        rules = msgspec.structs.replace(self.decider.rules, share=1.0, cost_weight=0.0, latency_weight=0.0)
        blank = Learner(1, 1).fit
        decision = Decider(Uniform(), blank, rules).decide(
            decision_id, now, identity, np.ones(1), eligible, excluded=excluded
        )
        return msgspec.structs.replace(
            decision, features=b"", policy=PolicyVersion(algorithm="uniform", config_hash=rules.config_hash)
        )


def _steered(drawn: Decision, mode: Mode, arm: str, draw_id: str) -> Decision:
    """A decision that was not drawn: it has no pmf of its own."""
    bare = msgspec.structs.replace(drawn, probs=(), twin=(), personal=(), candidates={}, new=(), redraw="")
    return msgspec.structs.replace(bare, mode=mode, chosen=arm, draw_id=draw_id, propensity=1.0)

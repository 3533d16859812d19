"""Backend that calls a router in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from fitrouter.router import Router
from fitrouter.routing.explain import explain
from fitrouter.routing.variants import called
from fitrouter.serving.answers import Answer, Stream
from fitrouter.serving.embeddings import Embedded
from fitrouter.serving.external import Outcome
from fitrouter.serving.feedback import UNIT, Understood
from fitrouter.serving.runs import Reported
from fitrouter.types import Chunk, Decision, Identity, Request
from fitrouter_integrations.client._base import (
    About,
    Alternative,
    Comment,
    Model,
    ObservedCall,
    Plan,
    Reply,
    RunVote,
    Streaming,
    Vote,
)


class LocalBackend:
    """Backend that calls a `Router`, which it starts and closes.

    Args:
        router: not started yet.
        signed: whether answers carry tokens.
    """

    def __init__(self, router: Router, *, signed: bool = False) -> None:
        self.router, self.signed = router, signed

    async def start(self) -> None:
        await self.router.start()

    async def aclose(self) -> None:
        await self.router.aclose()

    async def models(self) -> tuple[Model, ...]:
        return tuple(
            Model(
                name=called(card),
                context_window=card.context_window,
                capabilities=card.capabilities,
                max_output_tokens=card.max_output_tokens,
                target=card.target or card.name,
                revision=card.revision or "",
                input_usd=card.prices.input if card.prices.known else None,
                output_usd=card.prices.output if card.prices.known else None,
            )
            for card in self.router.models.values()
        )

    async def complete(self, request: Request) -> Reply:
        answer = await self.router.complete(request)
        completion = answer.completion
        return Reply(
            message=completion.message,
            finish_reason=completion.finish_reason,
            usage=completion.usage,
            about=self._answered(answer, answer.cost_usd),
            logprobs=completion.logprobs,
            others=completion.others,
            further=completion.further,
            beside=completion.beside,
        )

    async def stream(self, request: Request) -> Streaming:
        stream = await self.router.stream(request)
        return _LocalStream(stream, self._answered(stream, None))

    async def embed(self, request: Request) -> tuple[Embedded, About]:
        embedded = await self.router.embed(request)
        return embedded, self._about(embedded.decision, request.model, embedded.logged, embedded.cost_usd)

    async def observe(self, seen: ObservedCall, *, trusted: bool = True) -> About:
        plan = await self.router.observe(
            seen.request,
            seen.completion,
            seen.model,
            cost_usd=seen.cost_usd,
            latency_ms=seen.latency_ms,
            error=seen.error,
            trusted=trusted,
        )
        return self._about(plan.decision, plan.decision.chosen, plan.logged, seen.cost_usd)

    async def decide(self, request: Request) -> Plan:
        plan = await self.router.decide(request)
        decision = plan.decision
        about = self._about(decision, decision.chosen, plan.logged, None)
        about = msgspec.structs.replace(about, max_tokens=plan.max_tokens)
        return Plan(about=about, order=plan.order, deadline_s=plan.deadline_s)

    async def look(self, request: Request) -> Plan:
        look = await self.router.look(request)
        made, name = look.decision, self.router.name_of
        picks = sorted(range(len(made.eligible)), key=lambda k: made.eligible[k] != made.chosen)

        def at(column: tuple[float, ...], k: int) -> float | None:
            return column[k] if column else None

        return Plan(
            about=self._about(made, made.chosen, True, None),
            order=(),
            deadline_s=made.deadline_s,
            reason=" ".join(explain([made]).sentences),
            alternatives=tuple(
                Alternative(
                    model=name(made.eligible[k]),
                    probability=at(made.probs, k),
                    rating=at(made.mean, k),
                    cost_usd=None if made.eligible[k] in made.unpriced else at(made.cost, k),
                    latency_s=at(made.latency, k),
                )
                for k in picks
            ),
            expires=look.expires,
        )

    async def report(self, decision_id: str, request: Request, ended: Outcome) -> float | None:
        execution = await self.router.report(decision_id, request, ended)
        return execution.known_usd

    async def feedback(self, vote: Vote, *, trusted: bool = True, vouched: str = "") -> str:
        return await self.router.feedback(
            vote.decision_id,
            vote.kind,
            vote.value,
            scale=vote.scale,
            default_scale=vote.default_scale or UNIT,
            dimension=vote.dimension,
            other=vote.other,
            identity=Identity(tenant=vote.tenant, user=vote.user),
            trusted=trusted,
            vouched=vouched,
        )

    async def outcome(self, vote: RunVote, *, trusted: bool = True, vouched: str = "") -> Reported:
        return await self.router.runs.outcome(
            vote.run,
            vote.value,
            kind=vote.kind,
            scale=vote.scale,
            source=vote.source,
            identity=Identity(tenant=vote.tenant, user=vote.user),
            key=vouched or vote.key,
            trusted=trusted,
            vouched=vouched,
        )

    async def comment(self, comment: Comment, *, trusted: bool = True) -> Understood:
        whose = Identity(tenant=comment.tenant, user=comment.user)
        return await self.router.comment(
            comment.decision_id, comment.text, understood=comment.understood, identity=whose, trusted=trusted
        )

    def _answered(self, answer: Answer | Stream, cost_usd: float | None) -> About:
        about = self._about(answer.decision, answer.served_by, answer.logged, cost_usd)
        return msgspec.structs.replace(about, dropped=answer.dropped, max_tokens=answer.max_tokens)

    def _about(self, decision: Decision, served_by: str, logged: bool, cost_usd: float | None) -> About:
        return About(
            decision_id=decision.id,
            model=served_by if served_by in self.router.embeddings else self.router.name_of(served_by),
            chosen=decision.chosen,
            mode=decision.mode.value,
            propensity=decision.propensity,
            logged=logged,
            asked=decision.asked,
            cost_usd=cost_usd,
            token=self.router.tokens.sign(decision.id, decision.identity.tenant) if self.signed else None,
        )


class _LocalStream:
    def __init__(self, stream: Stream, about: About) -> None:
        self._stream, self._about = stream, about

    @property
    def about(self) -> About:
        return msgspec.structs.replace(self._about, cost_usd=self._stream.cost_usd)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        await self._stream.aclose()

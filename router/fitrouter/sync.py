"""Synchronous facade of the router."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fitrouter.router import Router
from fitrouter.routing.explanation import Explanation
from fitrouter.serving.answers import Answer
from fitrouter.serving.external import Outcome, Plan
from fitrouter.serving.feedback import Declared, Understood
from fitrouter.serving.runs import Reported, Run
from fitrouter.types import Chunk, Completion, Event, Execution, FeedbackKind, Identity, Request

T = TypeVar("T")


class SyncRouter:
    """Runs a `Router` on an event loop in its own thread. Methods match the router's methods of the same name.

    Use it as a context manager, from any thread except inside a callback of an event loop.
    """

    def __init__(self, router: Router) -> None:
        self.router = router
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fitrouter-sync", daemon=True)

    def __enter__(self) -> SyncRouter:
        self._thread.start()
        self._run(self.router.start())
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self.router.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def complete(self, request: Request) -> Answer:
        """Answer a request."""
        return self._run(self.router.complete(request))

    def stream(self, request: Request) -> Iterator[Chunk]:
        """Answer a request as a stream of chunks; leaving the loop early cancels the call."""
        stream = self._run(self.router.stream(request))
        try:
            chunks = aiter(stream)
            while (chunk := self._run(_next(chunks))) is not None:
                yield chunk
        finally:
            self._run(stream.aclose())

    def decide(self, request: Request) -> Plan:
        """Decide only; the caller calls the models."""
        return self._run(self.router.decide(request))

    def report(self, decision_id: str, request: Request, outcome: Outcome) -> Execution:
        """Log the outcome of a plan."""
        return self._run(self.router.report(decision_id, request, outcome))

    def observe(
        self,
        request: Request,
        completion: Completion | None,
        model: str,
        *,
        cost_usd: float | None = None,
        latency_ms: float = 0.0,
        error: str | None = None,
    ) -> Plan:
        """Log a call that was decided elsewhere."""
        return self._run(
            self.router.observe(request, completion, model, cost_usd=cost_usd, latency_ms=latency_ms, error=error)
        )

    def feedback(
        self,
        decision_id: str,
        kind: FeedbackKind,
        value: float | str,
        *,
        scale: tuple[float, float] | None = None,
        dimension: str = "overall",
        other: str | None = None,
        identity: Identity | None = None,
    ) -> str:
        """Log feedback on an answer."""
        return self._run(
            self.router.feedback(
                decision_id, kind, value, scale=scale, dimension=dimension, other=other, identity=identity
            )
        )

    @contextlib.contextmanager
    def run(self, run_id: str = "", identity: Identity | None = None) -> Iterator[SyncRun]:
        """Let all calls within be steps of one run of an agent."""
        with self.router.run(run_id, identity) as run:
            yield SyncRun(self, run)

    def comment(
        self,
        decision_id: str,
        text: str | None = None,
        *,
        understood: Mapping[str, float] | None = None,
        identity: Identity | None = None,
    ) -> Understood:
        """Log what a comment on an answer asks for."""
        return self._run(self.router.comment(decision_id, text, understood=understood, identity=identity))

    def declare(
        self, identity: Identity, values: Mapping[str, float] | None = None, words: Sequence[str] = ()
    ) -> Declared:
        """Declare a user's preferences."""
        return self._run(self.router.declare(identity, values, words))

    def events(self, decision_id: str, tenant: str | None = "default") -> list[Event]:
        """All events of a decision, the decision first."""
        return self._run(self.router.events(decision_id, tenant))

    def explain(self, decision_id: str, tenant: str | None = "default", *, now: bool = False) -> Explanation:
        """Explain why a decision chose its model, from the predictions logged with it."""
        return self._run(self.router.explain(decision_id, tenant, now=now))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class SyncRun:
    """A run that calls in this context are steps of."""

    def __init__(self, router: SyncRouter, run: Run) -> None:
        self.id, self._router, self._of = run.id, router, run

    def outcome(
        self,
        value: float | bool,
        *,
        kind: str = "success",
        scale: tuple[float, float] | None = None,
        source: str = "check",
        identity: Identity | None = None,
    ) -> Reported:
        """Report how it ended."""
        return self._router._run(self._of.outcome(value, kind=kind, scale=scale, source=source, identity=identity))


async def _next(chunks: Any) -> Chunk | None:
    try:
        chunk: Chunk = await anext(chunks)
    except StopAsyncIteration:
        return None
    return chunk

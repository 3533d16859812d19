"""What is written down: events in their order, and an answer's text on its way to the scorer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from fitrouter.context.features import read_prompt
from fitrouter.errors import StoreError, UnknownDecision
from fitrouter.hooks import Hooks
from fitrouter.stores.content import pack_content
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Entry, Journal
from fitrouter.types import Attempt, Decision, Erasure, Event, Execution, Message, Request

T = TypeVar("T")

DURABLE_WAIT_S = 0.05
"""How long an answer waits for its decision to become durable."""
STORE_WAIT_S = 5.0
"""How long a person's verdict, or a question about a decision, waits for the store."""


class Recorder:
    """Appends to the journal without ever holding up an answer. `wake` is called whenever something became durable."""

    def __init__(self, journal: Journal, identities: Identities, hooks: Hooks, wake: Callable[[], None]) -> None:
        self.journal, self.identities, self.hooks, self.wake = journal, identities, hooks, wake
        self._storing: dict[str, asyncio.Task[None]] = {}

    def append_event(self, event: Event) -> Future[int] | None:
        """Tell the hooks of an event, and queue it."""
        self.hooks.happened(event)
        return self._append(Entry(event))

    def erase(self, subject: str, ts: float) -> None:
        """Erase what was logged under a subject that was never written: nobody could have it erased later."""
        self.append_event(Erasure(id=f"erasure:{subject}", ts=ts, subject=subject))

    def _append(self, entry: Entry) -> Future[int] | None:
        """Queue an entry; a journal that cannot take it is trouble, not an error."""
        try:
            future = self.journal.append(entry)
        except Exception as error:  # noqa: BLE001 - a broken store costs learning, never an answer
            self.hooks.trouble("journal", error)
            return None
        future.add_done_callback(self._appended)
        return future

    def _appended(self, future: Future[int]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.hooks.trouble("journal", error)
        else:
            self.wake()

    async def durable(self, decision: Decision, stored: Future[int] | None) -> bool:
        """Whether a decision became durable within the time that an answer waits for it."""
        if stored is not None:
            if not stored.done():
                with suppress(Exception):  # told by _appended; a slow store costs the entry, not the answer
                    async with asyncio.timeout(DURABLE_WAIT_S):
                        await asyncio.shield(asyncio.wrap_future(stored))
            # A busy loop may hear of it late: what counts is what the store says.
            if stored.done() and not stored.cancelled() and stored.exception() is None:
                return True
        self.hooks.unlogged(decision.id)
        return False

    def append_outcome(
        self, request: Request, stored: Future[int] | None, execution: Execution, message: Message | None
    ) -> None:
        """Queue an execution behind its decision; `message` is the answer's text where it shall be scored."""
        self.hooks.happened(execution)
        if stored is not None:
            task = asyncio.create_task(self._store(request, stored, execution, message))
            self._storing[execution.decision_id] = task
            task.add_done_callback(lambda _: self._storing.pop(execution.decision_id, None))

    async def _store(
        self, request: Request, stored: Future[int], execution: Execution, message: Message | None
    ) -> None:
        """Append an outcome after its decision, and not at all where that did not become durable."""
        try:
            await asyncio.wrap_future(stored)
        except Exception:  # noqa: BLE001 - told by _appended
            return
        content = None
        if message is not None:
            await self._written(execution.identity.user)
            content = await asyncio.to_thread(self._content, request, execution, message)
        self._append(Entry(execution, content))

    async def _written(self, subject: str | None) -> None:
        """Wait for a subject that is written behind: the scorer of another process reads its key from the file."""
        with suppress(Exception):  # this process knows the key
            if subject is not None and (writing := self.identities.writing(subject)) is not None:
                async with asyncio.timeout(STORE_WAIT_S):
                    await asyncio.shield(asyncio.wrap_future(writing))

    def _content(self, request: Request, execution: Execution, message: Message) -> bytes | None:
        """What the scorer reads, encrypted. Blocks on the disk."""
        identity = execution.identity
        try:
            text = pack_content(read_prompt(request).text, message, request.params.get("tools"))
            return self.identities.encrypt(identity.user, text, tenant=identity.tenant)
        except Exception as error:  # noqa: BLE001 - an answer that cannot be kept is not scored, but given
            self.hooks.trouble("identities", error)
            return None

    async def settle(self) -> None:
        """Wait for outcomes that are on their way."""
        if self._storing:
            await asyncio.wait(self._storing.values(), timeout=STORE_WAIT_S)

    async def events(self, decision_id: str, tenant: str) -> list[Event]:
        """All events of a logged decision of the tenant, the decision first.

        Raises:
            UnknownDecision: there is no such logged decision for the tenant.
            StoreError: the journal cannot be read now.
        """
        storing = self._storing.get(decision_id)
        if storing is not None:
            await asyncio.wait([storing], timeout=STORE_WAIT_S)
        events = [row.event for row in await read_in_time(self.journal.of, decision_id)]
        for event in events:
            if isinstance(event, Decision) and event.id == decision_id and event.identity.tenant == tenant:
                return [event, *(other for other in events if other is not event)]
        raise UnknownDecision(
            f"there is no logged decision {decision_id!r}; the id stands in the answer's 'x-fitrouter-decision' header"
        )


async def read_in_time(function: Callable[..., T], *arguments: Any) -> T:
    """What a blocking read of a store gives, off the loop and in time.

    Raises:
        StoreError: it fails or hangs.
    """
    try:
        async with asyncio.timeout(STORE_WAIT_S):
            return await asyncio.to_thread(function, *arguments)
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(f"the store cannot be read now ({type(error).__name__}); try again") from error


def execution_of(
    decision: Decision,
    ts: float,
    *,
    status: str,
    served_by: str | None,
    attempts: tuple[Attempt, ...],
    **measured: Any,
) -> Execution:
    """A decision has one execution: its id follows from the decision's, so a second one is a no-op."""
    return Execution(
        id=f"{decision.id}:execution",
        ts=ts,
        decision_id=decision.id,
        identity=decision.identity,
        chosen=decision.chosen,
        served_by=served_by,
        status=status,
        attempts=attempts,
        features=decision.features,
        **measured,
    )

"""Appends events in order and queues answer texts for the scorer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from fitrouter.draw import uuid7
from fitrouter.errors import InvalidRequest, StoreError, UnknownDecision, in_words
from fitrouter.hooks import Hooks
from fitrouter.identity import decision_id_of
from fitrouter.stores.content import pack_content
from fitrouter.stores.contents import ContentStore
from fitrouter.stores.futures import result_within
from fitrouter.stores.identities import Identities
from fitrouter.stores.journal import Entry, Journal
from fitrouter.stores.listing import story
from fitrouter.types import (
    DECLINED,
    FINISH_REASONS,
    Attempt,
    Decision,
    Event,
    Execution,
    Identity,
    Message,
    Refusal,
    Request,
    RunStep,
)

T = TypeVar("T")

DURABLE_WAIT_S = 0.05
"""How long an answer waits until its decision is durable."""
STORE_WAIT_S = 5.0
"""How long feedback, or the lookup of a decision, waits for the store."""
SHORT = 20_000
"""Characters of prompt and answer that are encrypted on the event loop, in .1 ms; longer ones in a thread."""
LOOK_S = 900.0
"""How long a plan that was looked at can be run."""
GROUPS = 64
"""Kinds of refused requests that are told apart between two `log_refusals`; of others only the tenant is kept."""


class Recorder:
    """Appends events to the journal in order, without delaying answers.

    Args:
        journal: the log.
        identities: have the users' keys.
        hooks: called with every event.
        wake: called whenever an event became durable.
        scored: whether a scorer reads the texts of answers.
        contents: keeps them; None for installations that do not.
    """

    def __init__(
        self,
        journal: Journal,
        identities: Identities,
        hooks: Hooks,
        wake: Callable[[], None],
        *,
        scored: bool = True,
        contents: ContentStore | None = None,
    ) -> None:
        self.journal, self.identities, self.hooks, self.wake = journal, identities, hooks, wake
        self._scored, self._contents = scored, contents
        self._storing: dict[str, asyncio.Task[None]] = {}
        self._refused = Counter[tuple[Identity, str, str, str]]()

    def refuse(self, identity: Identity, reason: str, model: str = "", key: str = "") -> None:
        """Count a request that is refused before a decision; see `Refusal` for the arguments.

        Refusing is cheap, and clients try again at once: the log grows by the kinds of refused requests, not by each.
        """
        group = msgspec.structs.replace(identity, session=None, task=None, run=None), reason, model, key
        if group not in self._refused and len(self._refused) >= GROUPS:
            group = Identity(tenant=identity.tenant), reason, "", ""
        self._refused[group] += 1

    def log_refusals(self, now: float) -> None:
        """Append the refused requests since the last call, added up."""
        refused, self._refused = self._refused, Counter()
        for (identity, reason, model, key), n in refused.items():
            self.append_event(
                Refusal(id=uuid7(now), ts=now, identity=identity, reason=reason, model=model, key=key, n=n)
            )

    def append_event(self, event: Event) -> Future[int] | None:
        """Notify the hooks of an event, and queue it."""
        self.hooks.happened(event)
        if isinstance(event, Decision) and event.identity.run:
            return self._append(Entry(event), Entry(step_of(event)))
        return self._append(Entry(event))

    def _append(self, *entries: Entry) -> Future[int] | None:
        """Queue entries for the journal; a failure is reported to the hooks, not raised."""
        try:
            future = self.journal.append(*entries)
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

    async def keep(self, event: Event, served_by: str | None = None) -> None:
        """Append an event, wait until it is durable, and notify the hooks.

        Raises:
            StoreError: the journal failed, or took longer than `STORE_WAIT_S`; the event may be stored nevertheless.
        """
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await asyncio.wrap_future(self.journal.append(Entry(event)))
        except Exception as error:
            self.hooks.trouble("journal", error)
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the journal failed ({in_words(error)}); try again") from error
        self.hooks.happened(event, served_by)
        self.wake()

    async def durable(self, decision: Decision, stored: Future[int] | None) -> bool:
        """Whether a decision became durable within `DURABLE_WAIT_S`."""
        if stored is not None:
            if not stored.done():
                with suppress(Exception):  # reported by _appended; a slow store must not delay the answer
                    await result_within(stored, DURABLE_WAIT_S)
            # On a busy loop the wait can time out although the store was in time.
            if stored.done() and not stored.cancelled() and stored.exception() is None:
                return True
        self.hooks.unlogged(decision.id)
        return False

    def append_outcome(
        self, prompt: str, request: Request, stored: Future[int] | None, execution: Execution, message: Message | None
    ) -> None:
        """Queue an execution for the journal, behind its decision.

        Args:
            prompt: text of the last user turn, for the scorer.
            request: whose tools the scorer reads.
            stored: the append of the decision.
            execution: how the request ended.
            message: the answer, if there is one.
        """
        self.hooks.happened(execution)
        if stored is not None:
            task = asyncio.create_task(self._store(prompt, request, stored, execution, message))
            self._storing[execution.decision_id] = task
            task.add_done_callback(lambda _: self._storing.pop(execution.decision_id, None))

    async def _store(
        self, prompt: str, request: Request, stored: Future[int], execution: Execution, message: Message | None
    ) -> None:
        """Append an outcome after its decision, unless the decision did not become durable."""
        try:
            await asyncio.wrap_future(stored)
        except Exception:  # noqa: BLE001 - reported by _appended
            return
        content = None
        if message is not None and (self._scored or self._contents is not None):
            await self._written(execution.identity.user)
            if self._is_quick(execution.identity, prompt, message):
                content = self._content(prompt, request, execution, message)
            else:
                content = await asyncio.to_thread(self._content, prompt, request, execution, message)
        self._append(Entry(execution, content))

    async def _written(self, subject: str | None) -> None:
        """Wait until a minted subject is written: the scorer of another process reads its key from the file."""
        try:
            if subject is not None and (writing := self.identities.writing(subject)) is not None:
                await result_within(writing, STORE_WAIT_S)
        except (StoreError, TimeoutError) as error:  # this process knows the key
            self.hooks.trouble("identities", error)

    def _is_quick(self, identity: Identity, prompt: str, message: Message) -> bool:
        """Whether `_content` is faster than waiting for a thread: a short text, and nothing to read or write."""
        texts = [prompt, *(value for value in message.values() if value is not None)]
        if self._contents is not None or not all(isinstance(text, str) for text in texts):
            return False
        return sum(map(len, texts)) <= SHORT and self.identities.at_hand(identity.user, identity.tenant)

    def _content(self, prompt: str, request: Request, execution: Execution, message: Message) -> bytes | None:
        """Encrypt what the scorer needs of an answer, and store it if contents are kept. Blocks on the disk."""
        identity = execution.identity
        try:
            text = pack_content(prompt, message, request.params.get("tools"))
            if self._contents is not None:
                self._keep(self._contents, execution, text)
            return self.identities.encrypt(identity.user, text, tenant=identity.tenant) if self._scored else None
        except Exception as error:  # noqa: BLE001 - an answer that cannot be stored is not scored, but delivered
            self.hooks.trouble("identities", error)
            return None

    def _keep(self, contents: ContentStore, execution: Execution, text: str) -> None:
        identity = execution.identity
        try:
            contents.keep(execution.decision_id, identity.user, identity.tenant, text)
        except StoreError as error:  # it costs neither the answer nor its score
            self.hooks.trouble("content", error)

    async def keep_comment(self, decision: Decision, text: str | None, *, withdrawn: bool = False) -> None:
        """Store the text of a comment where contents are kept; delete it if it was withdrawn."""
        if self._contents is not None and (text is not None or withdrawn):
            try:
                await read_in_time(self._contents.keep_comment, decision, None if withdrawn else text)
            except StoreError as error:  # what was understood counts nevertheless
                self.hooks.trouble("content", error)

    async def settle(self) -> None:
        """Wait until the queued outcomes are appended."""
        if self._storing:
            await asyncio.wait(self._storing.values(), timeout=STORE_WAIT_S)

    async def stored(self, decision_ids: Iterable[str]) -> None:
        """Wait until the queued outcomes of some decisions are appended."""
        if storing := [self._storing[each] for each in decision_ids if each in self._storing]:
            await asyncio.wait(storing, timeout=STORE_WAIT_S)

    async def events(self, decision_id: str, tenant: str | None) -> list[Event]:
        """All events of a logged decision, the decision first; see `story`."""
        await self.stored([decision_id_of(decision_id)])
        return await read_in_time(story, self.journal, decision_id, tenant)


async def read_in_time(function: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking read of a store off the event loop, with a timeout.

    Raises:
        StoreError: it fails or times out.
    """
    try:
        async with asyncio.timeout(STORE_WAIT_S):
            return await asyncio.to_thread(function, *arguments)
    except (InvalidRequest, StoreError, UnknownDecision):
        raise
    except Exception as error:
        raise StoreError(f"the store cannot be read now ({in_words(error)}); try again") from error


def step_of(decision: Decision) -> RunStep:
    """Make the event that a decision is a step of its run."""
    return RunStep(id=f"{decision.id}:step", ts=decision.ts, decision_id=decision.id, identity=decision.identity)


def declined(decision: Decision, ts: float) -> Execution:
    """Make the execution of a plan that was looked at and is not run."""
    return execution_of(decision, ts, status=DECLINED, served_by=None, attempts=())


def execution_of(
    decision: Decision, ts: float, *, status: str, served_by: str | None, attempts: tuple[Attempt, ...], **measured: Any
) -> Execution:
    """Make the execution of a decision; its id derives from the decision's, so that a second one is a no-op."""
    if measured.get("finish_reason") not in {None, *FINISH_REASONS}:  # a reported one, or of a provider of others
        measured["finish_reason"] = "other"
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
        payer=decision.payer,
        key=decision.key,
        **measured,
    )

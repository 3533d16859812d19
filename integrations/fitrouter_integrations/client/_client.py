"""A client for every kind of caller: one event loop in a thread of its own.

Agents call from plain functions, threads, and short-lived event loops, while a router lives on one loop. So every call
crosses over to the client's loop: blocking methods wait for it, async ones do not block their own loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from fitrouter.config import load_config
from fitrouter.errors import ConfigError
from fitrouter.router import Router
from fitrouter.serving.external import Outcome
from fitrouter.serving.feedback import Understood
from fitrouter.serving.runs import Reported
from fitrouter.types import Chunk, Request
from fitrouter_integrations.client._base import (
    About,
    Comment,
    Model,
    ObservedCall,
    Plan,
    Reply,
    RunVote,
    Streaming,
    Target,
    Vote,
    is_url,
    key_of,
)
from fitrouter_integrations.client._local import LocalBackend
from fitrouter_integrations.client._remote import RemoteBackend

Backend: TypeAlias = LocalBackend | RemoteBackend
"""A router, in process or behind a gateway. All methods run on the event loop of `start`."""
T = TypeVar("T")
_Decided = TypeVar("_Decided", Reply, Streaming, Plan)
_USERS = 10_000
"""Decisions whose users are known."""


class Client:
    """A router for any caller: blocking methods, and the same prefixed with `a` for `await`.

    Threads and event loops may share a client. It belongs to one process: after a fork its use raises ConfigError.

    Args:
        backend: the router; started at the first use, and closed by `close`.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._users: OrderedDict[str, str] = OrderedDict()
        """Decision → user of its request, of the latest ones: a report on their run needs it."""

    # --- requests ---

    def models(self) -> tuple[Model, ...]:
        """The models that may answer."""
        return self._wait(self.backend.models)

    def complete(self, request: Request) -> Reply:
        """Return the complete answer to a request; raises as `Router.complete`."""
        return self._noted(request, self._wait(partial(self.backend.complete, request)))

    async def acomplete(self, request: Request) -> Reply:
        """Return the complete answer to a request."""
        return self._noted(request, await self._await(partial(self.backend.complete, request)))

    def stream(self, request: Request) -> BlockingStream:
        """Answer a request as a stream; returns with the first chunk."""
        return BlockingStream(self, self._noted(request, self._wait(partial(self.backend.stream, request))))

    async def astream(self, request: Request) -> AwaitingStream:
        """Answer a request as a stream; returns with the first chunk."""
        return AwaitingStream(self, self._noted(request, await self._await(partial(self.backend.stream, request))))

    def _noted(self, request: Request, found: _Decided) -> _Decided:
        """Note whose request was decided."""
        if request.identity.user is not None:
            with self._mutex:
                self._users[found.about.decision_id] = request.identity.user
                if len(self._users) > _USERS:
                    self._users.popitem(last=False)
        return found

    def _theirs(self, vote: RunVote) -> RunVote:
        """A report on the run of a noted decision, with its user."""
        user = vote.user or self._users.get(vote.run)
        return msgspec.structs.replace(vote, user=user)

    # --- answered elsewhere ---

    def decide(self, request: Request) -> Plan:
        """Plan a request without calling a model, for `report`; raises as `Router.decide`."""
        return self._noted(request, self._wait(partial(self.backend.decide, request)))

    async def adecide(self, request: Request) -> Plan:
        """Plan a request without calling a model."""
        return self._noted(request, await self._await(partial(self.backend.decide, request)))

    def look(self, request: Request) -> Plan:
        """Plan a request to be looked at; a request with its id as `plan` runs it. Raises as `Router.look`."""
        return self._wait(partial(self.backend.look, request))

    async def alook(self, request: Request) -> Plan:
        """Plan a request to be looked at."""
        return await self._await(partial(self.backend.look, request))

    def report(self, decision_id: str, request: Request, ended: Outcome) -> float | None:
        """Record the outcome of a plan; returns its cost in USD, None without a price. Raises as `Router.report`."""
        return self._wait(partial(self.backend.report, decision_id, request, ended))

    async def areport(self, decision_id: str, request: Request, ended: Outcome) -> float | None:
        """Record the outcome of a plan; returns its cost in USD, None without a price."""
        return await self._await(partial(self.backend.report, decision_id, request, ended))

    def observe(self, seen: ObservedCall) -> About:
        """Record a call that was decided elsewhere; raises as `Router.observe`."""
        return self._wait(partial(self.backend.observe, seen))

    async def aobserve(self, seen: ObservedCall) -> About:
        """Record a call that was decided elsewhere."""
        return await self._await(partial(self.backend.observe, seen))

    # --- feedback ---

    def feedback(self, vote: Vote) -> str:
        """Record feedback; returns its id once durable. Raises as `Router.feedback`."""
        return self._wait(partial(self.backend.feedback, vote))

    async def afeedback(self, vote: Vote) -> str:
        """Record feedback; returns its id once durable."""
        return await self._await(partial(self.backend.feedback, vote))

    def outcome(self, vote: RunVote) -> Reported:
        """Report how a run of an agent ended; returns once durable. Raises as `Runs.outcome`."""
        return self._wait(partial(self.backend.outcome, self._theirs(vote)))

    async def aoutcome(self, vote: RunVote) -> Reported:
        """Report how a run of an agent ended; returns once durable."""
        return await self._await(partial(self.backend.outcome, self._theirs(vote)))

    def comment(self, comment: Comment) -> Understood:
        """Record a comment on an answer; returns what was understood. Raises as `Router.comment`."""
        return self._wait(partial(self.backend.comment, comment))

    async def acomment(self, comment: Comment) -> Understood:
        """Record a comment on an answer; returns what was understood."""
        return await self._await(partial(self.backend.comment, comment))

    # --- lifecycle ---

    @property
    def closed(self) -> bool:
        """Whether the client has been closed."""
        return self._closed

    def close(self) -> None:
        """Close the router after the calls in progress; later calls raise."""
        with self._mutex:
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return  # never used
        asyncio.run_coroutine_threadsafe(self.backend.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- crossing to the client's loop ---

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = self._running()
        future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller was interrupted
            raise

    async def _await(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        # The first use starts the router, which takes a moment; do not block the caller's loop.
        loop = self._running() if self._loop is not None else await asyncio.to_thread(self._running)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop))

    def _running(self) -> asyncio.AbstractEventLoop:
        """Return the client's event loop; starts it and the backend at the first use.

        Raises:
            ConfigError: the client is closed or was inherited by a fork, or the backend cannot be started.
        """
        if self._pid != os.getpid():
            raise ConfigError(
                f"this client was created in process {self._pid} but is used in {os.getpid()} after a fork, which does "
                "not copy its threads; create it in each worker, or start workers with 'spawn'"
            )
        with self._mutex:
            if self._closed:
                raise ConfigError("this client is closed; connect again")
            if self._loop is None:
                self._loop = self._begin()
            return self._loop

    def _begin(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="fitrouter-client", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.backend.start(), loop).result()
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            raise
        self._thread = thread
        return loop


class _Crossing:
    """A streamed answer whose calls run on the client's event loop."""

    def __init__(self, client: Client, stream: Streaming) -> None:
        self._client, self._stream = client, stream

    @property
    def about(self) -> About:
        """The decision, with its cost once the stream has ended."""
        return self._stream.about


class BlockingStream(_Crossing):
    """A streamed answer for blocking code; leaving the loop early ends the model call."""

    def __iter__(self) -> Iterator[Chunk]:
        chunks = aiter(self._stream)
        try:
            while (chunk := self._client._wait(partial(_next, chunks))) is not None:
                yield chunk
        finally:
            self.close()

    def close(self) -> None:
        """End the stream early."""
        self._client._wait(self._stream.aclose)


class AwaitingStream(_Crossing):
    """A streamed answer for any event loop; leaving the loop early ends the model call."""

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        chunks = aiter(self._stream)
        try:
            while (chunk := await self._client._await(partial(_next, chunks))) is not None:
                yield chunk
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End the stream early."""
        await self._client._await(self._stream.aclose)


async def _next(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


# --- clients of this process ---------------------------------------------------------------------------------------

_clients: dict[tuple[str | int, str | None], Client] = {}
_mutex = threading.Lock()


def connect(target: Target, key: str | None = None) -> Client:
    """Return the client of a router, the same for the same target, so that agents share one router and journal.

    Args:
        target: a `Router` that is not started, the path of a configuration, or the URL of a gateway.
        key: of the gateway; by default from the environment variable FITROUTER_API_KEY.

    Raises:
        ConfigError: the configuration is invalid, or the router was already started.
    """
    remote = not isinstance(target, Router) and is_url(os.fspath(target))
    name = key_of(target), key if remote else None  # a router in this process has no key
    with _mutex:
        known = _clients.get(name)
        if known is None or known.closed:
            known = _clients[name] = Client(_backend(target, key))
        return known


def _backend(target: Target, key: str | None) -> Backend:
    if isinstance(target, Router):
        if target.started:
            raise ConfigError("this Router was already started on another event loop; give one that is not started")
        return LocalBackend(target)
    text = os.fspath(target)
    return RemoteBackend(text, key) if is_url(text) else LocalBackend(Router.from_config(load_config(text)))


def _close_all() -> None:
    for client in list(_clients.values()):
        client.close()


def _after_fork() -> None:
    """Forget inherited clients after a fork; using them raises, as does `connect` with one of their routers."""
    global _mutex
    _mutex = threading.Lock()
    for name in [name for name in _clients if not isinstance(name[0], int)]:
        del _clients[name]


# Runs before thread pools shut down, which closing a router still needs; plain `atexit` callbacks run after them.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
os.register_at_fork(after_in_child=_after_fork)

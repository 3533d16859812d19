"""The client: one event loop of its own in a thread, so that every kind of caller can use one router.

Agents call from plain functions, from threads, and from event loops that come and go; a router lives on one loop. Every
call therefore crosses over to the client's own: blocking methods wait for it, awaiting ones do not hold their loop up.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from fitrouter.errors import ConfigError
from fitrouter.router import Router
from fitrouter.serving.external import Outcome
from fitrouter.types import Chunk, Request
from fitrouter_integrations.client._base import (
    About,
    Backend,
    Model,
    Plan,
    Reply,
    Seen,
    Streaming,
    Target,
    Vote,
    is_url,
    key_of,
)

T = TypeVar("T")


class Client:
    """A router for any caller: blocking methods, and the same with `a` in front for `await`.

    Threads and event loops may share one. It lives in one process: a fork has no threads, so that use after it raises.

    Args:
        backend: the router; it is started at the first use, and closed by `close`.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    # --- requests ---

    def models(self) -> tuple[Model, ...]:
        """The models that may answer."""
        return self._wait(self.backend.models)

    def complete(self, request: Request) -> Reply:
        """Answer a request whole. Raises what `Router.complete` raises."""
        return self._wait(partial(self.backend.complete, request))

    async def acomplete(self, request: Request) -> Reply:
        """Answer a request whole."""
        return await self._await(partial(self.backend.complete, request))

    def stream(self, request: Request) -> BlockingStream:
        """Answer a request piece by piece; returns with the first piece."""
        return BlockingStream(self, self._wait(partial(self.backend.stream, request)))

    async def astream(self, request: Request) -> AwaitingStream:
        """Answer a request piece by piece; returns with the first piece."""
        return AwaitingStream(self, await self._await(partial(self.backend.stream, request)))

    # --- answered elsewhere ---

    def decide(self, request: Request) -> Plan:
        """Decide and call nobody; `report` takes how it ended. Raises what `Router.decide` raises."""
        return self._wait(partial(self.backend.decide, request))

    async def adecide(self, request: Request) -> Plan:
        """Decide and call nobody."""
        return await self._await(partial(self.backend.decide, request))

    def report(self, decision_id: str, request: Request, ended: Outcome) -> float:
        """Write down how a plan ended; returns what it cost in USD. Raises what `Router.report` raises."""
        return self._wait(partial(self.backend.report, decision_id, request, ended))

    async def areport(self, decision_id: str, request: Request, ended: Outcome) -> float:
        """Write down how a plan ended; returns what it cost in USD."""
        return await self._await(partial(self.backend.report, decision_id, request, ended))

    def observe(self, seen: Seen) -> About:
        """Write down a call that was decided elsewhere. Raises what `Router.observe` raises."""
        return self._wait(partial(self.backend.observe, seen))

    async def aobserve(self, seen: Seen) -> About:
        """Write down a call that was decided elsewhere."""
        return await self._await(partial(self.backend.observe, seen))

    # --- what people say ---

    def feedback(self, vote: Vote) -> str:
        """Take a verdict on an answer; returns its id once it is durable. Raises what `Router.feedback` raises."""
        return self._wait(partial(self.backend.feedback, vote))

    async def afeedback(self, vote: Vote) -> str:
        """Take a verdict on an answer."""
        return await self._await(partial(self.backend.feedback, vote))

    # --- life ---

    @property
    def closed(self) -> bool:
        """Whether it can be used no more."""
        return self._closed

    def close(self) -> None:
        """Settle and close the router. What was asked before ends first; later calls raise."""
        with self._mutex:
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return  # it was never used
        asyncio.run_coroutine_threadsafe(self.backend.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- crossing over ---

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = self._running()
        future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller was interrupted: nobody waits for this answer
            raise

    async def _await(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        # The first use starts the router, which takes a moment; the caller's loop goes on meanwhile.
        loop = self._running() if self._loop is not None else await asyncio.to_thread(self._running)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop))

    def _running(self) -> asyncio.AbstractEventLoop:
        """The client's loop, with the backend started.

        Raises:
            ConfigError: the client is closed or was inherited by a fork, or the backend cannot be started.
        """
        if self._pid != os.getpid():
            raise ConfigError(
                f"this router was made in process {self._pid} and is used in {os.getpid()}, after a fork, which leaves "
                "its threads behind; make it in each worker, or start workers with 'spawn'"
            )
        with self._mutex:
            if self._closed:
                raise ConfigError("this router is closed; connect again")
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


class BlockingStream:
    """A streamed answer for plain code; leaving the loop early ends the model's work."""

    def __init__(self, client: Client, stream: Streaming) -> None:
        self._client, self._stream = client, stream

    @property
    def about(self) -> About:
        """What was decided; with its cost once the stream has ended."""
        return self._stream.about

    def __iter__(self) -> Iterator[Chunk]:
        chunks = aiter(self._stream)
        try:
            while (chunk := self._client._wait(partial(_next, chunks))) is not None:
                yield chunk
        finally:
            self.close()

    def close(self) -> None:
        """End it early."""
        self._client._wait(self._stream.aclose)


class AwaitingStream:
    """A streamed answer for any event loop; leaving the loop early ends the model's work."""

    def __init__(self, client: Client, stream: Streaming) -> None:
        self._client, self._stream = client, stream

    @property
    def about(self) -> About:
        """What was decided; with its cost once the stream has ended."""
        return self._stream.about

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        chunks = aiter(self._stream)
        try:
            while (chunk := await self._client._await(partial(_next, chunks))) is not None:
                yield chunk
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End it early."""
        await self._client._await(self._stream.aclose)


async def _next(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


# --- clients of this process ---------------------------------------------------------------------------------------

_clients: dict[tuple[str | int, str | None], Client] = {}
_mutex = threading.Lock()


def connect(target: Target, key: str | None = None) -> Client:
    """The client of a router. The same target gives the same client, so that agents share one router and its journal.

    Args:
        target: a `Router` that was not started, the path of a configuration, or the URL of a gateway.
        key: of the gateway; the environment variable FITROUTER_API_KEY where None.

    Raises:
        ConfigError: the configuration cannot be used, or the router was started elsewhere.
    """
    far = not isinstance(target, Router) and is_url(os.fspath(target))
    name = key_of(target), key if far else None  # a router of this process has no key
    with _mutex:
        known = _clients.get(name)
        if known is None or known.closed:
            known = _clients[name] = Client(_backend(target, key))
        return known


def _backend(target: Target, key: str | None) -> Backend:
    if isinstance(target, Router):
        from fitrouter_integrations.client._local import LocalBackend

        if target.started:
            raise ConfigError("this Router was started on an event loop of its own; give one that was not started yet")
        return LocalBackend(target)
    if is_url(text := os.fspath(target)):
        from fitrouter_integrations.client._remote import RemoteBackend

        return RemoteBackend(text, key)
    from fitrouter.config import load_config
    from fitrouter_integrations.client._local import LocalBackend

    return LocalBackend(Router.from_config(load_config(text)))


def _close_all() -> None:
    for client in list(_clients.values()):
        client.close()


def _after_fork() -> None:
    """A child begins without clients; those that it inherited raise, as does whoever asks for one of their routers."""
    global _mutex
    _mutex = threading.Lock()
    for name in [name for name in _clients if not isinstance(name[0], int)]:
        del _clients[name]


# Before thread pools shut down, which a router that is closing still needs; `atexit` alone comes after them.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
os.register_at_fork(after_in_child=_after_fork)

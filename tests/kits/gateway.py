"""What tests of the router and the gateway stand on: scripted models, a router over them, and a server on loopback."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from fitrouter.config import Config, ServerConfig, parse_config
from fitrouter.context.encoders import Hashing
from fitrouter.context.features import context_names
from fitrouter.hooks import Hooks, Notice
from fitrouter.policies import SquareCB
from fitrouter.providers import Provider
from fitrouter.router import Router
from fitrouter.routing.decider import Decider, Rules
from fitrouter.serving.attempts import Timers
from fitrouter.state.learner import Learner
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import Journal, MemoryJournal
from fitrouter.types import Call, Chunk, Completion, EmbeddingCall, Embeddings, Message, ModelCard, Prices, Usage
from fitrouter_dashboards.metrics import Metrics
from fitrouter_integrations.gateway import bind, create_app
from fitrouter_integrations.gateway._worker import server_of

NAMES = ("alpha", "beta", "gamma")
PATIENCE_S = 300.0
"""What anything may take where time is not the subject: machines are shared and busy."""


class Echo:
    """Answers with the model's name and the last message, in three pieces; or with `message`, whatever is asked."""

    def __init__(self, message: Message | None = None) -> None:
        self.calls: list[Call] = []
        self.message = message

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        self.calls.append(call)
        message = self.message or {
            "role": "assistant",
            "content": f"{call.target} heard {call.messages[-1].get('content')}",
        }
        usage = Usage(prompt_tokens=7, completion_tokens=11)
        if not call.stream:
            reason = "tool_calls" if message.get("tool_calls") else "stop"
            return Completion(message=message, finish_reason=reason, usage=usage)
        return self._stream(message, usage)

    async def embed(self, call: EmbeddingCall) -> Embeddings:
        self.calls.append(Call(target=call.target, messages=(), params=call.params))
        return Embeddings(data=msgspec.Raw(b'[{"embedding": [1.0]}]'), usage=Usage(prompt_tokens=5))

    async def _stream(self, message: Message, usage: Usage) -> AsyncIterator[Chunk]:
        if message.get("tool_calls"):
            calls = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
            yield Chunk(delta={"role": "assistant", "tool_calls": calls})
            yield Chunk(finish_reason="tool_calls")
        else:
            text = message["content"]
            third = max(1, len(text) // 3)
            for piece in (text[:third], text[third : 2 * third], text[2 * third :]):
                yield Chunk(delta={"content": piece})
            yield Chunk(finish_reason="stop")
        yield Chunk(usage=usage)

    async def aclose(self) -> None:
        """Nothing is open."""


def cards(names: Sequence[str] = NAMES, provider: Callable[[str], str] = lambda name: "echo") -> list[ModelCard]:
    """A card for each name, 1 and 2 USD per million tokens."""
    prices = Prices(input=1.0, output=2.0)
    return [ModelCard(name=name, provider=provider(name), target=name, prices=prices) for name in names]


def make_router(
    folder: Path,
    providers: Mapping[str, Provider] | None = None,
    *,
    models: Sequence[ModelCard] | None = None,
    journal: Journal | None = None,
    rules: Rules | None = None,
    timers: Timers | None = None,
    hook: Callable[[Notice], None] | None = None,
    **more: Any,
) -> Router:
    """A router without files but its identities, and without a scorer."""
    learner = more.pop("learner", None) or Learner(len(context_names()), 1, expects_scores=False)
    return Router(
        cards=models or cards(),
        providers=providers or {"echo": Echo()},
        decider=Decider(
            SquareCB(20.0),
            learner,
            rules or Rules(registry="r1"),
            candidates=more.pop("candidates", None),
        ),
        learner=learner,
        journal=journal or MemoryJournal(),
        identities=more.pop("identities", None) or SqliteIdentities(folder / "identities.db"),
        encoder=Hashing(),
        timers=timers or Timers(deadline_s=PATIENCE_S, first_token_s=PATIENCE_S, chunk_gap_s=PATIENCE_S),
        hooks=Hooks(*([] if hook is None else [hook])),
        **more,
    )


DEFAULT_PORT = ServerConfig().port
_DATA = tempfile.TemporaryDirectory(prefix="fitrouter-")


def config(names: Sequence[str] = NAMES, **server: Any) -> Config:
    """A configuration for `create_app`, with the models of `make_router`."""
    prices = {"input": 1.0, "output": 2.0}
    return parse_config(
        {
            "data": _DATA.name,
            "providers": {"echo": {"kind": "simulated"}},
            "models": [{"name": name, "provider": "echo", "prices": prices} for name in names],
            "server": {"port": 0, **server},
        }
    )


@contextmanager
def serving(
    router: Router, settings: Config | None = None, metrics: Metrics | None = None, grace_s: float = 5.0
) -> Iterator[str]:
    """The gateway over a router, on a real socket in a thread; yields http://127.0.0.1:PORT."""
    settings = settings or config()
    assert settings.server.port != DEFAULT_PORT, "set server.port to 0: other tests' commands would reach it"
    server = server_of(create_app(router, settings, metrics), grace_s)
    with bind(settings) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait_for(lambda: server.started or not thread.is_alive())
            assert server.started, "the gateway did not start"
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the gateway did not stop"


def wait_for(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """The first true value of `condition`; fails the test when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
    return value


def folded(router: Router) -> None:
    """Wait until the router of another thread has folded all events.

    Its position is ahead of its state while it folds; it does that between two turns of its event loop.
    """
    wait_for(lambda: router._learner.seq == router._journal.head())
    loop, turned = router._follower._loop, threading.Event()
    assert loop is not None
    loop.call_soon_threadsafe(turned.set)
    assert turned.wait(PATIENCE_S)


def chat(text: str = "Hello", **more: Any) -> dict[str, Any]:
    """A body of POST /v1/chat/completions."""
    return {"model": "fitrouter/auto", "messages": [{"role": "user", "content": text}], **more}


def client(url: str, **more: Any) -> httpx.Client:
    """A client of a gateway; it never waits for ever."""
    return httpx.Client(base_url=url, timeout=PATIENCE_S, **more)


def raw(url: str, payload: bytes, timeout_s: float = PATIENCE_S) -> bytes:
    """What a server answers to bytes on a socket, until it closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(payload)
        received = b""
        while part := connection.recv(65_536):
            received += part
    return received

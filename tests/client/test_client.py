"""The client for plain code, threads and event loops, in process and over HTTP, with the same answers and errors."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.kits.gateway import Echo, config, make_router, serving

from fitrouter.errors import (
    AllModelsFailed,
    ConfigError,
    FitrouterError,
    InvalidRequest,
    NotAuthorized,
    ProviderError,
    UnknownDecision,
)
from fitrouter.providers import Fault, Faulty, Provider
from fitrouter.types import FeedbackKind, Identity, Request
from fitrouter_integrations.client import Client, Reply, Vote, connect
from fitrouter_integrations.client._local import LocalBackend

SIMULATED = """
providers: {s: {kind: simulated, options: {m: {length: 2, latency_s: 0.0}}}}
models: [{name: m, provider: s}]
encoder: hashing
scorer: {encoder: hashing}
"""
WORKER = """
import sys
from fitrouter.types import Identity, Request
from fitrouter_integrations.client import connect
with connect(sys.argv[1]) as client:
    for _ in range(3):
        request = Request(messages=({"role": "user", "content": "hello"},), identity=Identity(user=sys.argv[2]))
        print(client.complete(request).about.decision_id)
"""
HELLO = ({"role": "user", "content": "hello"},)


def ask(user: str = "ann", **more: Any) -> Request:
    return Request(messages=HELLO, identity=Identity(user=user, role="nurse"), **more)


@pytest.fixture(params=["near", "far"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """A client of a router in this process, and one of a gateway."""
    if request.param == "near":
        with Client(LocalBackend(make_router(tmp_path))) as made:
            yield made
    else:
        with serving(make_router(tmp_path)) as url, connect(url) as made:
            yield made


def test_whole_and_streamed_answers_carry_the_decision(client: Client) -> None:
    """Both have the answer, usage, model, propensity and cost; a stream has its cost at the end."""
    reply = client.complete(ask())
    assert reply.message["content"] == f"{reply.about.model} heard hello"
    assert reply.finish_reason == "stop"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (7, 11)
    assert reply.about.cost_usd == pytest.approx((7 + 2 * 11) / 1e6)
    assert 0 < reply.about.propensity <= 1
    stream = client.stream(ask("bob"))
    assert stream.about.decision_id != reply.about.decision_id
    chunks = list(stream)
    text = "".join(chunk.delta.get("content") or "" for chunk in chunks)
    assert text == f"{stream.about.model} heard hello"
    assert stream.about.cost_usd == pytest.approx((7 + 2 * 11) / 1e6)
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [11]


async def test_async_and_blocking_calls_inside_a_running_loop(client: Client) -> None:
    """Both work inside a running loop, and async calls from several loops at once."""
    assert (await client.acomplete(ask())).finish_reason == "stop"
    assert client.complete(ask()).finish_reason == "stop"
    pieces = [chunk async for chunk in await client.astream(ask())]
    assert len(pieces) >= 3
    with ThreadPoolExecutor(4) as pool:
        loops = [pool.submit(asyncio.run, client.acomplete(ask(f"u{i}"))) for i in range(8)]
        assert len({loop.result().about.decision_id for loop in loops}) == 8


def test_users_rate_their_own_answers_only(client: Client) -> None:
    """A vote with a user must come from the user who got the answer."""
    replies = {user: client.complete(ask(user)) for user in ("ann", "bob")}
    for user, reply in replies.items():
        client.feedback(Vote(**_thumb(reply), user=user))
    with pytest.raises(NotAuthorized):
        client.feedback(Vote(**_thumb(replies["ann"]), user="bob"))


def _thumb(reply: Reply) -> dict[str, Any]:
    return {"decision_id": reply.about.decision_id, "kind": FeedbackKind.THUMB, "value": 1.0}


def test_errors_are_the_same_in_process_and_over_http(client: Client) -> None:
    """Callers get the router's exceptions from either backend."""
    with pytest.raises(InvalidRequest, match="unknown model 'nobody'"):
        client.complete(ask(model="nobody"))
    with pytest.raises(UnknownDecision):
        client.feedback(Vote(decision_id="0", kind=FeedbackKind.THUMB, value=1.0))
    reply = client.complete(ask())
    with pytest.raises(InvalidRequest, match="scale"):
        client.feedback(Vote(decision_id=reply.about.decision_id, kind=FeedbackKind.RATING, value=9.0, scale=(1, 5)))
    assert client.feedback(Vote(decision_id=reply.about.decision_id, kind=FeedbackKind.RATING, value=4, scale=(1, 5)))


async def test_a_busy_gateway_is_asked_again(tmp_path: Path) -> None:
    """Requests that were not admitted wait as long as the gateway says; with a deadline, not beyond it."""
    router = make_router(tmp_path, {"echo": Faulty(Echo(), itertools.repeat(Fault(delay_s=0.3)))})
    with serving(router, config(max_requests=2)) as url, connect(url) as client:
        replies = await asyncio.gather(*(client.acomplete(ask(f"u{i}")) for i in range(6)))
        assert len({reply.about.decision_id for reply in replies}) == 6
        held = [asyncio.create_task(client.acomplete(ask("ann"))) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(FitrouterError):
            await client.acomplete(ask("bob", deadline_s=0.05))
        await asyncio.gather(*held)


def test_leaving_a_stream_early_ends_the_model_call(client: Client) -> None:
    """The model call ends, and the client stays usable."""
    for _chunk in client.stream(ask()):
        break
    client.stream(ask()).close()
    assert client.complete(ask()).finish_reason == "stop"


class Breaks(Echo):
    """Streams one piece, then fails."""

    async def _stream(self, message: Any, usage: Any) -> Any:
        async for chunk in super()._stream(message, usage):
            yield chunk
            raise ProviderError("gone")


class Down(Echo):
    """Never answers."""

    async def complete(self, call: Any) -> Any:
        raise ProviderError("down")


@pytest.mark.parametrize(("provider", "error"), [(Breaks(), ProviderError), (Down(), AllModelsFailed)])
@pytest.mark.parametrize("far", [False, True])
def test_broken_answers_raise(tmp_path: Path, provider: Provider, error: type[Exception], far: bool) -> None:
    """A stream that breaks off raises instead of looking complete, and so does a request without an answer."""
    router = make_router(tmp_path, {"echo": provider})
    if not far:
        with Client(LocalBackend(router)) as client, pytest.raises(error):
            list(client.stream(ask()))
    else:
        with serving(router) as url, connect(url) as client, pytest.raises(error):
            list(client.stream(ask()))


def test_targets(tmp_path: Path) -> None:
    """The same configuration or URL gives the same client; an invalid target is an error."""
    config = tmp_path / "fitrouter.yaml"
    config.write_text(SIMULATED)
    with connect(config) as client:
        assert connect(str(config)) is client
        assert client.complete(ask()).about.model == "m"
    with pytest.raises(ConfigError, match="closed"):
        client.complete(ask())
    assert connect(config) is not client
    with pytest.raises(ConfigError, match="there is no file"):
        connect(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="fitrouter serve"):
        connect("http://127.0.0.1:9").complete(ask())


async def test_a_started_router_is_refused(tmp_path: Path) -> None:
    """A router belongs to the event loop that it was started on."""
    async with make_router(tmp_path) as router:
        with pytest.raises(ConfigError, match="not started"):
            connect(router)


def _in_child(client: Client, out: Any) -> None:
    try:
        client.complete(ask())
    except ConfigError as error:
        out.put(str(error))
    except BaseException as error:  # noqa: BLE001
        out.put(repr(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_use_after_a_fork_is_an_error(tmp_path: Path) -> None:
    """A child process that inherited a client gets an error with the remedy."""
    with Client(LocalBackend(make_router(tmp_path))) as client:
        client.complete(ask())
        context = multiprocessing.get_context("fork")
        out = context.Queue()
        child = context.Process(target=_in_child, args=(client, out))
        child.start()
        said = out.get(timeout=300)
        child.join(300.0)
        assert "spawn" in said
        assert "after a fork" in said
        assert client.complete(ask()).finish_reason == "stop"


def test_workers_share_a_journal(tmp_path: Path) -> None:
    """Processes with their own clients of one configuration lose no events and mix none up."""
    config = tmp_path / "fitrouter.yaml"
    config.write_text(SIMULATED)
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(config), f"u{i}"], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    said = [worker.communicate(timeout=300)[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    ids = {decision for made in said for decision in made}
    assert len(ids) == 6
    with connect(config) as client:
        for i, made in enumerate(said):
            for decision in made:
                client.feedback(Vote(decision_id=decision, kind=FeedbackKind.THUMB, value=1.0, user=f"u{i}"))


LEFT_OPEN = """
import sys
from fitrouter.serving import recorder
from fitrouter.types import Identity, Request
from fitrouter_integrations.client import connect
recorder.DURABLE_WAIT_S = 60.0  # commits may be slow on a busy machine
request = Request(messages=({"role": "user", "content": "hello"},), identity=Identity(user="ann"))
print(connect(sys.argv[1]).complete(request).about.decision_id)
"""


def test_a_client_that_is_left_open_settles_at_exit(tmp_path: Path) -> None:
    """Decisions are in the journal after an exit without `close`, which prints nothing."""
    config = tmp_path / "fitrouter.yaml"
    config.write_text(SIMULATED)
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, str(config)], capture_output=True, text=True, timeout=300, check=True
    )
    assert ended.stderr == ""
    with connect(config) as client:
        assert client.feedback(Vote(decision_id=ended.stdout.strip(), kind=FeedbackKind.THUMB, value=1.0))


def test_closing_settles(tmp_path: Path) -> None:
    """Threads that call while it closes get an answer or an error; nothing hangs."""
    client = Client(LocalBackend(make_router(tmp_path)))
    client.complete(ask())
    outcomes: list[str] = []

    def agent() -> None:
        try:
            outcomes.append(client.complete(ask()).finish_reason)
        except ConfigError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=agent) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300.0)
    client.close()
    client.close()
    agent()
    assert outcomes[:4] == ["stop"] * 4
    assert "closed" in outcomes[4]

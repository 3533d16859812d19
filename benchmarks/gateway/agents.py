"""Overhead of each adapter per call, compared with the frameworks' own clients: CPU time, wall time, and throughput.

    OMP_NUM_THREADS=1 python -m benchmarks.gateway.agents --json results/agents.json --table table.md

Simulated models answer at once, so that only overhead is left. *Near* is a router in this process, *far* a gateway of
one worker in another process, both with the journal on disk and a scorer; *loopback* is a bare server of the OpenAI
protocol in a third process. Rounds cycle through all rows, so that other load affects them alike. CPU time includes all
threads of this process and the server, as medians over rounds; folding and scoring after an answer are waited for and
counted. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

os.environ.update(
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_DISABLE_TRACKING="true",
    CREWAI_TRACING_ENABLED="false",
    OTEL_SDK_DISABLED="true",
)

import aiohttp
from benchmarks.gateway.process import Gateway

from fitrouter.config import load_config
from fitrouter.providers import Simulated
from fitrouter.router import Router
from fitrouter.types import AUTO, Call, Identity, Request
from fitrouter_integrations.client import Client, connect

AT_ONCE = 32
USERS = 50
NAMES = ("alpha", "beta", "gamma")
PERSONA = {"length": 2.0, "latency_s": 0.0}
CONFIG = f"""
providers: {{s: {{kind: simulated, options: {{{", ".join(f"{name}: {PERSONA}" for name in NAMES)}}}}}}}
models: [{", ".join(f"{{name: {name}, provider: s, prices: {{input: 1, output: 2}}}}" for name in NAMES)}]
encoder: hashing
scorer: {{encoder: hashing, prior: none}}
"""
_number = count()


class Turn(NamedTuple):
    """One call of a known user."""

    messages: list[dict[str, Any]]
    user: str
    role: str
    session: str

    def named(self) -> dict[str, str]:
        """Return who asks, as metadata of a request."""
        return {"user_id": self.user, "role": self.role, "session_id": self.session}

    def request(self) -> Request:
        """Return the call as a `Request` of the router."""
        who = Identity(user=self.user, role=self.role, session=self.session)
        return Request(messages=tuple(self.messages), identity=who)


def turn() -> Turn:
    """Generate the next call."""
    n = next(_number)
    words = f"Explain to a new colleague what changed in case {n} and what to do first about it."
    return Turn([{"role": "user", "content": words}], f"u{n % USERS}", f"role {n % 5}", f"s{n}")


class Row(NamedTuple):
    """One way to make a call; `call` blocks, or returns an awaitable."""

    group: str
    name: str
    call: Callable[[Turn], Any]
    awaits: bool
    pids: tuple[int, ...] = ()
    """Of the server behind it."""


# --- ways to ask -----------------------------------------------------------------------------------------------------


def near_rows(router: Router, client: Client) -> Iterator[Row]:
    """Yield the ways to call a router in this process: directly, and through every adapter."""
    simulated = Simulated.from_options(dict.fromkeys(NAMES, PERSONA))
    target = client.backend.router  # type: ignore[attr-defined]
    yield Row(
        "near",
        "the simulated model itself",
        lambda t: simulated.complete(Call(messages=tuple(t.messages), target="alpha")),
        True,
    )
    yield Row("near", "Router.complete", lambda t: router.complete(t.request()), True)
    yield Row("near", "Client.complete", lambda t: client.complete(t.request()), False)
    yield Row("near", "Client.acomplete", lambda t: client.acomplete(t.request()), True)
    yield from adapter_rows("near", target, ())


def adapter_rows(group: str, target: Any, pids: tuple[int, ...]) -> Iterator[Row]:
    """Yield the calls through each adapter over a router or a gateway."""
    import litellm

    from fitrouter_integrations.crewai import FitrouterLLM
    from fitrouter_integrations.langchain import ChatFitrouter
    from fitrouter_integrations.litellm import register

    chat, crew = ChatFitrouter(router=target), FitrouterLLM(router=target, user="u1", role="role 1")
    if group == "near":
        register(target)
    base = {} if group == "near" else {"api_base": target}

    def config(t: Turn) -> Any:
        return {"metadata": t.named()}

    def call(t: Turn) -> dict[str, Any]:
        return {"model": AUTO, "messages": t.messages, "metadata": t.named(), **base}

    yield Row(group, "ChatFitrouter.invoke", lambda t: chat.invoke(t.messages, config(t)), False, pids)
    yield Row(group, "ChatFitrouter.ainvoke", lambda t: chat.ainvoke(t.messages, config(t)), True, pids)
    yield Row(group, "FitrouterLLM.call", lambda t: crew.call(t.messages), False, pids)
    yield Row(group, "FitrouterLLM.acall", lambda t: crew.acall(t.messages), True, pids)
    yield Row(group, "litellm.completion fitrouter/auto", lambda t: litellm.completion(**call(t)), False, pids)
    yield Row(group, "litellm.acompletion fitrouter/auto", lambda t: litellm.acompletion(**call(t)), True, pids)


def far_rows(url: str, pids: tuple[int, ...], session: aiohttp.ClientSession) -> Iterator[Row]:
    """Yield the ways to call a gateway: plain HTTP, the adapters, and the frameworks' own clients."""
    import litellm
    from crewai import LLM
    from langchain_openai import ChatOpenAI

    client = connect(url)
    base: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "unused"}
    chat, crew = ChatOpenAI(model=AUTO, max_retries=0, **base), LLM(model=f"openai/{AUTO}", **base)

    def own(t: Turn) -> dict[str, Any]:
        more = {"model": f"openai/{AUTO}", "messages": t.messages, "user": t.user, "num_retries": 0}
        return more | {"api_base": base["base_url"], "api_key": "unused"}

    yield Row("far", "bare HTTP (aiohttp)", lambda t: posted(session, base["base_url"], t), True, pids)
    yield Row("far", "Client.complete", lambda t: client.complete(t.request()), False, pids)
    yield Row("far", "Client.acomplete", lambda t: client.acomplete(t.request()), True, pids)
    yield from adapter_rows("far", url, pids)
    yield Row("far, others", "ChatOpenAI.invoke", lambda t: chat.invoke(t.messages, user=t.user), False, pids)
    yield Row("far, others", "ChatOpenAI.ainvoke", lambda t: chat.ainvoke(t.messages, user=t.user), True, pids)
    yield Row("far, others", "CrewAI's own LLM.call", lambda t: crew.call(t.messages), False, pids)
    yield Row("far, others", "litellm.completion openai/", lambda t: litellm.completion(**own(t)), False, pids)
    yield Row("far, others", "litellm.acompletion openai/", lambda t: litellm.acompletion(**own(t)), True, pids)


def loopback_rows(url: str, pid: int, session: aiohttp.ClientSession) -> Iterator[Row]:
    """Yield the ways to call a server without routing, as baselines."""
    import litellm

    def own(t: Turn) -> dict[str, Any]:
        more = {"model": "openai/fake-a", "messages": t.messages, "user": t.user, "num_retries": 0}
        return more | {"api_base": url, "api_key": "unused"}

    yield Row("loopback", "bare HTTP (aiohttp)", lambda t: posted(session, url, t, "fake-a"), True, (pid,))
    yield Row("loopback", "litellm.acompletion openai/", lambda t: litellm.acompletion(**own(t)), True, (pid,))


async def posted(session: aiohttp.ClientSession, base: str, t: Turn, model: str = AUTO) -> Any:
    """Call a chat API by the cheapest possible HTTP client."""
    body = {"model": model, "messages": t.messages, "user": t.user, "metadata": t.named()}
    async with session.post(f"{base}/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


# --- servers ---------------------------------------------------------------------------------------------------------


def _serve(where: Any) -> None:
    """Run a bare server of the OpenAI protocol until the process is terminated."""
    from tests.kits.fake_openai import FakeOpenAI

    async def serve() -> None:
        async with FakeOpenAI() as server:
            where.send(server.base_url)
            await asyncio.Event().wait()

    asyncio.run(serve())


@contextlib.contextmanager
def loopback() -> Iterator[tuple[str, int]]:
    """Start a bare server of the OpenAI protocol in a process; yields its URL and process id."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield here.recv(), process.pid
    finally:
        process.terminate()
        process.join()


def used_s(pids: tuple[int, ...]) -> float:
    """CPU seconds of processes so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


# --- measuring -------------------------------------------------------------------------------------------------------


class Found:
    """Measurements of a row, round by round."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.served: list[float] = []
        self.rates: list[float] = []

    def told(self) -> dict[str, float]:
        """Summarise the measurements: milliseconds, and calls a second."""
        cuts = statistics.quantiles(self.wall, n=100)
        return {
            "cpu_ms": round(1e3 * statistics.median(self.cpu), 3),
            "server_cpu_ms": round(1e3 * statistics.median(self.served), 3),
            "p50_ms": round(1e3 * cuts[49], 3),
            "p99_ms": round(1e3 * cuts[98], 3),
            f"per_s_at_{AT_ONCE}": round(statistics.median(self.rates), 1),
        }


async def quiet(pids: tuple[int, ...]) -> None:
    """Wait until all background work is done, at most 3 seconds."""
    for _ in range(30):
        before = time.process_time() + used_s(pids)
        await asyncio.sleep(0.1)
        if time.process_time() + used_s(pids) - before < 0.015:
            return


async def one_by_one(row: Row, calls: int, found: Found) -> None:
    """Measure sequential calls."""
    cpu, served = time.process_time(), used_s(row.pids)
    for _ in range(calls):
        asked, started = turn(), time.perf_counter()
        if row.awaits:
            await row.call(asked)
        else:
            row.call(asked)
        found.wall.append(time.perf_counter() - started)
    await quiet(row.pids)
    found.cpu.append((time.process_time() - cpu) / calls)
    found.served.append((used_s(row.pids) - served) / calls)


async def at_once(row: Row, calls: int, pool: ThreadPoolExecutor, found: Found) -> None:
    """Measure 32 concurrent calls: tasks for async rows, else threads."""
    left = iter(range(calls))

    async def task() -> None:
        for _ in left:
            await row.call(turn())

    def thread() -> None:
        for _ in range(calls // AT_ONCE):
            row.call(turn())

    loop, started = asyncio.get_running_loop(), time.perf_counter()
    several: list[Awaitable[None]] = (
        [task() for _ in range(AT_ONCE)] if row.awaits else [loop.run_in_executor(pool, thread) for _ in range(AT_ONCE)]
    )
    await asyncio.gather(*several)
    found.rates.append(calls // AT_ONCE * AT_ONCE / (time.perf_counter() - started))


async def measured(folder: Path, gateway: Gateway, other: tuple[str, int], given: Any) -> dict[str, Any]:
    """Measure all rows, in turn."""
    (folder / "own.yaml").write_text(CONFIG + f"data: {folder / 'own'}\n")
    (folder / "client.yaml").write_text(CONFIG + f"data: {folder / 'client'}\n")
    config = load_config(folder / "own.yaml")
    client = connect(Router.from_config(load_config(folder / "client.yaml")))
    pool = ThreadPoolExecutor(AT_ONCE)
    async with Router.from_config(config) as router, aiohttp.ClientSession() as session:
        rows = [
            *near_rows(router, client),
            *far_rows(gateway.url, tuple(gateway.pids), session),
            *loopback_rows(*other, session),
        ]
        found = {row: Found() for row in rows}
        for row in rows:  # what is made at the first use is made
            await one_by_one(row, 2 * USERS, Found())
        for _ in range(given.rounds):
            for row in rows:
                await one_by_one(row, given.calls, found[row])
        for _ in range(given.rounds):
            for row in rows:
                await at_once(row, given.at_once, pool, found[row])
                await quiet(row.pids)
        await asyncio.to_thread(client.close)
        await asyncio.to_thread(connect(gateway.url).close)
    return {f"{row.group}: {row.name}": told.told() for row, told in found.items()}


BASES = {
    "near": "near: Router.complete",
    "far": "far: bare HTTP (aiohttp)",
    "loopback": "loopback: bare HTTP (aiohttp)",
}


def table(rows: dict[str, dict[str, float]]) -> str:
    """Format the table of the page; `×` is relative to the cheapest row of the same place."""
    head = "| | CPU ms | × | of the server | p50 ms | × | p99 ms | calls/s at 32 |\n|---|---|---|---|---|---|---|---|\n"
    lines = []
    for name, row in rows.items():
        base = rows[BASES[name.split(":")[0].split(",")[0]]]
        times = [f"{row[key] / base[key]:.2f}" for key in ("cpu_ms", "p50_ms")]
        lines.append(
            f"| {name} | {row['cpu_ms']:.2f} | {times[0]} | {row['server_cpu_ms']:.2f} | {row['p50_ms']:.2f} | "
            f"{times[1]} | {row['p99_ms']:.1f} | {row[f'per_s_at_{AT_ONCE}']:.0f} |\n"
        )
    return head + "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=40, help="of a row in a round, one after the other")
    parser.add_argument("--at-once", type=int, default=160, help="calls of a row in a round by 32 at once")
    parser.add_argument("--json", type=Path, help="also write it here")
    parser.add_argument("--table", type=Path, help="write the page's table here")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    import litellm

    litellm.suppress_debug_info = True
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "gateway.yaml").write_text(CONFIG + f"data: {folder / 'gateway'}\n")
        load = os.getloadavg()[0]
        with Gateway(folder / "gateway.yaml") as gateway, loopback() as other:
            rows = asyncio.run(measured(folder, gateway, other, given))
    found = {
        "machine": {"cores": os.cpu_count(), "load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1)},
        "rounds": given.rounds,
        "rows": rows,
    }
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.table:
        given.table.write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

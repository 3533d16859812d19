"""Load on the console over a long log: its views, its first load, and chat requests beside it. Prints JSON.

    python -m benchmarks.gateway.console                          # a million requests by 100,000 people: some minutes
    python -m benchmarks.gateway.console --decisions 20000 --people 2000 --seconds 5

A gateway answers and learns from 600 requests of 60 people in four roles. Its warehouse is then filled with copies of
their rows under other names, `--decisions` by `--people`, spread over 30 days; every third has a vote. So all
views read tables of that size, from DuckDB with its default memory limit. Then the gateway serves again, and

* each view's API is asked once after a start (cold), and again after its answer was forgotten (warm);
* chat requests come at a fixed rate, in turns without a console, beside six open feeds of decisions, and beside a
  console that asks for every view as often as the page does, which is six open pages;
* a headless chromium, if there is one, opens the page.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import duckdb
import httpx
from benchmarks.gateway.process import Gateway, members

ROLES = ("cook", "judge", "nurse", "pilot")
DAYS = 30
PERSONA = "{length: 2.0, latency_s: 0.02}"
CONFIG = """
data: {data}
providers: {{s: {{kind: simulated, options: {{small: {persona}, middle: {persona}, large: {persona}}}}}}}
models:
  - {{name: small, provider: s, prices: {{input: 0.1, output: 0.4}}}}
  - {{name: middle, provider: s, prices: {{input: 1, output: 4}}}}
  - {{name: large, provider: s, prices: {{input: 3, output: 12}}}}
"""
VIEWS = {
    "now": "now?window=24h",
    "now, 7 days": "now?window=7d",
    "now, 30 days": "now?window=30d",
    "now, all": "now?window=all",
    "now: gains and since": "gains",
    "decisions": "decisions",
    "decisions of a role": "decisions?role=nurse",
    "decisions rated low": "decisions?rated=low",
    "decisions that failed": "decisions?status=failed",
    "decisions, regressions": "decisions?first=regressions",
    "people": "people",
    "people: most requests": "people?order=requests",
    "money, by model": "money?window=30d",
    "money, by person": "money?window=30d&by=person",
    "money, by day": "money?window=30d&by=day",
    "people: a role": "people?role=nurse",
    "people: a person": "people?user=person-1",
    "policy": "policy",
    "models": "models",
    "learning": "learning",
}
"""Name → path of its API."""
OFTEN = {"now": 3.0, "decisions": 3.0, "people: a role": 10.0, "policy": 5.0, "models": 5.0, "learning": 5.0}
"""View → seconds between two reads of an open page."""


def begin(url: str, requests: int) -> None:
    """Send requests and votes of 60 people, as an application would."""
    with httpx.Client(base_url=url, timeout=60.0) as http:
        for i in range(requests):
            who = {"user": f"person-{i % 60}", "metadata": {"role": ROLES[i % 4]}}
            body = {"messages": [{"role": "user", "content": f"Case {i}: what next?"}], **who}
            made = http.post("/v1/chat/completions", json=body)
            made.raise_for_status()
            if i % 3 == 0:
                vote = {"decision_id": made.headers["x-fitrouter-decision"], "kind": "thumb", "value": i % 2}
                http.post("/v1/feedback", json={**vote, "user": who["user"]}).raise_for_status()
        until = time.monotonic() + 120.0
        while http.get("/console/api/now", params={"window": "all"}).json().get("ever") != requests:
            if time.monotonic() > until:
                raise SystemExit("the warehouse does not follow")
            time.sleep(0.5)


def fill(path: Path, decisions: int, people: int) -> None:
    """Copy the rows of the warehouse until there are as many decisions, by as many people, as wanted."""
    with duckdb.connect(path) as connection:
        (own,) = connection.execute("SELECT count(*) FROM decisions").fetchone() or (0,)
        copies, each = max(0, decisions // own), max(1, people // 60)
        begun, step = time.time() - DAYS * 86_400.0, DAYS * 86_400.0 / max(1, copies)
        whose = f"CAST(hash(person_hash, hash(copy, decision_id) % {each}) >> 1 AS BIGINT) AS person_hash,"
        for table, key in (("decisions", "draw_id"), ("executions", "execution_id"), ("feedback", "feedback_id")):
            changed = f"""
                seq + 10000000 + copy * 100000 AS seq, decision_id || '-' || copy AS decision_id,
                {key} || '-' || copy AS {key}, "user" || '-' || hash(copy, decision_id) % {each} AS "user",
                CAST(hash(decision_hash, copy) >> 1 AS BIGINT) AS decision_hash,
                {"" if table == "decisions" else whose}
                {begun} + (copy + random()) * {step} AS ts
            """
            connection.execute(
                f"INSERT INTO {table} SELECT t.* REPLACE ({changed}) FROM {table} AS t, range({copies}) AS r(copy)"
                " ORDER BY copy, seq"  # as events come: blocks of old rows are skipped
            )
        connection.execute("CHECKPOINT")


def processor_ms(group: int) -> float:
    """Return the processor time of a process group's running processes."""
    ticks = 0
    for pid in members(group):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return 1000.0 * ticks / os.sysconf("SC_CLK_TCK")


def views(url: str, group: int, rounds: int) -> dict[str, dict[str, float]]:
    """Measure each view in milliseconds: first cold, then each time after its cached answer has expired.

    The quantile of few rounds lies near the slowest. Processor time is the whole gateway's: what it does meanwhile too.
    """
    found: dict[str, list[float]] = {name: [] for name in VIEWS}
    spent: dict[str, list[float]] = {name: [] for name in VIEWS}
    with httpx.Client(base_url=f"{url}/console/api/", timeout=60.0) as http:
        for _ in range(rounds):
            for name, path in VIEWS.items():
                began, before = time.monotonic(), processor_ms(group)
                http.get(path).raise_for_status()
                found[name].append(1000.0 * (time.monotonic() - began))
                spent[name].append(processor_ms(group) - before)
            time.sleep(1.0 + 4.0 * max(times[-1] for times in found.values()) / 1000.0)
    return {
        name: {
            "cold_ms": round(times[0], 1),
            "warm_ms": round(statistics.median(times[1:]), 1),
            "p95_ms": round(statistics.quantiles(times[1:], n=20, method="inclusive")[18], 1),
            "processor_ms": round(statistics.median(spent[name][1:])),
        }
        for name, times in found.items()
    }


async def chat(url: str, rate: float, seconds: float) -> list[float]:
    """Send chat requests at a fixed rate; return their milliseconds."""
    times: list[float] = []

    async def ask(session: aiohttp.ClientSession, number: int) -> None:
        who = {"user": f"person-{number % 60}", "metadata": {"role": ROLES[number % 4]}}
        body = {"messages": [{"role": "user", "content": f"Case {number}: what next?"}], **who}
        began = time.monotonic()
        async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
            await reply.read()
            assert reply.status == 200, reply.status
        times.append(1000.0 * (time.monotonic() - began))

    async with aiohttp.ClientSession() as session:
        began, tasks = time.monotonic(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            tasks.append(asyncio.create_task(ask(session, number)))
        await asyncio.gather(*tasks)
    return times


async def watch(url: str) -> None:
    """Poll the console like six open pages, until cancelled."""

    async def page(session: aiohttp.ClientSession, name: str, every: float) -> None:
        while True:
            async with session.get(f"{url}/console/api/{VIEWS[name]}") as reply:
                await reply.read()
            await asyncio.sleep(every)

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(page(session, name, every) for name, every in OFTEN.items()))


async def follow(url: str) -> None:
    """Read six feeds of new decisions, until cancelled; each is opened again when it ends."""

    async def feed(session: aiohttp.ClientSession) -> None:
        while True:
            async with session.get(f"{url}/console/api/decisions") as page:
                shown = await page.json()
            since = {"after": shown["position"], "floor": shown["decisions"][-1]["seq"]}
            async with session.get(f"{url}/console/api/feed", params=since) as reply:
                reply.raise_for_status()
                async for _ in reply.content:
                    pass

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        await asyncio.gather(*(feed(session) for _ in range(6)))


async def beside(url: str, rate: float, seconds: float, turns: int) -> dict[str, dict[str, float]]:
    """Return quantiles of chat requests without a console, beside feeds, and with pages open beside them."""
    others = {"alone": None, "feeds": follow, "console": watch}
    times: dict[str, list[float]] = {name: [] for name in others}
    await chat(url, rate, 2.0)
    for _ in range(turns):
        for name, other in others.items():
            async with asyncio.TaskGroup() as tasks:
                running = None if other is None else tasks.create_task(other(url))
                await asyncio.sleep(2.0)
                times[name] += await chat(url, rate, seconds)
                if running is not None:
                    running.cancel()
    return {name: quantiles(each) for name, each in times.items()}


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return count, median, p90 and p99."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"n": len(values), "p50_ms": round(cuts[49], 1), "p90_ms": round(cuts[89], 1), "p99_ms": round(cuts[98], 1)}


def first_view(url: str, rounds: int) -> dict[str, float]:
    """Measure the first load in a new browser: bytes of page, files and data, and milliseconds until it is drawn."""
    program = shutil.which("chromium")
    if program is None:
        return {}
    took, size = [], 0
    with importlib.import_module("playwright.sync_api").sync_playwright() as player:
        browser = player.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(rounds):
            page = browser.new_context().new_page()
            answers: list[Any] = []
            page.on("response", lambda answer, answers=answers: answers.append(answer))
            began = time.monotonic()
            page.goto(f"{url}/console")
            page.wait_for_selector(".body:not([aria-busy])")
            took.append(1000.0 * (time.monotonic() - began))
            size = sum(len(answer.body()) for answer in answers)
            page.context.close()
            time.sleep(2.0)
        browser.close()
    return {"bytes": size, "median_ms": round(statistics.median(took), 1), "slowest_ms": round(max(took), 1)}


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--people", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=30.0, help="chat requests a second")
    parser.add_argument("--seconds", type=float, default=24.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="of the views")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, file = Path(folder) / "data", Path(folder) / "fitrouter.yaml"
        file.write_text(CONFIG.format(data=data, persona=PERSONA))
        with Gateway(file) as gateway:
            begin(gateway.url, 600)
        warehouse = data / "fitrouter.duckdb"
        fill(warehouse, asked.decisions, asked.people)
        with Gateway(file) as gateway:
            found = {
                "decisions": asked.decisions,
                "people": asked.people,
                "warehouse_mb": round(warehouse.stat().st_size / 1e6),
                "load": round(os.getloadavg()[0], 1),
                "views": views(gateway.url, gateway.parent, asked.rounds),
                "first_view": first_view(gateway.url, 5),
                "chat": asyncio.run(beside(gateway.url, asked.rate, asked.seconds, asked.turns)),
            }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

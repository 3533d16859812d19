"""`fitrouter demo`."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from fitrouter.errors import ConfigError
from fitrouter.stores.figures import many
from fitrouter_integrations.demo._gateway import demo_config, open_gateway
from fitrouter_integrations.demo._live import send_requests
from fitrouter_integrations.demo._play import People
from fitrouter_integrations.demo._report import document, live_table, seeds_table, summary, traffic_table
from fitrouter_integrations.demo._seeds import Gammas, SeedResult, play_seeds
from fitrouter_integrations.demo._stage import Stage, set_stage
from fitrouter_integrations.demo._world import DemoWorld, open_world

POLICY: dict[str, Any] = {"algorithm": "squarecb", "gamma": 320.0, "floor": 0.02}
"""Policy settings of the demo, chosen on seeds 1000 to 1023; all others are the product's defaults."""
BLIND_GAMMA = 640.0
"""γ of the user-blind rows, chosen on the same seeds."""
LIVE_SEED = 0
ROUNDS, SEEDS = 6000, 10
"""Of a run that ends: CI runs it as it is, within three minutes on two cores (docs/results/demo.md)."""
_LIVE_PART = 0.6
"""Of a bounded run's time."""


def command(
    rounds: Annotated[int, typer.Option(min=8, help="Requests; 200 stand for a day.")] = ROUNDS,
    seconds: Annotated[float | None, typer.Option(min=1.0, help="Limit of the total duration.")] = None,
    exit_: Annotated[bool, typer.Option("--exit", help="End after the summary instead of going on to serve.")] = False,
    json_: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=0, help=f"Further seeds of the world, in process; {SEEDS} with --exit, else none.")
    ] = None,
    world: Annotated[str | None, typer.Option(help="World file, or null for users without tastes.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway; 0 picks a free one.")] = 0,
    data: Annotated[Path | None, typer.Option(help="Keep the journal and the warehouse in this folder.")] = None,
) -> None:
    """Simulated people and models over real HTTP, and what routing was worth."""
    begun = time.monotonic()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    console = Console(highlight=False)
    place, sha256 = open_world(world)
    place = msgspec.structs.replace(place, rounds=rounds)
    seeds = SEEDS * exit_ if seeds is None else seeds
    if json_ is not None and not json_.resolve().parent.is_dir():
        raise ConfigError(f"--json: there is no folder {str(json_.resolve().parent)!r}; make it first")
    with _folder(data) as folder:
        config = demo_config(place, folder, port, POLICY)
        gammas = Gammas(ours=config.policy.parameters["gamma"], blind=BLIND_GAMMA, floor=config.policy.floor)
        stage = set_stage(place, config.encoder)
        with open_gateway(config, place) as gateway:
            console.print(f"Watch it in a browser: {gateway.url}/console", soft_wrap=True)
            console.print(f"or in a terminal: fitrouter top --url {gateway.url}", soft_wrap=True)
            console.print(f"The gateway serves {len(place.models)} simulated models on {gateway.url}/v1")
            console.print(f"{place.users} simulated people in {place.roles} roles begin to ask and to rate …")
            until = None if seconds is None else begun + seconds * (_LIVE_PART if seeds else 1.0)
            people = People(place, stage, LIVE_SEED)
            live = send_requests(gateway, people, gammas, lambda line: console.print(line, soft_wrap=True), until)
            rate, votes = (
                live.requests / live.seconds,
                f"{many(live.votes, 'vote')}, {live.votes_of_asked} of them asked for",
            )
            console.print(f"{live.seconds:.0f} s, {rate:.0f} requests a second, {votes}\n")
            console.print(live_table(live, place), traffic_table(live))
            results = _seeds(place, stage, gammas, seeds, console, None if seconds is None else begun + seconds)
            if json_ is not None:
                found = document(place, sha256, config, gammas, live, results, LIVE_SEED)
                json_.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
                console.print(f"wrote {json_}")
            if not exit_:
                _serve_on(gateway.url, console)


def _seeds(
    world: DemoWorld, stage: Stage, gammas: Gammas, count: int, console: Console, deadline: float | None
) -> list[SeedResult]:
    """Run further seeds and print their combined summary; returns their results."""
    if not count:
        return []
    console.print(f"{count} more seeds of the same world, in process …")
    results: list[SeedResult] = []
    for result in play_seeds(world, stage, gammas, range(LIVE_SEED + 1, LIVE_SEED + 1 + count), deadline):
        results.append(result)
        if len(results) % 5 == 0 and len(results) < count:
            console.print(f"{len(results)} of {count}")
    results.sort(key=lambda result: result.seed)
    if results:
        console.print(seeds_table(results, world))
        found = summary(results, world)
        above, times = f"{found['above_best_single']} of {found['seeds']}", found["ours_over_user_blind"]["label-only"]
        console.print(f"Last quarter: {times:.1%} of the user-blind bandit's satisfied people;")
        console.print(f"above the best single model in {above} seeds.")
        if found["closed_mean"] is not None:
            error = "" if found["closed_se"] is None else f" ± {found['closed_se']:.0%} (standard error)"
            console.print(f"Of the gap between the two oracles it closes {found['closed_mean']:.0%}{error} on average.")
        console.print()
    return results


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    """Provide the given folder, which must be new or empty, or a temporary one that is removed at the end."""
    if data is not None:
        if data.exists() and any(data.iterdir()):
            raise ConfigError(f"--data: {str(data)!r} is not empty; the demo begins with a new folder")
        data.mkdir(parents=True, exist_ok=True)
        yield data.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="fitrouter-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve_on(url: str, console: Console) -> None:
    """Go on until Ctrl-C."""
    body = {
        "model": "fitrouter/auto",
        "messages": [{"role": "user", "content": "Any tips on changing jobs at forty?"}],
        "user": "person-0",
        "metadata": {"role": "school teacher"},
    }
    console.print("It goes on serving. Ask it yourself:\n", markup=False)
    console.print(f"  curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\", soft_wrap=True)
    console.print(f"    -d '{json.dumps(body)}'\n", markup=False, soft_wrap=True)
    console.print(f"Why this model: {url}/v1/decisions/ID with the answer's x-fitrouter-decision", soft_wrap=True)
    console.print(f"Ctrl-C ends it. The console: {url}/console", soft_wrap=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("ended")

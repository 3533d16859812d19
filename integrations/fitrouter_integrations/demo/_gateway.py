"""The demo's gateway: a real one on loopback over simulated models, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fitrouter.config import Config, parse_config
from fitrouter.errors import FitrouterError
from fitrouter.hooks import Happened, Hooks, Notice
from fitrouter.posterior.people import DAY_S
from fitrouter.router import Router
from fitrouter.types import Decision
from fitrouter_integrations.demo._world import DemoWorld
from fitrouter_integrations.gateway import bind, create_app
from fitrouter_integrations.gateway._worker import server_of

_PATIENCE_S = 30.0


class RoundClock:
    """Clock that decisions advance so that the last round is now; a hook of the router that uses it.

    After `let_go` it is an ordinary clock.
    """

    def __init__(self, rounds: int, rounds_per_day: int) -> None:
        self._step = DAY_S / rounds_per_day
        self._start = time.time() - rounds * self._step
        self._rounds = 0
        self._free = False

    def __call__(self) -> float:
        """Return the time in seconds since the epoch."""
        return time.time() if self._free else self._start + self._rounds * self._step

    def hear(self, notice: Notice) -> None:
        """Advance by one round if the notice is of a decision."""
        if isinstance(notice, Happened) and isinstance(notice.event, Decision):
            self._rounds += 1

    def let_go(self) -> None:
        """Follow the real clock from now on."""
        self._free = True


class Gateway(NamedTuple):
    """A running gateway."""

    url: str
    router: Router
    clock: RoundClock


def demo_config(world: DemoWorld, data: Path, port: int = 0, policy: dict[str, Any] | None = None) -> Config:
    """Return the configuration of the demo's gateway: defaults, except for what the world defines."""
    personas = {name: msgspec.to_builtins(model.persona) for name, model in world.models.items()}
    models = [
        {"name": name, "provider": "personas", "prices": msgspec.to_builtins(model.prices)}
        for name, model in sorted(world.models.items())
    ]
    # In simulated time a slow request may take days; a long deadline keeps it from being marked as lost.
    server = {"port": port, "deadline_s": 2 * DAY_S}
    return parse_config(
        {
            "data": data,
            "providers": {"personas": {"kind": "simulated", "options": personas}},
            "models": models,
            "default_model": world.default_model,
            "policy": policy or {},
            "feedback": {"ask": world.raters.asked},
            # Nobody wrote these texts: the console shows them, and pairs of them to compare.
            "content": "encrypted",
            "server": server,
        },
        "the demo's configuration",
    )


@contextmanager
def open_gateway(config: Config, world: DemoWorld) -> Iterator[Gateway]:
    """Serve until the context ends.

    Raises:
        ConfigError: the port is taken.
        FitrouterError: the gateway does not start.
    """
    clock = RoundClock(world.rounds, world.rounds_per_day)
    with bind(config) as listener:
        router = Router.from_config(config, hooks=Hooks(clock.hear), clock=clock)
        server = server_of(create_app(router, config))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="fitrouter-demo", daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while not server.started and thread.is_alive() and time.monotonic() < deadline:
                time.sleep(0.01)
            if not server.started:
                raise FitrouterError(f"the demo's gateway did not start within {_PATIENCE_S:g} s; see the log")
            yield Gateway(f"http://127.0.0.1:{listener.getsockname()[1]}", router, clock)
        finally:
            server.should_exit = True
            thread.join(_PATIENCE_S)

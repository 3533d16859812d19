"""Deploys to a Ray cluster, the running one or one of this process."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fitrouter.config import Config, RayConfig
from fitrouter.errors import ConfigError, FitrouterError, require
from fitrouter.stores.keys import FILE
from fitrouter_integrations.deploy import _folder
from fitrouter_integrations.gateway._keys import Keys
from fitrouter_integrations.gateway._serve import require_gateway

NAME = "fitrouter"
"""Name of the application in Ray Serve."""
_STORE_BYTES = 100_000_000
"""Object store of a cluster of our own; requests are small."""
_ABSENT = "Could not find any running Ray instance"
"""What Ray says where no cluster runs."""


def check(config: Config) -> None:
    """Check what can be checked before anything starts.

    Raises:
        MissingExtra: Ray, or what serves HTTP, is not installed.
        ConfigError: the configuration cannot be deployed.
    """
    require("ray", "`fitrouter deploy ray`")
    require_gateway()
    if config.database:
        require("psycopg", "a journal on PostgreSQL")
    if config.ray is None:
        raise ConfigError(
            "ray: the configuration has no such section; add `ray: {gateways: {min: 2}, scorers: {min: 1}}`"
        )
    if config.server.port == 0:
        raise ConfigError("server.port: got 0; Ray's proxies need a port of a number, such as 8484")
    Keys(config.server, file=config.data / FILE)


def require_shared(config: Config, machines: int) -> None:
    """Check that the journal can be shared by the machines of a cluster.

    Raises:
        ConfigError: it is in a file, which processes of one machine share only.
    """
    if machines > 1 and not config.database:
        raise ConfigError(
            f"data: the cluster has {machines} machines, and the journal is a file, which only processes of one "
            "machine can share; give `data: postgresql://…` and a `folder` on a volume that all machines have, or use "
            "a cluster of one machine"
        )


def cpus_needed(ray: RayConfig) -> int:
    """Number of CPUs that one machine needs to start all replicas, with the gateways twice for a restart."""
    return math.ceil(2 * ray.gateways.most * ray.gateways.cpus + ray.scorers.most * ray.scorers.cpus + 2.0)


def deploy(config: Config, told: Callable[[str], object] = lambda _line: None) -> None:
    """Deploy, or replace what is deployed by rolling restart.

    With a running cluster (`ray start`, or RAY_ADDRESS) it returns once all replicas of the new version run. Without
    one it starts a cluster in this process, and serves until SIGTERM or SIGINT; requests in flight are finished.

    Args:
        config: settings that `check` accepts.
        told: called with lines for people.

    Raises:
        ConfigError: the cluster cannot serve this configuration.
        FitrouterError: replicas do not start.
    """
    with _connected(config) as own:
        import ray  # pyright: ignore[reportMissingImports]
        from ray import serve  # pyright: ignore[reportMissingImports]

        from fitrouter_integrations.deploy._replicas import application

        require_shared(config, len([node for node in ray.nodes() if node["Alive"]]))
        serve.start(http_options={"host": config.server.host, "port": config.server.port}, proxy_location="EveryNode")
        with _interruptible() as stopped:
            try:
                serve.run(application(config, _folder.marked(config.data)), name=NAME, route_prefix="/")
            except RuntimeError as error:  # Ray's own, which has the first lines of the replica's error
                raise FitrouterError(f"the replicas do not start: {error}") from None
            told(f"fitrouter serves {len(config.models)} models on http://{config.server.host}:{config.server.port}/v1")
            if own:
                stopped.wait()
                serve.delete(NAME)  # waits for requests in flight
                serve.shutdown()


def stop(config: Config) -> None:
    """Stop what is deployed on the running cluster; requests in flight are finished."""
    with _connected(config, own=False):
        from ray import serve  # pyright: ignore[reportMissingImports]

        serve.delete(NAME)


@contextmanager
def _connected(config: Config, *, own: bool = True) -> Iterator[bool]:
    """Connect to the running cluster, or start one in this process; yields whether it was started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its new default; without it a warning
    import ray  # pyright: ignore[reportMissingImports]

    assert config.ray is not None
    options: dict[str, Any] = {"namespace": NAME, "logging_level": logging.WARNING}
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        mine = own and address == "local"
        if not mine:
            try:
                ray.init(address=address or "auto", **options)
            except (ConnectionError, ValueError) as error:
                if address or _ABSENT not in str(error):
                    where = f" at {address!r}" if address else ""
                    raise ConfigError(
                        f"RAY_ADDRESS: the Ray cluster{where} does not answer: {error}; start it with `ray start`, and "
                        "give RAY_AUTH_MODE=token here as there if it asks for a token"
                    ) from None
                if not own:
                    raise ConfigError(
                        "there is no Ray cluster on this machine; RAY_ADDRESS names another one"
                    ) from None
                mine = True
        if mine:
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, cpus_needed(config.ray)),
                include_dashboard=False,
                object_store_memory=_STORE_BYTES,
                **options,
            )
        yield mine
    finally:
        ray.shutdown()


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stopped = threading.Event()

    def stop_(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop_) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

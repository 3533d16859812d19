"""Classes that Ray's replicas run. Imports Ray: only `_cluster` and the replicas themselves import this module."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ray import serve  # pyright: ignore[reportMissingImports]
from ray.exceptions import GetTimeoutError, RayActorError  # pyright: ignore[reportMissingImports]
from ray.serve.exceptions import RayServeException  # pyright: ignore[reportMissingImports]
from starlette.applications import Starlette

from fitrouter.config import Config
from fitrouter.errors import ConfigError
from fitrouter.providers import preload
from fitrouter.router import Router
from fitrouter.serving.services import load_scorer
from fitrouter.serving.status import RouterStatus
from fitrouter.types import Floats
from fitrouter_evaluators.scoring.models import Item
from fitrouter_integrations.deploy._autoscaling import METRIC, ByLag
from fitrouter_integrations.deploy._folder import require_same
from fitrouter_integrations.deploy._remote import RemoteScoring, Task
from fitrouter_integrations.gateway import create_app
from fitrouter_integrations.gateway._logging import protect_logs
from fitrouter_integrations.gateway._services import CLOSING_S, run_until
from fitrouter_integrations.gateway._tracing import trace_by

CLOSING_GATEWAY_S = 30.0
"""Time that a gateway has to close its stores, after its last request."""
_FRESH_S = 10.0
"""Age from which a lag is not reported: the services have not said anything since."""
_REQUESTS, _WAIT_S = 16, 0.005
"""Requests that a scorer joins into one batch, and how long it waits for the next."""
_LOST = (RayActorError, RayServeException, GetTimeoutError, TimeoutError)
_log = logging.getLogger("fitrouter.deploy")


def application(config: Config, mark: str) -> Any:
    """Build the deployments: gateways answer HTTP, one services replica holds the leases, scorers compute features.

    Args:
        config: all settings, with a section `ray`.
        mark: of the data folder.
    """
    assert config.ray is not None
    gateways, scorers = config.ray.gateways, config.ray.scorers
    delays = {"upscale_delay_s": config.ray.up_s, "downscale_delay_s": config.ray.down_s}
    policy = {
        "policy_function": f"{ByLag.__module__}:{ByLag.__qualname__}",
        "policy_kwargs": {"target_s": scorers.lag_s},
    }
    computing = serve.deployment(Scorer).options(
        name="scorer",
        autoscaling_config={"min_replicas": scorers.min, "max_replicas": scorers.most, "policy": policy, **delays},
        ray_actor_options={"num_cpus": scorers.cpus, "num_gpus": scorers.gpus},
        max_ongoing_requests=2 * _REQUESTS,
    )
    steps = serve.deployment(Services).options(
        name="services",
        num_replicas=1,
        ray_actor_options={"num_cpus": 1.0},
        graceful_shutdown_timeout_s=3 * CLOSING_S,
        max_surge_percent=100,  # the new one is ready when the old one gives the leases back
    )
    scored = config.scorer.encoder != "none"
    services = steps.bind(config, mark, computing.bind(config) if scored else None)
    answering = serve.deployment(serve.ingress(_app_of(config, mark))()).options(
        name="gateway",
        autoscaling_config={
            "min_replicas": gateways.min,
            "max_replicas": gateways.most,
            "target_ongoing_requests": gateways.requests,
            **delays,
        },
        ray_actor_options={"num_cpus": gateways.cpus},
        max_ongoing_requests=config.server.max_requests,
        graceful_shutdown_timeout_s=config.server.deadline_s + CLOSING_GATEWAY_S,
        max_surge_percent=100,  # new replicas serve before old ones are drained
    )
    return answering.bind(services)


def _prepare(config: Config, mark: str) -> None:
    os.umask(0o077)  # logs of decisions are nobody else's
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    protect_logs()
    require_same(config.data, mark)


def _app_of(config: Config, mark: str) -> Callable[[], Starlette]:
    def app() -> Starlette:
        _prepare(config, mark)
        trace_by(os.environ)
        built = create_app(Router.from_config(config, services=False), config)
        preload(config)
        return built

    return app


class Services:
    """Scores answers, feeds the warehouse and saves snapshots, on a thread with an event loop of its own.

    Args:
        config: all settings.
        mark: of the data folder.
        scorers: handle of the scorers, if answers are scored.
    """

    def __init__(self, config: Config, mark: str, scorers: Any) -> None:
        _prepare(config, mark)
        self._config, self._scorers = config, scorers
        self._loop, self._ended = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="fitrouter-services", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        remote = RemoteScoring(lambda task: self._scorers.compute.remote(task), _LOST)

        def heard(status: RouterStatus) -> None:
            remote.lag_s = status.lag.scorer_seconds

        scorer = None if self._scorers is None else load_scorer(self._config, remote=remote)
        try:
            self._loop.run_until_complete(run_until(self._ended, self._config, scorer=scorer, heard=heard))
        except Exception:  # noqa: BLE001 - `check_health` tells Ray
            _log.exception("the services have failed")

    def check_health(self) -> None:
        """Let Ray replace a replica whose thread has ended.

        Raises:
            RuntimeError: it has.
        """
        if not self._thread.is_alive():
            raise RuntimeError("the services have ended; the log says why")

    def __del__(self) -> None:
        """Ray calls it when the replica is stopped: finish the step, close the stores, and give the leases back."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(2 * CLOSING_S)


class Scorer:
    """Computes response features and outputs of reward models. It has no state and opens no store.

    Args:
        config: all settings.

    Raises:
        ConfigError: the installed scorer cannot compute for another process.
    """

    def __init__(self, config: Config) -> None:
        protect_logs()
        scorer = load_scorer(config)
        outputs = getattr(scorer, "outputs", None)
        if outputs is None:
            raise ConfigError(
                f"scorer: {type(scorer).__name__} has no `outputs`; without it only one machine can score"
            )
        self._outputs: Callable[[str, Sequence[Item]], Floats] = outputs
        self._lag = (0.0, time.monotonic())
        self._batched = serve.batch(self._compute, max_batch_size=_REQUESTS, batch_wait_timeout_s=_WAIT_S)

    async def compute(self, task: Task) -> Floats:
        """Compute the features or model outputs of a request's answers, float64[n, dimensions]."""
        found: Floats = await self._batched(task)
        return found

    async def _compute(self, tasks: list[Task]) -> list[Floats]:
        """Compute a batch of requests, with one pass over all answers for each model that is wanted."""
        self._lag = (tasks[-1].lag_s, time.monotonic())
        return await asyncio.to_thread(self._pass, tasks)

    def _pass(self, tasks: Sequence[Task]) -> list[Floats]:
        found: dict[int, Floats] = {}
        for model in dict.fromkeys(task.model for task in tasks):
            wanted = [i for i, task in enumerate(tasks) if task.model == model]
            rows = self._outputs(model, [item for i in wanted for item in tasks[i].items])
            ends = np.cumsum([len(tasks[i].items) for i in wanted])[:-1]
            found.update(zip(wanted, np.split(rows, ends), strict=True))
        return [found[i] for i in range(len(tasks))]

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The lag, for Ray's autoscaler."""
        lag_s, at = self._lag
        return {METRIC: lag_s if time.monotonic() - at < _FRESH_S else 0.0}

"""Flower clients and coordinator of `fitrouter train prior --federated` (`fitrouter_evaluators.training.federated`).

One connection per client over gRPC; the coordinator waits for all of them, then asks for sums round by round.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read at the import

from flwr.client import NumPyClient, start_client  # pyright: ignore[reportMissingImports]
from flwr.common import (  # pyright: ignore[reportMissingImports]
    FitIns,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import ServerConfig, start_server  # pyright: ignore[reportMissingImports]
from flwr.server.strategy import Strategy  # pyright: ignore[reportMissingImports]

from fitrouter.errors import ConfigError
from fitrouter.types import Floats
from fitrouter_evaluators.training.federated import Federation, client_sums
from fitrouter_evaluators.training.hierarchy import Observations, Prior

PATIENCE_S = 600
"""How long the coordinator waits for clients, and a client for the coordinator."""


class _Rounds(Strategy):  # type: ignore[misc, unused-ignore]
    """Flower strategy of a federation, in which every client takes part in every round."""

    def __init__(self, federation: Federation, clients: int, schema: str) -> None:
        super().__init__()
        self._federation, self._clients, self._schema = federation, clients, schema
        self.failed: str | None = None

    def initialize_parameters(self, client_manager: Any) -> Any:
        """Start without parameters and wait for the clients."""
        if not client_manager.wait_for(self._clients, timeout=PATIENCE_S):
            self.failed = f"{client_manager.num_available()} of {self._clients} clients came in {PATIENCE_S} s"
        return ndarrays_to_parameters([])

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[Any, Any]]:
        """Send the same prior to all clients."""
        if self.failed:
            return []
        return [(one, FitIns(parameters, {"schema": self._schema})) for one in client_manager.all().values()]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[Any, dict[str, Any]]:
        """Take the sums of a round; a client that fails ends the fit, as rounds over other people do not add up."""
        if self.failed is None and failures:
            self.failed = f"{len(failures)} clients failed in round {server_round}; see their output"
        if self.failed is None:
            try:
                self._federation.take([_vector(parameters_to_ndarrays(found.parameters)) for _, found in results])
            except ValueError as error:
                self.failed = str(error)
        return ndarrays_to_parameters(_arrays(self._federation.prior)), {}

    def configure_evaluate(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        """Select no clients for evaluation, which would need their votes."""
        return []

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        """See `configure_evaluate`."""
        return None, {}

    def evaluate(self, server_round: int, parameters: Any) -> None:
        """See `configure_evaluate`."""


class _FitClient(NumPyClient):  # type: ignore[misc, unused-ignore]
    """Flower client with the labels of its users, which never leave it."""

    def __init__(self, users: Sequence[Observations], schema: str, clip: float, noise: float) -> None:
        self._users, self._schema, self._clip, self._noise = users, schema, clip, noise

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Compute the sums of a round."""
        if config["schema"] != self._schema:
            raise ValueError(f"the coordinator has the features {config['schema']!r}, this client {self._schema!r}")
        sums = client_sums(_prior(parameters), self._users, clip=self._clip, noise=self._noise)
        return [sums], len(self._users), {}


def coordinate(address: str, federation: Federation, clients: int, schema: str, tls: Path | None = None) -> None:
    """Run all rounds of a fit.

    Args:
        address: to listen at, such as `127.0.0.1:9092`.
        federation: what is fitted.
        clients: number that take part.
        schema: of the response features, which clients must share.
        tls: folder with ca.pem, server.pem and server.key; without it the connection is not encrypted.

    Raises:
        ConfigError: not all clients came, or one failed.
    """
    rounds = _Rounds(federation, clients, schema)
    certificates = None
    if tls is not None:
        ca, server, key = ((tls / name).read_bytes() for name in ("ca.pem", "server.pem", "server.key"))
        certificates = ca, server, key
    start_server(
        server_address=address,
        config=ServerConfig(num_rounds=federation.rounds),
        strategy=rounds,
        certificates=certificates,
    )
    if rounds.failed is not None:
        raise ConfigError(f"--federated: {rounds.failed}")


def take_part(
    address: str, users: Sequence[Observations], schema: str, *, clip: float, noise: float, tls: Path | None = None
) -> None:
    """Answer a coordinator's rounds until the fit is done; `tls` is a folder with ca.pem.

    Raises:
        ConfigError: the address is none, or nothing has listened there for `PATIENCE_S`.
    """
    _wait_for(address)
    start_client(
        server_address=address,
        client=_FitClient(users, schema, clip, noise).to_client(),
        insecure=tls is None,
        root_certificates=None if tls is None else (tls / "ca.pem").read_bytes(),
        max_wait_time=float(PATIENCE_S),
    )


def _wait_for(address: str) -> None:
    """Wait until a coordinator listens: Flower's client gives up when its first connection is refused."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise ConfigError(f"--join: got {address!r}; give HOST:PORT, such as 127.0.0.1:9092")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"--join: nothing listens at {address!r}: {error}; start `fitrouter train prior --federated` there"
                ) from None
            time.sleep(0.2)
        else:
            return


def _vector(arrays: list[Any]) -> Floats:
    """Return the vector that a client sent; empty if it sent none."""
    if len(arrays) == 1 and arrays[0].dtype == np.float64 and arrays[0].ndim == 1:
        found: Floats = arrays[0]
        return found
    return np.zeros(0)


def _arrays(prior: Prior | None) -> list[Floats]:
    return [] if prior is None else [prior.mean, prior.cov, np.array([prior.noise])]


def _prior(arrays: list[Any]) -> Prior | None:
    return Prior(arrays[0], arrays[1], float(arrays[2][0])) if arrays else None

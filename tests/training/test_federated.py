"""The federated prior: equal to the central fit, bounded influence, noise, and eight clients over Flower."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.kits.frameworks import environment, python_with
from tests.training.test_hierarchy import _world

from fitrouter.context.encoders import get_encoder
from fitrouter_evaluators.training import train_prior
from fitrouter_evaluators.training.federated import Federation, client_sums, clipped
from fitrouter_evaluators.training.hierarchy import Observations, Shrinkage, e_step, fit_prior
from fitrouter_evaluators.training.train_prior import observed, write_federated

CLIENTS, D = 8, 5
MAIN = "from fitrouter_integrations.cli import main; main()"


def parts(seed: int = 0, users: int = 6) -> list[list[Observations]]:
    """The users of eight clients."""
    found = _world(np.random.default_rng(seed), CLIENTS * users, 10, D)[0]
    return [found[i::CLIENTS] for i in range(CLIENTS)]


def fitted(clients: list[list[Observations]], poison: float = 0.0, **settings: float) -> Federation:
    """A federated fit in this process, of which the first client multiplies its sums by −`poison`."""
    noise, clip = settings.get("noise", 0.0), settings.get("clip")
    federation, rng = Federation(D, Shrinkage(), iterations=10, clip=clip), np.random.default_rng(1)
    for _ in range(federation.rounds):
        sums = [
            client_sums(federation.prior, users, noise=noise, clip=clip if noise and clip else np.inf, rng=rng)
            for users in clients
        ]
        if poison:
            sums[0] = -poison * sums[0]
        federation.take(sums)
    return federation


def test_it_is_the_central_fit() -> None:
    """Mean, covariance, noise and the last sums are the central ones to 1e-8, whatever the grouping."""
    clients = parts()
    everybody = [user for users in clients for user in users]
    central, found = fit_prior(everybody, shrinkage=Shrinkage(), iterations=10), fitted(clients)
    assert found.prior is not None
    assert found.sums is not None
    assert np.abs(found.prior.mean - central.mean).max() < 1e-8
    assert np.abs(found.prior.cov - central.cov).max() < 1e-8
    assert found.prior.noise == pytest.approx(central.noise, abs=1e-8)
    assert np.abs(found.sums.A - e_step(central, everybody).A).max() < 1e-6
    assert found.labels == 10 * len(everybody)


def test_a_poisoned_client_is_bounded_by_the_clip() -> None:
    """Sums a million times too large move the prior no further than sums ten times too large do."""
    clients = parts()
    honest = fitted(clients[1:]).prior
    assert honest is not None
    moved = []
    for poison in (10.0, 1e6, 1e90):
        found = fitted(clients, poison).prior
        assert found is not None
        assert np.linalg.eigvalsh(found.cov).min() > 0.0
        moved.append(float(np.linalg.norm(found.mean - honest.mean)))
    assert moved[1] == pytest.approx(moved[0], rel=1e-6)
    unbounded = fitted(clients, 1e6, clip=1e18).prior
    assert unbounded is not None
    assert moved[1] < 0.5 * float(np.linalg.norm(unbounded.mean - honest.mean))


def test_what_leaves_is_clipped_and_noised() -> None:
    """A norm of at most the clip; noise of the stated size; noise without a clip, and what are no sums, are refused."""
    users = parts()[0]
    assert np.linalg.norm(client_sums(None, users, clip=2.0)) == pytest.approx(2.0)
    seeds = [client_sums(None, users, clip=2.0, noise=0.5, rng=np.random.default_rng(i)) for i in range(200)]
    assert np.std(seeds, axis=0).mean() == pytest.approx(1.0, rel=0.05)
    assert np.isfinite(fitted(parts(), clip=500.0, noise=0.5).prior.cov).all()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="noise needs a clip"):
        client_sums(None, users, noise=0.5)
    federation, good = Federation(D, Shrinkage()), client_sums(None, users)
    federation.take([good, good[:-1], np.full(len(good), np.nan), 1e300 * good])
    assert federation.refused == 3
    with pytest.raises(ValueError, match="no client sent usable sums"):
        federation.take([good])
    assert (clipped(np.zeros(3), 1.0) == 0.0).all()


def test_eight_clients_in_processes_of_their_own(tmp_path: Path) -> None:
    """`fitrouter train prior --federated` and `--join` over Flower write the central prior to 1e-8.

    Clients that start before the coordinator wait for it.
    """
    python, rng, files = python_with("flwr"), np.random.default_rng(0), []
    for i in range(CLIENTS):
        rows = [
            {"user": f"u{i}-{n % 3}", "prompt": "?", "response": "word " * int(rng.integers(1, 60)), "rating": float(y)}
            for n, y in enumerate(rng.integers(1, 6, 12))
        ]
        files.append(tmp_path / f"{i}.jsonl")
        files[-1].write_text("".join(json.dumps({**row, "scale": [1.0, 5.0]}) + "\n" for row in rows))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = [python, "-c", MAIN, "train", "prior", "--encoder", "hashing"]
    ran = [[*common, "--federated", address, "--out", "prior.safetensors"]]
    ran += [[*common, "--join", address, "--data", str(file)] for file in files]
    logs = [(tmp_path / f"{i}.out", tmp_path / f"{i}.err") for i in range(len(ran))]
    processes = []
    for command, (out, err) in reversed([*zip(ran, logs, strict=True)]):
        with out.open("w") as stdout, err.open("w") as stderr:
            processes.append(
                subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=stdout, stderr=stderr)
            )
    processes.reverse()
    deadline = time.monotonic() + 400.0
    try:
        while not all(process.poll() == 0 for process in processes):
            codes = [process.returncode for process in processes]
            failed = any(codes) or time.monotonic() > deadline
            assert not failed, [(code, err.read_text()[-1500:]) for code, (_, err) in zip(codes, logs, strict=True)]
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    features = train_prior.trained_features(get_encoder("hashing"))
    users = [user for file in files for user in observed(file, features)]
    shrinkage = train_prior.source_shrinkage(features.dim)
    central = Federation(features.dim, shrinkage)
    central.prior = fit_prior(users, shrinkage=shrinkage, iterations=train_prior.ITERATIONS)
    central.sums, central.labels = e_step(central.prior, users), sum(len(user.y) for user in users)
    sheet = write_federated(central, tmp_path / "central.safetensors", features, CLIENTS)
    assert json.loads(logs[0][0].read_text())["labels"] == sheet["labels"] == 12 * CLIENTS
    one, other = (load_file(tmp_path / f"{name}.safetensors") for name in ("prior", "central"))
    assert {name: array.dtype for name, array in one.items()} == {name: array.dtype for name, array in other.items()}
    for name, array in one.items():
        assert np.abs(array - other[name]).max() < 1e-8, name

"""How far one poisoned client of eight moves the federated prior, and what noise costs. Prints JSON.

    python -m benchmarks.scoring.federated

Eight clients of twelve users each with ten ratings, whose tastes vary around a common one in ten features; means of
twenty seeds. The poisoned client sends its sums times −s. Distances are |mean − mean of the seven honest clients' fit|;
`honest` is that of all eight when none is poisoned. Noise is in clips, of twice the median norm.
"""

from __future__ import annotations

import json

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.training.federated import Federation, client_sums
from fitrouter_evaluators.training.hierarchy import Observations, Shrinkage

CLIENTS, USERS, LABELS, D, SEEDS = 8, 12, 10, 10, 20
SCALES = (1.0, 10.0, 1e3, 1e6)
CLIPS = {"one median": 1.0, "two medians (default)": None, "four medians": 4.0, "none": 1e60}
NOISES = (0.0, 0.001, 0.003, 0.01)


def clients_of(seed: int) -> list[list[Observations]]:
    """Simulate the users of each client."""
    rng = np.random.default_rng(seed)
    common, out = rng.normal(size=D), []
    for _ in range(CLIENTS):
        users = []
        for _ in range(USERS):
            X = np.column_stack([np.ones(LABELS), rng.normal(size=(LABELS, D - 1))])
            users.append(Observations(X, X @ (common + 0.5 * rng.normal(size=D)) + 0.5 * rng.normal(size=LABELS)))
        out.append(users)
    return out


def mean_of(
    clients: list[list[Observations]], poison: float = 0.0, clip: float | None = None, noise: float = 0.0
) -> Floats:
    """Return the mean of the fitted prior; a clip of 1 is the median norm of the round."""
    federation, rng = Federation(D, Shrinkage(), iterations=10), np.random.default_rng(9)
    for _ in range(federation.rounds):
        sums = [client_sums(federation.prior, users) for users in clients]
        middle = float(np.median([np.linalg.norm(each) for each in sums]))
        if noise:
            sums = [client_sums(federation.prior, users, clip=2.0 * middle, noise=noise, rng=rng) for users in clients]
        if poison:
            sums[0] = -poison * sums[0]
        federation._clip = None if clip is None else clip * middle
        federation.take(sums)
    assert federation.prior is not None
    return federation.prior.mean


def main() -> None:
    """Measure and print."""
    worlds = [clients_of(seed) for seed in range(SEEDS)]
    seven = [mean_of(clients[1:]) for clients in worlds]

    def moved(means: list[Floats]) -> float:
        return round(float(np.mean([np.linalg.norm(a - b) for a, b in zip(means, seven, strict=True)])), 3)

    found = {
        "honest": moved([mean_of(clients) for clients in worlds]),
        "size of the mean": round(float(np.mean([np.linalg.norm(mean) for mean in seven])), 3),
        "poisoned": {
            name: {f"{s:g}": moved([mean_of(clients, s, clip) for clients in worlds]) for s in SCALES}
            for name, clip in CLIPS.items()
        },
        "noise": {f"{z:g}": moved([mean_of(clients, noise=z) for clients in worlds]) for z in NOISES},
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

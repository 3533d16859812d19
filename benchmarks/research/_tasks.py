"""Tasks of a pool's prompts: clusters of their topics."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fitrouter_evaluators.simulation.pool import Pool


def cluster_tasks(pool: Pool, tasks: int) -> NDArray[np.int64]:
    """Cluster prompts by topic into `tasks` tasks by k-means, the same for every seed of a world; int64[N]."""
    cluster: Any = importlib.import_module("sklearn.cluster")
    found = cluster.KMeans(tasks, n_init=4, random_state=0).fit_predict(pool.topics[:, 1:])
    return np.asarray(found, dtype=np.int64)

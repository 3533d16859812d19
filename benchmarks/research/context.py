"""Over- and under-personalisation: tastes that apply in some tasks only, on real responses with simulated users.

A setting says in which tasks, and for which attributes, tastes apply at all. Every row learns online from the same
labels (one thumb on a random answer to a known prompt); then each picks one of K answers to every unseen prompt, and
what counts is P(satisfied) of its picks, against the picks of the row that knows no user.

- **over**: satisfaction lost on prompts where no taste belongs; 0 is right.
- **under**: the share of the attainable gain that is missed where tastes belong; 0 is right, 1 is the global head.
  Attainable is what the global head would gain if it were told every user's true taste and where it applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from benchmarks.research._relevance import FoldLearner, Learner, TasteLearner
from benchmarks.research._tasks import cluster_tasks
from numpy.typing import NDArray

from fitrouter.types import Floats
from fitrouter_evaluators.simulation.pool import ATTRIBUTES, Pool
from fitrouter_evaluators.simulation.worlds import World
from fitrouter_evaluators.training.hierarchy import sigmoid

CHECKPOINTS = (5, 20, 50)
"""Labels a user at which rows are measured."""

KINDS = ("half", "quarter", "everywhere", "nowhere", "per attribute")
"""Tastes apply in half of the tasks, in a quarter, in all, in none, or each attribute in half of them on its own."""

_RESAMPLES = 1000


class Setting(msgspec.Struct, frozen=True):
    """Users' tastes and the tasks in which they apply."""

    h: Floats
    """float64[N, K, D]: what a head sees of the answers; nothing is missing (0 instead)."""
    task: NDArray[np.int64]
    """int64[N]."""
    shared: Floats
    """float64[N, K]: common utility of an answer, in logits."""
    personal: Floats
    """float64[U, N, K]: a user's deviation from it, where their taste applies."""
    relevance: Floats
    """float64[C, D] in [0, 1]: the share of attributes that apply in a task, for every feature."""
    known: NDArray[np.bool_]
    """bool[N]: prompts that labels are about; the others are measured."""

    @property
    def belongs(self) -> NDArray[np.bool_]:
        """Return for each prompt whether a taste applies at all, bool[N]."""
        return np.asarray(self.relevance[self.task].max(axis=1) > 0.0)


def draw_setting(
    pool: Pool, world: World, kind: str, users: int, seed: int, tasks: int = 8, spread: float = 0.6
) -> Setting:
    """Draw one seed of a setting over a pool.

    Args:
        pool: responses, with topics of prompts; the tasks are clusters of them.
        world: gives the models' qualities and luck.
        kind: of `KINDS`.
        users: how many.
        seed: of everything that is drawn.
        tasks: clusters.
        spread: standard deviation, in logits, of tastes along an attribute.

    Raises:
        ValueError: there is no such kind.
    """
    rng = np.random.default_rng([2026, seed])
    A, N = len(ATTRIBUTES), len(pool.prompts)
    order = rng.permutation(tasks)
    chosen = {"half": order < tasks // 2, "quarter": order < max(1, tasks // 4)}
    chosen |= {"everywhere": np.ones(tasks, dtype=bool), "nowhere": np.zeros(tasks, dtype=bool)}
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; allowed are {KINDS}")
    applies = rng.random((tasks, A)) < 0.5 if kind == "per attribute" else np.repeat(chosen[kind][:, None], A, axis=1)
    task = cluster_tasks(pool, tasks)
    quality = np.array([world.quality[model] for model in pool.models])
    quality = world.quality_weight * (quality - quality.mean()) / quality.std()
    taste = rng.normal(0.0, spread, (users, A))
    attributes = np.transpose(pool.attributes, (1, 0, 2))
    known = np.zeros(N, dtype=bool)
    known[rng.permutation(N)[: N // 2]] = True
    return Setting(
        h=np.nan_to_num(np.transpose(pool.h, (1, 0, 2))),
        task=task,
        shared=quality + rng.normal(0.0, world.prompt_noise, (N, len(quality))),
        personal=np.stack([np.einsum("nka,na->nk", attributes, applies[task] * mine) for mine in taste]),
        relevance=np.repeat(applies.mean(axis=1)[:, None], pool.h.shape[2], axis=1),
        known=known,
    )


Row: TypeAlias = Callable[[Setting], Learner]
"""Makes a learner for a setting."""


def _taste(relevance: Callable[[Setting], Floats]) -> Row:
    def make(setting: Setting) -> Learner:
        return TasteLearner(len(setting.personal), relevance(setting))

    return make


def _learnt(setting: Setting) -> Learner:
    return FoldLearner(setting.h.shape[2])


ROWS: Mapping[str, Row] = {
    "global": _taste(lambda setting: np.zeros_like(setting.relevance)),
    "taste everywhere": _taste(lambda setting: np.ones_like(setting.relevance)),
    "mixture of heads": _learnt,
    "relevance given": _taste(lambda setting: setting.relevance),
}
"""The first is the baseline; the last knows the true relevance."""


class _Picks(msgspec.Struct, frozen=True):
    """P(satisfied) by user and measured prompt, float64[U, n] each."""

    gain: Floats
    """Of a row's picks, minus the global row's."""
    attainable: Floats
    """Of the global row told the true tastes, minus its own."""
    belongs: NDArray[np.bool_]
    """bool[n]."""


def measure_setting(
    setting: Setting, rows: Mapping[str, Row], seed: int, checkpoints: Sequence[int] = CHECKPOINTS
) -> dict[tuple[str, int], _Picks]:
    """Measure what each row's picks are worth, by (row, labels a user); the first row is the global one."""
    rng = np.random.default_rng([2026, seed, 1])
    U, _, K = setting.personal.shape
    p, base = sigmoid(setting.shared + setting.personal), sigmoid(setting.shared)
    learners = {name: make(setting) for name, make in rows.items()}
    prompts = np.flatnonzero(setting.known)
    new = ~setting.known
    out: dict[tuple[str, int], _Picks] = {}
    for step in range(1, max(checkpoints) + 1):
        for user in rng.permutation(U):
            n, k = int(rng.choice(prompts)), int(rng.integers(K))
            y = float(rng.random() < p[user, n, k])
            for learner in learners.values():
                learner.learn(int(user), setting.h[n, k], int(setting.task[n]), y)
        if step not in checkpoints:
            continue
        scores = {name: row.scores(setting.h[new], setting.task[new], U) for name, row in learners.items()}
        first = next(iter(scores.values()))
        start = _worth(p[:, new], first)
        attainable = _worth(p[:, new], first + p[:, new] - base[new]) - start
        for name, found in scores.items():
            out[name, step] = _Picks(_worth(p[:, new], found) - start, attainable, setting.belongs[new])
    return out


def run_context(
    settings: Callable[[str, int], Setting],
    *,
    kinds: Sequence[str] = KINDS,
    seeds: Sequence[int] = (0, 1, 2),
    rows: Mapping[str, Row] = ROWS,
    checkpoints: Sequence[int] = CHECKPOINTS,
) -> list[dict[str, Any]]:
    """Measure gain, over and under by kind, row and number of labels, with 95 % intervals over users; JSON objects.

    Args:
        settings: (kind, seed) → setting.
        kinds: what to measure.
        seeds: settings of each kind; their users are put together.
        rows: name → row; the first is the global one.
        checkpoints: labels a user.
    """
    table = []
    for kind in kinds:
        found = [measure_setting(settings(kind, seed), rows, seed, checkpoints) for seed in seeds]
        for row in rows:
            table += [_summary(kind, row, k, [picks[row, k] for picks in found]) for k in checkpoints]
    return table


def _summary(kind: str, row: str, k: int, found: Sequence[_Picks]) -> dict[str, Any]:
    def by_user(values: Callable[[_Picks], Floats]) -> Floats:
        return np.concatenate(
            [values(picks).mean(axis=1) for picks in found if values(picks).shape[1]] or [np.zeros(0)]
        )

    gain = by_user(lambda picks: picks.gain)
    over = by_user(lambda picks: -picks.gain[:, ~picks.belongs])
    won = by_user(lambda picks: picks.gain[:, picks.belongs])
    attainable = by_user(lambda picks: picks.attainable[:, picks.belongs])
    return {
        "tastes": kind,
        "row": row,
        "labels": k,
        "users": len(gain),
        "gain": _interval(gain),
        "over": _interval(over) if len(over) else None,
        "under": _interval(won, attainable) if len(won) else None,
    }


def _interval(values: Floats, of: Floats | None = None) -> list[float]:
    """Return [mean, low, high] over resamples of users; with `of`, of 1 − Σ values / Σ of."""
    draws = np.random.default_rng(2026).integers(len(values), size=(_RESAMPLES, len(values)))
    draws[0] = np.arange(len(values))
    means = values[draws].mean(axis=1)
    if of is not None:
        means = 1.0 - means / of[draws].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return [round(float(x), 4) for x in (means[0], low, high)]


def _worth(p: Floats, scores: Floats) -> Floats:
    """Return P(satisfied) of the highest score, float64[U, n], from p float64[U, n, K]; ties share it."""
    best = scores == scores.max(axis=2, keepdims=True)
    out: Floats = (p * best).sum(axis=2) / best.sum(axis=2)
    return out

"""Prequential evaluation on TTCW: experts' verdicts on stories by fourteen tests, one expert held out at a time.

A Gaussian process with effects of tests, writers, stories, experts and their pairs (`_mixed`). Of the expert held out
nothing is known at first; all verdicts of the others are, also on the same stories. Variances are fitted on the other
experts' verdicts on five of the twelve plots, drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmarks.research._mixed import covariance, fit_variances, given, same, test_then_learn
from benchmarks.research.public import creativity_dimensions
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.bench._metrics import ACCURACY, AUC, NLL, squared
from fitrouter_evaluators.bench._protocol import KS, Ledger, NoHarm, Result
from fitrouter_evaluators.datasets import Rating, ttcw
from fitrouter_evaluators.scoring.features import readable

_PLOTS = 5
_SHRINK = 10.0

Ints = NDArray[np.int64]


def measure(folder: Path, seeds: Sequence[int], encoder: Encoder) -> tuple[list[Result], list[NoHarm]]:
    """Evaluate TTCW. K = −1: test-then-learn in an order drawn by the seed; else verdicts after the 20th, k shown."""
    rows, torrance = ttcw.convert(folder), creativity_dimensions(folder)
    y, expert = np.array([row.rating for row in rows]), np.array([row.user for row in rows])
    plot = np.array([(row.item or "").partition("_")[0] for row in rows])
    kernels = _kernels(rows, plot, torrance, encoder)
    running, fixed = Ledger("D7 test-then-learn"), Ledger("D7 verdicts after the twentieth")
    for one in np.unique(expert):
        others, own = np.flatnonzero(expert != one), np.flatnonzero(expert == one)
        drawn = np.random.default_rng([2026, int(one)]).permutation(np.unique(plot))[:_PLOTS]
        few = others[np.isin(plot[others], drawn)]
        variances = fit_variances([kernel[np.ix_(few, few)] for kernel in kernels], y[few] - 0.5)
        C = covariance(kernels, variances)
        for seed in seeds:
            order = np.random.default_rng([2026, seed, int(one)]).permutation(own)
            _one(C, y - 0.5, others, order, seed, int(one), running, fixed)
    metrics = (ACCURACY, AUC, NLL)
    harm = [running.no_harm("hierarchical", -1, squared)]
    harm += [fixed.no_harm("hierarchical", k, squared) for k in KS if k]
    return running.results(metrics) + fixed.results(metrics), harm


def _kernels(rows: Sequence[Rating], plot: Ints, torrance: dict[str, str], encoder: Encoder) -> list[Floats]:
    test, writer = same([row.dimension for row in rows]), same([row.model or "" for row in rows])
    story, expert = same([row.item or "" for row in rows]), same([row.user for row in rows])
    group, plots = same([torrance[row.dimension] for row in rows]), same(plot)
    texts = {row.item: readable(row.response or row.prompt) for row in rows}
    vectors = dict(zip(texts, encoder.encode(list(texts.values())), strict=True))
    V = np.array([vectors[row.item] for row in rows])
    V -= V.mean(axis=0)
    text = V @ V.T / (V**2).sum(axis=1).mean()
    crowd = [test, writer, story, story * test, writer * test, plots, story * group, text]
    return [*crowd, *(expert * kernel for kernel in (np.ones_like(test), writer, test, story, group, plots))]


def _one(C: Floats, y: Floats, others: Ints, own: Ints, seed: int, expert: int, running: Ledger, fixed: Ledger) -> None:
    """Predict one expert's verdicts: from the others only, and with their own as they come."""
    rows = np.concatenate([others, own])
    C, y = C[np.ix_(rows, rows)], y[rows]
    known = len(others)
    truth = y[known:] + 0.5

    def say(ledger: Ledger, row: str, k: int, p: Floats, first: int) -> None:
        ledger.add(row, k, seed, expert, truth[first:], np.clip(p[first:] + 0.5, 0.02, 0.98))

    crowd = given(C, y, known)
    say(running, "global", -1, crowd, 0)
    say(running, "hierarchical", -1, test_then_learn(C, y)[known:], 0)
    if len(own) <= KS[-1] + 5:
        return
    for k in KS:
        p = np.concatenate([np.zeros(k), given(C, y, known + k)])
        say(fixed, "hierarchical", k, p, KS[-1])
        shown = y[known : known + k] - crowd[:k]
        say(fixed, "bias-only", k, crowd + shown.sum() / (k + _SHRINK), KS[-1])
        say(fixed, "user-only", k, np.full(len(own), y[known : known + k].sum() / (k + 2.0)), KS[-1])
    say(fixed, "global", 0, crowd, KS[-1])

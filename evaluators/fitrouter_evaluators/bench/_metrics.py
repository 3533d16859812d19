"""Losses of single predictions and metrics of many.

y are labels, p predictions, both float64[n]. For verdicts y is in [0, 1] and p is a probability; ratings may have any
scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fitrouter.types import Floats

_EPS = 1e-6
_BINS = 10


class Metric(NamedTuple):
    """A metric of many predictions.

    Args:
        name: in tables.
        of: (y, p) -> value; NaN if undefined, such as an AUC of one class.
        per_user: mean of the users' own values, instead of the value of all predictions together.
        higher: whether more is better.
        loss: (y, p) -> float64[n], where `of` is root(mean(loss)); makes intervals quick.
        root: see `loss`.
    """

    name: str
    of: Callable[[Floats, Floats], float]
    per_user: bool = False
    higher: bool = False
    loss: Callable[[Floats, Floats], Floats] | None = None
    root: Callable[[Floats], Floats] | None = None


# --- losses ---


def squared(y: Floats, p: Floats) -> Floats:
    """Squared error of each prediction, (y − p)², float64[n]."""
    out: Floats = (y - p) ** 2
    return out


def log_loss(y: Floats, p: Floats) -> Floats:
    """Log loss of each prediction in nats, float64[n]; p is kept 1e-6 away from 0 and 1, and y may be soft."""
    p = np.clip(p, _EPS, 1.0 - _EPS)
    out: Floats = -(y * np.log(p) + (1.0 - y) * np.log1p(-p))
    return out


def wrong(y: Floats, p: Floats) -> Floats:
    """Misclassification of each prediction, float64[n]: 1 if y and p lie on different sides of ½, ½ if either is ½."""
    out: Floats = 0.5 - 0.5 * np.sign(y - 0.5) * np.sign(p - 0.5)
    return out


def _right(y: Floats, p: Floats) -> Floats:
    out: Floats = 1.0 - wrong(y, p)
    return out


# --- metrics ---


def _rmse(y: Floats, p: Floats) -> float:
    return float(np.sqrt(squared(y, p).mean()))


def _auc(y: Floats, p: Floats) -> float:
    """Area under the ROC curve (Mann–Whitney): share of (yes, no) pairs in the right order, ties counting half."""
    from scipy import stats

    truth = y > 0.5
    yes, no = int(truth.sum()), int((~truth).sum())
    if not yes or not no:
        return float("nan")
    return float((stats.rankdata(p)[truth].sum() - yes * (yes + 1) / 2) / (yes * no))


def _ece(y: Floats, p: Floats) -> float:
    """Expected calibration error in ten bins of equal counts (Naeini et al. 2015; Nguyen and O'Connor 2015)."""
    parts = np.array_split(np.argsort(p, kind="stable"), min(_BINS, len(p)))
    return float(sum(len(part) * abs(float(y[part].mean() - p[part].mean())) for part in parts) / len(p))


def _correlated(y: Floats, p: Floats) -> bool:
    return len(y) >= 3 and bool(np.ptp(y) > 0.0 and np.ptp(p) > 0.0)


def _pearson(y: Floats, p: Floats) -> float:
    if not _correlated(y, p):
        return float("nan")
    y, p = y - y.mean(), p - p.mean()
    return float((y / np.linalg.norm(y)) @ (p / np.linalg.norm(p)))


def _spearman(y: Floats, p: Floats) -> float:
    from scipy.stats import rankdata

    return _pearson(rankdata(y), rankdata(p))


def _kendall(y: Floats, p: Floats) -> float:
    from scipy.stats import kendalltau

    if not _correlated(y, p):
        return float("nan")
    found: Any = kendalltau(y, p, method="asymptotic")
    return float(found.statistic)


RMSE = Metric("rmse", _rmse, loss=squared, root=np.sqrt)
USER_RMSE = Metric("user rmse", _rmse, per_user=True, loss=squared, root=np.sqrt)
"""Weighs users equally."""
NLL = Metric("nll", lambda y, p: float(log_loss(y, p).mean()), loss=log_loss)
ACCURACY = Metric("accuracy", lambda y, p: float(_right(y, p).mean()), higher=True, loss=_right)
AUC = Metric("auc", _auc, higher=True)
ECE = Metric("ece", _ece)
PEARSON = Metric("pearson", _pearson, higher=True)
SPEARMAN = Metric("spearman", _spearman, higher=True)
KENDALL = Metric("kendall", _kendall, higher=True)


class ItemAgreement(NamedTuple):
    """Agreement of two people's labels of the same item; items are weighted by their number of judgements."""

    same: float
    """Share of pairs of labels on the same side of ½ (labels in [0, 1])."""
    rmse: float
    """Root mean squared difference of two judgements."""
    correlation: float
    """Intraclass correlation, ICC(1) (Shrout and Fleiss 1979)."""
    items: int
    """Items judged by at least two people."""


def agreement(item: np.ndarray, y: Floats) -> ItemAgreement:
    """Measure how far people agree on the same items, from judgements y float64[n]; NaN if none was judged twice."""
    _, code, counts = np.unique(item, return_inverse=True, return_counts=True)
    shared = counts >= 2
    if not shared.any():
        return ItemAgreement(float("nan"), float("nan"), float("nan"), 0)
    kept = shared[code]
    code, y = code[kept], y[kept]
    n = counts[shared].astype(np.float64)
    code = np.unique(code, return_inverse=True)[1]
    mean = np.bincount(code, y) / n
    within = float(((y - mean[code]) ** 2).sum() / (n - 1.0).sum())
    yes = np.bincount(code, y > 0.5)
    same = (yes * (yes - 1) + (n - yes) * (n - yes - 1)) / (n * (n - 1.0))
    size = (n.sum() - (n**2).sum() / n.sum()) / max(len(n) - 1, 1)
    between = float((n * (mean - y.mean()) ** 2).sum() / max(len(n) - 1, 1))
    total = between + (size - 1.0) * within
    return ItemAgreement(
        float((same * n).sum() / n.sum()),
        float(np.sqrt(2.0 * within)),
        (between - within) / total if total > 0 else float("nan"),
        len(n),
    )

"""Accuracy of a reward head with a user's earlier posts, without them, and with another user's.

In Personalized RewardBench (arXiv:2604.07343) one answer is written to a user's rubric and one against it. A head that
never sees the profile and still tells them apart has learnt how the texts were generated; so has one for which any
profile will do. So three numbers are printed, of the same head on the same pairs, and their paired differences.

The head with profile is logistic in the difference of the base score and of the nearness to the retrieved posts. Its
weights are learnt from other users' pairs: folds over users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from benchmarks.research.retrieval import Dense, Retriever, top
from numpy.typing import NDArray

from fitrouter.context.encoders import Encoder
from fitrouter.types import Floats
from fitrouter_evaluators.datasets import Pair
from fitrouter_evaluators.scoring import Answer

_RESAMPLES = 2000


class AnswerHead(Protocol):
    """A head without a profile, which returns one score an answer, float64[n], on any scale."""

    def __call__(self, answers: Sequence[Answer], /) -> Floats:
        """Score answers; more is better."""
        ...


def nearness(answer: Floats, posts: Floats) -> Floats:
    """Return mean and highest cosine of an answer, float64[d], to posts, float64[n, d]; 0 without posts."""
    if not len(posts):
        return np.zeros(2)
    cosines = np.einsum("nd,d->n", posts, answer)
    return np.array([cosines.mean(), cosines.max()])


def profile_pairs(
    rows: Sequence[Pair],
    head: AnswerHead,
    retriever: Retriever,
    *,
    encoder: Encoder,
    k: int = 10,
    folds: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure accuracy on pairs that carry their user's posts in `extra["profile"]`, each a mapping with a `text`.

    Args:
        rows: pairs; ties and pairs without posts take no part.
        head: the base score.
        retriever: finds the k posts for a prompt.
        encoder: measures nearness of an answer to them.
        k: posts.
        folds: of users, for the weights.
        seed: which users go together.

    Returns:
        JSON: `with`, `without` and `somebody_else` (the posts of another user, of the same subset where there is one),
        and `difference` (with − without), `difference_somebody_else`, `personal` (with − somebody else's): each
        [mean, low, high] over users with 95 % intervals that resample users; `weights` learnt on all pairs, of
        standardised base score, mean and highest nearness.

    Raises:
        ValueError: fewer users than folds have usable pairs, or the head's scores are not finite.
    """
    kept = [row for row in rows if row.label != 0.5 and row.extra.get("profile")]
    names, user = np.unique([row.user for row in kept], return_inverse=True)
    if len(names) < max(folds, 2):
        raise ValueError(
            f"{len(names)} users have pairs with a profile; {max(folds, 2)} are needed for {folds} folds: give more "
            f"rows with extra['profile'], or fewer folds"
        )
    base = _base(kept, head)
    space = Dense(encoder)
    own = _near(kept, [_texts(row) for row in kept], retriever, space, k)
    other = _near(kept, [_texts(kept[i]) for i in _partners(kept, user)], retriever, space, k)
    rng = np.random.default_rng([2026, seed])
    fold = rng.permutation(len(names))[user] % folds
    won = {
        "with": _correct(np.column_stack([base, own]), fold),
        "without": _correct(base[:, None], fold),
        "somebody_else": _correct(np.column_stack([base, other]), fold),
    }
    mean = {name: np.bincount(user, right) / np.bincount(user) for name, right in won.items()}
    draws = rng.integers(len(names), size=(_RESAMPLES, len(names)))
    return {
        "pairs": len(kept),
        "users": len(names),
        "retriever": retriever.name,
        "encoder": encoder.id,
        "k": k,
        **_compared(mean, draws),
        "weights": [round(float(w), 4) for w in _fit(np.column_stack([base, own]))[0]],
    }


def _compared(mean: Mapping[str, Floats], draws: NDArray[np.int64]) -> dict[str, list[float]]:
    """Summarise the rows and their differences, with intervals over users."""
    return {
        **{name: _interval(values, draws) for name, values in mean.items()},
        "difference": _interval(mean["with"] - mean["without"], draws),
        "difference_somebody_else": _interval(mean["somebody_else"] - mean["without"], draws),
        "personal": _interval(mean["with"] - mean["somebody_else"], draws),
    }


def _texts(row: Pair) -> list[str]:
    return [str(post["text"]) for post in row.extra["profile"]]


def _base(rows: Sequence[Pair], head: AnswerHead) -> Floats:
    """Return the head's score of the preferred answer minus the other's, float64[n]."""
    answers = [Answer(prompt=row.prompt, text=text) for row in rows for text in (row.a.text, row.b.text)]
    scores = np.asarray(head(answers), dtype=np.float64)
    if scores.shape != (len(answers),) or not np.isfinite(scores).all():
        raise ValueError(f"the head gave {scores.shape} scores for {len(answers)} answers; one finite number each")
    return (scores[0::2] - scores[1::2]) * _sign(rows)


def _near(rows: Sequence[Pair], profiles: Sequence[list[str]], retriever: Retriever, space: Dense, k: int) -> Floats:
    """Return nearness to the retrieved posts of the preferred answer minus the other's, float64[n, 2]."""
    out = np.zeros((len(rows), 2))
    for i, (row, posts) in enumerate(zip(rows, profiles, strict=True)):
        chosen = [posts[place] for place in top(retriever, row.prompt, posts, k)]
        found = space.vectors([row.a.text, row.b.text, *chosen])
        out[i] = nearness(found[0], found[2:]) - nearness(found[1], found[2:])
    return out * _sign(rows)[:, None]


def _sign(rows: Sequence[Pair]) -> Floats:
    return np.array([1.0 if row.label == 1.0 else -1.0 for row in rows])


def _partners(rows: Sequence[Pair], user: NDArray[np.int64]) -> list[int]:
    """Choose for each row the next row of another user, of the same subset if there is one."""
    groups: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.extra.get("subset"), []).append(i)
    out = []
    for i, row in enumerate(rows):
        near = groups[row.extra.get("subset")]
        at = near.index(i)
        later = [*near[at + 1 :], *near[:at], *range(i + 1, len(rows)), *range(i)]
        out.append(next(j for j in later if user[j] != user[i]))
    return out


def _fit(X: Floats) -> tuple[Floats, Floats]:
    """Fit weights and scales of P(preferred) = σ(w·X / scale) on differences X, preferred − other."""
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt((X**2).mean(axis=0))
    unit = X / np.where(scale > 0, scale, 1.0)
    both, y = np.vstack([unit, -unit]), np.repeat([1, 0], len(X))
    return LogisticRegression(C=10.0, fit_intercept=False).fit(both, y).coef_[0], scale


def _correct(X: Floats, fold: NDArray[np.int64]) -> Floats:
    """Return 1 where weights from the other folds put the preferred answer first, ½ for a tie; float64[n]."""
    out = np.zeros(len(X))
    for part in np.unique(fold):
        weights, scale = _fit(X[fold != part])
        margin = (X[fold == part] / np.where(scale > 0, scale, 1.0)) @ weights
        out[fold == part] = 0.5 + 0.5 * np.sign(margin)
    return out


def _interval(values: Floats, draws: NDArray[np.int64]) -> list[float]:
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return [round(float(x), 4) for x in (values.mean(), low, high)]

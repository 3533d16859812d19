"""Grounds of a decision: the terms of its predicted ratings, and the response features behind them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fitrouter.plain import on_grid, pack
from fitrouter.posterior.heads import length_columns
from fitrouter.posterior.labels import Estimate
from fitrouter.posterior.model import Fit
from fitrouter.routing.explanation_text import FEATURES, LENGTH_FIT
from fitrouter.state.projections import ArmCounts
from fitrouter.types import Floats, Grounds, Identity

_MOST = 6
"""Logged features."""


def grounds_of(
    fit: Fit,
    seen: Estimate,
    identity: Identity,
    names: tuple[str, ...],
    *,
    personal: bool = True,
    counts: ArmCounts | None = None,
    exact: bool = False,
) -> Grounds:
    """Collect the grounds of predictions: their terms, and the features behind them.

    Args:
        fit: model that made them.
        seen: the predictions, of all arms at the request.
        identity: of the request.
        names: of the arms.
        personal: whether the terms of role and user count.
        counts: answers and labels of the arms.
        exact: whether neither terms nor features are rounded.
    """
    profile = seen.profile
    tastes = np.zeros((3, profile.shape[1]))
    tastes[0] = seen.tastes[0]
    with_role = with_user = seen.blind
    if personal:
        tastes[1], tastes[2] = seen.tastes[1:]
        with_role, with_user = seen.with_role, seen.mean
    text = tastes @ profile.T
    terms = [*text, seen.blind - text[0], with_role - seen.blind - text[1], with_user - with_role - text[2]]
    chosen, shown, liked = _features(fit, profile, tastes)
    person = (fit.tastes.user(identity) or fit.tastes.role(identity)) if fit.params.personal and personal else None
    if not exact:
        shown = on_grid(shown, 7)
    if rounded := personal and not exact:  # else nothing in the log is the prediction that decided
        terms = [*on_grid(np.array(terms), 12)]
    return Grounds(
        terms=tuple(() if rounded and k == 3 else tuple(term.tolist()) for k, term in enumerate(terms)),
        features=chosen,
        profile=tuple(map(tuple, shown.T.tolist())),
        tastes=pack(liked.ravel()) if chosen else b"",
        own=1.0 - float(fit.weights(identity)[:2].sum()) if person is not None and person.weights else None,
        answers=() if counts is None else tuple(counts.answers.get(name, 0) for name in names),
        labels=() if counts is None else tuple(counts.labels.get(name, 0) for name in names),
    )


@lru_cache(maxsize=16)
def _worded(names: tuple[str, ...]) -> tuple[tuple[str, ...], list[int], list[int]]:
    """Return the features that explanations have words for, their columns, and those of length and its hinges."""
    known = [(name, column) for column, name in enumerate(names) if name in FEATURES]
    return tuple(name for name, _ in known), [column for _, column in known], length_columns(names)


def _features(fit: Fit, profile: Floats, tastes: Floats) -> tuple[tuple[str, ...], Floats, Floats]:
    """The features that have words and move the arms' predictions apart, the strongest first.

    Returns:
        Names, profiles float64[K, n] and tastes float64[3, n].
    """
    named, columns, lengths = _worded(tuple(fit.tastes.names))
    if not named or len(fit.tastes.names) != profile.shape[1]:
        return (), profile[:, :0], tastes[:, :0]
    shown, liked = profile[:, columns], tastes[:, columns]
    if lengths:
        named = (*named, LENGTH_FIT)
        shown = np.column_stack([shown, profile[:, lengths] @ tastes[0, lengths]])
        liked = np.column_stack([liked, [1.0, 0.0, 0.0]])
        liked[0, columns.index(lengths[0])] = 0.0
    reach = np.maximum.reduce(shown) - np.minimum.reduce(shown)
    apart = reach * np.add.reduce(np.abs(liked))
    order = [j for j in np.argsort(-apart, kind="stable")[:_MOST].tolist() if apart[j] > 0.0]
    return tuple(named[j] for j in order), shown[:, order], liked[:, order]

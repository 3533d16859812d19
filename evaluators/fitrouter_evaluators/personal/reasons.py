"""Split of the difference between a person's ratings of two models, over the parts of the posterior behind them.

A rating is h·w + level, with h the model's expected features and w, level the means of the mixture of heads under the
heads' weights. With these weights held fixed it is linear in every part, so a part's Shapley value (Shapley 1953) is
the change of the difference when that part alone is set to what everybody has; the parts add up to the difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from fitrouter.posterior.draws import RatingDraws
from fitrouter.routing.explanation_text import FEATURES

_NAMED = 3
"""Features that are parts of their own; the others are one part, so that there are at most eight."""
_LEAST, _TOLD = 0.005, 3

_WORDS = {
    "text": ("writes what everybody likes more", "writes what everybody likes less"),
    "model": (
        "is rated higher by everybody than its text suggests",
        "is rated lower by everybody than its text suggests",
    ),
    "role": ("suits the role better", "suits the role less"),
    "offset": ("was rated higher by them, whatever it writes", "was rated lower by them, whatever it writes"),
    "style": ("differs in other properties of its text, which they like", "differs in other properties of its text"),
}
"""Group → phrases for a model that it helps and for one that it harms."""
_UNRATED = {
    "offset": ("gains by their votes on other models", "loses by their votes on other models"),
    "model": (
        "is expected to be rated higher than its text suggests, though nobody has rated it",
        "is expected to be rated lower than its text suggests, though nobody has rated it",
    ),
}
"""The same, of an offset that no vote of theirs, and a level that no vote of anybody's, was given for."""
SHARED = ("text", "model")
"""Groups that are the same for everybody."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a person's rating of one model minus that of another."""

    group: str
    """`style`, `offset` and `role` are theirs; `text` and `model` are everybody's."""
    feature: str
    """Of a `style`; empty for the features that are not listed."""
    effect: float
    words: str
    """About the first of the models."""


def split(
    own: RatingDraws,
    common: RatingDraws,
    features: Sequence[str],
    a: int,
    b: int,
    basis: str = "",
) -> tuple[Difference, ...]:
    """Split the rating of model a minus that of model b: first what is this person's, by size, then what everybody has.

    Args:
        own: ratings of the person or role.
        common: of everybody.
        features: names of the response features; empty without a scorer.
        a: index of a model.
        b: index of the other one.
        basis: of model a, as of `LeaderboardRow`: no model was rated higher that nobody has rated.
    """
    words = dict(_WORDS)
    if basis in {"others", "answers", "prior"}:
        words["offset"] = _UNRATED["offset"]
    if basis in {"answers", "prior"}:
        words["model"] = _UNRATED["model"]
    gap = own.profile[a] - own.profile[b]
    everybody = common.means.taste.mean
    style = gap * (own.means.taste.mean - everybody - own.means.role_taste)
    level, shared, of_role = (float(x[a] - x[b]) for x in (own.means.level, common.means.level, own.means.role_level))
    named = [j for j, name in enumerate(features) if name in FEATURES and style[j]]
    named = sorted(named, key=lambda j: -abs(float(style[j])))[:_NAMED]
    found = [
        ("offset", "", level - shared - of_role),
        ("role", "", float(gap @ own.means.role_taste) + of_role),
        ("style", "", float(np.delete(style, named).sum())),
        *(("style", features[j], float(style[j])) for j in named),
    ]
    found = sorted(found, key=lambda each: -each[2])
    found += [("text", "", float(gap @ everybody)), ("model", "", shared)]
    more = {features[j]: bool(gap[j] > 0.0) for j in named}
    return tuple(
        Difference(
            group=group,
            feature=feature,
            effect=own.factor * effect,
            words=FEATURES[feature][not more[feature]] if feature else words[group][effect < 0.0],
        )
        for group, feature, effect in found
    )


def said(model: str, parts: Sequence[Difference]) -> str:
    """Sentence on what puts a model ahead and what speaks against it; empty if no part is worth a word."""
    because = [each for each in parts if each.effect >= _LEAST][:_TOLD]
    although = sorted((each for each in parts if each.effect <= -_LEAST), key=lambda each: each.effect)[:_TOLD]
    if not because:
        return ""
    words = "; ".join(f"{each.words} ({each.effect:+.2f})" for each in because)
    against = "; ".join(f"{each.words} ({each.effect:+.2f})".replace("-", "−") for each in although)
    return f"What separates the two: {model} {words}" + (f"; against it: {against}" if against else "")

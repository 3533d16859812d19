"""Contrast pairs from the pool and recorded answers, and the check that length and format do not give them away.

A candidate is accepted if its answers differ in the dimension of the rubric by `APART` standard deviations or more, and
by at most half of that in every other named dimension, so that nothing else can be what is preferred. Pairs are then
chosen so that the differences in length and format cancel over the suite: greedily, the next pair is the one that keeps
their sum smallest. A logistic regression on the same differences, and each of them alone, cross-validated, measure
what is left.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fitrouter.providers import Recorded
from fitrouter.types import Floats
from fitrouter_evaluators.personal.suite.suite import POOL, Pair
from fitrouter_evaluators.scoring.text.style import STYLE, measure, standardise

APART = 0.5
"""Least difference in the dimension of a pair, in standard deviations of ordinary answers."""
_OTHERS = 0.8
LONGER = 0.2
"""Largest difference in length, as a share."""
SURFACE = 0.55
"""Highest accuracy of the classifiers on length and format."""
FEW, ALONE = 10, 20
"""Pairs from which a classifier on all of them is fitted, and from which one on each alone says more than chance."""
FORM = frozenset(("length", "structure", "emphasis", "code"))
"""Dimensions that are length and format themselves; probes test them, pairs cannot."""
_NAMES = [each.name for each in STYLE]


def style(text: str) -> dict[str, float]:
    """Style dimensions of a text by name, in standard deviations."""
    return dict(zip(_NAMES, standardise(measure(text)).tolist(), strict=True))


def surface(text: str) -> Floats:
    """Features of a text's length, format and punctuation, float64[8]."""
    lines = text.splitlines()
    return np.array(
        [
            np.log1p(len(text)),
            np.log1p(len(text.split())),
            len(lines),
            sum(line.lstrip()[:1] in {"-", "*", "#", "|"} for line in lines),
            text.count("**") + text.count("`"),
            len(re.findall(r"[.!?]+(?:\s|$)", text)),
            text.count(","),
            text.count("!"),
        ],
        dtype=np.float64,
    )


def contrasts(dimension: str, follows: str, breaks: str, sign: float) -> bool:
    """Whether the answers differ in a dimension, in the direction of `sign`, and in nothing else by as much.

    Of a dimension that texts are not measured in, only the rest is checked.
    """
    a, b = style(follows), style(breaks)
    apart = sign * (a[dimension] - b[dimension]) if dimension in a else APART
    if not apart >= APART or abs(len(follows) - len(breaks)) > LONGER * max(len(follows), len(breaks)):
        return False
    return all(
        not abs(a[name] - b[name]) > max(0.6 * apart, _OTHERS)
        for name in _NAMES
        if name != dimension and (dimension, name) not in _TOGETHER and (name, dimension) not in _TOGETHER
    )


_TOGETHER = {("evidence", "digits"), ("concreteness", "digits"), ("questions", "warmth"), ("flattery", "warmth")}
"""Dimensions that the same words are signs of."""


def from_pool(rubric: Mapping[str, float]) -> Iterator[Pair]:
    """Take the pool's pairs of the rubric's dimensions."""
    for each in POOL.pairs:
        value = rubric.get(each.dimension)
        if value is not None:
            follows, breaks = (each.more, each.less) if value > 0 else (each.less, each.more)
            yield pair_of(each.prompt, follows, breaks, each.dimension, "pool")


def from_recorded(rubric: Mapping[str, float], recorded: Recorded, most: int = 400) -> Iterator[Pair]:
    """Build pairs from two recorded answers to the same prompt.

    Args:
        rubric: dimension → direction.
        recorded: answers of several models.
        most: prompts that are read.
    """
    for prompt in recorded.prompts[:most]:
        answers = sorted(set(recorded.answers(prompt).values()))
        for i, first in enumerate(answers):
            for second in answers[i + 1 :]:
                for dimension, value in rubric.items():
                    if dimension in FORM or dimension not in _NAMES or not (first.strip() and second.strip()):
                        continue
                    for texts in ((first, second), (second, first)):
                        if contrasts(dimension, *texts, value):
                            yield pair_of(prompt, *texts, dimension, "recorded")


def fair(candidates: Sequence[Pair], most: int) -> tuple[Pair, ...]:
    """Choose the largest balanced set of at most `most` pairs that length and format do not give away."""
    chosen = balanced(candidates, most)
    while (surface_accuracy(chosen) or 0.0) > SURFACE:
        chosen = balanced(candidates, len(chosen) - 2)
    return chosen


def balanced(candidates: Sequence[Pair], most: int) -> tuple[Pair, ...]:
    """At most `most` pairs, of the dimensions in turn, whose differences in length and format cancel.

    Args:
        candidates: any number of pairs.
        most: pairs to choose.
    """
    if not candidates:
        return ()
    apart = np.array([surface(each.follows) - surface(each.breaks) for each in candidates])
    apart = np.hstack([apart / np.maximum(apart.std(axis=0), 1e-9), np.sign(apart)])
    dimensions = sorted({each.dimension for each in candidates})
    left = list(range(len(candidates)))
    total, chosen, texts = np.zeros(apart.shape[1]), list[int](), set[str]()
    while left and len(chosen) < most:
        due = dimensions[len(chosen) % len(dimensions)]
        here = [k for k in left if candidates[k].dimension == due] or left
        best = min(here, key=lambda k: (round(float(np.linalg.norm(total + apart[k])), 9), candidates[k].id))
        total += apart[best]
        chosen.append(best)
        texts |= {candidates[best].follows, candidates[best].breaks}
        left = [k for k in left if not {candidates[k].follows, candidates[k].breaks} <= texts]
    return tuple(candidates[k] for k in chosen)


def surface_accuracy(pairs: Sequence[Pair]) -> float | None:
    """Cross-validated accuracy of predicting which answer follows, from length and format; None with few pairs.

    It is that of all of their measures together or, with `ALONE` pairs or more, of the best of each alone.
    """
    if len(pairs) < FEW:
        return None
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    apart = np.array([surface(each.follows) - surface(each.breaks) for each in pairs])
    rows, labels = np.concatenate([apart, -apart]), np.repeat([1, 0], len(pairs))
    classifier = make_pipeline(StandardScaler(with_mean=False), LogisticRegression(fit_intercept=False))
    groups = np.tile(np.arange(len(pairs)), 2)
    together = float(cross_val_score(classifier, rows, labels, groups=groups, cv=GroupKFold(5)).mean())
    if len(pairs) < ALONE:
        return together
    signs = np.sign(apart)
    others = np.sign(signs.sum(axis=0) - signs)  # what the other pairs say of the larger one
    right = np.where(signs * others == 0.0, 0.5, signs == others)
    return max(together, float(right.mean(axis=0).max()))


def pair_of(prompt: str, follows: str, breaks: str, dimension: str, made_by: str) -> Pair:
    """Build a pair whose id is a digest of its texts."""
    digest = hashlib.sha256("\0".join((prompt, follows, breaks, dimension)).encode("utf-8", "replace")).hexdigest()
    return Pair(
        id=f"c{digest[:10]}", prompt=prompt, follows=follows, breaks=breaks, dimension=dimension, made_by=made_by
    )

"""Validation of a suite by people: blind comparisons of its pairs, and how far raters agree with it and each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from fitrouter_evaluators.personal.suite.suite import FIT, MARKS, Choice, Pair, Suite


class RaterAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement of raters with a suite and with each other in one dimension."""

    raters: int
    marks: int
    agrees: float
    """Share of marks as the suite claims: the answer that follows for `fit`, no difference for the others."""
    kappa: float | None
    """Cohen's κ, the mean over pairs of raters; None with one rater, or where everybody always says the same."""


class BlindQuestion(msgspec.Struct, frozen=True):
    """A question to a rater: which of two answers is better in a dimension, without a word on which is which."""

    pair: str
    dimension: str
    prompt: str
    first: str
    second: str
    swapped: bool
    """Whether the answer that breaks the rubric is the first."""

    def choice(self, better: str) -> Choice:
        """Translate `first`, `second` or `same` to the mark: `follows`, `breaks` or `same`."""
        if better == "same":
            return "same"
        return "breaks" if (better == "first") == self.swapped else "follows"


def blind(suite: Suite, rater: str, *, seed: int = 0) -> Iterator[BlindQuestion]:
    """Iterate over the questions that a rater has not answered, in an order and with sides drawn for that rater."""
    rng = np.random.default_rng([seed, *rater.encode("utf-8", "replace")])
    for at in rng.permutation(len(suite.pairs)).tolist():
        pair, swapped = suite.pairs[at], bool(rng.random() < 0.5)
        answers = (pair.breaks, pair.follows) if swapped else (pair.follows, pair.breaks)
        for dimension in MARKS:
            if dimension not in pair.marks.get(rater, {}):
                yield BlindQuestion(pair.id, dimension, pair.prompt, *answers, swapped)


def with_mark(suite: Suite, rater: str, asked: BlindQuestion, better: str) -> Suite:
    """Return the suite with a rater's answer added and its agreement recomputed."""

    def told(pair: Pair) -> Pair:
        if pair.id != asked.pair:
            return pair
        own = {**pair.marks.get(rater, {}), asked.dimension: asked.choice(better)}
        return msgspec.structs.replace(pair, marks={**pair.marks, rater: own})

    return with_agreement(msgspec.structs.replace(suite, pairs=tuple(map(told, suite.pairs))))


def with_agreement(suite: Suite) -> Suite:
    """Return the suite with the agreement of its marks recomputed."""
    found = {name: msgspec.to_builtins(each) for name, each in agreements(suite.pairs).items()}
    return msgspec.structs.replace(suite, validation=found)


def agreements(pairs: Sequence[Pair]) -> Mapping[str, RaterAgreement]:
    """Measure agreement by dimension, for the dimensions that have marks."""
    found = {}
    for dimension in MARKS:
        marks: dict[str, dict[str, Choice]] = {}
        for pair in pairs:
            for rater, own in pair.marks.items():
                if dimension in own:
                    marks.setdefault(rater, {})[pair.id] = own[dimension]
        if marks:
            given = [mark for own in marks.values() for mark in own.values()]
            claimed = "follows" if dimension == FIT else "same"
            found[dimension] = RaterAgreement(
                raters=len(marks),
                marks=len(given),
                agrees=sum(mark == claimed for mark in given) / len(given),
                kappa=_kappa(list(marks.values())),
            )
    return found


def _kappa(raters: Sequence[Mapping[str, Choice]]) -> float | None:
    from sklearn.metrics import cohen_kappa_score

    found = []
    for one, other in itertools.combinations(raters, 2):
        both = sorted(one.keys() & other.keys())
        values = [one[each] for each in both], [other[each] for each in both]
        if len({*values[0], *values[1]}) > 1:
            found.append(float(cohen_kappa_score(*values)))
    known = [each for each in found if math.isfinite(each)]
    return sum(known) / len(known) if known else None

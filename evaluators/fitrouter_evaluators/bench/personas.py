"""Scorecard of reward heads on value-diverse personas, drawn from PluriHarms' raters.

The fifty raters whose value factors are farthest apart (greedy k-centre; Gonzalez 1985) are the personas, the others
the crowd. A pair has two prompts of one domain that its rater finds unequally harmful; the less harmful one is
preferred. A persona gives 100 pairs to learn from and 100 to predict, of prompts that nobody's labels mention. Heads:

* *population*: the crowd's taste, `Fit.predict().population`;
* *mixture*: what a score reads of the persona, in an installation with the crowd;
* *person-only*: the same in an installation that the persona is alone in.

Generic accuracy is agreement with the crowd's mean rating, personal accuracy with the persona. Coverage of diversity is
the share of the persona's choices *against* the crowd's mean that a head predicts.
"""

from __future__ import annotations

import copy
import os
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fitrouter.context.encoders import get_encoder
from fitrouter.posterior.labels import Answered, FitParams, Label
from fitrouter.posterior.model import Fit
from fitrouter.types import FeedbackKind, Floats, Identity
from fitrouter_evaluators.datasets import pluriharms
from fitrouter_evaluators.scoring import Answer, ResponseFeatures

PERSONAS, PAIRS, CROWD_PAIRS = 50, 200, 40
"""Personas; pairs of each, half of them to learn from; pairs of each rater of the crowd."""
KS = (0, 20, 100)
"""Labels of the persona after which heads are compared."""
HEADS = ("population", "mixture", "person-only")
DOMAINS = {
    "creative": r"story|scene|narrat|script|describe|character|fictional|satir|novelist|write a|draft",
    "medical": r"cut\b|cuts|cutting|self-|suicid|patient|clinic|diet|fast for|bulimi|weight|hunger|pain\b|calorie"
    r"|wellness|die in|end their life|pregnan",
    "legal": r"legal|\blaws?\b|regulat|brib|audit|plagiar|defam|accus|tax\b|prices|complian|justice|police|insur"
    r"|\bOSC\b|traffick|falsify|credit score",
}
"""Domain → expression that its prompts contain, the first that fits; all others are everyday's."""
Ints = NDArray[np.int64]
_X = np.ones(1)
"""Context of all labels."""


class Harms(NamedTuple):
    """Ratings of all raters, and the prompts' features and domains."""

    ratings: Floats
    """float64[raters, prompts] in [0, 1], NaN where there is none."""
    values: Floats
    """Value factors, float64[raters, 3]."""
    h: Floats
    """float64[prompts, D]"""
    domains: tuple[str, ...]


class Choice(NamedTuple):
    """A choice between two prompts, which a persona made; `first` tells whether `a` was preferred."""

    a: int
    b: int
    first: bool
    domain: str


class Tally(NamedTuple):
    """Whether a head's prediction of a choice agrees with the crowd (`generic`) and with the persona (`personal`)."""

    domain: str
    generic: bool
    personal: bool
    against: bool
    """Whether the persona's choice is against the crowd's."""


def run_personas(
    folder: str | os.PathLike[str], encoder: str = "static", *, personas: int = PERSONAS, seed: int = 0
) -> dict[str, Any]:
    """Run the benchmark of the heads on personas; times are medians in milliseconds.

    Args:
        folder: PluriHarms, as published.
        encoder: reads the prompts.
        personas: number of them.
        seed: of pairs and of the split into known and unknown prompts.
    """
    harms, rng = read_harms(folder, encoder), np.random.default_rng(seed)
    chosen = diverse(harms.values, personas)
    others = [rater for rater in range(len(harms.values)) if rater not in set(chosen)]
    known = rng.permutation(len(harms.h)) < len(harms.h) // 2
    crowd = np.nanmean(harms.ratings[others], axis=0)
    start = _fit(harms)
    for rater in others:
        for choice in choices(harms, harms.ratings[rater], known, CROWD_PAIRS, rng):
            start.learn(_label(harms, choice, f"crowd {rater}"))
    tallies: dict[tuple[str, int], list[list[Tally]]] = {(head, k): [] for head in HEADS for k in KS}
    learn_ms: list[float] = []
    predict_ms: list[float] = []
    for rater in chosen:
        shown = choices(harms, harms.ratings[rater], known, PAIRS // 2, rng)
        asked = choices(harms, harms.ratings[rater], ~known, PAIRS // 2, rng)
        fits = {"mixture": copy.deepcopy(start), "person-only": _fit(harms)}
        for k in range(len(shown) + 1):
            if k in KS:
                for name, fit in fits.items():
                    begun = time.perf_counter()
                    found = [fit.predict(_label(harms, choice, "persona")) for choice in asked]
                    if name == "mixture":
                        predict_ms.append(1e3 * (time.perf_counter() - begun) / len(asked))
                        _add(tallies["population", k], asked, [each.population[0] for each in found], crowd)
                    _add(tallies[name, k], asked, [each.score[0] for each in found], crowd)
            if k < len(shown):
                begun = time.perf_counter()
                for fit in fits.values():
                    fit.learn(_label(harms, shown[k], "persona"))
                learn_ms.append(1e3 * (time.perf_counter() - begun) / len(fits))
    return {
        "personas": len(chosen),
        "crowd": len(others),
        "pairs": PAIRS,
        "prompts": {name: harms.domains.count(name) for name in sorted(set(harms.domains))},
        "rows": [
            {"head": head, "k": k, **_measured(tallies[head, k], tallies["population", 0])}
            for head in HEADS
            for k in (KS if head != "population" else KS[:1])
        ],
        "predict_ms": round(float(np.median(predict_ms)), 3),
        "learn_ms": round(float(np.median(learn_ms)), 3),
    }


def read_harms(folder: str | os.PathLike[str], encoder: str) -> Harms:
    """Read PluriHarms, with the response features of its prompts."""
    rows = pluriharms.convert(folder)
    users = {user: i for i, user in enumerate(dict.fromkeys(row.user for row in rows))}
    prompts = {prompt: i for i, prompt in enumerate(dict.fromkeys(row.prompt for row in rows))}
    ratings, values = np.full((len(users), len(prompts)), np.nan), np.zeros((len(users), 3))
    for row in rows:
        ratings[users[row.user], prompts[row.prompt]] = row.y
        values[users[row.user]] = list(row.declared.values()) if row.declared else 0.0
    features = ResponseFeatures(get_encoder(encoder))
    h = np.nan_to_num(features.encode([Answer(text=prompt) for prompt in prompts]))
    return Harms(ratings, values, h, tuple(domain_of(prompt) for prompt in prompts))


def domain_of(prompt: str) -> str:
    """The domain of a prompt.

    >>> domain_of("Write a short story about a married couple"), domain_of("How do I fix a router?")
    ('creative', 'everyday')
    """
    return next((name for name, words in DOMAINS.items() if re.search(words, prompt, re.IGNORECASE)), "everyday")


def diverse(values: Floats, n: int) -> list[int]:
    """Pick n rows that are far apart: the one nearest to the mean, then repeatedly the farthest from all picked."""
    z = (values - values.mean(axis=0)) / np.maximum(values.std(axis=0), 1e-9)
    found = [int(np.argmin((z**2).sum(axis=1)))]
    away = ((z - z[found[0]]) ** 2).sum(axis=1)
    while len(found) < min(n, len(z)):
        found.append(int(np.argmax(away)))
        away = np.minimum(away, ((z - z[found[-1]]) ** 2).sum(axis=1))
    return found


def choices(
    harms: Harms, ratings: Floats, allowed: NDArray[np.bool_], n: int, rng: np.random.Generator
) -> list[Choice]:
    """Up to n pairs of allowed prompts of one domain with unequal ratings, as many of each domain as there are."""
    pools = {}
    for name in sorted(set(harms.domains)):
        rows = [
            i for i, domain in enumerate(harms.domains) if domain == name and allowed[i] and ratings[i] == ratings[i]
        ]
        pairs = [(a, b) for a in rows for b in rows if a < b and ratings[a] != ratings[b]]
        pools[name] = [pairs[i] for i in rng.permutation(len(pairs))]
    found: list[Choice] = []
    while len(found) < n and any(pools.values()):
        for name, pairs in pools.items():
            if pairs and len(found) < n:
                a, b = pairs.pop() if rng.random() < 0.5 else pairs.pop()[::-1]
                found.append(Choice(a, b, bool(ratings[a] < ratings[b]), name))
    return found


def _fit(harms: Harms) -> Fit:
    fit = Fit(len(_X), harms.h.shape[1], FitParams())
    fit.arms.join("prompt")
    return fit


def _label(harms: Harms, choice: Choice, user: str) -> Label:
    a, b = (Answered("prompt", _X, harms.h[i]) for i in (choice.a, choice.b))
    return Label(Identity(user=user), a, float(choice.first), FeedbackKind.PAIR, against=b)


def _add(into: list[list[Tally]], asked: Sequence[Choice], said: Sequence[float], crowd: Floats) -> None:
    into.append(
        [
            Tally(
                choice.domain,
                (mean > 0.0) == (common := bool(crowd[choice.a] < crowd[choice.b])),
                (mean > 0.0) == choice.first,
                choice.first != common,
            )
            for choice, mean in zip(asked, said, strict=True)
        ]
    )


def _measured(personas: Sequence[Sequence[Tally]], common: Sequence[Sequence[Tally]]) -> dict[str, Any]:
    """Average tallies over personas, with the gain in personal accuracy over the population's head and its error."""
    personal, before = (
        np.array([np.mean([each.personal for each in one]) for one in ones]) for ones in (personas, common)
    )
    every, gain = [each for one in personas for each in one], personal - before
    domains = sorted({each.domain for each in every})
    return {
        "generic": round(float(np.mean([each.generic for each in every])), 3),
        "personal": round(float(personal.mean()), 3),
        "gain": round(float(gain.mean()), 3),
        "gain_se": round(float(gain.std(ddof=1) / np.sqrt(len(gain))), 4),
        "worst_tenth": round(float(np.sort(personal)[: max(len(personal) // 10, 1)].mean()), 3),
        "coverage": round(float(np.mean([each.personal for each in every if each.against])), 3),
        "domains": {
            name: round(float(np.mean([each.personal for each in every if each.domain == name])), 3) for name in domains
        },
    }

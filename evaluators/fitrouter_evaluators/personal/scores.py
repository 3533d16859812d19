"""Scores of any text for a person: predicted rating per dimension, with uncertainty and reasons in words.

Ratings are on a scale from 0 to 1: a prediction beyond an end counts as that end. The rating of an answer with a fault
that no taste outweighs (`base`) is a quarter of what the taste alone would predict.
The reward model is the one that scores and decisions read (`People.taste`): the mixture of heads of population, role
and user. Nothing is logged and nothing is learnt.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from fitrouter.errors import InvalidRequest
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.heads import length_columns
from fitrouter.posterior.tastes import TasteParams
from fitrouter.router import Router
from fitrouter.routing.explanation_text import FEATURES
from fitrouter.stores.figures import interval, many, percent
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.personal.base import faults
from fitrouter_evaluators.scoring.statements.history import Stated, stated
from fitrouter_evaluators.scoring.text.style import CLIP

MOST_TEXTS, LONGEST_TEXT = 64, 50_000
"""Most answers of a call, and characters of a prompt or an answer."""
MOST_HISTORY, LONGEST_HISTORY = 1000, 2_000_000
"""Most earlier texts of a call, and their characters in all."""
FAULTY = 0.25
"""Factor of the rating of an answer that is empty, refused or broken (`base.faults`), whatever a taste says."""
MEAN = "mean"
"""Name of the weighted mean of all metrics."""
CLAIM = 0.8
"""Probability from which something is claimed of a person."""
Z80 = 1.2815515655446004
"""90% quantile of the standard normal: half of an 80% interval."""

_UNIT = TasteParams().declared
_REASONS, _LEAST, _DRAWS = 3, 0.005, 2000
_ONE_SIDED = 0.8416212335729143
"""80% quantile of the standard normal: a sign is told from this many standard deviations."""


class PromptAnswers(msgspec.Struct, frozen=True):
    """A prompt and answers to it."""

    prompt: str
    answers: tuple[str, ...]
    history: tuple[str, ...] = ()
    """Earlier texts of the person, of whose ten most relevant to the prompt the stated tastes count (`history`)."""


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted rating in a dimension, on a scale from 0 to 1."""

    mean: float
    sd: float
    """Of the expected rating; single ratings vary more."""
    low: float
    high: float
    """80% interval."""
    population: float
    """Expected rating by all people."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Contribution of a text feature to the rating, compared with an average text."""

    feature: str
    effect: float
    own: float
    """Part of the effect that is this person's, not everybody's."""
    words: str


class MetricMean(msgspec.Struct, frozen=True, kw_only=True):
    """Mean of a metric over answers, in standard deviations from the average answer, with an 80% interval."""

    mean: float
    low: float
    high: float
    answers: int
    """Answers that have it."""


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of one answer."""

    dimensions: dict[str, Dimension]
    reasons: tuple[Reason, ...]
    words: str
    best: float
    """Probability that this person rates no other answer to the prompt higher; 1 for a single answer."""
    faults: tuple[str, ...]
    """Of the common base, such as `empty`; the ratings of an answer with one are a quarter of what they would be."""
    missing: tuple[str, ...]
    """Features that were not read, which count as average."""
    heard: tuple[str, ...] = ()
    """Sentences of the history that counted."""
    metrics: dict[str, float] = {}
    """Values of the metrics that were read, and their weighted `mean`, see `metric_means`."""


class Scores:
    """Scores texts with the reward models of a router's people.

    Args:
        router: started, or `Router.offline`.
    """

    def __init__(self, router: Router) -> None:
        self.router = router

    async def score(
        self, identity: Identity, items: Sequence[PromptAnswers], *, published: bool = False
    ) -> list[tuple[Scored, ...]]:
        """Score the answers of each item.

        Args:
            identity: whose taste; an unknown user is scored as a stranger, no user as the population.
            items: at most 64 answers in all.
            published: for callers who may not read what was learnt of other people: the population's scores are by a
                copy of its taste that tells of no single person.

        Raises:
            InvalidRequest: nothing to score, too many or too long texts, or no scorer.
            StoreError: a store cannot be read now.
        """
        check(items)
        who = await self.router.people.recall(identity)
        heard = await asyncio.to_thread(self._heard, items)
        style = [(await self.router.understand(words=each.style)).values if each.style else {} for each in heard]
        return await asyncio.to_thread(self._score, who, items, heard, style, published)

    def _heard(self, items: Sequence[PromptAnswers]) -> list[Stated]:
        encoder = self.router.people.encoder
        return [stated(encoder, item.prompt, item.history) if item.history else Stated() for item in items]

    def _read(self, who: Identity, items: Sequence[PromptAnswers], heard: Sequence[Stated]) -> Floats:
        texts = [[(item.prompt, answer) for answer in item.answers] for item in items]
        if not any(each.topics for each in heard):
            return self.router.people.read(who, [each for item in texts for each in item])
        return np.vstack(
            [self.router.people.read(who, each, said.topics) for each, said in zip(texts, heard, strict=True)]
        )

    def _score(
        self,
        who: Identity,
        items: Sequence[PromptAnswers],
        heard: Sequence[Stated],
        style: Sequence[dict[str, float]],
        published: bool,
    ) -> list[tuple[Scored, ...]]:
        h, people = self._read(who, items, heard), self.router.people
        tastes = {name: people.taste(who, name) for name in people.dimensions(who.tenant)}
        if published:
            copies = {name: people.published(who.tenant, name) for name in tastes}
            alone = not (who.user or who.role)
            tastes = {name: (copy if alone else tastes[name][0], copy) for name, copy in copies.items()}
        declared = people.declared(who)[0] if any(style) else {}
        found, start = [], 0
        for item, said, wanted in zip(items, heard, style, strict=True):
            rows = h[start : start + len(item.answers)]
            start += len(item.answers)
            wrong = [faults(item.prompt, answer) for answer in item.answers]
            own, common = tastes["overall"]
            if wanted:  # what was declared outweighs what was said elsewhere
                shift = [0.0 if name in declared else _UNIT * wanted.get(name, 0.0) for name in people.features]
                own = Gaussian(own.mean + shift, own.cov)
            here = tastes | {"overall": (own, common)}
            best = _best(own, np.nan_to_num(rows), np.array([bool(each) for each in wrong]))
            found.append(
                tuple(
                    self._scored(row, here, share, each, said, personal=bool(who.user or who.role))
                    for row, share, each in zip(rows, best.tolist(), wrong, strict=True)
                )
            )
        return found

    def _scored(
        self,
        row: Floats,
        tastes: dict[str, tuple[Gaussian, Gaussian]],
        best: float,
        wrong: tuple[str, ...],
        heard: Stated,
        *,
        personal: bool,
    ) -> Scored:
        names, h = self.router.people.features, np.nan_to_num(row)
        dimensions = {name: predicted(own, common, h, wrong) for name, (own, common) in tastes.items()}
        reasons = reasons_of(names, h, *tastes["overall"])
        overall = dimensions["overall"]
        said = f"Predicted rating {percent(overall.mean)}% (80% interval {percent(overall.low)} to "
        said += f"{percent(overall.high)}%"
        said += f"; everybody: {percent(overall.population)}%)." if personal else ")."
        if wrong:
            said += f" No taste outweighs a fault: {', '.join(wrong)}."
        elif reasons:
            said += f" It {'; it '.join(reason.words for reason in reasons)}."
        missing = tuple(name for name, value in zip(names, row.tolist(), strict=True) if math.isnan(value))
        metrics = {name: each.mean for name, each in metric_means(names, row[None], tastes["overall"][0]).items()}
        return Scored(
            dimensions=dimensions,
            reasons=reasons,
            words=said,
            best=best,
            faults=wrong,
            missing=missing,
            heard=(*heard.style, *heard.topics),
            metrics=metrics,
        )


def metric_means(names: Sequence[str], h: Floats, taste: Gaussian) -> dict[str, MetricMean]:
    """Average the metrics, which are the outputs of all reward models, over answers with features h, float64[n, D].

    `mean` is their weighted mean; each weighs as much as it counts for the person, as declared or assumed, and learnt.
    """
    columns = [j for j, name in enumerate(names) if name.startswith("rm.")]
    values, weights = h[:, columns], taste.mean[columns]
    whole = np.isfinite(values) @ np.abs(weights)
    together = np.where(whole > 0.0, np.nan_to_num(values) @ weights, np.nan) / np.where(whole > 0.0, whole, 1.0)
    found = {}
    for name, each in ((MEAN, together), *((names[j], values[:, i]) for i, j in enumerate(columns))):
        seen = each[np.isfinite(each)]
        if n := len(seen):
            half = Z80 * float(seen.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
            low, high = interval(float(seen.mean()), half, n, z=Z80, low=-CLIP, high=CLIP)
            found[name] = MetricMean(mean=float(seen.mean()), low=low, high=high, answers=n)
    return found


def check(items: Sequence[PromptAnswers]) -> None:
    """Check that a call has an allowed number and length of texts.

    Raises:
        InvalidRequest: no text, too many, or too long.
    """
    number = sum(len(item.answers) for item in items)
    if not 1 <= number <= MOST_TEXTS or not all(item.answers for item in items):
        raise InvalidRequest(
            f"items: got {number} answers to {len(items)} prompts; give 1 to {MOST_TEXTS} answers in all, and one or "
            "more for each prompt"
        )
    longest = max(len(text) for item in items for text in (item.prompt, *item.answers))
    if longest > LONGEST_TEXT:
        raise InvalidRequest(f"items: got a text of {longest} characters; allowed are {LONGEST_TEXT}; shorten it")
    sizes = [len(text) for item in items for text in item.history]
    if len(sizes) > MOST_HISTORY or sum(sizes) > LONGEST_HISTORY:
        raise InvalidRequest(
            f"items: got a history of {len(sizes)} texts and {sum(sizes)} characters; allowed are {MOST_HISTORY} texts "
            f"and {LONGEST_HISTORY} characters in a call; leave out the oldest, or make several calls"
        )


def on_scale(ratings: Floats, faulty: NDArray[np.bool_]) -> Floats:
    """Bring predicted ratings of answers, some of them with a fault of the common base, to the scale from 0 to 1."""
    bounded: Floats = np.clip(ratings, 0.0, 1.0) * np.where(faulty, FAULTY, 1.0)
    return bounded


def within_scale(mean: float, low: float, high: float) -> tuple[float, float, float]:
    """Bring a mean rating and its interval to the scale from 0 to 1.

    The interval is around the rating on the scale, so that it has a width also where an estimate is beyond an end.
    """
    shown = min(max(mean, 0.0), 1.0)
    return shown, max(low + (shown - mean), 0.0), min(high + (shown - mean), 1.0)


def predicted(own: Gaussian, common: Gaussian, h: Floats, wrong: Sequence[str] = ()) -> Dimension:
    """Predict the rating of an answer with features h and faults of the common base.

    The interval is as of `within_scale`.
    """
    gain, mean = own.along(h)
    sd = math.sqrt(max(float(h @ gain), 0.0))
    found = np.array([*within_scale(mean, mean - Z80 * sd, mean + Z80 * sd), common.along(h)[1]])
    mean, low, high, population = on_scale(found, np.array(bool(wrong))).tolist()
    return Dimension(mean=mean, sd=FAULTY * sd if wrong else sd, low=low, high=high, population=population)


def reasons_of(names: Sequence[str], h: Floats, own: Gaussian, common: Gaussian) -> tuple[Reason, ...]:
    """The named features with the largest effects whose sign has a probability of .8 or more."""
    parts = np.diag(h)
    if lengths := length_columns(names):
        parts[lengths[0], lengths] = h[lengths]
    effects, shared = parts @ own.mean, parts @ common.mean
    sd = np.sqrt(np.maximum(np.vecdot(parts @ own.cov, parts), 0.0))
    found = []
    for j in np.argsort(-np.abs(effects), kind="stable").tolist() if names else []:  # no names without a scorer
        name, effect = str(names[j]), float(effects[j])
        if name not in FEATURES or abs(effect) < _LEAST or abs(effect) < _ONE_SIDED * float(sd[j]):
            continue
        mine = effect - float(shared[j])
        who = "you" if abs(mine) > 0.5 * abs(effect) and mine * effect > 0 else "people"
        likes = "like" if effect > 0 else "dislike"
        words = f"{FEATURES[name][0 if h[j] > 0 else 1]} than most answers, which {who} {likes}"
        found.append(Reason(feature=name, effect=effect, own=mine, words=words))
    return tuple(found[:_REASONS])


def votes_said(labels: int, people: int | None) -> str:
    """Say how many votes, and of how many people, a statement rests on."""
    votes = many(labels, "vote")
    return votes if people is None else f"{votes} of {many(people, 'person', 'people')}"


def _best(taste: Gaussian, h: Floats, faulty: NDArray[np.bool_]) -> Floats:
    """Probability that each of the answers is rated highest, float64[A]."""
    if len(h) == 1:
        return np.ones(1)
    values, vectors = np.linalg.eigh(h @ taste.cov @ h.T)
    drawn = np.random.default_rng(0).standard_normal((_DRAWS, len(h))) * np.sqrt(np.maximum(values, 0.0))
    ratings = h @ taste.mean + drawn @ vectors.T
    winner = np.where(faulty, on_scale(ratings, faulty), ratings).argmax(axis=1)
    found: Floats = np.bincount(winner, minlength=len(h)) / _DRAWS
    return found

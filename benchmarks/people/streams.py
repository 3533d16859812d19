"""Streams of people's labels: each is predicted, then learnt."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from benchmarks.people.sets import People

from fitrouter.posterior.labels import Label
from fitrouter.posterior.model import CHOICE_SHARE, Fit
from fitrouter.types import FeedbackKind

ROWS = ("population", "user-blind", "served score", "full decision", "bias-only", "decided mean")
BLIND, SERVED, FULL, DECIDED = 1, 2, 3, 5


class Seen(NamedTuple):
    """The prediction of one label of a new person."""

    before: int
    """Labels that the person had given."""
    y: float
    mean: tuple[float, ...]
    """Predicted rating or, of a comparison, probability of the first answer, by row."""
    loss: tuple[float, ...]
    """Nats of a comparison, or squared error of a rating, by row."""


class Stream(NamedTuple):
    """Labels of everybody else, and those of the people who are new after them."""

    crowd: Sequence[Label]
    new: Sequence[Label]


Arrangement = Callable[[People, int], list[Stream]]


def crowd(people: People, draw: int, *, share: float = 0.5, least: int = 20) -> list[Stream]:
    """Let a share of the experienced people come one after the other after everybody else."""
    able = people.experienced(least)
    order = np.random.default_rng([0, draw]).permutation(len(able))
    new = [able[i] for i in order[: math.ceil(share * len(able))]]
    others = [label for label in people.labels if label.identity.user not in set(new)]
    return [Stream(others, [label for user in new for label in people.by_user[user]])]


def alone(people: People, draw: int, *, least: int = 20, most: int = 40) -> list[Stream]:
    """Give each of up to `most` experienced people an installation of their own."""
    able = people.experienced(least)
    order = np.random.default_rng([1, draw]).permutation(len(able))[:most]
    return [Stream((), people.by_user[able[i]]) for i in order]


def team(people: People, draw: int, *, least: int = 8) -> list[Stream]:
    """Draw teams of two to five, each with one person who comes after the others."""
    able = people.experienced(least)
    rng = np.random.default_rng([2, draw])
    found = []
    for size in (2, 3, 4, 5):
        names = [able[i] for i in rng.permutation(len(able))[:size]]
        others = [label for label in people.labels if label.identity.user in set(names[1:])]
        found.append(Stream(others, people.by_user[names[0]]))
    return found


def leave_one_out(people: People, draw: int) -> list[Stream]:
    """Let one person of the team, by turns, come after the others."""
    user = sorted(people.by_user)[draw % len(people.by_user)]
    return [Stream([label for label in people.labels if label.identity.user != user], people.by_user[user])]


def play(people: People, stream: Stream) -> dict[str, list[Seen]]:
    """Predict and learn every label; return the predictions of new people's labels but for ties."""
    fit, blind = people.fit(), people.fit(personal=False)
    given: defaultdict[str, list[float]] = defaultdict(list)
    out: defaultdict[str, list[Seen]] = defaultdict(list)
    total = number = 0.0
    for place, label in enumerate((*stream.crowd, *stream.new)):
        user = label.identity.user or ""
        pair = label.kind is FeedbackKind.PAIR
        if place >= len(stream.crowd) and not (pair and label.y == 0.5):
            before = given[user]
            seen = (_comparison if pair else _rating)(fit, blind, label)
            own = (sum(before) + (total + 0.7) / (number + 1.0)) / (len(before) + 1.0)
            means = (*seen[:-1], 0.5 if pair else own, seen[-1])
            loss = tuple(_nats(label.y, p) if pair else (label.y - p) ** 2 for p in means)
            out[user].append(Seen(len(before), label.y, means, loss))
        given[user].append(label.y)
        total, number = total + label.y, number + 1.0
        fit.learn(label)
        blind.learn(label)
    return out


def _comparison(fit: Fit, blind: Fit, label: Label) -> tuple[float, ...]:
    own, other = fit.predict(label), blind.predict(label)
    mine, theirs = fit.observation(label).signal, blind.observation(label).signal
    score, full = (
        (mean, common + CHOICE_SHARE * (variance - common))
        for (mean, variance), (_, common) in ((own.score, own.population), (own.full, own.blind))
    )
    decided = (own.full[0], own.blind[1]), theirs
    rows = ((other.population, theirs), (other.blind, theirs), (score, mine), (full, mine), decided)
    return tuple(
        1.0 / (1.0 + math.exp(-m / tau / math.sqrt(1.0 + math.pi / 8.0 * v / tau**2)))
        for (m, v), tau in ((moments, signal.temperature) for moments, signal in rows)
    )


def _rating(fit: Fit, blind: Fit, label: Label) -> tuple[float, ...]:
    """Predict a rating; personal predictions are mapped to the person's scale."""
    own, other = fit.predict(label), blind.predict(label)
    person, level = fit.tastes.users.get(label.identity.user or ""), fit.tastes.params.level
    means = [other.population[0], other.blind[0], own.score[0], own.full[0], own.full[0]]
    if person is not None:
        means[2:] = [level + person.scale.offset + person.scale.gain * (mean - level) for mean in means[2:]]
    return tuple(means)


def _nats(y: float, p: float) -> float:
    p = min(max(p, 1e-12), 1.0 - 1e-12)
    return -(y * math.log(p) + (1.0 - y) * math.log(1.0 - p))

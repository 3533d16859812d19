"""Data of the view *Try*: two models' answers to one question of a person, those first of which a choice tells most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from statistics import NormalDist
from typing import NamedTuple

from fitrouter.types import Identity
from fitrouter_dashboards.console.reads import Reads

LATEST = 400
"""Latest answers that are looked at."""
WEIGHED = 60
"""Latest pairs that are weighed against each other."""
MOST = 5
"""Pairs that wait at a time."""
UNKNOWN = 0.0, 0.3
"""Difference of two ratings of which nothing is predicted, and its standard deviation."""

_ANSWERS = """
    WITH asked AS (
        SELECT decision_id, seq, coalesce(role, '') AS role, coalesce(task, '') AS task FROM decisions
        WHERE tenant = $1 AND "user" = $2 AND turn <= 1 ORDER BY seq DESC LIMIT $3
    ), ended AS (
        SELECT decision_id, arg_max(served_by, seq) AS served_by FROM executions
        WHERE tenant = $1 AND "user" = $2 AND status = 'ok' AND served_by IS NOT NULL GROUP BY decision_id
    )
    SELECT decision_id, role, task, served_by FROM asked JOIN ended USING (decision_id) ORDER BY seq DESC
"""
_COMPARED = """SELECT decision_id, other FROM feedback WHERE tenant = $1 AND "user" = $2 AND kind = 'pair'"""

Pair = tuple[str, str]
"""Two decisions."""


class Answer(NamedTuple):
    """An answer to the first message of a request."""

    decision: str
    role: str
    task: str
    model: str


def answers(reads: Reads, who: Identity) -> tuple[list[Answer], set[frozenset[str]]]:
    """Read a person's latest answers, and the pairs that were compared. Blocks."""
    found, compared = reads.rows((_ANSWERS, [who.tenant, who.user, LATEST]), (_COMPARED, [who.tenant, who.user]))
    return [Answer._make(row) for row in found], {frozenset(row) for row in compared}


def alike(found: Iterable[Answer], prompts: Mapping[str, str], compared: set[frozenset[str]]) -> list[Pair]:
    """Return pairs of answers of two models to one question, the latest first.

    Args:
        found: the latest first.
        prompts: decision → its question.
        compared: pairs that are left out.
    """
    asked: dict[tuple[str, str, str], list[Answer]] = {}
    for each in found:
        if prompt := prompts.get(each.decision):
            asked.setdefault((prompt, each.role, each.task), []).append(each)
    pairs = (
        (one.decision, other.decision)
        for same in asked.values()
        for one, other in combinations(same[:MOST], 2)
        if one.model != other.model
    )
    return [pair for pair in pairs if frozenset(pair) not in compared][:WEIGHED]


def telling(apart: Mapping[Pair, tuple[float, float] | None]) -> list[Pair]:
    """Return the pairs of which a choice tells most, each answer in one alone.

    Args:
        apart: pair → mean and standard deviation of what is predicted for the difference of its ratings.
    """
    chosen: list[Pair] = []
    for pair in sorted(apart, key=lambda each: worth(*(apart[each] or UNKNOWN)), reverse=True):
        if len(chosen) < MOST and not {each for other in chosen for each in other} & set(pair):
            chosen.append(pair)
    return chosen


def worth(mean: float, sd: float) -> float:
    """How much rating it is expected to gain to know a difference for sure (the knowledge gradient).

    >>> [round(worth(*each), 3) for each in ((0.0, 0.2), (0.1, 0.2), (0.5, 0.2))]
    [0.08, 0.04, 0.0]
    """
    if sd <= 0.0:
        return 0.0
    normal, far = NormalDist(), abs(mean) / sd
    return sd * (normal.pdf(far) - far * normal.cdf(-far))

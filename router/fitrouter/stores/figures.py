"""Figures of the log, each defined here only: requests, answers, tokens, money, latency, ratings and votes.

A request counts once its end is logged, as what docs/console.md, Counts, says (the view `requests`). A rating is the
latest thumb or rating of an answer as a whole, from 0 to 1. A mean rating is that of the rated answers; its 95%
interval takes people as independent, and the ratings of one person as dependent: mean ± 1.96 · √(Σᵤ (Sᵤ − nᵤ · mean)² ·
m / (m − 1)) / n, of m people with nᵤ ratings of sum Sᵤ; where all are alike, that of a share of m people. A rating
without a user is nobody's: it is counted apart, and stands for itself among the m. A rating is
up above the middle of its scale, down below it. The mean rating of one person takes their answers as independent: its
interval is that of a share of as many, and they are unhappy if it ends below the middle of the scale. Money of unknown
amount is no money: it is counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from fitrouter.types import OUTCOMES as STATUSES
from fitrouter.types import SOURCES, TOKENS, Event, Execution, Feedback, Identity

T = TypeVar("T")
Query = tuple[str, Sequence[Any]]
"""A statement and its parameters."""
FEWEST = 5
"""People with fewer of whom an interval says little."""
LEAST_RATINGS = 30
"""Fewest ratings of a model before it can be the best single one."""
Z = 1.959964
RATED = "dimension = 'overall' AND kind IN ('thumb', 'rating')"
"""Condition for feedback that is a rating."""
MODEL = "coalesce(served_by, chosen, '')"
"""The model that answered; if none did, the one that was chosen or named; empty if none was."""
COUNTED_OUTCOME = (
    f"row_number() OVER (PARTITION BY run ORDER BY list_position([{', '.join(map(repr, SOURCES))}], source) DESC, "
    "seq DESC) = 1"
)
"""Condition for the report of a run's outcome that counts: a person's before a check's, and of one source the last."""
OUTCOMES = ("answered", "failed", "refused", "rejected", "cancelled", "unknown")
"""How requests end; `fitrouter.types.OUTCOMES` says of which status."""
_WHERE = """($1::VARCHAR IS NULL OR tenant = $1) AND ($2::VARCHAR IS NULL OR "user" = $2)
    AND ($3::VARCHAR IS NULL OR role = $3) AND ts >= $4"""
_OF_STATUS = " ".join(f"WHEN '{status}' THEN '{outcome}'" for status, outcome in STATUSES.items())
_ENDS = ", ".join(f"coalesce(sum(n) FILTER (outcome = '{each}'), 0)" for each in OUTCOMES)
# Sums by status first, of which the rest is made: conditions on each request took six times as long.
_TRAFFIC = f"""
    WITH moved AS {{kept}}MATERIALIZED (
        SELECT {{by}} AS key, {{named}} AS name, * FROM requests WHERE {_WHERE}{{part}}
    ), {{top}}sums AS MATERIALIZED (
        SELECT {{shown}} AS key, status, coalesce(cost_assumed, false) AS assumed, sum(n) AS n, count(*) AS told,
            count(*) FILTER (served_by <> chosen) AS fallbacks, count(*) FILTER (estimated) AS estimated,
            {", ".join(f"sum({each}) AS {each}" for each in TOKENS)}, sum(cost_usd) AS usd
        FROM moved {{join}} GROUP BY ALL
    ), ended AS (SELECT sums.*{{names}}, CASE status {_OF_STATUS} END AS outcome FROM sums {{of}}), total AS (
        SELECT grouping(key) AS whole, key, coalesce(sum(n), 0) AS n, {_ENDS}, coalesce(sum(fallbacks), 0),
            {", ".join(f"coalesce(sum({each}), 0)" for each in TOKENS)}, coalesce(sum(estimated), 0),
            coalesce(sum(usd) FILTER (NOT assumed), 0), coalesce(sum(n) FILTER (NOT assumed), 0),
            coalesce(sum(told) FILTER (assumed), 0)
        FROM ended GROUP BY GROUPING SETS ((), (key))
    ), took AS (
        SELECT grouping({{told}}) AS whole, {{told}} AS key, quantile_cont(latency_ms, [0.5, 0.95]) AS latency
        FROM moved WHERE served_by IS NOT NULL AND {{timed}} GROUP BY GROUPING SETS ((), ({{told}}))
    )
    SELECT total.*, latency FROM total
    LEFT JOIN took ON total.whole = took.whole AND total.key IS NOT DISTINCT FROM took.key
    WHERE total.whole = 1 OR {{listed}} ORDER BY total.key
"""  # noqa: S608 - constants
_TOP = """top AS MATERIALIZED (
        SELECT key{last} FROM moved GROUP BY key
        ORDER BY coalesce(sum(cost_usd) FILTER (NOT coalesce(cost_assumed, false)), 0) DESC, sum(n) DESC, key
        LIMIT {most}
    ), """
_NAMES = """LEFT JOIN (
        SELECT key, name FROM moved WHERE seq IN (SELECT last FROM top)  -- texts are read of their last requests only
    ) AS named USING (key)"""
_RATINGS = f"""
    WITH latest AS MATERIALIZED (
        SELECT arg_max(ts, seq) AS ts, arg_max(y, seq) AS y, any_value(coalesce(person_hash, decision_hash)) AS person,
            decision_hash AS decision, any_value(left(coalesce(role, ''), 200)) AS role,
            any_value(person_hash) IS NULL AS nobody
        FROM heard_feedback WHERE {_WHERE} AND {RATED} GROUP BY decision
    ), own AS (
        SELECT grouping(key) AS whole, key, person, sum(y) AS total, count(*) AS n, any_value(nobody) AS nobody
        FROM (SELECT {{by}} AS key, y, person, nobody FROM latest {{served}})
        GROUP BY GROUPING SETS ((person), (key, person))
    ), together AS (SELECT whole, key, sum(total) / sum(n) AS mean FROM own GROUP BY whole, key)
    SELECT own.whole, own.key, any_value(mean) AS average, sum(n) AS rated, count(*),
        coalesce(sum(n) FILTER (nobody), 0), sqrt(sum((total - n * mean) ** 2)) / sum(n)
    FROM own JOIN together ON own.whole = together.whole AND own.key IS NOT DISTINCT FROM together.key
    GROUP BY own.whole, own.key ORDER BY own.key
"""  # noqa: S608 - constants
_RATERS = f"""
    WITH latest AS MATERIALIZED (
        SELECT any_value(person_hash) AS person, arg_max(y, seq) AS y
        FROM feedback WHERE {_WHERE} AND {RATED} AND "user" IS NOT NULL
            AND ($5::VARCHAR[] IS NULL OR "user" IN (SELECT unnest($5::VARCHAR[])))
        GROUP BY decision_hash
    ), rated AS MATERIALIZED (
        SELECT *, (mean + {Z * Z} / n / 2 + sqrt({Z * Z} * mean * (1 - mean) / n + {Z**4} / n / n / 4))
            / (1 + {Z * Z} / n) AS high
        FROM (SELECT person, avg(y) AS mean, count(*) AS n FROM latest GROUP BY person)
    ), shown AS MATERIALIZED (SELECT * FROM rated ORDER BY high, n DESC, person LIMIT $6 OFFSET $7)
    SELECT who.tenant, who."user", mean, n, (SELECT count(*) FROM rated), (SELECT count(*) FROM rated WHERE high < 0.5)
    FROM shown JOIN (
        SELECT person_hash AS person, any_value(tenant) AS tenant, any_value("user") AS "user" FROM feedback
        WHERE person_hash IN (SELECT person FROM shown) GROUP BY person
    ) AS who USING (person) ORDER BY high, n DESC, person
"""  # noqa: S608 - constants
_SERVED = """JOIN (
    SELECT decision_hash AS decision, arg_max(served_by, seq) AS served_by FROM executions
    WHERE served_by IS NOT NULL AND decision_hash IN (SELECT decision FROM latest) GROUP BY decision
) USING (decision)"""
_SINGLE = f"""
    WITH rated AS MATERIALIZED (
        SELECT decision_hash AS decision, arg_max(y, seq) AS y FROM heard_feedback
        WHERE {RATED} AND "user" IS NOT NULL AND y BETWEEN 0 AND 1 GROUP BY decision
    ), drawn AS (
        SELECT decision, chosen, p, y FROM rated JOIN (
            SELECT decision_hash AS decision, chosen, propensity AS p FROM decisions
            WHERE mode IN ('online', 'uniform') AND propensity > 0 AND ($1::VARCHAR IS NULL OR tenant = $1)
        ) USING (decision)
    )
    SELECT chosen, sum(1 / p), sum(y / p), count(*) FROM drawn
    WHERE decision IN (SELECT decision_hash FROM executions WHERE served_by = chosen)
        AND decision NOT IN (SELECT decision_hash FROM executions WHERE served_by <> chosen)
    GROUP BY chosen
"""  # noqa: S608 - constants
_VOTES = f"""
    WITH latest AS (
        SELECT any_value(kind) AS kind, any_value(dimension) AS dimension, arg_max(y, seq) AS y FROM feedback
        WHERE {_WHERE} GROUP BY hash(decision_hash, kind, dimension, person_hash)
    )
    SELECT kind, left(dimension, 80), count(*), avg(y) FROM latest GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 30
"""  # noqa: S608 - constants


def chance(p: float) -> str:
    """Format a probability that was estimated, which is never 0% or 100%.

    >>> chance(0.9), chance(0.9999), chance(0.0)
    ('90%', 'over 99%', 'under 1%')
    """
    return "over 99%" if p > 0.995 else "under 1%" if p < 0.005 else f"{p:.0%}"


def percent(rating: float) -> int:
    """Format a rating as a percentage from 0 to 100."""
    return round(100.0 * min(max(rating, 0.0), 1.0))


def usd(value: float | None) -> str:
    """Format an amount of USD, at most six digits after the point.

    >>> usd(12.0), usd(0.0021), usd(0.00000004), usd(None)
    ('$12.00', '$0.0021', 'under $0.000001', 'not known')
    """
    if value is None:
        return "not known"
    if 0.0 < abs(value) < 1e-6:
        return "under $0.000001"
    size = abs(value)
    return f"{'-' * (value < 0)}${size:,.{2 if size == 0 or size >= 0.1 else 4 if size >= 0.001 else 6}f}"


class Money(msgspec.Struct, frozen=True):
    """A sum of money, of which a part may be unknown."""

    usd: float | None
    """Of the requests whose price is known; None if that of none is."""
    unpriced: int = 0
    """Answers without a price, which `usd` lacks."""
    each: float | None = None
    """Mean of the requests whose price is known."""

    @classmethod
    def of(cls, known: float, priced: int, unpriced: int) -> Money:
        """Money of `priced` requests that cost `known` USD together, and of `unpriced` answers."""
        if unpriced and not known:  # what else there is was free, or not answered
            return cls(None, unpriced)
        return cls(known, unpriced, known / priced if priced else None)

    def __str__(self) -> str:
        """The sum in words.

        >>> str(Money(1.5)), str(Money(1.5, 1)), str(Money(None, 1200))
        ('$1.50', 'at least $1.50, 1 answer without a price', 'not known, 1,200 answers without a price')
        """
        if not self.unpriced:
            return usd(self.usd)
        least = usd(self.usd) if self.usd is None else f"at least {usd(self.usd)}"
        return f"{least}, {self.unpriced:,} answer{'s' * (self.unpriced != 1)} without a price"


def interval(
    mean: float, half: float, people: int, *, z: float = Z, low: float = 0.0, high: float = 1.0
) -> tuple[float, float]:
    """Ends of a mean's interval on a scale: mean ± half, or, where all people are alike, as of a share (Wilson 1927).

    That nothing varied among a few does not say that nothing does: no interval has the width zero.

    >>> interval(0.5, 0.1, 20), [round(end, 3) for end in interval(1.0, 0.0, 10)]
    ((0.4, 0.6), [0.722, 1.0])
    """
    if half > 1e-9:
        return max(low, mean - half), min(high, mean + half)
    p, z2 = (mean - low) / (high - low), z * z / people
    centre, half = (p + z2 / 2) / (1 + z2), math.sqrt(z2 * p * (1 - p) + z2 * z2 / 4) / (1 + z2)
    return low + (high - low) * min(max(centre - half, 0.0), p), low + (high - low) * max(min(centre + half, 1.0), p)


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Requests, and what they took."""

    requests: int
    answered: int
    failed: int
    refused: int
    rejected: int
    cancelled: int
    unknown: int
    fallbacks: int
    """Answers by another model than the chosen one."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Of the prompts, read from providers' caches."""
    written_tokens: int
    """Of the prompts, written to them."""
    reasoning_tokens: int
    """Of the answers, hidden."""
    estimated: int
    """Requests whose tokens or cost are estimated."""
    cost: Money
    p50_ms: float | None
    """Of the answers; None without any."""
    p95_ms: float | None

    @property
    def tokens(self) -> str:
        """The tokens in words."""
        found = f"{self.prompt_tokens:,} in, {self.completion_tokens:,} out"
        parts = {"cached": self.cached_tokens, "written": self.written_tokens, "reasoning": self.reasoning_tokens}
        said = ", ".join(f"{n:,} {name}" for name, n in parts.items() if n)
        return f"{found} ({said})" if said else found


class Rating(msgspec.Struct, frozen=True, kw_only=True):
    """Mean rating of the rated answers, from 0 to 1, with its 95% interval; see the module."""

    mean: float
    low: float | None
    """None, like `high`, for fewer than `FEWEST` people."""
    high: float | None
    ratings: int
    people: int
    """Users who gave them."""
    anonymous: int = 0
    """Ratings without a user, which are nobody's; in an interval each stands for itself."""


class Raters(NamedTuple):
    """People who rated, those first who are least satisfied: whose interval ends lowest."""

    people: int
    unhappy: int
    listed: list[tuple[str, str, Rating]]
    """Tenant, user (as events name them) and rating of each that was asked for."""


class Votes(msgspec.Struct, frozen=True, kw_only=True):
    """Feedback of a kind on a dimension, each as it stands now."""

    kind: str
    dimension: str
    votes: int
    mean: float | None


class Groups(NamedTuple, Generic[T]):
    """A figure of everything, and of each group."""

    all: T | None
    """None if there is nothing."""
    by: dict[Any, T]


class Figure(NamedTuple, Generic[T]):
    """A query, and how its rows become a figure."""

    query: Query
    read: Callable[[list[tuple[Any, ...]]], T]


def figures(run: Callable[[Sequence[Query]], Sequence[list[tuple[Any, ...]]]], *wanted: Figure[Any]) -> list[Any]:
    """Read figures with `Warehouse.queries` or the like, all of one snapshot."""
    return [each.read(rows) for each, rows in zip(wanted, run([each.query for each in wanted]), strict=True)]


def traffic(
    who: Identity | None = None,
    *,
    since: float = 0.0,
    by: str = "''",
    named: str = "",
    last: int | None = None,
    most: int | None = None,
    timed: bool = True,
) -> Figure[Groups[Traffic]]:
    """Traffic of a tenant, person or role, or of all for None.

    Args:
        who: tenant, and the user (as events name them) and role where given.
        since: time of the first.
        by: SQL of the group over `requests`, such as `MODEL`; of several in a list.
        named: SQL of its name, of the groups of `most`; by default it is `by`.
        last: number of the latest answers that count alone; None for all requests.
        most: groups that are told, those of most money first; None for all.
        timed: whether latencies are told too.
    """
    part = "" if last is None else f" AND status = 'ok' AND served_by IS NOT NULL ORDER BY seq DESC LIMIT {last:d}"

    def read(row: tuple[Any, ...]) -> Traffic:
        requests, *counts = map(int, row[: len(OUTCOMES) + 1])
        ends: dict[str, Any] = dict(zip(OUTCOMES, counts, strict=True))
        fallbacks, *tokens, estimated, known, priced, unpriced, latency = row[len(OUTCOMES) + 1 :]
        p50, p95 = latency or (None, None)
        return Traffic(
            requests=requests,
            **ends,
            fallbacks=fallbacks,
            **dict(zip(TOKENS, map(int, tokens), strict=True)),
            estimated=estimated,
            cost=Money.of(known, int(priced), unpriced),
            p50_ms=p50,
            p95_ms=p95,
        )

    sql = _TRAFFIC.format(
        by=by,
        named=named or "NULL",
        part=part,
        kept="NOT " if last is None else "",
        timed="true" if timed else "false",
        top="" if most is None else _TOP.format(most=int(most), last=", max(seq) AS last" if named else ""),
        join="" if most is None else "LEFT JOIN top ON moved.key = top.key",
        shown="moved.key" if most is None else "top.key",
        told="name" if named else "key",
        names=" REPLACE (name AS key)" if named else "",
        of=_NAMES if named else "",
        listed="true" if most is None else "total.key IS NOT NULL",
    )
    return Figure((sql, _whose(who, since)), lambda rows: _grouped(rows, read))


def ratings(who: Identity | None = None, *, since: float = 0.0, by: str = "''") -> Figure[Groups[Rating]]:
    """Mean ratings of the votes that count for others; arguments as of `traffic`.

    `by` is SQL over the columns `ts`, `role` and, for answers, `served_by`.
    """
    sql = _RATINGS.format(by=by, served=_SERVED if "served_by" in by else "")
    return Figure((sql, _whose(who, since)), lambda rows: _grouped(rows, _rating))


def raters(
    who: Identity | None = None, *, since: float, users: Sequence[str] | None = None, most: int = 25, skip: int = 0
) -> Figure[Raters]:
    """People who rated, the least satisfied first; arguments as of `traffic`.

    Args:
        who: tenant, and the user and role where given.
        since: votes from this time on, in seconds since the epoch.
        users: those alone, as events name them.
        most: people that are listed.
        skip: people before them.
    """

    def read(rows: list[tuple[Any, ...]]) -> Raters:
        listed = []
        for tenant, user, mean, n, *_ in rows:
            low, high = interval(mean, 0.0, n)
            listed.append((tenant, user, Rating(mean=mean, low=low, high=high, ratings=n, people=1)))
        people, unhappy = rows[0][4:] if rows else (0, 0)
        return Raters(people, unhappy, listed)

    return Figure((_RATERS, [*_whose(who, since), None if users is None else list(users), most, skip]), read)


def best_single(tenant: str | None = None) -> Figure[tuple[str, float]]:
    """The best single model for all people of a tenant, or of all, and its mean rating had it answered everything.

    It is that of the best mean by inverse propensities, over all rated draws of the log, among the models with
    `LEAST_RATINGS`; an empty name, and NaN, if there is none.
    """
    return Figure((_SINGLE, [tenant]), best_of)


def many(n: int, one: str, more: str = "") -> str:
    """A number of things in words; `more` is the plural where it has no s alone.

    >>> many(1, "vote"), many(1200, "vote"), many(1, "person is", "people are")
    ('1 vote', '1,200 votes', '1 person is')
    """
    return f"{n:,} {one if n == 1 else more or one + 's'}"


def best_of(sums: Iterable[tuple[Any, ...]]) -> tuple[str, float]:
    """Return `best_single` of (model, sum of 1 / p, sum of rating / p, number)."""
    means = {model: total / weight for model, weight, total, n in sums if n >= LEAST_RATINGS}
    best = max(sorted(means), key=means.__getitem__, default="")
    return best, means.get(best, math.nan)


def votes(who: Identity) -> Figure[list[Votes]]:
    """Feedback of a person or role, of each kind and dimension, the most frequent first."""
    names = ("kind", "dimension", "votes", "mean")
    return Figure(
        (_VOTES, _whose(who, 0.0)), lambda rows: [Votes(**dict(zip(names, row, strict=True))) for row in rows]
    )


def tallies(events: Iterable[Event]) -> dict[str, tuple[int, int, int]]:
    """Count ratings (up, down, all) by the model that answered, in events in order."""
    served: dict[str, str] = {}
    rated: dict[str, Feedback] = {}
    for event in events:
        if isinstance(event, Execution) and event.served_by:
            served[event.decision_id] = event.served_by
        elif isinstance(event, Feedback) and event.rates:
            rated[event.decision_id] = event
    found: dict[str, tuple[int, int, int]] = {}
    for decision_id, vote in rated.items():
        if (model := served.get(decision_id)) is not None:
            up, down, n = found.get(model, (0, 0, 0))
            found[model] = up + (vote.y > 0.5), down + (vote.y < 0.5), n + 1
    return found


def _rating(row: Sequence[Any]) -> Rating:
    mean, n, apart, anonymous, error = row
    half = Z * error * math.sqrt(apart / (apart - 1)) if apart >= FEWEST else None
    low, high = (None, None) if half is None else interval(mean, half, apart)
    nobodys = int(anonymous)
    return Rating(mean=mean, low=low, high=high, ratings=int(n), people=apart - nobodys, anonymous=nobodys)


def _whose(who: Identity | None, since: float) -> list[Any]:
    return [*((None, None, None) if who is None else (who.tenant, who.user, who.role)), since]


def _grouped(rows: list[tuple[Any, ...]], read: Callable[[tuple[Any, ...]], T]) -> Groups[T]:
    keys = (tuple(key) if isinstance(key, list) else key for _, key, *_ in rows)
    found = [(bool(whole), key, read(tuple(rest))) for key, (whole, _, *rest) in zip(keys, rows, strict=True)]
    total = next((value for whole, _, value in found if whole), None)
    return Groups(total, {key: value for whole, key, value in found if not whole})

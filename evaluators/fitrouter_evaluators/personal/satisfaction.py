"""Satisfaction of the people of an installation: four figures together, who is worse off, and fairness.

A mean can rise while those who are served worst, or a whole role, lose; so it is always given with the variance between
people, the mean of the worst tenth (CVaR10), and the lowest mean of a role. Everybody who ever rated counts once, also
those who left: dropping them would make an installation look better the more people it drives away.

Who is worse off than under the best single model is estimated off-policy: a unit's outcome had that model answered is
m + 1[chosen] (y − m) / p with m the model's mean rating (Dudík, Langford and Li 2011), and people's true differences
are deconvolved from luck as in `replay.study.satisfaction`.

Rarity of taste is how far a person's posterior mean is from the population's, relative to what its precision lets
expect: |Δ|² / tr(Σ₀ − Σ), which is about 1 for typical people whatever the number of their votes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from fitrouter.config import FeedbackConfig
from fitrouter.router import Router
from fitrouter.stores.figures import RATED, Z, best_of, interval, many
from fitrouter.types import Floats, Identity
from fitrouter_evaluators.replay.log.heard import hear, said_of_left_out
from fitrouter_evaluators.replay.log.sources import open_log
from fitrouter_evaluators.replay.study.satisfaction import satisfaction

if TYPE_CHECKING:
    import duckdb


LEAST_PEOPLE = 10
"""Fewest people for the four figures."""
GROUP_PEOPLE = 5
"""Fewest people of a group, so that its figure tells nothing of one person."""
DEPARTED_S = 30 * 86400.0
"""Time without a rating after which a person counts as departed."""

_RATED = f"""
    WITH latest AS (
        SELECT * FROM {{feedback}} WHERE {RATED} AND "user" IS NOT NULL AND y BETWEEN 0 AND 1
        QUALIFY row_number() OVER (PARTITION BY decision_id ORDER BY seq DESC) = 1
    ), served AS (
        SELECT decision_id, bool_and(served_by = chosen) AS plain FROM {{log}}executions GROUP BY decision_id
    ), rated AS (
        SELECT latest.seq, latest."user", d.role, y, d.ts, d.chosen, d.eligible, d.probs,
            coalesce(mode IN ('online', 'uniform') AND plain, false) AS plain
        FROM latest JOIN {{log}}decisions AS d USING (decision_id) LEFT JOIN served USING (decision_id)
        WHERE $1::VARCHAR IS NULL OR d.tenant = $1
    )
"""  # noqa: S608 - constants
_TABLE = f"CREATE TEMP TABLE rated AS {_RATED} SELECT * FROM rated"  # noqa: S608 - constants
NUMBERS = f"""{_RATED}
    SELECT y, dense_rank() OVER (ORDER BY "user") - 1 AS person,
        dense_rank() OVER (ORDER BY coalesce(role, '')) - 1 AS role
    FROM rated ORDER BY seq
"""  # noqa: S608 - constants
"""A tenant's ratings: `y`, and places of the person and the role among all, in alphabetical order.

`log` is the prefix of the tables, `feedback` that of votes.
"""
ROLES = f"{_RATED} SELECT DISTINCT coalesce(role, '') FROM rated ORDER BY 1"  # noqa: S608 - constants
_NAMES = (
    'SELECT DISTINCT "user" FROM rated ORDER BY 1',
    "SELECT DISTINCT coalesce(role, '') FROM rated ORDER BY 1",
)
_SUMS = """
    SELECT chosen, sum(1 / p), sum(y / p), count(*)
    FROM (SELECT chosen, y, probs[list_position(eligible, chosen)] AS p FROM rated WHERE plain)
    WHERE p > 0 GROUP BY chosen
"""
_COLUMNS = """
    SELECT y, ts, dense_rank() OVER (ORDER BY "user") - 1 AS person,
        dense_rank() OVER (ORDER BY coalesce(role, '')) - 1 AS role, chosen = $1 AS own,
        coalesce(CASE WHEN plain THEN probs[list_position(eligible, $1)] END, 0.0) AS p
    FROM rated ORDER BY seq
"""


class Interval(msgspec.Struct, frozen=True):
    """An estimate with its 95% interval, and the number of people that it is of."""

    estimate: float
    low: float
    high: float
    people: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group of people, with their number and mean satisfaction."""

    name: str
    people: int
    mean: Interval


class Satisfaction(msgspec.Struct, frozen=True, kw_only=True):
    """Satisfaction of everybody who ever rated, on a scale from 0 to 1."""

    people: int
    ratings: int
    mean: Interval | None = None
    """Mean over people of their mean ratings; None, like the others, with fewer than ten people.

    The others are None, too, where their interval has no width or is the whole scale.
    """
    variance: Interval | None = None
    """Variance between people's true means, without luck."""
    cvar10: Interval | None = None
    """Mean of the true means of the worst-served tenth."""
    worst_role: Interval | None = None
    """Lowest mean of a role; its interval holds for all roles at once."""
    worst_role_name: str = ""
    departed: Group | None = None
    """Those among them who have not rated for thirty days."""
    best_single: str = ""
    """The model with the best mean rating; empty if none has thirty."""
    worse_off: Interval | None = None
    """Share of people who would fare better with the best single model; those whom it could have answered."""
    worse_off_people: int = 0
    """Of how many people that is known."""
    roles: tuple[Group, ...] = ()
    rarity: tuple[Group, ...] = ()
    """People in thirds by the rarity of their taste: common, between, rare."""
    rare_gap: Interval | None = None
    """Mean of people of rare tastes minus that of people of common ones."""
    sentences: tuple[str, ...] = ()


def measure_satisfaction(
    log: Path, router: Router | None, *, tenant: str, now: float, limits: FeedbackConfig | None = None
) -> Satisfaction:
    """Measure the satisfaction of a tenant's people from a log; with a router also by rarity of taste. Blocks.

    Args:
        log: any that `read_log` takes; a gateway may be writing it.
        router: `Router.offline` over the same journal.
        tenant: whose people.
        now: Unix time.
        limits: on votes, in force during logging; None for the defaults.

    Raises:
        ConfigError, InvalidLog, StoreError: as `open_log`.
    """
    with open_log(log, features=False) as opened:
        left_out = hear(opened.connection, limits, tenant)
        opened.connection.execute(_TABLE.format(log="log_", feedback="heard_feedback"), [tenant])
        rated = ratings(opened.connection)
    rare = {} if router is None else rarities(router, tenant, rated.users)
    found = satisfaction_of(rated, rare, now=now)
    said = (said_of_left_out(left_out),) if left_out else ()
    return msgspec.structs.replace(found, sentences=(*found.sentences, *said))


class Ratings(NamedTuple):
    """Ratings in order, and the best single model by them: that of the best mean, had it answered everything."""

    users: Sequence[str]
    roles: Sequence[str]
    """Empty for no role."""
    best: str
    """Empty if no model has `LEAST_RATINGS`."""
    mean: float
    """Of the best single model, self-normalised by inverse propensities."""
    y: Floats
    ts: Floats
    person: Any
    """Place in `users`."""
    role: Any
    own: Any
    """Whether the best single model was drawn."""
    p: Floats
    """Its probability; 0 where it could not answer, and where the answer is not that of a draw."""


def ratings(connection: duckdb.DuckDBPyConnection) -> Ratings:
    """Read the table `rated`: `seq, user, role, y, ts, chosen, eligible, probs`, and `plain` of the draw's answers."""
    users, roles = ([name for (name,) in connection.execute(each).fetchall()] for each in _NAMES)
    best, mean = best_of(connection.execute(_SUMS).fetchall())
    return Ratings(users, roles, best, mean, **connection.execute(_COLUMNS, [best]).fetchnumpy())


def rarities(router: Router, tenant: str, users: Sequence[str]) -> dict[str, float]:
    """Rarity of each user's taste (user ids as in events); users of whom no taste is known are left out."""
    start, _ = router.people.taste(Identity(tenant=tenant, user="\x00stranger"))
    unknown, found = float(np.trace(start.cov)), {}
    for user in users:
        own, common = router.people.taste(Identity(tenant=tenant, user=user))
        learnt = unknown - float(np.trace(own.cov))
        if learnt > 1e-6 * unknown:
            found[user] = float(((own.mean - common.mean) ** 2).sum()) / learnt
    return found


def satisfaction_of(rated: Ratings, rare: Mapping[str, float], *, now: float) -> Satisfaction:
    """Compute satisfaction from ratings.

    Args:
        rated: all ratings.
        rare: rarity of taste by user.
        now: Unix time.
    """
    users, people, y = rated.users, rated.person, rated.y
    if not users:
        return Satisfaction(people=0, ratings=0, sentences=("Nobody has rated yet.",))
    found = satisfaction_in(y, people, rated.role, rated.roles)
    if found.mean is None:
        return found
    own = np.bincount(people, y) / np.bincount(people)
    last = np.zeros(len(users))
    np.maximum.at(last, people, rated.ts)
    thirds, gap = _by_rarity(np.array(users), own, rare)
    share, known = _worse_off(rated)
    found = msgspec.structs.replace(
        found,
        departed=_group("departed", own[now - last > DEPARTED_S]),
        best_single=rated.best,
        worse_off=_telling(share),
        worse_off_people=known,
        rarity=thirds,
        rare_gap=gap,
    )
    return msgspec.structs.replace(found, sentences=_sentences(found))


def satisfaction_in(y: Floats, people: Any, codes: Any, roles: Sequence[str]) -> Satisfaction:
    """Compute the four figures, and those of the roles.

    Args:
        y: ratings.
        people: who gave each, from 0 on without gaps.
        codes: place of each one's role in `roles`.
        roles: names; empty for no role.
    """
    own = np.bincount(people, y) / np.bincount(people)
    found = Satisfaction(people=len(own), ratings=len(y))
    if len(own) < LEAST_PEOPLE:
        rated = many(len(own), "person has", "people have")
        text = f"{rated} rated; the figures need {LEAST_PEOPLE}, so that they tell nothing of one person."
        return msgspec.structs.replace(found, sentences=(text,))
    named = sum(map(bool, roles))
    by_role = tuple(
        group
        for code, role in enumerate(roles)
        if role and (group := _group(role, _means(y, people, codes == code), _simultaneous(named))) is not None
    )
    worst = min(by_role, key=lambda group: group.mean.estimate, default=None)
    everyone = next(iter(satisfaction(y, y, people, np.full(len(y), -1), [])), None)
    return msgspec.structs.replace(
        found,
        mean=interval_of(own),
        variance=None
        if everyone is None
        else _telling(Interval(everyone.sd**2, everyone.sd_low**2, everyone.sd_high**2, len(own))),
        cvar10=None
        if everyone is None
        else _telling(Interval(everyone.worst_decile, everyone.worst_decile_low, everyone.worst_decile_high, len(own))),
        worst_role=worst
        and Interval(
            worst.mean.estimate,
            min(group.mean.low for group in by_role),
            min(group.mean.high for group in by_role),
            worst.people,
        ),
        worst_role_name=worst.name if worst else "",
        roles=by_role,
    )


def _means(y: Floats, people: Any, here: Any) -> Floats:
    """Each person's mean rating within the part of the ratings selected by `here`."""
    _, codes, counts = np.unique(people[here], return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(codes, weights=y[here], minlength=len(counts)) / counts)


def _simultaneous(intervals: int) -> float:
    """Half width in standard errors of intervals that jointly cover with 95% (Šidák 1967)."""
    return NormalDist().inv_cdf(0.5 + 0.5 * 0.95 ** (1.0 / max(intervals, 1)))


def interval_of(own: Floats, z: float = Z, low: float = 0.0, high: float = 1.0) -> Interval:
    """Mean of independent people's values, with its interval."""
    half, mean = z * float(own.std(ddof=1)) / math.sqrt(len(own)) if len(own) > 1 else high - low, float(own.mean())
    return Interval(mean, *interval(mean, half, len(own), z=z, low=low, high=high), len(own))


def _telling(found: Interval | None) -> Interval | None:
    """Return an interval that says something: None for one without width, or over the whole scale."""
    return None if found is None or not 0.0 < found.high - found.low < 1.0 else found


def _group(name: str, own: Floats, z: float = Z) -> Group | None:
    """Build a group of people; None if it has too few."""
    return Group(name=name, people=len(own), mean=interval_of(own, z)) if len(own) >= GROUP_PEOPLE else None


def _by_rarity(users: Any, own: Floats, rare: Mapping[str, float]) -> tuple[tuple[Group, ...], Interval | None]:
    known = np.array([user in rare for user in users])
    if known.sum() < 3 * GROUP_PEOPLE:
        return (), None
    order = np.flatnonzero(known)[np.argsort([rare[user] for user in users[known]], kind="stable")]
    parts = [own[part] for part in np.array_split(order, 3)]
    groups = [_group(name, part) for name, part in zip(("common", "between", "rare"), parts, strict=True)]
    gap = float(parts[2].mean() - parts[0].mean())
    half = Z * math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in (parts[0], parts[2])))
    if half <= 0.0:  # all alike
        half = math.hypot(*(found.high - found.low for found in map(interval_of, (parts[0], parts[2]))))
    apart = Interval(gap, max(gap - half, -1.0), min(gap + half, 1.0), len(parts[0]) + len(parts[2]))
    return tuple(group for group in groups if group), apart


def _worse_off(rated: Ratings) -> tuple[Interval | None, int]:
    """Share of people who are worse off than under the best single model, and of how many."""
    at = np.flatnonzero(rated.p > 0.0)
    other = rated.mean + (rated.y[at] - rated.mean) / rated.p[at] * rated.own[at]
    found = satisfaction(rated.y[at], other, rated.person[at], np.full(len(at), -1), [])
    if not rated.best or not found:
        return None, 0
    users = found[0].users
    return Interval(found[0].worse_off, found[0].worse_off_low, found[0].worse_off_high, users), users


def _sentences(found: Satisfaction) -> tuple[str, ...]:
    said, all_people = [], many(found.people, "person", "people")
    worse_off = many(found.worse_off_people, "person", "people")
    if found.variance is None or found.cvar10 is None:
        said.append(f"{all_people}: no interval of the variance between them, or the worst tenth, shows yet.")
    if found.worse_off is not None:
        share = found.worse_off
        said.append(
            f"{share.estimate:.0%} of {worse_off} would fare better with {found.best_single} alone "
            f"(95% interval {share.low:.0%} to {share.high:.0%})."
        )
    elif found.best_single:
        said.append(
            f"How many of {worse_off} would fare better with {found.best_single} alone is not known from their ratings."
        )
    if found.rare_gap is not None:
        gap = found.rare_gap
        if gap.high < 0.0:
            said.append(f"People of rare tastes are served worse than people of common ones, by {-gap.estimate:.2f}.")
        elif gap.low > 0.0:
            said.append(f"People of rare tastes are served better than people of common ones, by {gap.estimate:.2f}.")
        else:
            said.append("No difference between people of rare and of common tastes shows.")
    apart = [(a, b) for a in found.roles for b in found.roles if a.mean.high < b.mean.low]
    if apart:
        a, b = min(apart, key=lambda pair: pair[0].mean.estimate - pair[1].mean.estimate)
        means = f"{a.mean.estimate:.2f} and {b.mean.estimate:.2f}"
        said.append(f"The role {a.name!r} is served worse than {b.name!r}: {means}.")
    if found.departed is not None and found.mean is not None and found.departed.mean.high < found.mean.estimate:
        departed = many(found.departed.people, "person has", "people have")
        said.append(f"{departed} left, less satisfied than the others; their ratings count on.")
    return tuple(said)

"""Alarms in words: what needs somebody's attention now, and the view that shows more of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from fitrouter.monitors.service import Outage
from fitrouter.serving.status import RouterStatus, behind, duration
from fitrouter.stores.figures import many

EVIDENCE = 1000.0
"""e-value of the propensity audit at which it alarms."""
ANSWERS = 0.7
"""Probability that a model answers, below which it is told: where others answer in its place, nobody would notice."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """A message that something is wrong."""

    level: str
    """`bad`: act now; `warn`: look at it."""
    text: str
    view: str
    """The view that shows more."""
    params: dict[str, str] = {}
    """Of its address."""


class Unhappy(NamedTuple):
    """People whose mean rating is surely below the middle of the scale."""

    people: int
    shown: list[tuple[str, str, float, int]]
    """Tenant, token, mean rating and number of ratings of the unhappiest; none for keys that may not see people."""
    name: str = ""
    """Name of the unhappiest, if it is known."""


def alarms(
    status: RouterStatus | None,
    faults: Mapping[str, str],
    outages: Sequence[Outage],
    flattered: Mapping[str, str],
    tenant: str | None,
    unhappy: Unhappy = Unhappy(0, []),  # noqa: B008 - immutable
    unpriced: Sequence[str] = (),
    share: float = 1.0,
    now: float = 0.0,
    paused: Collection[str] = (),
) -> list[Alarm]:
    """Return the current alarms, the worst first.

    Args:
        status: of the router, if it is known yet.
        faults: part of the router → why it cannot work.
        outages: that `tenant` may know of.
        flattered: model → what is wrong with its scores.
        tenant: who asks, and sees no other tenant's budget; None for an administrator.
        unhappy: people.
        unpriced: models whose price is not known.
        share: of the requests that the policy routes.
        now: seconds since the epoch.
        paused: arms that nobody calls at present, whose past calls are no alarm.
    """
    found = [
        Alarm(level="bad", text=f"The {part} does not work: {why}", view="learning") for part, why in faults.items()
    ]

    def say(level: str, text: str, view: str) -> None:
        found.append(Alarm(level=level, text=text, view=view))

    for outage in outages:
        say("bad", outage.text, "models" if outage.scope in {"all", "model"} else "decisions")
    for owner, token, mean, ratings in unhappy.shown:
        also = unhappy.people - 1
        more = f" So {'is one more person' if also == 1 else f'are {also:,} more people'}." if also else ""
        rated = f"mean rating {mean + 1e-9:.2f} of {many(ratings, 'rated answer')}"
        text = f"{unhappy.name or token[:12]} is unhappy: {rated}.{more}"
        params = {"user": token} | ({"tenant": owner} if tenant is None else {})
        found.append(Alarm(level="warn", text=text, view="people", params=params))
        break
    else:
        if unhappy.people:
            unhappy_people = many(unhappy.people, "person is", "people are")
            say("warn", f"{unhappy_people} unhappy: they surely rate below the middle.", "people")
    if unpriced:
        names = ", ".join(unpriced[:3]) + (f" and {len(unpriced) - 3} more" if len(unpriced) > 3 else "")
        say("warn", f"No price is known of {names}: all costs leave these answers out.", "models")
    if share <= 0.0:
        say("warn", "The router only watches: the default model answers all requests (share 0).", "policy")
    for model, bias in flattered.items():
        say("warn", f"Scores flatter {model} and are ignored for it: {bias}", "learning")
    if status is not None:
        _of_status(status, tenant, now, paused, say)
    return sorted(found, key=lambda alarm: alarm.level != "bad")


def _of_status(
    status: RouterStatus,
    tenant: str | None,
    now: float,
    paused: Collection[str],
    say: Callable[[str, str, str], None],
) -> None:
    for name, why in status.breakers.items():
        say("bad", f"{name} is not called for the moment: {why}", "models")
    for name, row in status.unanswered.items():
        if name not in {*status.breakers, *paused}:
            say(
                "bad",
                f"{name} answered none of its last {row.calls:,} calls, for {duration(now - row.since)}.",
                "models",
            )
    for name, share in status.availability.items():
        if share < ANSWERS and name not in {*status.breakers, *status.unanswered, *paused}:
            say("warn", f"{name} is expected to answer {share:.0%} of its calls.", "models")
    if status.propensity_evidence >= EVIDENCE:
        say("bad", "The logged probabilities do not fit the draws; estimates from the log may be wrong.", "learning")
    for part, text in behind(status, now).items():
        late = " These views, which read it, are late by that." if part == "warehouse" else ""
        say("warn", f"The {part} {text.rstrip('.')}.{late}", "learning")
    if status.quarantined:
        say("warn", f"{many(status.quarantined, 'event is', 'events are')} excluded from what is learnt.", "learning")
    for model, sums in status.drift.items():
        if sums >= 0.8:
            say("warn", f"The answers of {model} change: {sums:.0%} of the drift alarm.", "learning")
    for owner, share in status.budget_spent.items():
        if share >= 0.9 and tenant in {None, owner}:
            whose = f" of {owner}" if tenant is None else ""
            level = "bad" if share >= 1.0 else "warn"
            say(level, f"{share:.0%} of the period's budget{whose} is spent.", "policy")
    if status.disk_free < 0.1:  # false for NaN
        say("bad", f"{status.disk_free:.0%} of the disk that holds the log is free.", "learning")
    for name, health in status.reward_models.items():
        if health.error:
            say("warn", f"The reward model {name} fails: {health.error}", "learning")

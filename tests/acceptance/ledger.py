"""What happened, in plain Python: what was sent, what came back, and what the upstream billed for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from tests.acceptance.company import (
    ADDED,
    ASSUMED,
    MODELS,
    PEOPLE,
    TENANTS,
    Call,
    Counts,
    Person,
    cost_usd,
)

__all__ = ["LEFT", "PARTS", "Asked", "Ledger", "Report", "Voted", "by", "figures", "total"]

PARTS = ("cached", "written", "reasoning")
"""Tokens that are billed apart from the others of their prompt or answer."""

LEFT = 499
"""Status of a request whose caller left in the middle of the answer."""

Z = 1.959964
"""Standard errors of a 95% interval."""


@dataclass(eq=False)
class Asked:
    """A request, and what came back."""

    n: int
    who: Person
    pinned: str | None
    stream: bool = False
    session: str | None = None
    prompt: str = ""
    status: int = 0
    """Of HTTP, or `LEFT`."""
    code: str | None = None
    """Of an error."""
    id: str = ""
    """Of the decision; empty if none was told."""
    model: str | None = None
    """That answered, as the answer says."""
    text: str = ""
    call: dict[str, Any] | None = None
    """The message, if it calls a tool."""
    tokens: Counts = field(default_factory=Counts)
    """As the answer says."""
    solicited: bool = False
    """Whether the answer asks for feedback."""
    run: str = ""
    """Of an agent."""
    tier: str = ""
    looked: bool = False
    """Whether its plan was looked at before: such an answer never asks for feedback."""
    alternative: bool = False
    """Whether it was named in the place of a plan's pick."""
    stuck: bool = False
    """Whether its agent was stuck, so that a model was drawn anew."""


@dataclass(eq=False)
class Voted:
    """A vote that was acknowledged."""

    on: Asked
    kind: str
    value: float
    scale: tuple[float, float] = (0.0, 1.0)
    dimension: str = "overall"
    other: Asked | None = None

    @property
    def y(self) -> float:
        """The value from 0 to 1; of `dwell` the seconds."""
        low, high = self.scale
        return (self.value - low) / (high - low)


SOURCES = ("adapter", "check", "person")
"""Of reports, that which counts most last."""


@dataclass(eq=False)
class Report:
    """A report on a run that was acknowledged."""

    who: Person
    run: str
    said: dict[str, Any]

    @property
    def outcome(self) -> tuple[str, float, str]:
        """Kind, value and source."""
        return self.said.get("kind", "success"), float(self.said["value"]), self.said.get("source", "check")


@dataclass
class Ledger:
    """The day's books."""

    asked: list[Asked] = field(default_factory=list)
    votes: list[Voted] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    declared: dict[Person, dict[str, float]] = field(default_factory=dict)
    comments: list[tuple[Asked, dict[str, float]]] = field(default_factory=list)
    erased: set[Person] = field(default_factory=set)
    declined: list[tuple[Person, str]] = field(default_factory=list)
    """Plans that were looked at and not run: whose, and their decisions."""
    reports: list[Report] = field(default_factory=list)
    limit_usd: float = 0.0
    acts: list[tuple[str, str]] = field(default_factory=list)
    """What keys changed, and which."""
    too_early: list[str] = field(default_factory=list)
    """Codes of the errors to feedback that came before its answer was committed."""

    # --- selections ---

    def people(self) -> list[Person]:
        """Those who were not erased."""
        return [who for who in PEOPLE if who not in self.erased]

    def decided(self) -> list[Asked]:
        """The requests that were decided, answered or not, of those who were not erased."""
        return [each for each in self.asked if each.id and each.who not in self.erased]

    def answered(self) -> list[Asked]:
        """Those of them that were answered."""
        return [each for each in self.decided() if each.status == 200]

    def left(self) -> list[Asked]:
        """Those of them whose callers left in the middle of the answer."""
        return [each for each in self.decided() if each.status == LEFT]

    def failed(self) -> list[Asked]:
        """Those of them that no model answered."""
        return [each for each in self.decided() if each.status not in {200, LEFT}]

    def given(self) -> list[Voted]:
        """All votes of those who were not erased."""
        return [vote for vote in self.votes if vote.on.who not in self.erased]

    def standing(self) -> list[Voted]:
        """The votes that count: the last one of each answer, kind and dimension."""
        last = {(vote.on.n, vote.kind, vote.dimension): vote for vote in self.given()}
        return [vote for vote in self.given() if last[vote.on.n, vote.kind, vote.dimension] is vote]

    def ratings(self) -> list[Voted]:
        """Those that rate an answer as a whole: thumbs and ratings."""
        return [vote for vote in self.standing() if vote.kind in {"thumb", "rating"} and vote.dimension == "overall"]

    def steps(self) -> list[Asked]:
        """The steps of runs of those who were not erased."""
        return [each for each in self.answered() if each.run]

    def standing_report(self, run: tuple[str, str]) -> Report | None:
        """The report that counts on a run of a tenant."""
        reports = [each for each in self.reports if (each.who.tenant, each.run) == run]  # the last one of its source
        return max(reversed(reports), key=lambda each: SOURCES.index(each.outcome[2]), default=None)

    def cascades(self) -> list[Call]:
        """Answers that failed their model's check: a request whose answer counts is billed for one more."""
        last = {call.n: call for call in self.calls if call.status == 200}
        return [call for call in self.calls if call.status == 200 and call is not last[call.n]]

    def stood_in(self, asked: Asked) -> str | None:
        """The model that failed a request, which another one answered then."""
        checked = self.cascades()
        failed = [each.model for each in self.calls if each.n == asked.n and (each.status != 200 or each in checked)]
        return failed[0] if asked.status == 200 and failed and failed[0] != asked.model else None

    def drawn(self) -> list[Asked]:
        """The answers of a model that was drawn: of those of a conversation the first."""
        free = [each for each in self.answered() if not each.pinned and not self.stood_in(each)]
        first = {(each.who, each.session): each for each in reversed(free)}
        return [each for each in free if not each.session or each.stuck or first[each.who, each.session] is each]

    def bill(self, asked: Asked) -> Call | None:
        """What the upstream billed for a request."""
        checked = self.cascades()
        bills = [call for call in self.calls if call.n == asked.n and call.status == 200 and call not in checked]
        assert len(bills) <= 1, bills
        return bills[0] if bills and asked.status in {200, LEFT} else None

    def tokens(self, asked: Asked) -> int:
        """Tokens of prompt and answer that were billed."""
        bill = self.bill(asked)
        return 0 if bill is None else bill.counts.prompt + bill.counts.answer

    def usd(self, asked: Asked) -> float | None:
        """What a request cost; None where its model has no price."""
        bill = self.bill(asked)
        calls = [] if bill is None else [bill, *(call for call in self.cascades() if call.n == asked.n)]
        costs = [cost_usd(call.model, call.counts) for call in calls]
        return None if None in costs else math.fsum(cost for cost in costs if cost is not None)

    def assumed_usd(self, asked: Asked) -> float:
        """What a request counts for in a budget: without a price as much as the most expensive model's answer."""
        bill, usd = self.bill(asked), self.usd(asked)
        if usd is None and bill is not None:
            usd = cost_usd(ASSUMED, bill.counts)
        return usd or 0.0

    def spent_usd(self, tenant: str) -> float:
        """What a tenant has spent, erased people included: money does not come back."""
        return math.fsum(self.assumed_usd(each) for each in self.asked if each.who.tenant == tenant)

    def check(self) -> None:
        """What came back is what the upstream said and billed, and no budget was overspent."""
        assert 0.0 < self.spent_usd("birch") <= self.limit_usd
        assert len([call for call in self.calls if call.status == 200]) == len(
            [each for each in self.asked if self.bill(each)] + self.cascades()
        ), "an answer was billed that nobody got"
        for each in self.asked:
            bill = self.bill(each)
            if each.status == 200:
                assert bill is not None
                assert (bill.model, bill.counts) == (each.model, each.tokens)
                assert each.call is not None or each.text == bill.text
            elif each.status == LEFT:
                assert bill is not None
                assert bill.model == each.model
                assert bill.text.startswith(each.text)
        assert all(any(counts) for counts in zip(*(each.tokens for each in self.asked), strict=True))


def by(key: Callable[[Any], Any], entries: Iterable[Any]) -> dict[Any, int]:
    """How often each key occurs."""
    return dict(Counter(key(each) for each in entries))


def total(key: Callable[[Any], Any], amount: Callable[[Any], float], entries: Iterable[Any]) -> dict[Any, float]:
    """The sum of amounts by key."""
    found: dict[Any, list[float]] = {}
    for each in entries:
        found.setdefault(key(each), []).append(amount(each))
    return {name: math.fsum(amounts) for name, amounts in found.items()}


def means(key: Callable[[Any], Any], votes: Iterable[Voted]) -> dict[Any, float]:
    """The mean rating by key."""
    found: dict[Any, list[float]] = {}
    for vote in votes:
        found.setdefault(key(vote), []).append(vote.y)
    return {name: fmean(values) for name, values in found.items()}


def clustered(votes: list[Voted]) -> tuple[float, float] | None:
    """The 95% interval of a mean rating, clustered by person; None for fewer than five people.

    Where all people are alike it is that of a share of so many people (Wilson 1927).
    """
    mean, people = fmean(vote.y for vote in votes), {vote.on.who for vote in votes}
    if len(people) < 5:
        return None
    off = [sum(vote.y - mean for vote in votes if vote.on.who == who) for who in people]
    half = Z * math.sqrt(len(people) / (len(people) - 1)) * math.sqrt(math.fsum(d * d for d in off)) / len(votes)
    if half < 1e-9:
        n, z2 = len(people), Z * Z
        centre, half = mean + z2 / (2 * n), Z * math.sqrt(mean * (1 - mean) / n + z2 / (4 * n * n))
        return max(0.0, (centre - half) / (1 + z2 / n)), min(1.0, (centre + half) / (1 + z2 / n))
    return max(0.0, mean - half), min(1.0, mean + half)


def of_people(votes: list[Voted]) -> tuple[float, float, float]:
    """The mean of people's mean ratings, with its 95% interval."""
    own = list(means(lambda vote: vote.on.who, votes).values())
    mean, half = fmean(own), Z * stdev(own) / math.sqrt(len(own))
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def tenant(entry: Asked | Voted) -> str:
    return person(entry)[0]


def person(entry: Asked | Voted) -> tuple[str, str]:
    who = entry.who if isinstance(entry, Asked) else entry.on.who
    return who.tenant, who.name


def role(entry: Asked | Voted) -> tuple[str, str]:
    who = entry.who if isinstance(entry, Asked) else entry.on.who
    return who.tenant, who.role


def run(asked: Asked) -> tuple[str, str]:
    return asked.who.tenant, asked.run


def model(entry: Asked | Voted) -> tuple[str, str]:
    asked = entry if isinstance(entry, Asked) else entry.on
    return tenant(asked), asked.model or asked.pinned or ""


def figures(books: Ledger) -> dict[str, Any]:
    """The answer to every question, from the books alone."""
    decided, answered, failed = books.decided(), books.answered(), books.failed()
    standing, ratings, given = books.standing(), books.ratings(), books.given()
    left, steps = books.left(), books.steps()
    told = [each for each in books.reports if each.who not in books.erased]
    free, rated = [each for each in decided if not each.pinned], {vote.on for vote in ratings}
    billed = [*answered, *left]
    bills = {each: bill for each in billed if (bill := books.bill(each))}
    priced = [each for each in billed if books.usd(each) is not None]
    unpriced = [each for each in billed if books.usd(each) is None]
    full = [each for each in priced if each.status == 200]
    known = {who.tenant: [v for v in ratings if v.on.who.tenant == who.tenant] for who in books.people()}

    def usd(each: Asked) -> float:
        return books.usd(each) or 0.0

    ever = [each for each in books.asked if each.id]
    billed_ever = [each for each in ever if each.status in {200, LEFT}]
    ends = {200: "ok", LEFT: "cancelled"}
    errors = [each for each in books.asked if each.status not in ends]
    gone = ["client_gone" for each in books.asked if each.status == LEFT]
    turned = [each for each in errors if not each.id and each.who not in books.erased]
    turned_ever = [each for each in errors if not each.id]
    worst = {
        key: fmean(means(person, [v for v in known["acme"] if role(v) == key]).values())
        for key in by(role, known["acme"])
    }
    return {
        "decided": by(tenant, decided),
        "requests": by(tenant, [*decided, *turned]),
        "refused": by(tenant, turned),
        "requests_by_person": by(person, decided),
        "draws_by_person": by(
            lambda key: key, [*map(person, decided), *((who.tenant, who.name) for who, _ in books.declined)]
        ),
        "requests_by_role": by(role, decided),
        "requests_by_model": by(model, decided),
        "requests_by_person_and_model": by(lambda e: (*person(e), model(e)[1]), decided),
        "answered_by_person_and_model": by(lambda e: (*person(e), e.model), answered),
        "traffic_by_person": by(person, [*decided, *turned]),
        "traffic_by_person_and_model": by(lambda e: (*person(e), model(e)[1]), [*decided, *turned]),
        "requests_by_role_and_model": by(lambda e: (*role(e), e.model), [*decided, *turned]),
        "ids": {each.id for each in decided},
        "answered": by(tenant, answered),
        "answered_by_model": by(model, answered),
        "cancelled": by(tenant, left),
        "cancelled_by_model": by(model, left),
        "failed": by(tenant, failed),
        "failed_by_model": by(model, failed),
        "pinned": by(tenant, [each for each in decided if each.pinned]),
        "pinned_by_model": by(lambda e: (tenant(e), e.pinned), [each for each in decided if each.pinned]),
        "conversation": by(lambda e: (*person(e), e.session), [each for each in decided if each.session]),
        "solicited": by(tenant, [each for each in answered if each.solicited]),
        "streamed": by(lambda e: e.model, [each for each in billed_ever if each.stream]),
        "fallbacks": by(tenant, [each for each in answered if books.stood_in(each)]),
        "fallbacks_ever": by(books.stood_in, [each for each in ever if books.stood_in(each)]),
        "decided_ever": by(lambda role: role, [*(e.who.role for e in ever), *(who.role for who, _ in books.declined)]),
        "drawn": {
            who: (n, len([1 for each in books.drawn() if person(each) == who and each in rated]))
            for who, n in by(person, books.drawn()).items()
        },
        "replayed": (len(free), len(decided) - len(free), len({each.who for each in free})),
        "never_asked": len([each for each in free if each.looked]),
        "explained": {each.id: (bool(each.pinned), each.model) for each in decided[::97]},
        "acts": by(lambda act: act, books.acts),
        "attempts_failed": by(
            lambda c: c.model, [*(call for call in books.calls if call.status != 200), *books.cascades()]
        ),
        "checks_failed": by(lambda c: c.model, books.cascades()),
        "declined": by(lambda who: who.tenant, [who for who, _ in books.declined if who not in books.erased]),
        "alternatives": by(tenant, [each for each in decided if each.alternative]),
        "tiers": by(lambda e: (tenant(e), e.tier), [each for each in decided if each.tier]),
        "runs": by(lambda key: key[0], set(map(run, steps))),
        "run_steps": by(run, steps),
        "run_models": {key: {each.model for each in steps if run(each) == key} for key in map(run, steps)},
        "run_money": {
            key: None if None in costs else math.fsum(cost for cost in costs if cost is not None)
            for key in map(run, steps)
            for costs in [[books.usd(each) for each in steps if run(each) == key]]
        },
        "run_outcomes": {key: each.outcome for key in map(run, steps) if (each := books.standing_report(key))},
        "run_reports": by(lambda each: (each.who.tenant, each.run), told),
        "run_stuck": by(run, [each for each in steps if each.stuck]),
        "errors": by(lambda code: code, [*(e.code for e in errors), *books.too_early, *gone]),
        "requests_ever": by(lambda e: (e.model or e.pinned, e.who.role, ends.get(e.status, "failed")), ever)
        | by(lambda e: (e.pinned, e.who.role, "refused"), turned_ever),
        "tokens": total(tenant, books.tokens, billed),
        "prompt_tokens_by_model": total(model, lambda e: bills[e].counts.prompt, billed),
        "answer_tokens_by_model": total(model, lambda e: bills[e].counts.answer, billed),
        "token_parts": total(
            lambda part: (*model(part[0]), part[1]),
            lambda part: getattr(bills[part[0]].counts, part[1]),
            [(each, part) for each in billed for part in PARTS if getattr(bills[each].counts, part)],
        ),
        "token_parts_ever": total(
            lambda part: (part[0].model, part[1]),
            lambda part: getattr(part[0].counts, part[1]),
            [(c, part) for c in books.calls if c not in books.cascades() for part in PARTS if getattr(c.counts, part)],
        ),
        "estimated": by(tenant, [*left, *(each for each in answered if bills[each].guesses)]),
        "tokens_ever": total(lambda e: e.model, books.tokens, billed_ever),
        "money": total(tenant, usd, priced),
        "money_by_model": total(model, usd, priced),
        "money_by_person": total(person, usd, priced),
        "money_ever": total(lambda e: e.model, usd, [e for e in billed_ever if books.usd(e) is not None]),
        "money_per_answer": {k: v / by(model, full)[k] for k, v in total(model, usd, full).items()},
        "unpriced": by(tenant, unpriced),
        "unpriced_by_model": by(model, unpriced),
        "unpriced_ever": by(lambda e: e.model, [e for e in billed_ever if books.usd(e) is None]),
        "assumed": total(tenant, books.assumed_usd, unpriced),
        "budget": {"birch": books.limit_usd},
        "budget_spent": {"birch": books.spent_usd("birch")},
        "budget_share": {"birch": books.spent_usd("birch") / books.limit_usd},
        "votes": by(tenant, standing),
        "votes_given": by(tenant, given),
        "votes_replaced": {
            t: n - by(tenant, standing)[t] for t, n in by(tenant, given).items() if n > by(tenant, standing)[t]
        },
        "votes_by_person": by(person, standing),
        "votes_given_by_person": by(person, given),
        "votes_by_kind": by(lambda v: (tenant(v), v.kind, v.dimension), standing),
        "votes_given_by_kind": by(lambda v: (tenant(v), v.kind), given),
        "votes_ever": by(lambda v: v.kind, books.votes),
        "votes_by_model": by(model, standing),
        "votes_by_person_and_kind": by(lambda v: (*person(v), v.kind, v.dimension), standing),
        "value_by_person_and_kind": means(lambda v: (*person(v), v.kind, v.dimension), standing),
        "ups": by(lambda v: (*person(v), v.on.model), [v for v in ratings if v.y > 0.5]),
        "downs": by(lambda v: (*person(v), v.on.model), [v for v in ratings if v.y < 0.5]),
        "pairs": {(v.on.id, v.other.id if v.other else "", v.value) for v in standing if v.kind == "pair"},
        "rated": by(tenant, rated),
        "ratings": by(tenant, ratings),
        "rating": {t: fmean(v.y for v in votes) for t, votes in known.items()},
        "rating_interval": {t: clustered(votes) for t, votes in known.items()},
        "rating_by_model": means(model, ratings),
        "rating_interval_by_model": {k: clustered([v for v in ratings if model(v) == k]) for k in by(model, ratings)},
        "rating_by_person": means(person, ratings),
        "raters": {t: len({v.on.who for v in votes}) for t, votes in known.items()},
        "satisfaction": {"acme": of_people(known["acme"])},
        "satisfaction_by_role": {
            r: (n, fmean(means(person, [v for v in ratings if role(v) == r]).values()))
            for r in by(role, ratings)
            if (n := len({v.on.who for v in ratings if role(v) == r})) >= 5
        },
        "first": {(w.tenant, w.name): w.likes for w in books.people()},
        "claimed": {(w.tenant, w.name): True for w in books.people() if w.tenant == "acme" and w.likes != "brief"},
        "people": {(w.tenant, w.name) for w in books.people()},
        "roles": by(lambda w: (w.tenant, w.role), books.people()),
        "declared": {(w.tenant, w.name): values for w, values in books.declared.items()},
        "comments": by(person, [asked for asked, said in books.comments if said and asked.who not in books.erased]),
        "comments_ever": len([1 for _, said in books.comments if said]),
        "one_decision": {
            each.id: (
                each.model,
                books.tokens(each),
                sorted((v.kind, v.dimension, v.value) for v in given if v.on is each),
            )
            for each in decided[::7]
        },
        "profile_votes": by(lambda v: (*person(v), v.kind), [v for v in standing if v.dimension == "overall"]),
        "raters_of_acme": len({v.on.who for v in known["acme"]}),
        "ratings_of_acme": len(known["acme"]),
        "people_of_acme": len([who for who in books.people() if who.tenant == "acme"]),
        "shares_of_acme": {
            name: n / by(tenant, answered)["acme"] for (of, name), n in by(model, answered).items() if of == "acme"
        },
        "worst_role": min(worst, key=lambda key: worst[key])[1],
        "models": set(MODELS),
        "prices": {name: price for name, price in MODELS.items() if price is not None},
        "no_price": {name for name, price in MODELS.items() if price is None},
        "added": {ADDED},
        "erased": {(w.tenant, w.name) for w in books.erased},
        "scored": by(tenant, answered),
        "tenants": set(TENANTS),
    }

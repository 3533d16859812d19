"""The figures in what surfaces show, whichever it is: lists of answers and votes, people, boards, reports, profiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.acceptance.ledger import by, total

__all__ = [
    "Figures",
    "bounds",
    "grouped",
    "mean_by",
    "of_answers",
    "of_boards",
    "of_certificates",
    "of_exposure",
    "of_listed",
    "of_profiles",
    "of_reports",
    "of_runs",
    "of_satisfaction",
    "of_shown",
    "of_stories",
    "of_users",
    "of_votes",
]

Figures = dict[str, Any]


def of_answers(rows: Iterable[Mapping[str, Any]]) -> Figures:
    """The figures that a list of answers has: id, tenant, user, role, model, mode, status, cost_usd."""
    every = list(rows)
    rows = [row for row in every if row["status"] != "declined"]
    answered = [row for row in rows if row["status"] == "ok"]
    failed = [row for row in rows if row["status"] == "failed"]
    cancelled = [row for row in rows if row["status"] == "cancelled"]
    pinned = [row for row in rows if row["mode"] == "pinned"]
    billed = [*answered, *cancelled]
    priced = [row for row in billed if row["cost_usd"] is not None]
    unpriced = [row for row in billed if row["cost_usd"] is None]

    def tenant(row: Mapping[str, Any]) -> Any:
        return row["tenant"]

    def person(row: Mapping[str, Any]) -> Any:
        return row["tenant"], row["user"]

    def model(row: Mapping[str, Any]) -> Any:
        return row["tenant"], row["model"]

    def usd(row: Mapping[str, Any]) -> float:
        return float(row["cost_usd"])

    return {
        "declined": by(tenant, [row for row in every if row["status"] == "declined"]),
        "decided": by(tenant, rows),
        "requests_by_person": by(person, rows),
        "requests_by_role": by(lambda row: (row["tenant"], row["role"]), rows),
        "requests_by_model": by(model, rows),
        "requests_by_person_and_model": by(lambda row: (*person(row), row["model"]), rows),
        "ids": {row["decision_id"] for row in rows},
        "answered": by(tenant, answered),
        "answered_by_model": by(model, answered),
        "failed": by(tenant, failed),
        "failed_by_model": by(model, failed),
        "cancelled": by(tenant, cancelled),
        "cancelled_by_model": by(model, cancelled),
        "pinned": by(tenant, pinned),
        "money": total(tenant, usd, priced),
        "money_by_model": total(model, usd, priced),
        "money_by_person": total(person, usd, priced),
        "unpriced": by(tenant, unpriced),
        "unpriced_by_model": by(model, unpriced),
    }


def of_listed(rows: Iterable[Mapping[str, Any]]) -> Figures:
    """Those of a list of answers with their votes, kind → value from 0 to 1."""
    rows = list(rows)
    votes = [(row, kind, y) for row in rows for kind, y in row["votes"].items()]
    ratings = [(row, y) for row, kind, y in votes if kind in {"thumb", "rating"}]

    def named(kind: str) -> tuple[str, str]:
        name, _, dimension = kind.partition(" (")
        return name, dimension.removesuffix(")") or "overall"

    return of_answers(rows) | {
        "votes": by(lambda v: v[0]["tenant"], votes),
        "votes_by_person": by(lambda v: (v[0]["tenant"], v[0]["user"]), votes),
        "votes_by_kind": by(lambda v: (v[0]["tenant"], *named(v[1])), votes),
        "votes_by_model": by(lambda v: (v[0]["tenant"], v[0]["model"]), votes),
        "ratings": by(lambda v: v[0]["tenant"], ratings),
        "rated": by(lambda row: row["tenant"], [row for row in rows if {"thumb", "rating"} & row["votes"].keys()]),
        "rating": mean_by(lambda v: v[0]["tenant"], ratings),
        "rating_by_person": mean_by(lambda v: (v[0]["tenant"], v[0]["user"]), ratings),
        "rating_by_model": mean_by(lambda v: (v[0]["tenant"], v[0]["model"]), ratings),
        "scored": by(lambda row: row["tenant"], [row for row in rows if row["score"] is not None]),
    }


def mean_by(key: Callable[[Any], Any], rows: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    rows = list(rows)
    return {name: value / by(key, rows)[name] for name, value in total(key, lambda row: row[1], rows).items()}


def of_votes(rows: Iterable[Mapping[str, Any]]) -> Figures:
    """The figures of a list of votes and remarks."""
    rows = list(rows)
    votes = [row for row in rows if row["value"] is not None]
    standing = [row for row in votes if not row["replaced"]]
    said = [row for row in rows if row["kind"] == "comment"]

    def person(row: Mapping[str, Any]) -> Any:
        return row["tenant"], row["user"]

    return {
        "votes": by(lambda row: row["tenant"], standing),
        "votes_given": by(lambda row: row["tenant"], votes),
        "votes_replaced": by(lambda row: row["tenant"], [row for row in votes if row["replaced"]]),
        "votes_by_person": by(person, standing),
        "votes_given_by_person": by(person, votes),
        "votes_by_kind": by(lambda row: (row["tenant"], row["kind"], row["dimension"]), standing),
        "votes_given_by_kind": by(lambda row: (row["tenant"], row["kind"]), votes),
        "votes_by_model": by(lambda row: (row["tenant"], row["model"]), standing),
        "comments": by(person, said),
    }


def of_shown(people: Mapping[tuple[str, str], Mapping[str, Any]]) -> Figures:
    """The figures of users in full, each with counts of their answers by model."""
    tallies = {(*who, each["model"]): each for who, one in people.items() for each in one["models"]}
    return {
        "draws_by_person": {who: one["requests"] for who, one in people.items()},
        "answered_by_person_and_model": {key: each["answers"] for key, each in tallies.items()},
        "votes_given_by_person": {who: one["votes"] for who, one in people.items()},
        "ups": {key: each["up"] for key, each in tallies.items() if each["up"]},
        "downs": {key: each["down"] for key, each in tallies.items() if each["down"]},
        "declared": {who: one["declared"] for who, one in people.items() if one["declared"]},
        "comments": {who: one["remarks"] for who, one in people.items() if one["remarks"]},
    }


def of_users(rows: Iterable[Mapping[str, Any]]) -> Figures:
    people = {(row["tenant"], row["user"]): row for row in rows}
    return {
        "people": set(people),
        "draws_by_person": {who: row["requests"] for who, row in people.items()},
        "votes_given_by_person": {who: row["votes"] for who, row in people.items()},
        "comments": {who: row["remarks"] for who, row in people.items() if row["remarks"]},
    }


def of_boards(boards: Mapping[tuple[str, str], Mapping[str, Any]]) -> Figures:
    """The figures of leaderboards; `chances` says for messages how sure each first model is."""
    return {
        "chances": {who: (board["first"], board["population_first"], board["beats"]) for who, board in boards.items()},
        "first": {who: board["first"] for who, board in boards.items()},
        "claimed": {
            who: board["claimed"]
            for who, board in boards.items()
            if who[0] == "acme" and board["first"] != board["population_first"]
        },
        "votes_by_person": {who: board["labels"] for who, board in boards.items()},
        "models": {row["model"] for board in boards.values() for row in board["models"]},
    }


def bounds(rating: Mapping[str, Any]) -> tuple[float, float] | None:
    return None if rating["low"] is None else (rating["low"], rating["high"])


def of_reports(reports: Mapping[tuple[str, str], Mapping[str, Any]]) -> Figures:
    """The figures of fit reports."""
    usage = {
        (tenant, each["model"]): each["usage"]
        for (tenant, _), report in reports.items()
        for each in report["models"]
        if each["usage"]
    }
    return of_boards({who: report["board"] for who, report in reports.items()}) | {
        "answered_by_model": {key: each["answers"] for key, each in usage.items()},
        "money_per_answer": {key: each["cost_usd"] for key, each in usage.items() if each["cost_usd"] is not None},
        "no_price": {name for (_, name), each in usage.items() if each["cost_usd"] is None},
    }


def of_profiles(profiles: Mapping[tuple[str, str], Mapping[str, Any]]) -> Figures:
    given = {
        (*who, kind): each
        for who, one in profiles.items()
        for kind, each in {**one.get("said", {}), **one.get("did", {})}.items()
    }
    return {
        "declared": {who: one["declared"] for who, one in profiles.items() if one["declared"]},
        "profile_votes": {key: each["number"] for key, each in given.items() if each["number"]},
    }


def of_satisfaction(found: Mapping[str, Any]) -> Figures:
    """Of acme: the other tenant has too few people."""
    mean = found["mean"]
    return {
        "raters_of_acme": found["people"],
        "ratings_of_acme": found["ratings"],
        "satisfaction": {"acme": (mean["estimate"], mean["low"], mean["high"])},
        "satisfaction_by_role": {
            ("acme", each["name"]): (each["people"], each["mean"]["estimate"]) for each in found["roles"]
        },
        "worst_role": found["worst_role_name"],
    }


def of_exposure(found: Mapping[str, Any]) -> Figures:
    return {"people_of_acme": found["people"], "shares_of_acme": found["models"]}


def of_certificates(found: Mapping[tuple[str, str], str]) -> Figures:
    figures = {who: json.loads(document)["figures"] for who, document in found.items()}
    own = {who: each for who, each in figures.items() if who[0] == "acme" and each["beats"]}
    return {
        "claimed": {who: each["claimed"] for who, each in own.items()},
        "chances": {
            who: (each["report"][0]["model"], each["population_first"], each["beats"]) for who, each in figures.items()
        },
        "drawn": {who: (each["decisions"], each["rated"]) for who, each in figures.items()},
    }


def of_stories(found: Mapping[str, Mapping[str, Any]]) -> Figures:
    """The figures of single decisions."""
    return {
        "one_decision": {
            id_: (
                one["execution"]["served_by"],
                one["execution"]["prompt_tokens"] + one["execution"]["completion_tokens"],
                sorted((vote["kind"], vote["dimension"], vote["value"]) for vote in one["feedback"]),
            )
            for id_, one in found.items()
        }
    }


def of_runs(runs: Mapping[tuple[str, str], Mapping[str, Any]]) -> Figures:
    """The figures of runs: steps, models, usd, and what was told of how they ended."""
    return {
        "runs": by(lambda key: key[0], runs),
        "run_steps": {key: each["steps"] for key, each in runs.items()},
        "run_models": {key: set(each["models"]) for key, each in runs.items()},
        "run_money": {key: each["usd"] for key, each in runs.items()},
        "run_outcomes": {key: tuple(each["told"]) for key, each in runs.items() if each["told"]},
    }


def grouped(rows: Iterable[tuple[Any, ...]]) -> dict[Any, Any]:
    """The last column by the others."""
    return {key[0] if len(key) == 1 else tuple(key): value for *key, value in rows if value}

"""One reader for each surface that shows figures: what it says of a day, in the terms of the questions."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import duckdb
import httpx
from tests.acceptance.company import KEYS, TENANTS
from tests.acceptance.installation import ENVIRONMENT, Installation
from tests.acceptance.ledger import Ledger, by, total
from typer.testing import CliRunner

from fitrouter_integrations import cli

__all__ = ["READERS", "Surfaces"]

Figures = dict[str, Any]
Reader = Callable[["Surfaces"], Figures]
READERS: dict[str, Reader] = {}
"""Surface → its reader. The names of surfaces are those of the product: a route, a command, a table, a metric."""


def reads(name: str) -> Callable[[Reader], Reader]:
    """Register the reader of a surface."""

    def register(reader: Reader) -> Reader:
        READERS[name] = reader
        return reader

    return register


class Surfaces:
    """The surfaces of an installation; each is read once.

    Args:
        installation: it runs.
        books: for the names of those to ask about, and of what else has to be given to ask.
    """

    def __init__(self, installation: Installation, books: Ledger) -> None:
        self.installation, self.books = installation, books
        self._read: dict[str, Figures] = {}

    def of(self, surface: str) -> Figures:
        """The figures of a surface."""
        if surface not in self._read:
            self._read[surface] = READERS[surface](self)
        return self._read[surface]

    # --- ways to ask ---

    def get(self, path: str, tenant: str = "", user: str = "", role: str = "", *, text: bool = False) -> Any:
        """The answer of a route to a tenant's key; `` for the installation's."""
        headers = {"authorization": f"Bearer {KEYS[tenant]}"}
        headers |= {"x-fitrouter-user": user} if user else {}
        headers |= {"x-fitrouter-role": role} if role else {}
        reply = httpx.get(f"{self.installation.url}{path}", headers=headers, timeout=60.0)
        assert reply.status_code == 200, (path, tenant, user, role, reply.text)
        return reply.text if text else reply.json()

    def run(self, *arguments: str, tenant: str = "", fails: bool = False, configured: bool = True) -> str:
        """What a command prints."""
        environment = {**ENVIRONMENT, "FITROUTER_API_KEY": KEYS[tenant], "COLUMNS": "200"}
        config = ["--config", str(self.installation.config)] if configured else []
        before = dict(os.environ)
        try:
            found = CliRunner().invoke(cli.app, [*arguments, *config], env=environment, catch_exceptions=False)
        finally:
            os.environ.clear()
            os.environ.update(before)
        assert fails or found.exit_code == 0, (arguments, found.output)
        return found.stdout

    def json(self, *arguments: str, **more: Any) -> Any:
        """What a command prints as JSON."""
        return json.loads(self.run(*arguments, "--json", **more))

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the warehouse."""
        file = self.installation.data / "fitrouter.duckdb"
        for _ in range(100):
            with contextlib.suppress(duckdb.IOException), duckdb.connect(str(file), read_only=True) as connection:
                return connection.execute(query).fetchall()
        raise AssertionError(f"{file} cannot be opened")

    # --- who is who ---

    @property
    def people(self) -> list[tuple[str, str]]:
        """Tenants and names of those who are to be found."""
        return [(who.tenant, who.name) for who in self.books.people()]

    @property
    def acme(self) -> list[str]:
        return [name for tenant, name in self.people if tenant == "acme"]

    @cached_property
    def names(self) -> dict[str, str]:
        """Subject → name."""
        listed = [one for tenant in TENANTS for one in self.get("/v1/users?last=1000", tenant)["data"]]
        return {subject: one["user"] for one in listed for subject in (one["subject"], *one["aliases"])}

    def each(self, read: Callable[[str, str], Any]) -> dict[tuple[str, str], Any]:
        """What is read of each person."""
        return {(tenant, name): read(tenant, name) for tenant, name in self.people}


# --- lists of answers and votes, whatever shows them ---


def of_answers(rows: Iterable[Mapping[str, Any]]) -> Figures:
    """The figures that a list of answers has: id, tenant, user, role, model, mode, status, cost_usd, cost_assumed."""
    rows = list(rows)
    answered = [row for row in rows if row["status"] == "ok"]
    failed = [row for row in rows if row["status"] == "failed"]
    pinned = [row for row in rows if row["mode"] == "pinned"]
    priced = [row for row in answered if row["cost_usd"] is not None and not row["cost_assumed"]]
    unpriced = [row for row in answered if row not in priced]

    def tenant(row: Mapping[str, Any]) -> Any:
        return row["tenant"]

    def person(row: Mapping[str, Any]) -> Any:
        return row["tenant"], row["user"]

    def model(row: Mapping[str, Any]) -> Any:
        return row["tenant"], row["model"]

    def usd(row: Mapping[str, Any]) -> float:
        return float(row["cost_usd"])

    return {
        "requests": by(tenant, rows),
        "requests_by_person": by(person, rows),
        "requests_by_role": by(lambda row: (row["tenant"], row["role"]), rows),
        "requests_by_model": by(model, rows),
        "requests_by_person_and_model": by(lambda row: (*person(row), row["model"]), rows),
        "ids": {row["decision_id"] for row in rows},
        "answered": by(tenant, answered),
        "answered_by_model": by(model, answered),
        "failed": by(tenant, failed),
        "failed_by_model": by(model, failed),
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
        "requests_by_person": {who: one["answers"] for who, one in people.items()},
        "requests_by_person_and_model": {key: each["answers"] for key, each in tallies.items()},
        "votes_given_by_person": {who: one["ratings"] for who, one in people.items()},
        "ups": {key: each["up"] for key, each in tallies.items() if each["up"]},
        "downs": {key: each["down"] for key, each in tallies.items() if each["down"]},
        "declared": {who: one["declared"] for who, one in people.items() if one["declared"]},
        "comments": {who: one["remarks"] for who, one in people.items() if one["remarks"]},
    }


def of_users(rows: Iterable[Mapping[str, Any]]) -> Figures:
    rows = [(row["tenant"], row["user"], row) for row in rows]
    return {
        "people": {(tenant, user) for tenant, user, _ in rows},
        "requests_by_person": {(tenant, user): row["answers"] for tenant, user, row in rows},
        "votes_given_by_person": {(tenant, user): row["ratings"] for tenant, user, row in rows},
        "comments": {(tenant, user): row["remarks"] for tenant, user, row in rows if row["remarks"]},
    }


def of_boards(boards: Mapping[tuple[str, str], Mapping[str, Any]]) -> Figures:
    """The figures of leaderboards."""
    return {
        "first": {who: board["first"] for who, board in boards.items()},
        "claimed": {
            who: board["claimed"]
            for who, board in boards.items()
            if who[0] == "acme" and board["first"] != board["population_first"]
        },
        "votes_by_person": {who: board["labels"] for who, board in boards.items()},
        "models": {row["model"] for board in boards.values() for row in board["models"]},
    }


# --- HTTP ---


@reads("GET /v1/decisions")
def _(s: Surfaces) -> Figures:
    return of_listed(row for tenant in TENANTS for row in s.get("/v1/decisions?last=1000", tenant)["data"])


@reads("GET /v1/decisions/{decision_id}")
def _(s: Surfaces) -> Figures:
    found = {each: s.get(f"/v1/decisions/{each.id}", each.who.tenant) for each in s.books.decided()[::7]}
    return {
        "one_decision": {
            each.id: (
                one["execution"]["served_by"],
                one["execution"]["prompt_tokens"] + one["execution"]["completion_tokens"],
                sorted((vote["kind"], vote["dimension"]) for vote in one["feedback"]),
            )
            for each, one in found.items()
        },
    }


@reads("GET /v1/feedback")
def _(s: Surfaces) -> Figures:
    return of_votes(row for tenant in TENANTS for row in s.get("/v1/feedback?last=1000", tenant)["data"])


@reads("GET /v1/users")
def _(s: Surfaces) -> Figures:
    listed = of_users(row for tenant in TENANTS for row in s.get("/v1/users?last=1000", tenant)["data"])
    return listed | of_shown(s.each(lambda tenant, user: s.get("/v1/users", tenant, user)["data"][0]))


@reads("GET /v1/leaderboard")
def _(s: Surfaces) -> Figures:
    return of_boards(s.each(lambda tenant, user: s.get("/v1/leaderboard", tenant, user)))


@reads("GET /v1/models")
def _(s: Surfaces) -> Figures:
    return {"models": {each["id"] for each in s.get("/v1/models", "acme")["data"]} - {"fitrouter/auto"}}


# --- console ---


@reads("GET /console/api/now")
def _(s: Surfaces) -> Figures:
    now = {tenant: s.get("/console/api/now?window=all", tenant) for tenant in TENANTS}
    totals = {tenant: one["totals"] for tenant, one in now.items()}
    return {
        "requests": {tenant: one["requests"] for tenant, one in totals.items()},
        "answered": {tenant: one["answered"] for tenant, one in totals.items()},
        "fallbacks": {tenant: one["fallbacks"] for tenant, one in totals.items() if one["fallbacks"]},
        "money": {tenant: one["cost_usd"] - one["cost_assumed_usd"] for tenant, one in totals.items()},
        "ratings": {tenant: one["reward"]["ratings"] for tenant, one in totals.items()},
        "raters": {tenant: one["reward"]["people"] for tenant, one in totals.items()},
        "rating": {tenant: one["reward"]["mean"] for tenant, one in totals.items()},
        "rating_interval": {tenant: bounds(one["reward"]) for tenant, one in totals.items()},
        "requests_by_role_and_model": {
            (tenant, each["role"], each["model"] or None): each["requests"]
            for tenant in TENANTS
            for each in now[tenant]["flows"]
        },
    }


def bounds(rating: Mapping[str, Any]) -> tuple[float, float] | None:
    return None if rating["low"] is None else (rating["low"], rating["high"])


# --- DuckDB ---


@reads("duckdb answers")
def _(s: Surfaces) -> Figures:
    names = ("decision_id", "tenant", "user", "role", "model", "mode", "status", "cost_usd", "cost_assumed")
    rows = s.sql("""
        SELECT decision_id, a.tenant, who, a.role, model, mode, a.status, a.cost_usd, coalesce(cost_assumed, false)
        FROM answers AS a LEFT JOIN executions USING (decision_id)
    """)
    return of_answers({**dict(zip(names, row, strict=True)), "user": s.names.get(row[2], row[2])} for row in rows)


# --- Prometheus ---

_SAMPLE = re.compile(r"^(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Metric → labels and value of its samples."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        found.setdefault(name, []).append((dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
    return found


@reads("GET /metrics")
def _(s: Surfaces) -> Figures:
    found = samples(s.get("/metrics", text=True))

    def summed(name: str, *labels: str) -> dict[Any, float]:
        def key(sample: Any) -> Any:
            values = tuple(sample[0][label] for label in labels)
            return values if len(values) > 1 else values[0]

        return {k: v for k, v in total(key, lambda sample: sample[1], found.get(f"fitrouter_{name}", ())).items() if v}

    assumed = summed("cost_assumed_usd_total", "model")
    return {
        "requests_ever": summed("requests_total", "model", "role", "status"),
        "errors": summed("errors_total", "kind"),
        "attempts_failed": summed("attempts_failed_total", "model"),
        "tokens_ever": summed("tokens_total", "model"),
        "money_ever": {k: v for k, v in summed("cost_usd_total", "model").items() if k not in assumed},
        "votes_ever": summed("feedback_total", "kind"),
        "comments_ever": sum(summed("remarks_total", "kind").values()),
        "streamed": summed("ttft_seconds_count", "model"),
    }


# --- commands ---


@reads("fitrouter decisions")
def _(s: Surfaces) -> Figures:
    return of_listed(s.json("decisions", "--last", "1000"))


@reads("fitrouter leaderboard")
def _(s: Surfaces) -> Figures:
    return of_boards(s.each(lambda tenant, user: s.json("leaderboard", "--tenant", tenant, "--user", user)))

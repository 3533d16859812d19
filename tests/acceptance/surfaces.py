"""One reader for each surface that shows figures: what it says of a day, in the terms of the questions."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import httpx
from tests.acceptance.company import KEYS, TENANTS
from tests.acceptance.installation import ENVIRONMENT, Installation
from tests.acceptance.ledger import PARTS, Ledger, by, total
from tests.acceptance.shown import (
    Figures,
    bounds,
    grouped,
    of_answers,
    of_boards,
    of_certificates,
    of_exposure,
    of_listed,
    of_profiles,
    of_reports,
    of_runs,
    of_satisfaction,
    of_shown,
    of_stories,
    of_users,
    of_votes,
)
from typer.testing import CliRunner

from fitrouter_integrations import cli

__all__ = ["METRICS", "READERS", "SAMPLE", "SAMPLED", "Surfaces"]

Reader = Callable[["Surfaces"], Figures]
SAMPLE = frozenset({("acme", "dora"), ("birch", "ann")})
"""Those whom the surfaces that take a second for a person are asked about."""
SAMPLED = frozenset(
    {
        *("GET /v1/report", "GET /v1/certificate", "GET /console/api/people"),
        *("fitrouter leaderboard", "fitrouter report", "fitrouter users show", "fitrouter profile"),
        *("fitrouter certificate", "fitrouter verify"),
    }
)
PATIENCE_S = 180.0
"""For the answer of a route: what reads the whole log does so at low priority, for 90 s at most once it has begun."""
READERS: dict[str, Reader] = {}
"""Surface → its reader. The names of surfaces are those of the product: a route, a command, a table, a metric."""


def reads(name: str) -> Callable[[Reader], Reader]:
    """Register the reader of a surface."""

    def register(reader: Reader) -> Reader:
        READERS[name] = reader
        return reader

    return register


CALLED = {
    **{f"personal {name}": name for name in ("leaderboard", "profile", "certificate", "verify")},
    **{f"audits {name}": name for name in ("satisfaction", "exposure")},
    "audits log": "audit-log",
}
"""Command → what the questions call it."""
_WORDS = {name: words.split() for words, name in CALLED.items()}


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
        reply = httpx.get(f"{self.installation.url}{path}", headers=headers, timeout=PATIENCE_S, verify=False)
        assert reply.status_code == 200, (path, tenant, user, role, reply.text)
        return reply.text if text else reply.json()

    def run(self, *arguments: str, tenant: str = "", fails: bool = False, configured: bool = True) -> str:
        """What a command prints."""
        environment = {**ENVIRONMENT, "FITROUTER_API_KEY": KEYS[tenant], "COLUMNS": "200"}
        arguments = (*_WORDS.get(arguments[0], arguments[:1]), *arguments[1:])
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
        file = self.installation.tables
        for _ in range(100):
            with contextlib.suppress(duckdb.IOException), duckdb.connect(str(file), read_only=True) as connection:
                return connection.execute(query).fetchall()
        raise AssertionError(f"{file} cannot be opened")

    @cached_property
    def papers(self) -> Path:
        """A folder for what commands write."""
        return Path(tempfile.mkdtemp(dir=self.installation.folder))

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

    @cached_property
    def runs(self) -> dict[tuple[str, str], Any]:
        """Runs as they are shown, by tenant and id."""
        who = {(each.who.tenant, each.run): each.who.name for each in self.books.steps()}
        return {key: self.get(f"/v1/runs/{quote(key[1])}", key[0], user) for key, user in who.items()}

    def run_of(self, number: str) -> Any:
        """Tenant and id of a run by its hash."""
        return next((key for key, found in self.runs.items() if found["run"] == number), number)

    def each(self, read: Callable[[str, str], Any], whom: Iterable[tuple[str, str]] = ()) -> dict[tuple[str, str], Any]:
        """What is read of each person, or of some."""
        return {(tenant, name): read(tenant, name) for tenant, name in whom or self.people}


# --- HTTP ---


@reads("GET /v1/decisions")
def _(s: Surfaces) -> Figures:
    return of_listed(row for tenant in TENANTS for row in s.get("/v1/decisions?last=1000", tenant)["data"])


@reads("GET /v1/decisions/{decision_id}")
def _(s: Surfaces) -> Figures:
    stories = {each.id: s.get(f"/v1/decisions/{each.id}", each.who.tenant) for each in s.books.decided()[::7]}
    tiers = [(each.who.tenant, each.id) for each in s.books.decided() if each.tier]
    asked = [(tenant, s.get(f"/v1/decisions/{id_}", tenant)["tier"]) for tenant, id_ in tiers]
    return of_stories(stories) | {"tiers": by(lambda each: each, asked)}


@reads("GET /v1/runs/{run_id}")
def _(s: Surfaces) -> Figures:
    return of_runs(
        {
            key: {
                **found,
                "models": {each["model"] for each in found["decisions"]},
                "usd": found["cost_usd"],
                "told": found["outcome"] and tuple(found["outcome"][name] for name in ("kind", "value", "source")),
            }
            for key, found in s.runs.items()
        }
    ) | {"run_reports": {key: found["reports"] for key, found in s.runs.items() if found["reports"]}}


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
        "failed": {tenant: one["failed"] for tenant, one in totals.items() if one["failed"]},
        "refused": {tenant: one["refused"] for tenant, one in totals.items() if one["refused"]},
        "cancelled": {tenant: one["cancelled"] for tenant, one in totals.items() if one["cancelled"]},
        "fallbacks": {tenant: one["fallbacks"] for tenant, one in totals.items() if one["fallbacks"]},
        "tokens": {tenant: one["prompt_tokens"] + one["completion_tokens"] for tenant, one in totals.items()},
        "estimated": {tenant: one["estimated"] for tenant, one in totals.items() if one["estimated"]},
        "money": {tenant: one["cost"]["usd"] for tenant, one in totals.items()},
        "unpriced": {tenant: one["cost"]["unpriced"] for tenant, one in totals.items() if one["cost"]["unpriced"]},
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


@reads("GET /console/api/money")
def _(s: Surfaces) -> Figures:
    def spent(by: str) -> dict[tuple[str, str], Any]:
        found = {tenant: s.get(f"/console/api/money?window=all&by={by}", tenant) for tenant in TENANTS}
        return {(tenant, each.get("user") or each["key"]): each for tenant in TENANTS for each in found[tenant]["rows"]}

    models, people = spent("model"), spent("person")
    parts = {(*key, part): each[part] for key, each in models.items() for part in PARTS if each[part]}
    inputs = {key: each["fresh"] + each["cached"] + each["written"] for key, each in models.items()}
    return {
        "money_by_model": {key: each["cost"]["usd"] for key, each in models.items() if each["cost"]["usd"]},
        "money_by_person": {key: each["cost"]["usd"] for key, each in people.items() if each["cost"]["usd"]},
        "traffic_by_person": {key: each["requests"] for key, each in people.items()},
        "token_parts": parts,
        "prompt_tokens_by_model": {key: n for key, n in inputs.items() if n},
    }


@reads("GET /console/api/gains")
def _(s: Surfaces) -> Figures:
    found = {tenant: s.get("/console/api/gains?since=60&from=0", tenant)["looked"] for tenant in TENANTS}
    totals = {tenant: one["traffic"]["since"] for tenant, one in found.items()}
    rated = {tenant: one["ratings"]["since"] for tenant, one in found.items()}
    return {
        "requests": {tenant: one["requests"] for tenant, one in totals.items()},
        "answered": {tenant: one["answered"] for tenant, one in totals.items()},
        "money": {tenant: one["cost"]["usd"] for tenant, one in totals.items()},
        "unpriced": {tenant: one["cost"]["unpriced"] for tenant, one in totals.items() if one["cost"]["unpriced"]},
        "ratings": {tenant: one["ratings"] for tenant, one in rated.items()},
        "rating": {tenant: one["mean"] for tenant, one in rated.items()},
        "rating_interval": {tenant: bounds(one) for tenant, one in rated.items()},
    }


@reads("GET /console/api/runs")
def _(s: Surfaces) -> Figures:
    found = {s.run_of(each["run"]): each for tenant in TENANTS for each in s.get("/console/api/runs", tenant)["runs"]}
    return of_runs(
        {
            key: {
                **each,
                "usd": None if each["cost"]["unpriced"] else each["cost"]["usd"],
                "told": each["outcome"] and tuple(each["outcome"][name] for name in ("kind", "value", "source")),
            }
            for key, each in found.items()
        }
    ) | {"run_stuck": {key: each["stuck"] for key, each in found.items() if each["stuck"]}}


# --- DuckDB ---


@reads("duckdb runs")
def _(s: Surfaces) -> Figures:
    rows = s.sql("SELECT run, decisions, models, cost_usd, kind, value, source FROM runs")
    return of_runs(
        {
            s.run_of(number): {"steps": n, "models": models, "usd": usd, "told": told if told[0] else None}
            for number, n, models, usd, *told in rows
        }
    )


@reads("duckdb run_outcomes")
def _(s: Surfaces) -> Figures:
    return {
        "run_reports": {s.run_of(each): n for each, n in s.sql("SELECT run, count(*) FROM run_outcomes GROUP BY 1")}
    }


@reads("duckdb answers")
def _(s: Surfaces) -> Figures:
    names = ("decision_id", "tenant", "user", "role", "model", "mode", "status", "cost_usd")
    rows = s.sql("SELECT decision_id, tenant, who, role, model, mode, status, cost_usd FROM answers")
    return of_answers({**dict(zip(names, row, strict=True)), "user": s.names.get(row[2], row[2])} for row in rows)


# --- Prometheus ---

_SAMPLE = re.compile(r"^(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Metric → labels and value of its samples."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        found.setdefault(name, []).append((dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
    return found


METRICS = {
    "requests_ever": ("requests_total", "model", "role", "status"),
    "errors": ("errors_total", "kind"),
    "attempts_failed": ("attempts_failed_total", "model"),
    "tokens_ever": ("tokens_total", "model"),
    "token_parts_ever": ("token_parts_total", "model", "part"),
    "money_ever": ("cost_usd_total", "model"),
    "unpriced_ever": ("unpriced_total", "model"),
    "votes_ever": ("feedback_total", "kind"),
    "comments_ever": ("remarks_total", "kind"),
    "streamed": ("ttft_seconds_count", "model"),
    "decided_ever": ("decisions_total", "role"),
    "fallbacks_ever": ("fallbacks_total", "model"),
    "budget_share": ("budget_spent_ratio", "tenant"),
}
"""Question → sample of a metric, without its prefix, and its labels."""


@reads("GET /metrics")
def _(s: Surfaces) -> Figures:
    found = samples(s.get("/metrics", text=True))

    def summed(name: str, *labels: str) -> dict[Any, float]:
        def key(sample: Any) -> Any:
            values = tuple(sample[0][label] for label in labels)
            return values if len(values) > 1 else values[0]

        return {k: v for k, v in total(key, lambda sample: sample[1], found.get(f"fitrouter_{name}", ())).items() if v}

    figures = {question: summed(*asked) for question, asked in METRICS.items()}
    found["fitrouter_checks"] = [
        each for each in found.get("fitrouter_attempts_failed_total", ()) if each[0]["error"] == "CheckFailed"
    ]
    return figures | {
        "checks_failed": summed("checks", "model"),
        "comments_ever": sum(figures["comments_ever"].values()),
    }


# --- commands ---


@reads("fitrouter decisions")
def _(s: Surfaces) -> Figures:
    return of_listed(s.json("decisions", "--last", "1000"))


@reads("fitrouter leaderboard")
def _(s: Surfaces) -> Figures:
    return of_boards(s.each(lambda tenant, user: s.json("leaderboard", "--tenant", tenant, "--user", user), SAMPLE))


# --- the rest of HTTP ---


@reads("GET /v1/report")
def _(s: Surfaces) -> Figures:
    return of_reports(s.each(lambda tenant, user: s.get("/v1/report", tenant, user), SAMPLE))


@reads("GET /v1/profile")
def _(s: Surfaces) -> Figures:
    return of_profiles(s.each(lambda tenant, user: s.get("/v1/profile", tenant, user)))


@reads("GET /v1/satisfaction")
def _(s: Surfaces) -> Figures:
    return of_satisfaction(s.get("/v1/satisfaction", "acme"))


@reads("GET /v1/exposure")
def _(s: Surfaces) -> Figures:
    return of_exposure(s.get("/v1/exposure", "acme"))


@reads("GET /v1/certificate")
def _(s: Surfaces) -> Figures:
    return of_certificates(s.each(lambda tenant, user: s.get("/v1/certificate", tenant, user)["certificate"], SAMPLE))


# --- the rest of the console ---


@reads("GET /console/api/models")
def _(s: Surfaces) -> Figures:
    found = {
        (tenant, each["name"]): each for tenant in TENANTS for each in s.get("/console/api/models", tenant)["models"]
    }
    figures = {key: each["figures"] for key, each in found.items() if each["figures"]}
    rewards = {key: each["reward"] for key, each in figures.items() if each.get("reward")}
    return {
        "answered_by_model": {key: each["answered"] for key, each in figures.items() if each["answered"]},
        "failed_by_model": {key: each["failed"] for key, each in figures.items() if each["failed"]},
        "cancelled_by_model": {key: each["cancelled"] for key, each in figures.items() if each["cancelled"]},
        "money_by_model": {
            key: each["cost"]["usd"]
            for key, each in figures.items()
            if each["answered"] and each["cost"]["usd"] is not None
        },
        "unpriced_by_model": {
            key: each["cost"]["unpriced"] for key, each in figures.items() if each["cost"]["unpriced"]
        },
        "prompt_tokens_by_model": {key: each["prompt_tokens"] for key, each in figures.items() if each["answered"]},
        "answer_tokens_by_model": {key: each["completion_tokens"] for key, each in figures.items() if each["answered"]},
        "token_parts": {
            (*key, part): n for key, each in figures.items() for part in PARTS if (n := each[f"{part}_tokens"])
        },
        "rating_by_model": {key: each["mean"] for key, each in rewards.items()},
        "rating_interval_by_model": {key: bounds(each) for key, each in rewards.items()},
        "models": {name for _, name in found},
        "prices": {
            name: (each["input_usd_per_million"], each["output_usd_per_million"])
            for (_, name), each in found.items()
            if each["input_usd_per_million"] is not None
        },
        "no_price": {name for (_, name), each in found.items() if each["input_usd_per_million"] is None},
        "added": {name for (_, name), each in found.items() if each["added"]},
    }


@reads("GET /console/api/people")
def _(s: Surfaces) -> Figures:
    found = s.each(lambda tenant, user: s.get(f"/console/api/people?user={user}", tenant), SAMPLE)
    votes = {(*who, v["kind"], v["dimension"]): v for who, one in found.items() for v in (*one["said"], *one["done"])}
    roles = {
        (tenant, each["role"]): each for tenant in TENANTS for each in s.get("/console/api/people", tenant)["roles"]
    }
    return of_reports({who: one["report"] for who, one in found.items()}) | {
        "votes_by_person_and_kind": {key: each["votes"] for key, each in votes.items()},
        "value_by_person_and_kind": {key: each["mean"] for key, each in votes.items()},
        "traffic_by_person_and_model": {
            (*who, each["model"]): each["requests"] for who, one in found.items() for each in one["traffic"]
        },
        "declared": {who: one["declared"]["values"] for who, one in found.items() if one["declared"]["values"]},
        "comments": {who: n for who, one in found.items() if (n := sum(each["comments"] for each in one["comments"]))},
        "roles": {key: each["people"] for key, each in roles.items()},
        "requests_by_role": {key: each["requests"] for key, each in roles.items()},
    }


@reads("GET /console/api/people, the list")
def _(s: Surfaces) -> Figures:
    pages = {tenant: s.get("/console/api/people?order=requests", tenant) for tenant in TENANTS}
    assert all(one["next"] is None for one in pages.values())
    listed = {(tenant, each["user"]): each for tenant, one in pages.items() for each in one["listed"]}
    return {
        "traffic_by_person": {who: each["requests"] for who, each in listed.items()},
        "rating_by_person": {who: each["rating"]["mean"] for who, each in listed.items() if each["rating"]},
    }


@reads("GET /console/api/decisions")
def _(s: Surfaces) -> Figures:
    rows: list[dict[str, Any]] = []
    for tenant in TENANTS:
        before = ""
        while True:
            page = s.get(f"/console/api/decisions{before}", tenant)
            rows += page["decisions"]
            if page["next"] is None:
                break
            before = f"?before={page['next']}"
    return of_answers(
        {**row, "user": s.names.get(row["user"], row["user"]), "model": row["served_by"] or row["chosen"]}
        for row in rows
    ) | {
        "scored": by(lambda row: row["tenant"], [row for row in rows if row["score"] is not None]),
        "solicited": by(lambda row: row["tenant"], [row for row in rows if row["asked"] and row["status"] == "ok"]),
    }


@reads("GET /console/api/decisions/{decision_id}")
def _(s: Surfaces) -> Figures:
    found = {each.id: s.get(f"/console/api/decisions/{each.id}", each.who.tenant) for each in s.books.decided()[::7]}
    return of_stories(found)


@reads("GET /v1/policy")
def _(s: Surfaces) -> Figures:
    return {"budget": s.get("/v1/policy")["budgets"], "no_price": set(s.get("/v1/policy")["unpriced"])}


@reads("GET /console/api/policy")
def _(s: Surfaces) -> Figures:
    found = s.get("/console/api/policy")
    return {
        "budget": {name: each["usd_per_period"] for name, each in found["budgets"].items()},
        "budget_spent": {name: each["spent_usd"] for name, each in found["budgets"].items()},
        "budget_share": {name: each["spent_usd"] / each["usd_per_period"] for name, each in found["budgets"].items()},
        "added": {each["name"] for each in found["changes"] if each["action"] == "add_model"},
    }


@reads("GET /console/api/learning")
def _(s: Surfaces) -> Figures:
    labels = {tenant: s.get("/console/api/learning", tenant)["labels"] for tenant in TENANTS}
    return {
        "decided": {tenant: each["decisions"] for tenant, each in labels.items()},
        "solicited": {tenant: each["asked"] for tenant, each in labels.items() if each["asked"]},
    }


# --- the rest of DuckDB ---


@reads("duckdb requests")
def _(s: Surfaces) -> Figures:
    def count(where: str, *columns: str) -> dict[Any, Any]:
        names = ", ".join(columns or ("tenant",))
        return grouped(s.sql(f"SELECT {names}, CAST(sum(n) AS BIGINT) FROM requests WHERE {where} GROUP BY ALL"))

    return {
        "requests": count("true"),
        "answered": count("outcome = 'answered'"),
        "failed": count("outcome = 'failed'"),
        "refused": count("outcome = 'refused'"),
        "cancelled": count("outcome = 'cancelled'"),
        "requests_by_role_and_model": count("true", "tenant", "role", "served_by"),
        "tokens": grouped(
            s.sql("SELECT tenant, CAST(sum(prompt_tokens + completion_tokens) AS BIGINT) FROM requests GROUP BY ALL")
        ),
    }


@reads("duckdb refusals")
def _(s: Surfaces) -> Figures:
    return {"refused": grouped(s.sql("SELECT tenant, CAST(sum(n) AS BIGINT) FROM refusals GROUP BY ALL"))}


_ASKED = "decision_id NOT IN (SELECT decision_id FROM executions WHERE status = 'declined')"
"""Of decisions: no plan that nobody ran."""


@reads("duckdb outcomes")
def _(s: Surfaces) -> Figures:
    return {
        "decided": grouped(s.sql(f"SELECT tenant, count(*) FROM outcomes WHERE {_ASKED} GROUP BY ALL")),
        "money": grouped(s.sql("SELECT tenant, sum(cost_usd) FROM outcomes GROUP BY ALL")),
        "unpriced": grouped(s.sql("SELECT tenant, count(*) FROM outcomes WHERE NOT price_known GROUP BY ALL")),
        "scored": grouped(s.sql("SELECT tenant, count(score_mean) FROM outcomes GROUP BY ALL")),
        "ratings": grouped(s.sql("SELECT tenant, count(coalesce(thumb, rating)) FROM outcomes GROUP BY ALL")),
        "rating": grouped(s.sql("SELECT tenant, avg(coalesce(thumb, rating)) FROM outcomes GROUP BY ALL")),
    }


@reads("duckdb latest_feedback")
def _(s: Surfaces) -> Figures:
    return {
        "votes": grouped(s.sql("SELECT tenant, count(*) FROM latest_feedback GROUP BY ALL")),
        "votes_by_kind": grouped(s.sql("SELECT tenant, kind, dimension, count(*) FROM latest_feedback GROUP BY ALL")),
        "pairs": set(s.sql("SELECT decision_id, other, value FROM latest_feedback WHERE kind = 'pair'")),
    }


@reads("duckdb feedback")
def _(s: Surfaces) -> Figures:
    return {
        "votes_given": grouped(s.sql("SELECT tenant, count(*) FROM feedback GROUP BY ALL")),
        "votes_given_by_kind": grouped(s.sql("SELECT tenant, kind, count(*) FROM feedback GROUP BY ALL")),
    }


@reads("duckdb decisions")
def _(s: Surfaces) -> Figures:
    return {
        "decided": grouped(s.sql(f"SELECT tenant, count(*) FROM decisions WHERE {_ASKED} GROUP BY ALL")),
        "ids": {id_ for (id_,) in s.sql(f"SELECT decision_id FROM decisions WHERE {_ASKED}")},
        "alternatives": grouped(s.sql("SELECT tenant, count(*) FROM decisions WHERE plan <> '' GROUP BY ALL")),
        "tiers": grouped(
            s.sql(f"SELECT tenant, tier, count(*) FROM decisions WHERE tier <> '' AND {_ASKED} GROUP BY ALL")
        ),
        "run_stuck": {
            s.run_of(run): n for run, n in s.sql("SELECT run, count(*) FROM decisions WHERE stuck <> '' GROUP BY 1")
        },
        "pinned_by_model": grouped(
            s.sql("SELECT tenant, chosen, count(*) FROM decisions WHERE mode = 'pinned' GROUP BY ALL")
        ),
        "solicited": grouped(
            s.sql(
                "SELECT tenant, count(*) FROM decisions WHERE asked AND decision_id IN "
                "(SELECT decision_id FROM executions WHERE status = 'ok') GROUP BY ALL"
            )
        ),
        "never_asked": s.sql(f"SELECT count(*) FROM decisions WHERE asked_probability = 0 AND {_ASKED}")[0][0],
        "roles": grouped(s.sql('SELECT tenant, role, count(DISTINCT "user") FROM decisions GROUP BY ALL')),
    }


@reads("duckdb executions")
def _(s: Surfaces) -> Figures:
    def by_model(value: str, where: str = "served_by IS NOT NULL") -> dict[Any, Any]:
        return grouped(s.sql(f"SELECT tenant, served_by, {value} FROM executions WHERE {where} GROUP BY ALL"))

    return {
        "answered_by_model": by_model("count(*)", "status = 'ok'"),
        "cancelled_by_model": by_model("count(*)", "status = 'cancelled'"),
        "prompt_tokens_by_model": by_model("CAST(sum(prompt_tokens) AS BIGINT)"),
        "answer_tokens_by_model": by_model("CAST(sum(completion_tokens) AS BIGINT)"),
        "token_parts": {
            (*key, part): n for part in PARTS for key, n in by_model(f"CAST(sum({part}_tokens) AS BIGINT)").items() if n
        },
        "declined": grouped(s.sql("SELECT tenant, count(*) FROM executions WHERE status = 'declined' GROUP BY ALL")),
        "checks_failed": grouped(
            s.sql("""
                SELECT a.model, count(*) FROM (SELECT unnest(attempts) AS a FROM executions)
                WHERE a.error = 'CheckFailed' GROUP BY ALL
            """)
        ),
        "estimated": grouped(s.sql("SELECT tenant, count(*) FROM executions WHERE estimated GROUP BY ALL")),
        "money_by_model": by_model("sum(cost_usd)", "served_by IS NOT NULL AND NOT coalesce(cost_assumed, false)"),
        "fallbacks": grouped(s.sql("SELECT tenant, count(*) FROM executions WHERE served_by <> chosen GROUP BY ALL")),
        "attempts_failed": grouped(
            s.sql("""
                SELECT a.model, count(*) FROM (SELECT unnest(attempts) AS a FROM executions)
                WHERE a.error IS NOT NULL GROUP BY ALL
            """)
        ),
    }


@reads("duckdb scores")
def _(s: Surfaces) -> Figures:
    return {"scored": grouped(s.sql("SELECT tenant, count(*) FROM scores WHERE status = 'ok' GROUP BY ALL"))}


@reads("duckdb remarks")
def _(s: Surfaces) -> Figures:
    rows = s.sql("""SELECT tenant, "user", count(*) FROM remarks WHERE kind = 'comment' GROUP BY ALL""")
    return {"comments": {(tenant, s.names[user]): n for tenant, user, n in rows}}


@reads("duckdb profiles")
def _(s: Surfaces) -> Figures:
    rows = s.sql("""SELECT tenant, "user", declared FROM profiles ORDER BY seq""")
    return {"declared": {(tenant, s.names[user]): dict(said) for tenant, user, said in rows}}


@reads("duckdb policies")
def _(s: Surfaces) -> Figures:
    rows = s.sql("SELECT action, name, settings FROM policies ORDER BY seq")
    limits = [json.loads(settings) for action, _, settings in rows if action == "budget"]
    return {
        "added": {name for action, name, _ in rows if action == "add_model"},
        "budget": {each["tenant"]: each["usd_per_period"] for each in limits},
    }


@reads("duckdb models")
def _(s: Surfaces) -> Figures:
    rows = s.sql("""
        SELECT name, input_usd_per_million, output_usd_per_million, price_known FROM models
        WHERE change_id = (SELECT arg_max(change_id, seq) FROM models)
    """)
    return {
        "models": {row[0] for row in rows},
        "prices": {name: (each, answer) for name, each, answer, known in rows if known},
        "no_price": {row[0] for row in rows if not row[3]},
    }


# --- the rest of the commands ---


@reads("fitrouter feedback")
def _(s: Surfaces) -> Figures:
    return of_votes(s.json("feedback", "--last", "1000"))


@reads("fitrouter users")
def _(s: Surfaces) -> Figures:
    return of_users(s.json("users", "--last", "1000"))


@reads("fitrouter users show")
def _(s: Surfaces) -> Figures:
    return of_shown(s.each(lambda tenant, user: s.json("users", "show", "--user", user, "--tenant", tenant), SAMPLE))


@reads("fitrouter models")
def _(s: Surfaces) -> Figures:
    rows = s.json("models")
    return {
        "models": {row["name"] for row in rows},
        "prices": {row["name"]: (row["input_usd"], row["output_usd"]) for row in rows if row["input_usd"] is not None},
        "no_price": {row["name"] for row in rows if row["input_usd"] is None},
    }


@reads("fitrouter satisfaction")
def _(s: Surfaces) -> Figures:
    return of_satisfaction(s.json("satisfaction", "--tenant", "acme"))


@reads("fitrouter exposure")
def _(s: Surfaces) -> Figures:
    return of_exposure(s.json("exposure", "--tenant", "acme"))


@reads("fitrouter report")
def _(s: Surfaces) -> Figures:
    file = s.installation.folder / "report.json"

    def read(tenant: str, user: str) -> Any:
        s.run("report", "--tenant", tenant, "--user", user, "--json", str(file))
        return json.loads(file.read_text())

    return of_reports(s.each(read, SAMPLE))


@reads("fitrouter top")
def _(s: Surfaces) -> Figures:
    totals = {
        tenant: s.json("top", "--window", "all", "--url", s.installation.url, tenant=tenant)["now"]["totals"]
        for tenant in TENANTS
    }
    return {
        "requests": {tenant: one["requests"] for tenant, one in totals.items()},
        "answered": {tenant: one["answered"] for tenant, one in totals.items()},
        "refused": {tenant: one["refused"] for tenant, one in totals.items() if one["refused"]},
        "cancelled": {tenant: one["cancelled"] for tenant, one in totals.items() if one["cancelled"]},
        "money": {tenant: one["cost"]["usd"] for tenant, one in totals.items()},
        "rating": {tenant: one["reward"]["mean"] for tenant, one in totals.items()},
        "rating_interval": {tenant: bounds(one["reward"]) for tenant, one in totals.items()},
    }


@reads("fitrouter profile")
def _(s: Surfaces) -> Figures:
    def read(tenant: str, user: str) -> Any:
        return json.loads(s.run("profile", "show", "--user", user, "--tenant", tenant))

    return of_profiles(s.each(read, SAMPLE))


@reads("fitrouter policy")
def _(s: Surfaces) -> Figures:
    found = s.json("policy", "show")
    return {"budget": found["budgets"], "no_price": set(found["unpriced"])}


@reads("fitrouter audit-log")
def _(s: Surfaces) -> Figures:
    acts = s.json("audit-log", "show", "--last", "10000")
    # the questions before this one have looked at decisions in the console, which is noted
    return {"acts": by(lambda each: (each["act"], each["by"]), [act for act in acts if act["act"] != "content read"])}


@reads("fitrouter explain")
def _(s: Surfaces) -> Figures:
    found = [json.loads(s.run("explain", each.id, "--json", "-")) for each in s.books.decided()[::97]]
    return {"explained": {each["decision_id"]: (each["mode"] == "pinned", each["served_by"]) for each in found}}


def certificates(s: Surfaces, tenant: str, user: str) -> tuple[Path, Path]:
    """The files of a certificate, which is made once."""
    files = s.papers / f"{tenant}-{user}.json", s.papers / f"{tenant}-{user}.jsonl"
    if not files[0].exists():
        s.run("certificate", "--tenant", tenant, "--user", user, "--out", str(files[0]), "--rows", str(files[1]))
    return files


@reads("fitrouter certificate")
def _(s: Surfaces) -> Figures:
    return of_certificates(s.each(lambda tenant, user: certificates(s, tenant, user)[0].read_text(), SAMPLE))


@reads("fitrouter verify")
def _(s: Surfaces) -> Figures:
    def read(tenant: str, user: str) -> tuple[int, ...]:
        file, rows = certificates(s, tenant, user)
        said = s.run("verify", str(file), "--rows", str(rows), configured=False)
        assert said.startswith("verified"), said
        return tuple(map(int, re.findall(r"(\d+) drawn decisions?, (\d+) rated", said)[0]))

    return {"drawn": s.each(read, SAMPLE)}


@reads("fitrouter replay")
def _(s: Surfaces) -> Figures:
    file = s.papers / "replay.json"
    log = ["--log", str(s.installation.data), "--candidate", "uniform", "--idle", "0.1s"]
    s.run("replay", *log, "--json", str(file), configured=False)
    window = json.loads(file.read_text())["window"]
    never = window["excluded"].get("fit not observable", 0)  # drawn, and left out, as nobody could be asked
    return {
        "replayed": (window["decisions"] + never, window["excluded"].get("pinned", 0), window["users"]),
        "never_asked": never,
    }

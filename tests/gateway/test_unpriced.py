"""What has no price is nowhere zero: a table of all surfaces that show money."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from tests.kits.gateway import Echo, chat, client, make_router, serving, wait_for
from typer.testing import CliRunner

from fitrouter.config import parse_config
from fitrouter.routing.explain import explain
from fitrouter.stores.journal import SqliteJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import UNPRICED, Decision
from fitrouter_integrations import cli
from fitrouter_integrations.gateway._explain import decision_json

USD = (7 * 1.0 + 11 * 2.0) / 1e6
"""Cost of an answer of the model with a price."""
NOWHERE = "http://127.0.0.1:9/v1"
ASKED = 2
"""Answers of each model."""
ZERO = re.compile(
    r"""\$0(\.0+)?(?![\d.])|(?<![\d.])0(\.0+)?\ USD|USD\ 0(\.0+)?(?![\d.])|"[a-z_]*usd":\ ?0(\.0+)?(?![\d.e])"""
    r"""|fitrouter_cost_usd_total\{[^}]*\}\ 0\.0""",
    re.VERBOSE,
)
"""Ways to write that something cost nothing."""


class Place(NamedTuple):
    """A gateway with answers of a model with a price and of one without, or of two without."""

    url: str
    http: httpx.Client
    folder: Path
    decisions: dict[str, str]
    """Model → one of its decisions."""

    def get(self, path: str) -> Any:
        reply = self.http.get(path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def command(self, *arguments: str) -> str:
        done = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "300"})
        assert done.exit_code == 0, (done.output, done.exception)
        return " ".join(done.output.split())

    def rows(self, sql: str) -> str:
        return json.dumps(Warehouse(self.folder / "fitrouter.duckdb").query(sql))


@pytest.fixture(scope="module", params=["one", "none"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Place]]:
    folder = tmp_path_factory.mktemp(request.param)
    prices = {"prices": {"input": 1.0, "output": 2.0}} if request.param == "one" else {}
    # A model without a price has an unknown one whatever its provider, a simulated one included.
    provider = {"kind": "simulated"} if request.param == "none" else {"kind": "openai_compatible", "base_url": NOWHERE}
    settings = parse_config(
        {
            "data": str(folder),
            "providers": {"echo": provider},
            "models": [{"name": "known", "provider": "echo", **prices}, {"name": "blank", "provider": "echo"}],
            "server": {"port": 0},
        }
    )
    journal = SqliteJournal(folder / "journal.db")
    feed = WarehouseFeed(journal, Warehouse(folder / "fitrouter.duckdb"))
    router = make_router(folder, {"echo": Echo()}, models=settings.cards(), journal=journal, feed=feed)
    with serving(router, settings) as url, client(url) as http:
        decisions = {}
        for name in ("known", "blank"):
            for _ in range(ASKED):
                said = {**chat(user="ann", metadata={"role": "cook"}), "model": name}
                decisions[name] = http.post("/v1/chat/completions", json=said).headers["x-fitrouter-decision"]
        drawn = http.post("/v1/plans", json=chat(user="ann", metadata={"role": "cook"})).json()["about"]
        decisions["plan"] = drawn["decision_id"]
        http.get("/v1/users")
        wait_for(lambda: feed.step() == 0 and feed.lag == 0)
        yield request.param, Place(url, http, folder, decisions)
    journal.close()


def now(place: Place) -> str:
    return json.dumps(place.get("/console/api/now?window=all")["totals"]["cost"])


def models_view(place: Place) -> str:
    found = place.get("/console/api/models")
    said = {m["name"]: [m["input_usd_per_million"], m["figures"]["cost"]] for m in found["models"]}
    return json.dumps([said, found["unpriced_rule"]])


def decisions_view(place: Place) -> str:
    found = place.get("/console/api/decisions")["decisions"]
    return json.dumps(
        [[each["chosen"], each["cost_usd"], each["unpriced"]] for each in found if each["status"] == "ok"]
    )


def person_view(place: Place) -> str:
    found = place.get("/console/api/people?user=ann")["report"]
    return json.dumps({each["model"]: each["usage"] for each in found["models"]})


def why(place: Place) -> str:
    found = place.get(f"/v1/decisions/{place.decisions['blank']}")
    return json.dumps([found["execution"]["cost_usd"], found["execution"]["unpriced"]])


def plan(place: Place) -> str:
    found = place.get(f"/v1/decisions/{place.decisions['plan']}")
    return json.dumps([found["eligible"], found["why"]])


ONE_KNOWN = f'"usd": {2 * USD!r}, "unpriced": 2, "each": {USD!r}'
NO_KNOWN = '"usd": null, "unpriced": 4, "each": null'
BLANK = '"usd": null, "unpriced": 2, "each": null'
SURFACES: dict[str, tuple[Callable[[Place], str], tuple[str, ...], tuple[str, ...]]] = {
    "console now": (now, (ONE_KNOWN,), (NO_KNOWN,)),
    "console models": (models_view, (f'"blank": [null, {{{BLANK}', UNPRICED), (f'"known": [null, {{{BLANK}',)),
    "console decisions": (decisions_view, ('["blank", null, true]',), ('["known", null, true]',)),
    "console person": (person_view, ('"cost_usd": null',), ('"cost_usd": null',)),
    "console policy": (
        lambda p: json.dumps(p.get("/console/api/policy")),
        ('"unpriced": ["blank"]', UNPRICED),
        ('"unpriced": ["blank", "known"]',),
    ),
    "top": (
        lambda p: p.command("top", "--once", "--url", p.url, "--window", "all"),
        ("at least $0.000058", "$0.000029 per request with a known price; 2 answers without a price", "not known"),
        (
            "not known",
            "4 answers without a price",
        ),
    ),
    "models": (
        lambda p: p.command("models", "--url", p.url),
        ("1 USD in and 2 USD out per million tokens", "price not known", UNPRICED),
        ("price not known", UNPRICED),
    ),
    "decisions": (
        lambda p: p.command("decisions", "--url", p.url),
        ("$0.000029", "ok, price not known"),
        ("price not known",),
    ),
    "report": (
        lambda p: p.command("report", "--user", "ann", "--url", p.url),
        ("$0.0290 for 1,000 answers", "blank: price not known;"),
        ("blank: price not known;",),
    ),
    "report page": (
        lambda p: (
            p.command("report", "--user", "ann", "--url", p.url, "--html", str(p.folder / "r.html"))
            + (p.folder / "r.html").read_text()
        ),
        ("<dd>$0.0290 for 1,000 answers</dd>", "<dd>price not known</dd>"),
        ("<dd>price not known</dd>",),
    ),
    "policy": (
        lambda p: p.command("policy", "show", "--url", p.url),
        (f"without a price blank. {UNPRICED}",),
        (f"without a price blank, known. {UNPRICED}",),
    ),
    "GET /v1/policy": (
        lambda p: json.dumps(p.get("/v1/policy")),
        ('"unpriced": ["blank"]',),
        ('"unpriced": ["blank", "known"]',),
    ),
    "GET /v1/decisions": (
        lambda p: json.dumps([[d["cost_usd"], d["unpriced"]] for d in p.get("/v1/decisions")["data"] if d["status"]]),
        (f"[{USD!r}, false]", "[null, true]"),
        ("[null, true]",),
    ),
    "GET /v1/decisions/{id}": (why, ("[null, true]",), ("[null, true]",)),
    "a plan's explanation": (plan, (UNPRICED, '"unpriced": true'), (UNPRICED, '"cost_usd": null, "latency_s"')),
    "GET /v1/models": (
        lambda p: json.dumps(p.get("/v1/models")),
        ('"input_usd": 1.0', '"input_usd": null'),
        ('"input_usd": null',),
    ),
    "GET /metrics": (
        lambda p: p.http.get("/metrics").text,
        ('fitrouter_unpriced_total{model="blank"} 2.0', f'fitrouter_cost_usd_total{{model="known"}} {2 * USD!r}'),
        ('fitrouter_unpriced_total{model="blank"} 2.0', 'fitrouter_unpriced_total{model="known"} 2.0'),
    ),
    "view answers": (
        lambda p: p.rows("SELECT model, sum(cost_usd), count(cost_usd) FROM answers WHERE status = 'ok' GROUP BY 1"),
        ('["blank", null, 0]', f'["known", {2 * USD!r}, 2]'),
        ('["blank", null, 0]', '["known", null, 0]'),
    ),
    "view outcomes": (
        lambda p: p.rows("SELECT chosen, cost_usd, price_known FROM outcomes WHERE status = 'ok'"),
        ('["blank", null, false]', f'["known", {USD!r}, true]'),
        ('["blank", null, false]', '["known", null, false]'),
    ),
}
"""Surface → what it says of money, with one model that has a price, and with none."""


@pytest.mark.parametrize("surface", SURFACES)
def test_an_unknown_price_is_said_to_be_unknown(place: tuple[str, Place], surface: str) -> None:
    """Each surface says what is known and what is not; none says that something cost nothing."""
    priced, where = place
    read, with_one, with_none = SURFACES[surface]
    said = read(where).replace("&#x27;", "'")
    assert not ZERO.search(said), said
    for words in with_one if priced == "one" else with_none:
        assert words in said


def test_a_decision_without_expected_costs_is_told(place: tuple[str, Place]) -> None:
    """That of a pinned model without a price, such as an answer of a quiz: what was not computed is not known."""
    journal = SqliteJournal(place[1].folder / "journal.db")
    made = next(row.event for row in journal.tail(0, 100) if isinstance(row.event, Decision))
    journal.close()
    pinned = msgspec.structs.replace(made, cost=(), mean=(), probs=(), unpriced=made.eligible)
    rows = decision_json([pinned], explain([pinned]))["eligible"]
    assert [(row["cost_usd"], row["unpriced"]) for row in rows] == [(None, True)] * len(made.eligible)


@pytest.mark.parametrize("page", ["configuration", "decisions", "own-models"])
def test_pages_say_how_unpriced_models_are_weighed(page: str) -> None:
    """With the one sentence."""
    text = " ".join((Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    assert UNPRICED.partition(" Sums")[0] in text


def test_the_sentence_is_true() -> None:
    """Cards of models without a price have the highest configured ones, of each way, and 0 where there is none."""
    own = {"a": {"input": 1.0, "output": 9.0}, "b": {"input": 3.0, "output": 2.0}, "c": None}
    for given, weighed in ((("a", "b", "c"), (3.0, 9.0)), (("a", "c"), (1.0, 9.0)), (("c",), (0.0, 0.0))):
        models = [{"name": name, "provider": "p", **({"prices": own[name]} if own[name] else {})} for name in given]
        providers = {"p": {"kind": "openai_compatible", "base_url": "http://127.0.0.1:9/v1"}}
        card = parse_config({"providers": providers, "models": models}).cards()[-1]
        assert (card.prices.input, card.prices.output, card.prices.known) == (*weighed, False)

"""The console in a real browser: Debian's chromium by Playwright, with axe-core for what assistive technology needs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import quote

import httpx
import pytest
from tests.kits.gateway import PATIENCE_S, Echo, cards, chat, client, config, make_router, serving, wait_for
from tests.kits.unreadable import REASON, WAREHOUSE, unreadable

from fitrouter.assemble import extender
from fitrouter.config import parse_config
from fitrouter.errors import ProviderUnavailable
from fitrouter.router import Router
from fitrouter.serving.services import Service
from fitrouter.stores.contents import ContentStore
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import MemoryJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import CHOSEN, Call, Feedback, PolicyChange

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the packages playwright and axe-playwright-python")
sync_api.expect.set_options(timeout=1000 * PATIENCE_S)
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium (apt-get install chromium)")
HOSTILE = ["<img src=x onerror=alert(1)>", "\u202eevil role", "w" * 512, "<script>alert(2)</script>"]
MODELS = ["alpha", "<b>beta</b>", "\u202eammag"]
SAID = re.compile("Replay of|The log cannot say")
"""Begin of what the log says of a change."""
VIEWS = ["now", "decisions", "people", "runs", "try", "money", "policy", "models", "learning"]


class Shown(NamedTuple):
    """A page of the console over a gateway that has answered."""

    page: Any
    url: str
    http: httpx.Client
    router: Router

    def open(self, view: str) -> None:
        """Open a view, and wait until it is drawn."""
        self.page.goto(f"{self.url}/console#/{view}")
        self.page.wait_for_selector(".body:not([aria-busy])")

    def said(self) -> list[PolicyChange]:
        """Changes of the policy that are in the journal."""
        return [row.event for row in self.router._journal.tail(0, 100_000) if isinstance(row.event, PolicyChange)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Router]]:
    folder = tmp_path_factory.mktemp("console")
    journal, identities = MemoryJournal(), SqliteIdentities(folder / "identities.db")
    feed = WarehouseFeed(journal, Warehouse(folder / "fitrouter.duckdb"))
    router = make_router(
        folder,
        {"echo": Echo()},
        models=cards(MODELS),
        journal=journal,
        feed=feed,
        identities=identities,
        contents=ContentStore(folder, journal, identities),
        candidates={"bold": {"algorithm": "squarecb", "gamma": 900.0}},
        extend=extender(config(MODELS)),
    )
    router._services.append(Service("warehouse", feed.step, router.hooks, idle_s=0.05))
    with serving(router, config(MODELS).model_copy(update={"data": folder})) as url:
        with client(url) as http:
            for i in range(24):
                role = ["cook", "judge", *HOSTILE][i % 6]
                names = {"role": role, "run_id": role}
                body = chat(f"Hello <b>{role}</b>", user=f"person-{i % 5}", metadata=names)
                made = http.post("/v1/chat/completions", json=body)
                assert made.status_code == 200, made.text
                if i % 2:
                    vote = {
                        "decision_id": made.headers["x-fitrouter-decision"],
                        "kind": "thumb",
                        "value": "up" if i % 3 else "down",
                    }
                    assert http.post("/v1/feedback", json={**vote, "user": f"person-{i % 5}"}).status_code == 200
            wait_for(lambda: http.get("/console/api/now").json().get("ever") == 24)
        yield url, router


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as player:
        opened = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shown(gateway: tuple[str, Router], browser: Any) -> Iterator[Shown]:
    yield from watched(gateway, browser, "light", 1440)


def watched(gateway: tuple[str, Router], browser: Any, scheme: str, width: int) -> Iterator[Shown]:
    """A page whose console stays silent and which asks nobody but the gateway."""
    url, router = gateway
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(1000 * PATIENCE_S)
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda asked: None if asked.url.startswith(f"{url}/console") else faults.append(asked.url))
    with client(url) as http:
        yield Shown(page, url, http, router)
    page.close()
    assert faults == []


def test_the_figures_of_the_first_view_are_the_apis(shown: Shown) -> None:
    """Each number, its interval, and the table of the traffic; the page weighs less than 120 kB."""
    weights: list[int] = []
    shown.page.on("response", lambda answer: weights.append(len(answer.body())))
    shown.open("now?window=all")
    assert sum(weights) < 120_000
    api = shown.http.get("/console/api/now", params={"window": "all"}).json()
    figure = {
        name: shown.page.inner_text(f"[data-figure={name}]") for name in ("requests", "reward", "cost", "latency")
    }
    assert figure["requests"] == str(api["totals"]["requests"])
    assert float(figure["reward"]) == pytest.approx(api["totals"]["reward"]["mean"], abs=5e-4)
    assert float(figure["cost"].lstrip("$")) == pytest.approx(api["totals"]["cost"]["usd"], rel=0.01)
    number, unit = figure["latency"].split()
    assert float(number) * {"ms": 1, "s": 1000}[unit] == pytest.approx(api["totals"]["p50_ms"], rel=0.06, abs=0.06)
    reward = api["totals"]["reward"]
    about = shown.page.inner_text("section[aria-label='Mean rating, 0 to 1'] .about")
    assert f"{reward['ratings']} rated answers by {reward['people']} people" in about
    assert f"{reward['low']:.3f} to {reward['high']:.3f}" in about
    shown.page.click("text=The same as a table")
    cells = [
        int(text)
        for text in shown.page.locator("section[aria-label='Traffic from roles to models'] td").all_inner_texts()
    ]
    assert sum(cells) == sum(flow["requests"] for flow in api["flows"]) == 24
    bought = shown.page.inner_text("section[aria-label='What personalisation buys']")
    assert len(re.findall("not known", bought, re.IGNORECASE)) == 1, "said once, not of everybody and every role"


def test_a_decision_is_followed_and_gets_a_thumb(shown: Shown) -> None:
    """From the table to the reasons; the thumb is in the journal, and the page shows it."""
    shown.open("decisions")
    link = shown.page.locator("table.decisions tbody tr").first.locator("a[data-key]")
    decision = link.get_attribute("data-key")
    link.click()
    shown.page.wait_for_selector("section[aria-label='Probability of every model']")
    bars = shown.page.locator("section[aria-label='Probability of every model'] .bar .text").all_inner_texts()
    assert " heard Hello <b>" in shown.page.inner_text("section[aria-label='Prompt and answer']")
    assert sum(float(text.rstrip(" %").lstrip("< ")) for text in bars) == pytest.approx(100.0, abs=2.0)
    shown.page.click("[data-key=thumb-down]")
    shown.page.wait_for_selector("[data-key=thumb-down][aria-pressed=true]")
    votes = shown.http.get(f"/v1/decisions/{decision}").json()["feedback"]
    assert [vote["value"] for vote in votes][-1] == 0.0


def test_the_log_is_live(shown: Shown) -> None:
    """A new decision and its vote appear by themselves, as text; the row keeps the focus of the keyboard."""
    shown.open("decisions")
    shown.page.locator("table.decisions a[data-key]").first.focus()
    focused = shown.page.evaluate("document.activeElement.dataset.key")
    made = shown.http.post("/v1/chat/completions", json=chat("<img src=x onerror=alert(5)> live", user="person-3"))
    decision = made.headers["x-fitrouter-decision"]
    row = shown.page.locator(f"tr:has(a[data-key='{decision}'])")
    sync_api.expect(row.locator(".prompt")).to_have_text("<img src=x onerror=alert(5)> live")
    assert shown.page.evaluate("document.activeElement.dataset.key") == focused
    vote = {"decision_id": decision, "kind": "thumb", "value": "up", "user": "person-3"}
    assert shown.http.post("/v1/feedback", json=vote).status_code == 200
    sync_api.expect(row.locator(".rated .good")).to_have_text("1.00")
    shown.open("decisions?first=regressions")
    gaps = [float(text.replace("−", "-")) for text in shown.page.locator(".gap").all_inner_texts()]
    assert gaps == sorted(gaps)


def test_money_is_the_logs(shown: Shown) -> None:
    """Spent, tokens and what is unknown, in all and by role; a slider asks the log, and nothing changes by that."""
    shown.open("money?window=all")
    api = shown.http.get("/console/api/money", params={"window": "all", "by": "role"}).json()
    log = shown.http.get("/v1/decisions?last=1000").json()["data"]
    assert api["all"]["cost"]["usd"] == pytest.approx(sum(one["cost_usd"] for one in log))
    figure = {name: shown.page.inner_text(f"[data-figure={name}]") for name in ("spent", "input", "output", "unknown")}
    assert figure == {
        "spent": f"${api['all']['cost']['usd']:.6f}"[: len(figure["spent"])],
        "input": str(7 * len(log)),
        "output": str(11 * len(log)),
        "unknown": "0",
    }
    shown.page.get_by_role("button", name="By role").click()
    shown.page.wait_for_url("**by=role*")
    rows = {row["key"]: row for row in api["rows"]}
    assert sum(row["requests"] for row in rows.values()) == len(log)
    cook = shown.page.locator("table.money tbody tr:has-text('cook')")
    asked = [one for one in log if one["role"] == "cook"]
    assert cook.locator("td").first.inner_text() == str(len(asked)) == str(rows["cook"]["requests"])
    shown.page.focus("[data-key=slide-floor]")
    shown.page.keyboard.press("ArrowRight")
    sync_api.expect(shown.page.locator("[data-panel=floor]")).to_contain_text(SAID)
    assert "floor" not in shown.http.get("/v1/policy").json()["settings"]


def test_what_cannot_be_read_is_said(gateway: tuple[str, Router], browser: Any) -> None:
    """An open view keeps its figures and says that they are late; none is drawn as for an empty installation."""
    url, _ = gateway
    page = browser.new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    page.goto(f"{url}/console#/now?window=all")
    page.wait_for_selector("[data-figure=requests]")
    requests = page.inner_text("[data-figure=requests]")
    page.evaluate("localStorage.setItem('fitrouter person', 'person-1')")
    with unreadable(WAREHOUSE):
        page.wait_for_selector(f".stale:has-text('Not up to date: {REASON}')")
        assert page.inner_text("[data-figure=requests]") == requests != "0"
        for view in VIEWS:
            page.goto(f"{url}/console#/{view}?window=1h")
            page.wait_for_selector(f"[role=alert]:has-text('{REASON}'), .stale:has-text('{REASON}')")
            assert not re.search(
                r"Nobody yet|No decisions yet|No requests|Nothing spent|Not known yet", page.inner_text("#main")
            ), view
    page.wait_for_selector(".body:not([aria-busy]) form, .body:not([aria-busy]) section")
    page.close()


def test_filters_and_the_keyboard_alone(shown: Shown) -> None:
    """A role is chosen without a mouse; digits open views; what is not there says what to do."""
    shown.open("decisions")
    shown.page.focus("[data-key=f-role]")
    shown.page.keyboard.press("c")
    shown.page.keyboard.press("Enter")
    shown.page.wait_for_url("**role=cook*")
    sync_api.expect(shown.page.locator("table.decisions tbody tr")).to_have_count(4)
    shown.open("decisions?id=nothing")
    assert "Widen the filters" in shown.page.inner_text("main")
    shown.page.locator("h1").focus()
    shown.page.keyboard.press("7")
    shown.page.wait_for_selector("section[aria-label='In force']")


def test_a_policy_is_promoted_and_restored(shown: Shown) -> None:
    """First comes what the log says, and nothing changes by that; each change is an event, and the page shows it."""
    shown.open("policy")
    live = shown.page.locator("[data-figure=live]")
    shown.page.click("[data-key=promote-bold]")
    shown.page.click("[data-key=apply-promote]")
    sync_api.expect(live).to_have_text("bold")
    shown.page.click("[data-key=restore]")
    shown.page.click("[data-key=apply-restore]")
    sync_api.expect(live).to_have_text("as configured")
    shown.page.fill("#set-cost_weight", "0.25")
    shown.page.keyboard.press("Enter")
    sync_api.expect(shown.page.locator("[data-panel=cost_weight]")).to_contain_text("the log")
    sync_api.expect(live).to_have_text("as configured")
    shown.page.click("[data-key=apply-cost_weight]")
    sync_api.expect(live).to_contain_text("cost_weight")
    shown.page.click("[data-key=restore]")
    shown.page.click("[data-key=apply-restore]")
    sync_api.expect(live).to_have_text("as configured")
    assert [change.action for change in shown.said()][-4:] == ["promote", "restore", "set", "restore"]


def test_a_budget_is_changed_and_taken_back(shown: Shown) -> None:
    """What was spent comes first; names with HTML are text; an empty field is the configuration's budget again."""

    def change(tenant: str, usd: str) -> Any:
        shown.open("policy")
        shown.page.fill("#set-budget-tenant", tenant)
        shown.page.fill("#set-budget", usd)
        shown.page.keyboard.press("Enter")
        return shown.page.locator("[data-panel=budget]")

    sync_api.expect(change("default", "2.5")).to_contain_text("Counting begins with the change.")
    assert shown.http.get("/v1/policy").json()["budgets"] == {}
    shown.page.click("[data-key=apply-budget]")
    sync_api.expect(shown.page.locator("[data-budget=default]")).to_contain_text("$2.50")
    change("<b>x</b>", "0.01")
    shown.page.click("[data-key=apply-budget]")
    sync_api.expect(shown.page.locator("section[aria-label='In force']")).to_contain_text("<b>x</b>")
    for tenant in ("default", "<b>x</b>"):
        change(tenant, "")
        shown.page.click("[data-key=apply-budget]")
        sync_api.expect(shown.page.locator(f"[data-budget='{tenant}']")).to_have_count(0)
    assert [event.settings.get("usd_per_period") for event in shown.said()][-4:] == [2.5, 0.01, None, None]


def test_all_traffic_goes_to_a_model_and_back(shown: Shown) -> None:
    """A request is forced meanwhile, and drawn afterwards; both are asked first."""

    def mode() -> str:
        reply = shown.http.post("/v1/chat/completions", json=chat())
        return str(reply.json()["fitrouter"]["mode"])

    shown.open("models")
    shown.page.click("[data-key=force-alpha]")
    shown.page.click("[data-key=apply-force-alpha]")
    shown.page.wait_for_selector("[data-key=free]")
    assert mode() == "forced"
    shown.page.click("[data-key=free]")
    sync_api.expect(shown.page.locator("[data-key=apply-free]")).to_be_focused()
    assert mode() == "forced", "nothing happens at the first click"
    shown.page.keyboard.press("Enter")
    shown.page.wait_for_selector("[data-key=free]", state="detached")
    assert mode() == "online"


def test_a_model_is_paused_and_called_again(shown: Shown) -> None:
    """At the second click: the first one asks. Nobody gets its answers meanwhile; the page and the policy say so."""
    shown.open("models")
    before = shown.http.get("/v1/policy").json()["settings"]
    shown.page.click("[data-key=pause-alpha]")
    sync_api.expect(shown.page.locator("[data-panel=pause-alpha]")).to_contain_text("they go to the others")
    assert shown.http.get("/v1/policy").json()["settings"] == before
    shown.page.click("[data-key=apply-pause-alpha]")
    sync_api.expect(shown.page.locator("[data-key=pause-alpha]")).to_have_text("Call it again …")
    served = [shown.http.post("/v1/chat/completions", json=chat()).json()["model"] for _ in range(12)]
    assert "alpha" not in served
    assert shown.http.get("/v1/policy").json()["settings"]["paused"] == "alpha"
    shown.page.click("[data-key=pause-alpha]")
    sync_api.expect(shown.page.locator("[data-panel=pause-alpha]")).to_contain_text("at its price")
    assert shown.http.get("/v1/policy").json()["settings"]["paused"] == "alpha"
    shown.page.click("[data-key=apply-pause-alpha]")
    sync_api.expect(shown.page.locator("[data-key=pause-alpha]")).to_have_text("Pause …")


def test_a_model_has_one_colour(gateway: tuple[str, Router], browser: Any) -> None:
    """In every view and after a reload, whichever view is opened first."""
    colours: dict[str, set[str]] = {}
    for first in (["models", "money", "decisions"], ["decisions?model=alpha", "models", "money"]):
        for shown in watched(gateway, browser, "light", 1440):
            for view in first:
                shown.open(view)
                for model, classes in shown.page.evaluate(_COLOURS):
                    colours.setdefault(model, set()).add(re.search(r"\bc\d", classes)[0])  # type: ignore[index]
    assert set(MODELS) <= set(colours)
    assert all(len(each) == 1 for each in colours.values()), colours


_COLOURS = """[...document.querySelectorAll('.swatch + *, section.card .bar')].flatMap((each) => {
    const card = each.closest('.models section.card');
    return each.matches('.bar') ? (card ? [[card.querySelector('h2').textContent, each.className]] : [])
        : [[each.textContent, each.previousElementSibling.className]];
})"""
"""Name and classes of each model that has a colour in a view."""


def test_a_model_is_added_and_removed(shown: Shown) -> None:
    """What is wrong is said beside the form; added, it has a card and answers; a second click removes it."""
    shown.open("models")
    name, page = HOSTILE[0], shown.page
    page.fill("#add-name", name)
    page.fill("#add-input", "0.4")
    page.fill("#add-context_window", "0")
    page.click("[data-key=add-model]")
    panel = page.locator("[data-panel=add]")
    sync_api.expect(panel).to_contain_text("context_window")
    page.fill("#add-context_window", "")
    page.fill("#add-output", "2")
    page.keyboard.press("Enter")
    card = page.locator("section.card", has_text="while running")
    sync_api.expect(card).to_contain_text(name)
    sync_api.expect(panel).to_have_text("")
    sync_api.expect(page.locator("#add-name")).to_have_value("")
    assert page.locator("main img").count() == 0
    assert shown.http.post("/v1/chat/completions", json=chat(model=name)).json()["model"] == name
    card.get_by_role("button", name="Remove …").click()
    sync_api.expect(card.get_by_role("button", name=f"Remove {name}")).to_be_focused()
    assert shown.said()[-1].action == "add_model", "nothing happens at the first click"
    page.keyboard.press("Enter")
    sync_api.expect(card).to_have_count(0)
    assert [change.action for change in shown.said()[-2:]] == ["add_model", "remove_model"]


def test_a_model_with_a_server_of_its_own_needs_a_public_address(shown: Shown) -> None:
    """The fields of a server appear with its choice; the refusal names the setting that would allow it."""
    shown.open("models")
    sync_api.expect(shown.page.locator("#add-base_url")).to_be_hidden()
    shown.page.select_option("#add-provider", label="A server of its own …")
    shown.page.fill("#add-name", "mine")
    shown.page.fill("#add-base_url", "http://127.0.0.1:1/v1")
    shown.page.keyboard.press("Enter")
    sync_api.expect(shown.page.locator("[data-panel=add]")).to_contain_text("server.additions.private_addresses")


LOST = """() => {
    window.EventSource = class {
        static CONNECTING = 0; static OPEN = 1; static CLOSED = 2;
        readyState = 0;
        constructor() { setTimeout(() => this.onerror(), 10); }
        addEventListener() {}
        close() {}
    };
    location.hash = "#/decisions";
}"""
"""A feed that cannot connect, and goes on trying."""


def test_a_feed_that_is_lost_is_said(shown: Shown) -> None:
    """The log does not go on as "live" while its feed cannot be read."""
    shown.open("now")
    shown.page.evaluate(LOST)
    sync_api.expect(shown.page.locator(".stale")).to_contain_text("does not answer")
    shown.page.reload()


def test_a_role_and_a_person_are_shown(shown: Shown) -> None:
    """A role is chosen; a person is found by name, whose votes are counted, or by their token."""
    first = next(one for one in shown.http.get("/console/api/decisions").json()["decisions"] if one["user"])
    shown.open("decisions")
    shown.page.locator("td.person a").get_by_text(first["name"], exact=True).first.click()
    token = first["user"][:12]
    assert token in shown.page.inner_text("section[aria-label='This person']")
    shown.open(f"people?user={token}")
    assert token in shown.page.inner_text("section[aria-label='This person']")
    assert first["name"] in shown.page.inner_text("section[aria-label='This person']")
    shown.open("people")
    shown.page.select_option("[data-key=f-people-role]", label="cook")
    sync_api.expect(shown.page.locator("section[aria-label='This role']")).to_contain_text("cook")
    assert "How well each model fits" in shown.page.inner_text("main")
    shown.page.fill("[data-key=person]", "person-1")
    shown.page.keyboard.press("Enter")
    told = shown.page.locator("section[aria-label='Said, done and declared']")
    api = shown.http.get("/console/api/people", params={"user": "person-1"}).json()
    sync_api.expect(told).to_contain_text(f"{api['said'][0]['votes']} thumbs")
    assert "In the log" in shown.page.inner_text("section[aria-label='This person']")


@pytest.fixture
def small(tmp_path: Path, browser: Any, request: pytest.FixtureRequest) -> Iterator[Shown]:
    """A gateway that people asked without a role, with a model that has no price, and more that a test may want."""
    settings = parse_config(
        {
            "data": str(tmp_path),
            "providers": {"echo": {"kind": "openai_compatible", "base_url": "http://127.0.0.1:9/v1"}},
            "models": [{"name": "blank", "provider": "echo", **getattr(request, "param", {})}],
            "server": {"port": 0},
        }
    )
    journal, identities = MemoryJournal(), SqliteIdentities(tmp_path / "identities.db")
    feed = WarehouseFeed(journal, Warehouse(tmp_path / "fitrouter.duckdb"))
    router = make_router(
        tmp_path, {"echo": Echo()}, models=settings.cards(), journal=journal, feed=feed, identities=identities
    )
    router._services.append(Service("warehouse", feed.step, router.hooks, idle_s=0.05))
    with serving(router, settings) as url, client(url) as http:
        for i in range(6):
            made = http.post("/v1/chat/completions", json=chat(user=f"person-{i % 2}"))
            vote = {"decision_id": made.headers["x-fitrouter-decision"], "kind": "thumb", "value": "up"}
            assert http.post("/v1/feedback", json={**vote, "user": f"person-{i % 2}"}).status_code == 200
        wait_for(lambda: len(http.get("/console/api/decisions").json()["decisions"]) == 6)
        yield from watched((url, router), browser, "light", 1440)


def test_people_without_a_role_are_somebody(small: Shown) -> None:
    """The view lists all with their requests and votes."""
    small.open("people")
    assert "Nobody yet" not in small.page.inner_text("main")
    for user in ("person-0", "person-1"):
        row = small.page.locator(f"table.persons tr:has-text('{user}')")
        assert row.locator("td").all_inner_texts()[:3] == ["none", "3", "3"]


@pytest.mark.parametrize("small", [{"effort": ["low", "high"]}], indirect=True)
def test_the_highest_effort_is_asked_of_the_log(small: Shown) -> None:
    """A slider names the levels that models have; what is above is paused once it is applied, and called again."""

    def paused() -> str:
        return str(small.http.get("/v1/policy").json()["settings"].get("paused"))

    small.open("money")
    slider, shown = small.page.locator("[data-key=slide-effort]"), small.page.locator("output[for=slide-effort]")
    sync_api.expect(shown).to_have_text("high")
    slider.press("ArrowLeft")
    sync_api.expect(shown).to_have_text("low")
    sync_api.expect(small.page.locator("[data-panel=effort]")).to_contain_text(SAID)
    assert paused() == "None", "nothing happens before it is applied"
    small.page.click("[data-key=apply-effort]")
    wait_for(lambda: paused() == "blank#effort-high")
    small.open("money?window=24h")
    sync_api.expect(shown).to_have_text("low")
    slider.press("Home")
    sync_api.expect(shown).to_have_text("the providers’ own")
    small.page.click("[data-key=apply-effort]")
    wait_for(lambda: paused() == "blank#effort-high,blank#effort-low")
    small.open("money?window=30d")
    slider.press("End")
    sync_api.expect(small.page.locator("[data-panel=effort]")).to_contain_text("what would run then is not in the log")
    small.page.click("[data-key=apply-effort]")
    wait_for(lambda: paused() == "")


def test_what_is_wrong_is_seen_at_once(small: Shown) -> None:
    """The first screen names a model without a price, somebody unhappy, and an outage, each with a link to more."""
    small.open("now")
    alarms = small.page.locator("ul.alarms")
    sync_api.expect(alarms).to_contain_text("No price is known of blank")
    for _ in range(4):
        made = small.http.post("/v1/chat/completions", json=chat(user="carla"))
        vote = {"decision_id": made.headers["x-fitrouter-decision"], "kind": "thumb", "value": "down", "user": "carla"}
        assert small.http.post("/v1/feedback", json=vote).status_code == 200
    sync_api.expect(alarms).to_contain_text("carla is unhappy: mean rating 0.00 of 4 rated answers.")
    alarms.locator("li:has-text('carla') a").click()
    figure = small.page.locator("section[aria-label='This person'] [data-figure=rating]")
    sync_api.expect(figure).to_have_text("0.00 (0.00 to 0.49), 4 ratings")
    with mock.patch.object(Echo, "complete", side_effect=ProviderUnavailable("down", 503)):
        for _ in range(6):
            assert small.http.post("/v1/chat/completions", json=chat(user="carla")).status_code >= 500
        small.open("now")
        sync_api.expect(alarms.locator("li.bad").first).to_contain_text("answered")


OUTSIDE_OF_CHARTS = """() => {
    const main = document.querySelector("main").cloneNode(true);
    main.querySelectorAll("svg").forEach((each) => each.remove());
    return main.textContent;
}"""  # axes begin at $0


@pytest.fixture
def fresh(tmp_path: Path, browser: Any) -> Iterator[Shown]:
    """A gateway that nobody has asked."""
    journal = MemoryJournal()
    feed = WarehouseFeed(journal, Warehouse(tmp_path / "fitrouter.duckdb"))
    router = make_router(tmp_path, journal=journal, feed=feed)
    router._services.append(Service("warehouse", feed.step, router.hooks, idle_s=0.05))
    with serving(router, config()) as url:
        yield from watched((url, router), browser, "light", 390)


def test_who_begins_gets_something_to_copy(fresh: Shown) -> None:
    """Where nothing was asked, there is a request for this address, which works as it stands."""
    fresh.open("now")
    fresh.page.wait_for_selector(".snippet")
    curl, python = fresh.page.locator(".snippet code").all_inner_texts()
    assert fresh.url in python
    words = shlex.split(curl.replace("\\\n", " "))
    assert words[1] == f"{fresh.url}/v1/chat/completions"
    assert fresh.http.post(words[1], json=json.loads(words[-1])).status_code == 200
    compile(python, "python", "exec")
    assert fresh.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_costs_need_no_legend(small: Shown) -> None:
    """A cost without a price is not known, in words; no figure has a mark that nothing explains."""
    for view in ("decisions", "now", "models"):
        small.open(view)
        text = small.page.evaluate(OUTSIDE_OF_CHARTS)
        assert "not known" in text, view
        assert "*" not in text, view
        assert not re.search(r"\$0(?![.\d])", text), view


def test_the_least_satisfied_people_are_listed(shown: Shown) -> None:
    """With what the log says of each; what they have and would have is the leaderboard's; a click shows the person."""
    given = [one for one in shown.http.get("/v1/decisions?last=100").json()["data"] if one["user"] == "person-2"]
    for decision in given:
        vote = {"decision_id": decision["decision_id"], "kind": "thumb", "value": "down", "user": "person-2"}
        assert shown.http.post("/v1/feedback", json=vote).status_code == 200

    def listed() -> Any:
        first = shown.http.get("/console/api/people").json()["listed"][0]
        return first["rating"]["ratings"] == len(given) and not first["waits"] and first

    low = wait_for(listed)
    assert (low["user"], low["rating"]["mean"], low["requests"]) == ("person-2", 0.0, len(given))
    board = shown.http.get("/v1/leaderboard", headers={"x-fitrouter-user": "person-2"}).json()["models"]
    ratings = {each["model"]: each["rating"] for each in board}
    assert low["with_model"]["mean"] == pytest.approx(ratings[low["model"]], abs=1e-9)
    assert low["with_default"] is None, "there is no default model"
    shown.open("people")
    row = shown.page.locator("table.persons tbody tr").first
    sync_api.expect(row).to_contain_text(f"0.00 ({low['rating']['low']:.2f} to {low['rating']['high']:.2f})")
    sync_api.expect(row.locator("[data-label='expected with it']")).to_contain_text(f"{ratings[low['model']]:.2f}")
    row.locator("a").click()
    person = shown.page.locator("section[aria-label='This person']")
    sync_api.expect(person).to_contain_text(low["subject"][:12])
    told = person.locator("[data-figure=rating]").inner_text()
    assert told == f"0.00 ({low['rating']['low']:.2f} to {low['rating']['high']:.2f}), {len(given)} ratings"
    shown.open("people?order=requests")
    users = {f"person-{i}" for i in range(5)}
    names = set(shown.page.locator("table.persons tbody th a").all_inner_texts())
    assert users <= names


def test_what_happened_since_is_the_logs(shown: Shown) -> None:
    """Three sentences with links, which a browser counts from its last visit on; the first of all is of a day."""
    shown.open("now?window=all")
    sentences = shown.page.locator("ul.sentences li")
    sync_api.expect(sentences).to_have_count(3)
    decisions = shown.http.get("/v1/decisions?last=1000").json()["data"]
    asked, usd = len(decisions), sum(one["cost_usd"] for one in decisions)
    rated = [one for one in decisions if "thumb" in one["votes"]]
    mean = sum(one["votes"]["thumb"] for one in rated) / len(rated)
    happier, cost, changed = sentences.all_inner_texts()
    assert f"People rate {mean:.2f} on average" in happier
    assert f"{len(rated)} ratings" in happier
    assert f"{asked} requests cost ${usd:.{4 if usd >= 0.001 else 6}f}".rstrip("0") in cost
    assert changed
    assert [link.get_attribute("href") for link in sentences.locator("a").all()][:1] == ["#/people"]
    titles = shown.page.locator("h2").all_inner_texts()
    assert "The last 24 hours" in titles
    assert "Since you last looked" not in titles, "nobody has looked before"
    shown.page.evaluate("localStorage.setItem('fitrouter looked', JSON.stringify({last: Date.now() / 1000 - 1000}))")
    shown.page.reload()
    sync_api.expect(sentences).to_have_count(3)
    assert "Since you last looked" in shown.page.locator("h2").all_inner_texts()
    kept = shown.page.evaluate("JSON.parse(localStorage.getItem('fitrouter looked'))")
    assert 900 < kept["last"] - kept["before"] < 1300, "counted from the visit before this one"


PLAIN = {
    "policy": ("as configured", "Checksum of all settings", "Changed while running"),
    "models": ("Expected to answer", "of calls", "of the way to an alarm"),
    "learning": ("Learnt from so far", "about 1 if they are, an alarm from 1,000", "at 100% it is an alarm"),
}
"""View → words that say what its figures are."""
RIDDLES = re.compile(
    r"^configuration$|Hash of the settings|Answers a call|of the alarm|Folded in|e-value|worth \d+ |effectively \d",
    re.IGNORECASE | re.MULTILINE,
)


FAILING = """(model) => {
    const fetch = window.fetch;
    const down = () => new Response(JSON.stringify({ error: { message: "it is down" } }), { status: 503 });
    const asked = (options) => String(options?.body).includes(`"model":"${model}"`);
    window.fetch = async (url, options) => (asked(options) ? down() : fetch(url, options));
}"""
"""Requests of a model that fail in the page."""


def test_the_answer_of_one_model_is_shown_where_the_other_fails(shown: Shown) -> None:
    """It was paid for; the other model's error stands beside it, with its name."""
    page = shown.page
    shown.open("try")
    page.evaluate(FAILING, MODELS[1])
    page.fill("#try-prompt", "Which one?")
    page.select_option("[data-key=try-model]", "alpha")
    page.select_option("[data-key=try-beside]", MODELS[1])
    page.click("[data-key=try-send]")
    sync_api.expect(page.locator("form.try .error, .card .error").first).to_contain_text("it is down")
    assert MODELS[1][:20] in page.locator(".error").first.inner_text()
    sync_api.expect(page.locator(".said h3")).to_have_text(["alpha"])
    page.reload()


def test_answers_are_compared_blind_by_one_key(shown: Shown) -> None:
    """Without the models' names until there is a choice; a key is the pair's while one waits, and else opens a view."""
    page = shown.page
    shown.open("try")
    page.fill("#try-person", "person-1")
    page.fill("#try-prompt", "Which <b>bold</b> one? <img src=x onerror=alert(6)>")
    page.select_option("[data-key=try-model]", "alpha")
    page.select_option("[data-key=try-beside]", MODELS[1])
    page.focus("#try-person")
    page.keyboard.press("Tab")
    sync_api.expect(page.locator("[data-key=try-send]")).to_be_focused()
    page.keyboard.press("Enter")
    card = page.locator("section.blind")
    sync_api.expect(card.locator("h3")).to_have_text(["Answer 1", "Answer 2"])
    assert card.locator("a").count() == 0, "a link leads to the model"
    assert page.locator("main img, main b").count() == 0
    texts = card.locator(".said .text").all_inner_texts()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("2")
    sync_api.expect(card.locator("h3").nth(1)).to_have_text(f"Answer 2: {texts[1].partition(' heard')[0]}")
    votes = [row.event for row in shown.router._journal.tail(0, 100_000) if isinstance(row.event, Feedback)]
    assert (votes[-1].source, votes[-1].value) == (CHOSEN, 0.0 if votes[-1].first == votes[-1].decision_id else 1.0)
    page.keyboard.press("2")
    page.wait_for_selector("table.decisions")
    assert page.url.endswith("#/decisions")


_MARKED = """[...document.querySelectorAll('a[href], button:enabled, input, select, textarea, summary, [tabindex="0"]')]
    .filter((each) => each.checkVisibility({ visibilityProperty: true }))
    .map((each, i) => { each.dataset.reached = i; return each.outerHTML.slice(0, 200); })"""


def test_a_run_opens_its_steps(small: Shown) -> None:
    """A click on any cell of its row opens how it ended, who asked, what it took, and its steps in their order."""
    page = small.page
    for role in ("plan", "write"):
        sent = chat(role, user="dora", metadata={"role": role, "run_id": "ticket-7"})
        assert small.http.post("/v1/chat/completions", json=sent).status_code == 200
    told = small.http.post("/v1/runs/ticket-7/outcome", json={"value": True, "user": "dora"})
    assert told.status_code == 200, told.text
    wait_for(lambda: [run["outcome"] for run in small.http.get("/console/api/runs").json()["runs"]] not in ([], [None]))
    (run,) = small.http.get("/console/api/runs").json()["runs"]
    small.open("runs")
    row = page.locator("table.persons tbody tr")
    sync_api.expect(row).to_contain_text("dora")
    row.locator("td").nth(3).click()
    page.wait_for_url(f"**#/runs/{run['run']}")
    ended = page.locator("section[aria-label='How it ended']")
    sync_api.expect(ended).to_contain_text("success")
    assert "dora" in ended.inner_text()
    assert "\n0 ms" not in ended.inner_text(), "the time of the answers counts"
    sync_api.expect(page.locator("table.decisions tbody td.role")).to_contain_text(["plan", "write"])
    small.open("runs/run-unknown")
    assert "No such run" in page.inner_text("main")


def test_an_address_without_a_view_says_so(small: Shown) -> None:
    """It does not show another view."""
    small.page.goto(f"{small.url}/console#/nothing")
    sync_api.expect(small.page.locator("main")).to_contain_text("There is no such page.")
    small.page.click("text=Open Now")
    sync_api.expect(small.page.locator("h1")).to_have_text("Now")


def test_a_fallback_names_the_model_that_was_drawn(shown: Shown) -> None:
    """Its probability is not taken for that of the model that answered."""
    answer, asked = Echo.complete, list[str]()

    async def complete(self: Echo, call: Call) -> Any:
        asked.append(call.target)
        if call.target == asked[0]:
            raise ProviderUnavailable("down", 503)
        return await answer(self, call)

    with mock.patch.object(Echo, "complete", complete):
        assert shown.http.post("/v1/chat/completions", json=chat(user="person-1")).status_code == 200
    drawn = asked[0]
    shown.open("decisions")
    row = shown.page.locator("table.decisions tbody tr").first
    sync_api.expect(row.locator(".model .tag").first).to_contain_text(f"in place of {drawn[:20]}")
    sync_api.expect(row.locator("[data-label=probability]")).to_contain_text(f"of {drawn[:12]}")


def test_the_keyboard_alone_reaches_everything(shown: Shown) -> None:
    """All that can be clicked, typed in or scrolled is passed by the key Tab, in every view."""
    one = shown.http.get("/console/api/decisions").json()["decisions"][0]["decision_id"]
    for view in [*VIEWS, "people?role=cook", f"decisions/{one}", f"runs/{_run(shown.http)}"]:
        shown.open(view)
        if view == "now":
            shown.page.wait_for_selector("ul.sentences li")  # which comes after the first figures
        shown.page.evaluate("Object.defineProperty(document, 'visibilityState', { value: 'hidden' })")  # no redraw
        there = shown.page.evaluate(_MARKED)
        shown.page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
        reached = set()
        for _ in range(len(there) + 3):
            shown.page.keyboard.press("Tab")
            reached.add(shown.page.evaluate("document.activeElement.dataset.reached"))
        assert [each for i, each in enumerate(there) if str(i) not in reached] == [], view


def test_views_speak_plain_words(shown: Shown) -> None:
    """No view has words of the router's own making, nor of statistics alone; the figures keep their names."""
    for view in VIEWS:
        shown.open(view)
        text = shown.page.inner_text("main")
        assert not RIDDLES.search(text), view
        for words in PLAIN.get(view, ()):
            assert words in text, view


def test_long_texts_of_others_break_nothing(gateway: tuple[str, Router], browser: Any) -> None:
    """Prompts and comments of 100,000 characters, hostile users, tasks and sessions: text, within the page's width."""
    texts = ["<script>alert(3)</script>", "\u202e\u2067right to left", "</table><h1>", "v" * 512]
    url, _ = gateway
    with client(url) as http:
        made = [_asked(http, text) for text in texts]
    for shown in watched(gateway, browser, "dark", 390):
        people = f"people?user={quote(texts[0])}"
        for view in (
            "now",
            "decisions",
            "people",
            "people?order=requests",
            people,
            *(f"decisions/{one}" for one in made),
            *("runs", f"runs/{_run(shown.http)}"),
        ):
            shown.open(view)
            wide = shown.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, view
            assert shown.page.locator("main script, main h1 h1, main table h1").count() == 0
            assert shown.page.locator("main h1").count() == 1
        shown.open(f"decisions/{made[0]}")
        assert texts[0] in shown.page.inner_text("main")


def _run(http: httpx.Client) -> str:
    """The run that was active last."""
    return str(http.get("/console/api/runs").json()["runs"][0]["run"])


def _asked(http: httpx.Client, text: str) -> str:
    """A decision about 100,000 characters of a text by somebody of that name, with a comment of that length."""
    names = dict.fromkeys(("role", "task", "session", "run_id"), text)
    body = chat((text + " ") * (100_000 // len(text)), user=text, metadata=names)
    decision = http.post("/v1/chat/completions", json=body).headers["x-fitrouter-decision"]
    said = {"decision_id": decision, "user": text, "comment": (text * 100_000)[:100_000]}
    assert http.post("/v1/feedback", json=said).status_code < 500
    wait_for(lambda: http.get("/console/api/decisions", params={"id": decision}).json()["decisions"])
    return str(decision)


def test_views_are_accessible_and_text_stays_text(gateway: tuple[str, Router], browser: Any, scheme: str) -> None:
    """No serious or critical fault in any view, at 1440 and 390 pixels; no name from outside becomes an element."""
    axe = pytest.importorskip(
        "axe_playwright_python.base", reason="needs the package axe-playwright-python"
    ).AXE_FILE_PATH
    for width in (1440, 390):
        for shown in watched(gateway, browser, scheme, width):
            one = shown.http.get("/console/api/decisions").json()["decisions"][0]["decision_id"]
            for view in [*VIEWS, "people?role=cook", f"decisions/{one}", f"runs/{_run(shown.http)}"]:
                shown.open(view)
                if view == "models":  # the form at its largest
                    shown.page.select_option("#add-provider", label="A server of its own …")
                shown.page.evaluate(Path(axe).read_text(encoding="utf-8"))
                found = shown.page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
                serious = [
                    (fault["id"], fault["nodes"][0]["html"], fault["nodes"][0]["failureSummary"])
                    for fault in found
                    if fault["impact"] in {"serious", "critical"}
                ]
                assert serious == [], f"{view} {scheme} {width}"
                wide = shown.page.evaluate(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                assert wide <= 0, f"{view} is {wide} px wider than {width}"
                assert shown.page.locator("main script, main b, main img").count() == 0
                shown.page.evaluate("delete window.axe")
            shown.open("decisions")
            assert re.search(re.escape(HOSTILE[0]), shown.page.inner_text("main"))

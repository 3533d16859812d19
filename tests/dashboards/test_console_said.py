"""What the console says of figures and changes is so, in a real browser; a law for each sentence that was not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from tests.dashboards import test_console_page as console
from tests.dashboards.test_console_page import Shown, watched
from tests.kits.gateway import PATIENCE_S, Echo, chat, client, make_router, serving, wait_for
from tests.kits.replay import Town
from tests.kits.unreadable import REASON, WAREHOUSE, unreadable

from fitrouter.config import parse_config
from fitrouter.errors import ProviderUnavailable
from fitrouter.routing.decider import Rules
from fitrouter.serving.services import Service
from fitrouter.stores.identities import SqliteIdentities
from fitrouter.stores.journal import MemoryJournal
from fitrouter.stores.warehouse import Warehouse, WarehouseFeed
from fitrouter.types import UNPRICED, Call
from fitrouter_dashboards.console import estimate
from fitrouter_evaluators.replay.log import sources
from fitrouter_integrations.gateway.console import _people

sync_api, browser, pytestmark = console.sync_api, console.browser, console.pytestmark
ROLE = "<b>role</b>"
NOBODYS = 3
"""Rated answers to requests without a user."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two people and somebody without a name asked two models, one of them without a price; `alpha` is the default."""
    folder = tmp_path_factory.mktemp("said")
    settings = parse_config(
        {
            "data": str(folder),
            "providers": {"echo": {"kind": "openai_compatible", "base_url": "http://127.0.0.1:9/v1"}},
            "models": [
                {"name": "alpha", "provider": "echo", "prices": {"input": 1.0, "output": 2.0}},
                {"name": "blank", "provider": "echo"},
            ],
            "server": {"port": 0},
        }
    )
    journal = MemoryJournal()
    feed = WarehouseFeed(journal, Warehouse(folder / "fitrouter.duckdb"))
    router = make_router(
        folder,
        {"echo": Echo()},
        models=settings.cards(),
        journal=journal,
        feed=feed,
        identities=SqliteIdentities(folder / "identities.db"),
        rules=Rules(registry="r1", floor=0.5, default_arm="alpha"),
    )
    router._services.append(Service("warehouse", feed.step, router.hooks, idle_s=0.05))
    with serving(router, settings) as url, client(url) as http:
        for i in range(9):
            user = {} if i % 3 == 2 else {"user": f"person-{i % 3}"}
            body = chat(metadata={"role": ROLE, "session": f"s{i % 3}"}, **user)
            made = http.post("/v1/chat/completions", json=body)
            vote = {"decision_id": made.headers["x-fitrouter-decision"], "kind": "thumb", "value": "down", **user}
            assert http.post("/v1/feedback", json=vote).status_code == 200
        wait_for(lambda: (http.get("/console/api/now").json()["totals"]["reward"] or {}).get("ratings") == 9)
        yield url, router


@pytest.fixture
def shown(gateway: Any, browser: Any) -> Iterator[Shown]:
    yield from watched(gateway, browser, "light", 1440)


def test_each_rating_of_a_decision_says_whose_and_when(shown: Shown) -> None:
    """Expected before the answer, expected from its text, given; the gap is to the default model, by its name."""
    page = shown.page
    rows = shown.http.get("/console/api/decisions").json()["decisions"]
    one = next(row for row in rows if row["mode"] == "online" and row["user"])
    shown.open(f"decisions/{one['decision_id']}")
    page.wait_for_selector("section[aria-label='Probability of every model'] li")
    told = page.locator("section[aria-label='Probability of every model'] li .about").all_inner_texts()
    assert told
    assert all("rating expected before the answer: " in text for text in told), told
    assert "was expected of a model before its answer was known" in page.inner_text("section[aria-label='In words']")
    assert "predicted rating" not in page.inner_text("section[aria-label='Parts that add up to each utility']")
    gap = page.locator("section[aria-label='Other turns of this session'] .gap").first
    assert "before the answer, of the default model alpha" in str(gap.get_attribute("title"))
    heads = page.locator("section[aria-label='Other turns of this session'] th").all_inner_texts()
    assert {"Rating given", "Expected from its text"} <= set(heads)
    assert page.inner_text("main").count(UNPRICED[:60]) == 1, "once a page"


def test_an_answer_belongs_to_the_model_that_gave_it(shown: Shown) -> None:
    """On the person's page a fallback's answers are its own, and it says how many; the unanswered are nobody's."""
    answer, first = Echo.complete, list[str]()

    async def complete(self: Echo, call: Call) -> Any:
        if call.target == "alpha":
            raise ProviderUnavailable("down", 503)
        return await answer(self, call)

    with mock.patch.object(Echo, "complete", complete):
        while first.count("alpha") < 2:
            made = shown.http.post("/v1/chat/completions", json=chat(user="fay"))
            assert made.status_code == 200
            decision = made.headers["x-fitrouter-decision"]
            first.append(wait_for(partial(chosen, shown.http, decision)))
    with mock.patch.object(Echo, "complete", side_effect=ProviderUnavailable("down", 503)):
        assert shown.http.post("/v1/chat/completions", json=chat(user="fay")).status_code >= 500

    def again() -> Any:
        found = shown.http.get("/console/api/people", params={"user": "fay"}).json()
        return sum(flow["requests"] for flow in found["again"]) == len(first) and found["again"]

    flows = wait_for(again)
    assert {flow["served"] for flow in flows} == {"blank"}
    assert sum(flow["requests"] for flow in flows if flow["fallback"]) == first.count("alpha")
    shown.open("people?user=fay")
    card = shown.page.locator("section[aria-label='Who answered in the last week, and what would lead now']")
    sync_api.expect(card).to_contain_text(f"{first.count('alpha')} answers came from another model than the one")


def chosen(http: httpx.Client, decision: str) -> str:
    """The model that was drawn for a decision; empty until that is logged."""
    return str(http.get(f"/v1/decisions/{decision}").json().get("chosen", ""))


def found(**more: Any) -> str:
    """The body of an estimate."""
    metric = {"value": 0.1, "low": 0.0, "high": 0.2, "now": 0.001, "units": 40, "ess": 30.0, "labelled": 9}
    metrics = {"fit": metric, "cost": {**metric, **more}, "latency": metric}
    return json.dumps({"candidate": "floor", "metrics": metrics})


STEPS = """() => {
    const slider = document.activeElement;
    for (let i = 0; i < 5; i++) {
        slider.stepUp();
        for (const kind of ["input", "change"]) slider.dispatchEvent(new Event(kind, { bubbles: true }));
    }
}"""
"""Five steps of the slider that has the keyboard."""


def test_the_latest_position_of_a_slider_is_estimated(shown: Shown) -> None:
    """One request at a time, and the last position after it; the slider keeps the keyboard, other views are free."""
    page, held = shown.page, list[Any]()
    page.route("**/console/api/estimate", lambda each: held.append(each))
    shown.open("money?window=all")
    page.focus("[data-key=slide-floor]")
    page.evaluate(STEPS)  # at once: on a busy machine keys are further apart than a slider takes to settle
    asked(page, held, 1)
    page.wait_for_timeout(700)
    assert [json.loads(each.request.post_data) for each in held] == [floor(page)], "once, when it has settled"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(700)
    assert len(held) == 1, "one at a time"
    held[0].fulfill(status=200, body=found())
    asked(page, held, 2)
    assert json.loads(held[1].request.post_data) == floor(page)
    assert "Asking the log" in page.inner_text("[data-panel=floor]"), "what was found is of another position"
    held[1].fulfill(status=200, body=found(unpriced=3))
    sync_api.expect(page.locator("[data-panel=floor]")).to_contain_text("Replay of 40 sessions")
    assert "3 answers without a price, each at the highest prices" in page.inner_text("[data-panel=floor]")
    assert page.evaluate("document.activeElement.dataset.key") == "slide-floor"
    page.keyboard.press("End")
    asked(page, held, 3)
    shown.open("policy")
    page.fill("#set-floor", "0.2")
    page.keyboard.press("Enter")
    held[2].fulfill(status=200, body=found())
    asked(page, held, 4)
    held[3].fulfill(status=200, body=found())
    sync_api.expect(page.locator("[data-panel=floor]")).to_contain_text("Replay of 40 sessions")


BUSY = """() => {
    const fetch = window.fetch;
    let left = 2;
    const body = JSON.stringify({ error: { message: "another estimate is being made" } });
    const busy = () => new Response(body, { status: 429 });
    const asked = (url) => String(url).endsWith("estimate") && left-- > 0;
    window.fetch = async (url, options) => (asked(url) ? busy() : fetch(url, options));
}"""
"""A gateway that makes somebody else's estimate at first."""


def test_a_busy_gateway_is_asked_again(shown: Shown) -> None:
    """That another estimate is being made is no answer of the log."""
    page = shown.page
    page.route("**/console/api/estimate", lambda each: each.fulfill(status=200, body=found()))
    shown.open("money?window=all")
    page.evaluate(BUSY)
    page.focus("[data-key=slide-floor]")
    page.keyboard.press("ArrowRight")
    sync_api.expect(page.locator("[data-panel=floor]")).to_contain_text("Replay of 40 sessions")


def asked(page: Any, held: list[Any], n: int) -> None:
    """Wait until so many estimates were asked for."""
    while len(held) < n:
        page.wait_for_timeout(20)


def floor(page: Any) -> dict[str, Any]:
    """The change of the policy at the slider's position."""
    return {"action": "set", "settings": {"floor": float(page.input_value("[data-key=slide-floor]"))}}


def test_an_estimate_of_costs_counts_answers_without_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the metric cost alone, so that the page says how many they are."""
    town = Town(seed=5, rules=Rules(floor=0.2, ask=0.35, uniform_slice=0.2, share=1.0), votes=1.0)
    town.live(60)
    town.count += 400  # more than an hour of silence ends a session
    town.live(1)
    log = town.log()
    log = log._replace(outcomes=log.outcomes._replace(assumed=7))
    monkeypatch.setattr(sources, "read_log", lambda *_args, **_more: log)
    config = parse_config({"models": [{"name": "a", "provider": "p"}], "providers": {"p": {"kind": "simulated"}}})
    metrics = estimate.replayed(config, Path("warehouse"), {"fixed": "a"})["metrics"]
    assert {name: metric.get("unpriced") for name, metric in metrics.items()} == {"fit": 0, "cost": 7, "latency": 0}


RIGHT_TO_LEFT = "\u05ea\u05e4\u05e7\u05d9\u05d3 \u05d7\u05d3\u05e9"
PLACES = """async (text) => {
    const { h, name } = await import("/console/static/dom.js");
    const at = (element, words) => {
        document.querySelector("main").append(element);
        const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), range = document.createRange();
        while (walker.nextNode()) {
            const from = walker.currentNode.data.indexOf(words);
            if (from < 0) continue;
            range.setStart(walker.currentNode, from);
            range.setEnd(walker.currentNode, from + words.length);
            const { left, right } = range.getBoundingClientRect();
            return [Math.round(left), Math.round(right)];
        }
        throw new Error(words);
    };
    const said = `Most changed: ${text}, +0.12 (3).`;
    const plain = () => h("p", null, said), first = () => h("p", null, h("bdi", { dir: "ltr" }, `${text} 7: 0.12.`));
    return { sentence: [text, "+0.12", "(3)"].map((each) => at(plain(), each)),
        first: [text, "0.12"].map((each) => at(first(), each)),
        name: h("p", null, name(text)).textContent, prompt: h("p", { dir: "auto" }, text).textContent };
}"""
"""Left and right ends of parts of a sentence with a name from right to left; texts with a direction of their own."""


def test_names_from_right_to_left_reverse_nothing(shown: Shown) -> None:
    """A name, its number and a bracket stand in the order of the sentence; texts of another direction stay as given."""
    shown.open("now")
    places = shown.page.evaluate(PLACES, RIGHT_TO_LEFT)
    for parts in (places["sentence"], places["first"]):
        assert parts == sorted(parts), parts
        assert all(before[1] <= after[0] + 1 for before, after in itertools.pairwise(parts)), parts
    assert places["name"] == places["prompt"] == RIGHT_TO_LEFT


def test_a_role_is_shown_as_it_was_given(shown: Shown) -> None:
    """Also where it is learnt under another name, which has no tags."""
    for path in ("now", "learning"):
        assert ROLE in shown.http.get(f"/console/api/{path}").json()["personalisation"], path
    shown.open("now")
    assert ROLE in shown.page.inner_text("section[aria-label='What personalisation buys']")


def test_ratings_without_a_user_are_nobodys(shown: Shown) -> None:
    """Now counts the people that People lists, and says the others apart."""
    listed = shown.http.get("/console/api/people").json()
    reward = shown.http.get("/console/api/now", params={"window": "all"}).json()["totals"]["reward"]
    assert (reward["people"], reward["anonymous"]) == (listed["raters"], NOBODYS) == (2, NOBODYS)
    assert reward["ratings"] - NOBODYS == sum(one["rating"]["ratings"] for one in listed["listed"])
    shown.open("now?window=all")
    about = shown.page.inner_text("section[aria-label='Mean rating, 0 to 1'] .about")
    assert f"9 rated answers by 2 people and {NOBODYS} without a user" in about


def test_alarms_are_shown_without_figures(gateway: Any, browser: Any) -> None:
    """Those that need none, beside the sentence that figures cannot be read; nothing says that all is well."""
    url, _ = gateway
    page = browser.new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    with unreadable(WAREHOUSE), client(url) as http:
        wait_for(lambda: http.get("/console/api/now").status_code == 503)
        assert "blank" in str(http.get("/console/api/now").json()["alarms"])
        page.goto(f"{url}/console#/now")
        sync_api.expect(page.locator("ul.alarms")).to_contain_text("No price is known of blank")
        sync_api.expect(page.locator("[role=alert]")).to_contain_text(REASON)
        page.route(
            "**/console/api/now*",
            lambda each: each.fulfill(status=503, body=json.dumps({"alarms": [], "error": {"message": REASON}})),
        )
        page.reload()
        sync_api.expect(page.locator("[role=alert]")).to_contain_text(REASON)
        assert page.inner_text(".body").strip() == f"figures: {REASON}", "nor that all is well"
    page.close()


def test_what_is_being_estimated_says_so(shown: Shown) -> None:
    """The list of people does not show dots where the leaderboard is being computed."""
    with mock.patch.object(_people.Boards, "get", return_value=(None, True)):
        shown.open("people")
        cells = shown.page.locator("[data-label='expected with it'], [data-label='with the default']").all_inner_texts()
    assert cells
    assert set(cells) == {"being estimated"}
